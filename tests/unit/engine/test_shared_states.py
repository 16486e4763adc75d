"""A folder of states that runs share: found again, never trusted blindly, never in the way."""

import errno
import os
import resource
import signal
import time

import pytest
import torch

from tests import tiny
from transfer_cli.adaptation.plans import Only
from transfer_cli.engine.features import shared_states
from transfer_cli.engine.features.cached import CachedFeatures
from transfer_cli.engine.features.shared_states import HIT, LOCAL, STORED, SharedStates
from transfer_cli.objectives.classification import Classification

SIZE = (5, 1, 4)
BYTES = 5 * 4 * 4


def states(value=1.0):
    return torch.full(SIZE, value)


def fetched(folder, key=0, value=1.0, **circumstances):
    """Return what came of a request, and the states."""
    shared = SharedStates(folder, circumstances)
    tensor = shared.fetch({"key": key}, SIZE, lambda: states(value))
    return shared.outcomes[0], tensor


def entries(folder):
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


# --- what is found again -----------------------------------------------------------------------


def test_the_second_run_takes_what_the_first_one_computed(tmp_path):
    first, second = fetched(tmp_path, value=0.1), fetched(tmp_path, value=7.0)

    assert (first[0], second[0]) == (STORED, HIT)
    assert torch.equal(first[1], second[1])
    assert torch.equal(second[1], states(0.1))


@pytest.mark.parametrize("other", [{"key": 1}, {"compile": True}])
def test_another_key_and_other_circumstances_are_another_entry(tmp_path, other):
    fetched(tmp_path)

    came, tensor = fetched(tmp_path, value=2.0, **other)

    assert came == STORED
    assert torch.equal(tensor, states(2.0))
    assert len(entries(tmp_path)) == 2


def test_what_a_run_writes_into_its_states_stays_its_own(tmp_path):
    fetched(tmp_path)

    fetched(tmp_path)[1].zero_()

    assert torch.equal(fetched(tmp_path)[1], states())


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: os.truncate(entry / "states.bin", BYTES - 4),
        lambda entry: os.truncate(entry / "states.bin", BYTES + 4),
        lambda entry: (entry / "states.bin").write_bytes(b"\1" * BYTES),
        lambda entry: (entry / "states.bin").unlink(),
    ],
    ids=["short", "long", "other bits", "no states"],
)
def test_what_is_damaged_is_computed_again(tmp_path, caplog, damage):
    fetched(tmp_path)
    damage(entries(tmp_path)[0])

    came, tensor = fetched(tmp_path, value=3.0)

    assert came == STORED
    assert torch.equal(tensor, states(3.0))
    assert "damaged and is made again" in caplog.text
    assert fetched(tmp_path)[0] == HIT


# --- how much ----------------------------------------------------------------------------------


def test_the_longest_unused_goes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_states, "MOST_BYTES", 3 * BYTES)
    for key in (1, 2, 3):
        fetched(tmp_path, key)
        time.sleep(0.02)
    fetched(tmp_path, 1)

    fetched(tmp_path, 4)

    assert len(entries(tmp_path)) == 3
    assert [fetched(tmp_path, key)[0] for key in (1, 3, 4)] == [HIT] * 3
    assert fetched(tmp_path, 2)[0] == STORED


def test_states_that_have_been_removed_stay_with_who_has_them(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_states, "MOST_BYTES", BYTES)
    fetched(tmp_path, 1, value=0.5)
    _, held = fetched(tmp_path, 1)

    fetched(tmp_path, 2)

    assert len(entries(tmp_path)) == 1
    assert torch.equal(held, states(0.5))


def test_what_is_too_large_for_the_folder_stays_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_states, "MOST_BYTES", BYTES - 1)

    came, tensor = fetched(tmp_path / "features")

    assert came == LOCAL
    assert torch.equal(tensor, states())
    assert not (tmp_path / "features").exists()


# --- a disk that does not want to --------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a POSIX system")
def test_a_full_disk_is_no_hindrance_and_leaves_nothing_behind(tmp_path, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES // 2, hard))
    try:
        came, tensor = fetched(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert came == LOCAL
    assert torch.equal(tensor, states())
    assert os.strerror(errno.EFBIG) in caplog.text
    assert entries(tmp_path) == []
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert fetched(tmp_path)[0] == STORED


# --- of a real backbone ------------------------------------------------------------------------


def features(folder, data=None, model=None, batch=7, layers=(-1,), circumstances=None):
    shared = SharedStates(folder, circumstances or {})
    model = model or lively()
    data = data or tiny.Questions(examples=60)
    made = CachedFeatures(data, model, tiny.FP32, batch=batch, layers=layers, shared=shared)
    return shared.outcomes[0], made


def lively(seed=0, **changes):
    return tiny.lively(tiny.model(Classification(), **changes), seed)


def test_a_run_on_shared_features_is_that_on_its_own_to_the_last_bit(tmp_path):
    data = tiny.Questions(examples=60)
    recipe = tiny.Recipe(plan=Only(("head.*",)), frozen_eval=True)
    runs = []
    for alone in (True, False, False):
        run = tiny.run(Classification("mean"), data, recipe)
        model = run.step.model
        run.data = CachedFeatures(
            data, model, tiny.FP32, batch=7, layers=(-1,),
            shared=None if alone else SharedStates(tmp_path, {}),
        )  # fmt: skip
        runs.append(run.go())

    assert len(entries(tmp_path)) == 1
    for run in runs[1:]:
        assert run.losses == runs[0].losses
        assert tiny.same(tiny.weights_of(run.step.model), tiny.weights_of(runs[0].step.model))


def test_the_backbone_is_not_asked_again_and_left_in_evaluation_mode(tmp_path):
    features(tmp_path)
    model, calls = lively().train(), []
    model.backbone.register_forward_hook(lambda *_: calls.append(1))

    came, _ = features(tmp_path, model=model)

    assert (came, calls, model.training) == (HIT, [], False)


def test_other_heads_and_labels_find_the_same_states(tmp_path):
    features(tmp_path)
    model, data = lively(), tiny.Questions(examples=60)
    torch.nn.init.zeros_(model.heads["class"].linear.weight)
    data.labels = data.labels[::-1]

    assert features(tmp_path, data, model)[0] == HIT


def changed_weight():
    model = lively()
    with torch.no_grad():
        model.backbone.blocks[1].attention.output.weight[0, 0] += 1e-7
    return {"model": model}


class Backwards(tiny.Questions):
    def batch(self, indices):
        return super().batch(59 - indices)


class Pairs(tiny.Questions):
    def batch(self, indices):
        view = super().batch(indices)
        return {**view, "segment": view["mask"].long()}


OTHERS = {
    "one weight": changed_weight,
    "other weights": lambda: {"model": lively(1)},
    "another order": lambda: {"data": Backwards(examples=60)},
    "segments": lambda: {"data": Pairs(examples=60)},
    "one example less": lambda: {"data": tiny.Questions(examples=59)},
    "all layers": lambda: {"layers": None},
    "another layer": lambda: {"layers": (0,)},
    "another batch": lambda: {"batch": 8},
    "another kind of block": lambda: {"model": lively(residual="post")},
    "an edit": lambda: {"circumstances": {"edits": {"lora": {"alpha": 2}}}},
}


@pytest.mark.parametrize("other", OTHERS)
def test_whatever_changes_the_states_is_another_entry(tmp_path, other):
    features(tmp_path)

    assert features(tmp_path, **OTHERS[other]())[0] == STORED
    assert len(entries(tmp_path)) == 2


def test_another_number_of_threads_is_another_entry(tmp_path, monkeypatch):
    features(tmp_path)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)

    assert features(tmp_path)[0] == STORED
