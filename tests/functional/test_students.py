"""Students of pretrained models: picked blocks, predictions and relations of a teacher."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.functional.conftest import TINY, finished

pytestmark = pytest.mark.functional

STEPS = ("device=cpu", "loop.batch=8", "loop.steps=4", "schedule=constant")
DISTIL = ("objective=distil_lm", "objective.teachers=[{teacher}]")
RELATE = ("objective=relation_distillation", "objective.teachers=[{teacher}]")


@pytest.fixture(scope="session")
def teacher(tmp_path_factory, corpus):
    """Return a masked language model of four blocks."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    finished(
        "pretrain", "data=text", f"data.train={corpus}", *TINY, "model.depth=4", "model.dropout=0",
        *STEPS, "objective=mlm", "optimizer.lr=1e-2", f"run.dir={folder}",
    )  # fmt: skip
    return folder


@pytest.fixture
def words(corpus, teacher):
    """Return the command line of a student, with what is typed for it."""

    def call(*more):
        typed = [word.format(teacher=teacher) for word in more]
        return ("pretrain", "data=text", f"data.train={corpus}", *STEPS, *typed)

    return call


@pytest.fixture
def small(words, tiny):
    """Return the command line of a student of half the width, with fresh weights."""
    return lambda *more: words(*tiny, "model.width=16", "model.depth=2", "model.dropout=0", *more)


def weights(run, part="model"):
    return load_file(Path(run) / part / "weights.safetensors")


def described(run):
    return json.loads((Path(run) / "model" / "model.json").read_text())


def ended(result):
    assert result.code == 0, result.err
    return result


def refused(result, said):
    assert result.code == 2
    assert re.search(said, result.err.splitlines()[-1]), result.err
    assert "Traceback" not in result.err


# --- picked blocks ------------------------------------------------------------------------------


PICK = ("init_from={teacher}", "objective=mlm", "optimizer.lr=1e-30", "run.dir=student")


@pytest.mark.parametrize(
    ("typed", "layers"),
    [
        (("model.depth=2",), (1, 3)),
        (("student.layers=[0,2,3]",), (0, 2, 3)),
        (("student.layers=[0,3]", "model.depth=2"), (0, 3)),
    ],
)
def test_a_student_begins_with_the_blocks_that_are_picked(transfer, words, teacher, typed, layers):
    ended(transfer(*words(*PICK, *typed)))

    before, found = weights(teacher), weights("student")
    place = dict(zip(map(str, layers), map(str, range(len(layers))), strict=True))
    for name, tensor in before.items():
        parts = name.split(".")
        if parts[1] == "blocks":
            parts[2] = place.get(parts[2], "")
        if all(parts):
            assert_close(found.pop(".".join(parts)), tensor, rtol=0, atol=0)
    assert not found
    assert described("student")["shape"]["depth"] == len(layers)


def test_a_plan_says_which_blocks_are_picked(transfer, words, teacher):
    found = ended(transfer("plan", *words(*PICK, "model.depth=2", "plan.steps=0")))

    assert f"blocks: 1, 3 of {teacher}" in " ".join(found.out.split())


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("student.layers=[0,4]", r"student\.layers: \[0, 4\] goes beyond .* 0 to 3"),
        ("student.layers=[1,0]", r"student\.layers: \[1, 0\] .* ascending"),
        ("model.depth=5", r"model\.depth: 5 blocks cannot be picked of 4"),
        ("model.depth=two", r"model\.depth: expected a number of blocks, got 'two'"),
        ("model.width=64", r"model\.width=64: init_from brings its own model"),
        (
            "student.layers=[0] model.depth=2",
            r"model\.depth: 2 blocks, and student\.layers picks 1",
        ),
        ("student.layers=[0] adaptation.store=trained", r"adaptation\.store: trained leaves"),
    ],
)
def test_blocks_that_cannot_be_picked_are_refused_in_one_line(transfer, words, typed, said):
    refused(transfer(*words(*PICK, *typed.split())), said)

    assert not Path("student").exists()


def test_blocks_need_a_model_to_be_picked_of(transfer, words):
    result = transfer(*words("objective=mlm", "student.layers=[0]", "model=tiny"))

    refused(result, r"student\.layers: there is no model .* init_from=TEACHER")


def test_of_a_model_with_edits_no_blocks_are_picked(transfer, words, teacher, corpus):
    lora = (f"init_from={teacher}", "adaptation=lora", "objective=mlm", "run.dir=edited")
    ended(transfer("pretrain", "data=text", f"data.train={corpus}", *STEPS, *lora))

    refused(
        transfer(*words("init_from=edited", "model.depth=2", "objective=mlm")),
        r"model\.depth: edited/model has blocks that were edited \(lora\)",
    )
