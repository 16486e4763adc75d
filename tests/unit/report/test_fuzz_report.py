"""A report of files in which anything may stand: it says what it cannot read, and never breaks."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_runs import write_run, write_sweep
from tests.fuzzing import altered, damaged, fuzz
from transfer_cli.commands.diff import diff
from transfer_cli.commands.report import report
from transfer_cli.errors import TransferError
from transfer_cli.runs.sweep import SweepJob

FILES = (
    "config.yaml", "presets.json", "environment.json", "status.json", "results.json",
    "timing.json", "overrides.txt", "items.jsonl",
)  # fmt: skip
JOBS = ("sweep.json", "job-0.json", "job-1.json")


@pytest.fixture
def runs(tmp_path):
    """Return a folder of two runs, one of which is going to be damaged."""
    write_run(tmp_path / "good", adaptation="lora", wrong=range(3))
    write_run(tmp_path / "bad", wrong=range(6))
    return tmp_path


@pytest.mark.slow
@fuzz(60)
@given(data=st.data())
def test_fuzz_bytes_of_a_run(runs, capsys, data):
    path = runs / "bad" / data.draw(st.sampled_from(FILES))
    with_content(path, data.draw(damaged(path.read_bytes())), lambda: look_at(runs, capsys))


@pytest.mark.slow
@fuzz(100)
@given(data=st.data())
def test_fuzz_values_of_a_run(runs, capsys, data):
    path = runs / "bad" / data.draw(st.sampled_from([each for each in FILES if "json" in each]))
    values = [json.loads(line) for line in path.read_text().splitlines()]
    content = "".join(f"{json.dumps(value)}\n" for value in data.draw(altered(values)))
    with_content(path, content.encode(), lambda: look_at(runs, capsys))


@pytest.mark.slow
@fuzz(60)
@given(data=st.data())
def test_fuzz_settings(runs, capsys, data):
    path = runs / "bad" / "config.yaml"
    config = data.draw(altered(yaml.safe_load(path.read_text())))
    # YAML reads JSON, in which every text is in quotes.
    with_content(path, json.dumps(config).encode(), lambda: look_at(runs, capsys))


@pytest.mark.slow
@fuzz(60)
@given(data=st.data())
def test_fuzz_sweeps(tmp_path, capsys, data):
    sweep = tmp_path / "sweep"
    if not sweep.exists():
        done = SweepJob(0, ("seed=0",), outcome="done", seconds=2.0)
        write_sweep(sweep, done, SweepJob(1, ("seed=1",), outcome="failed", reason="so"), trials=4)
        write_run(sweep / "0")
        write_run(sweep / "1", seed=1)
    path = sweep / data.draw(st.sampled_from(JOBS))
    values = data.draw(altered(json.loads(path.read_text())))
    with_content(path, json.dumps(values).encode(), lambda: look_at(sweep, capsys, ("0", "1")))


def with_content(path, content, look):
    """Look while a file holds something else."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        look()
    finally:
        path.write_bytes(before)


def look_at(folder, capsys, runs=("good", "bad")):
    """Report on a folder in every form, and on how its two runs differ."""
    files = ("--csv", "out.csv", "--markdown", "out.md", "--json", "report.json")
    words = [word if word.startswith("--") else str(folder / word) for word in files]
    report([str(folder), *words])
    try:
        diff([str(folder / name) for name in runs])
    except TransferError as error:
        assert "\n" not in str(error)  # noqa: PT017 - may also succeed
    shown = capsys.readouterr().out + (folder / "out.csv").read_text()
    assert all(each.isprintable() or each == "\n" for each in shown)
    json.loads((folder / "report.json").read_text())
