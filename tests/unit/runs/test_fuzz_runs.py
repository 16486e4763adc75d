"""The small files and the training state of a run are read or refused, whatever they hold."""

import io
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import ODD_VALUES, altered, damaged, fuzz, tried
from transfer_cli.errors import CheckpointError
from transfer_cli.runs import checkpoint
from transfer_cli.runs.checkpoint import newest_good, read_state
from transfer_cli.runs.directory import RunDirectory

STATE = {
    "step": {"optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}},
    "progress": {"step": 2},
}
SMALL = {"command": "pretrain", "status": "finished", "data": "text"}


def written(state) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def texts(values) -> st.SearchStrategy[bytes]:
    """Return altered values, or damaged text of them, as JSON."""
    whole = json.dumps(values).encode()
    return altered(values).map(json.dumps).map(str.encode) | damaged(whole)


@fuzz(150)
@given(content=damaged(written(STATE)))
def test_fuzz_training_states(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "train_state.pt").write_bytes(content)
    (folder / "meta.json").write_text('{"format": 1, "step": 2}')

    def read():
        assert isinstance(read_state(folder), dict)

    tried(read, CheckpointError)


@pytest.mark.slow
@fuzz(100)
@given(data=st.data())
def test_fuzz_lists_of_a_checkpoints_files(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz") / "checkpoints"
    checkpoint.write(folder / "step-00000002", 2, lambda _: None, STATE)
    meta = folder / "step-00000002" / "meta.json"
    meta.write_bytes(data.draw(texts(json.loads(meta.read_text()))))
    try:
        found = newest_good(folder)
    except CheckpointError:
        return
    assert found is None or found.name == "step-00000002"


@fuzz(150)
@given(content=texts(SMALL) | st.sampled_from(ODD_VALUES).map(json.dumps).map(str.encode))
def test_fuzz_small_files(tmp_path_factory, content):
    run = RunDirectory(tmp_path_factory.mktemp("fuzz"))
    for path in (run.environment, run.presets, run.status):
        path.write_bytes(content)

    assert isinstance(run.read_command(), str)
    assert isinstance(run.read_status(), str)
    try:
        presets = run.read_presets()
    except CheckpointError:
        return
    assert all(isinstance(option, str) for option in presets.values())
