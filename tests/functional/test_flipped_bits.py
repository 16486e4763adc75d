"""One bit of a file flips: whoever reads it refuses it, makes it again or does without it."""

import json
import shutil
from pathlib import Path

import pytest

MODEL = ("weights.safetensors", "model.json", "tokenizer.json", "meta.json")
FIRST_IS_QUICK = [MODEL[0], *(pytest.param(name, marks=pytest.mark.slow) for name in MODEL[1:])]
STEP = "step-00000006"

SHARES = (
    0.5,
    *(pytest.param(each, marks=pytest.mark.slow) for each in (0.0, 0.03, 0.31, 0.77, 1.0)),
)
"""Where in a file a bit is flipped."""


def flip(file, share):
    """Change one bit of a file, so far from its begin."""
    content = bytearray(file.read_bytes())
    place = int(share * (len(content) - 1))
    content[place] ^= 1 << place % 7
    file.unlink()  # what shares it stays whole
    file.write_bytes(content)


def refused(ended, *said):
    """Return whether a command ended in one line that names the file, and left nothing."""
    return (
        ended.code == 2 and ended.err.count("\n") == 1 and all(text in ended.err for text in said)
    )


@pytest.fixture
def copied(finetuned, tmp_path):
    return shutil.copytree(finetuned, tmp_path / "run")


@pytest.fixture
def ask(transfer, few_questions):
    """Return how to have a run, or what is beside it, looked at by each command that opens it."""

    def call(command, place):
        out = Path("out")
        shutil.rmtree(out, ignore_errors=True)
        words = {
            "predict": ("predict", f"run={place}", f"input={few_questions}"),
            "evaluate": ("evaluate", f"run={place}"),
            "export": ("export", f"run={place}", f"to={out}"),
            "finetune": (
                "finetune", "data=sample_questions", f"init_from={place}", "loop.steps=1",
                "device=cpu", f"run.dir={out}",
            ),
        }  # fmt: skip
        return transfer(*words[command])

    return call


# --- a finished model --------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODEL)
@pytest.mark.parametrize("share", SHARES)
def test_a_model_with_a_flipped_bit_is_not_asked(copied, ask, name, share):
    whole = ask("predict", copied)
    assert whole.code == 0, whole.err
    flip(copied / "model" / name, share)

    ended = ask("predict", copied)

    assert refused(ended, "model", "damaged") or ended == whole
    assert name == "meta.json" or ended != whole


@pytest.mark.parametrize("name", FIRST_IS_QUICK)
@pytest.mark.parametrize("command", ["evaluate", "export", "finetune"])
def test_nor_is_it_scored_exported_or_trained_on(copied, ask, name, command):
    flip(copied / "model" / name, 0.6)

    assert refused(ask(command, copied), "is damaged", f"model/{name}")
    assert not Path("out").exists()


@pytest.mark.parametrize("name", FIRST_IS_QUICK)
def test_nor_is_one_on_which_another_was_trained(pretrained, transfer, tmp_path, ask, name):
    base = shutil.copytree(pretrained, tmp_path / "base")
    words = ("data=sample_questions", f"init_from={base}", "adaptation=lora", "loop.steps=1")
    transfer("finetune", *words, "device=cpu", "run.dir=run").ok()
    flip(base / "model" / name, 0.6)

    assert refused(ask("predict", "run"), "is damaged", f"base/model/{name}")


def test_where_a_copy_of_the_weights_is_left_it_is_named_and_cures(copied, ask):
    whole = ask("predict", copied)
    flip(copied / "model/weights.safetensors", 0.5)
    left = copied / "checkpoints/best/weights.safetensors"

    assert refused(ask("predict", copied), f"put its copy there, {left}")
    shutil.copy(left, copied / "model/weights.safetensors")
    assert ask("predict", copied) == whole


def test_a_model_of_an_earlier_version_has_no_list_and_is_opened(copied, ask):
    whole = ask("predict", copied)
    (copied / "model/meta.json").unlink()

    assert ask("predict", copied) == whole


# --- a run that goes on ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words(deep_words):
    return (
        *deep_words, "loop.steps=8", "loop.evaluate_every=2 steps", "checkpoint.every=3 steps",
        "checkpoint.keep=2",
    )  # fmt: skip


@pytest.fixture(scope="module")
def longer(tmp_path_factory, words):
    """Return a run that ended after 8 steps, and its copy as it was after 6."""
    from tests.functional.conftest import finished

    folder = tmp_path_factory.mktemp("longer")
    finished(*words, f"run.dir={folder / 'whole'}")
    finished(*words, "loop.steps=6", f"run.dir={folder / 'begun'}")
    return folder / "whole", folder / "begun"


def files_of_checkpoints():
    names = ("weights.safetensors", "train_state.pt", "best/weights.safetensors", "meta.json")
    older = [f"step-00000003/{name}" for name in names]
    more = [f"{STEP}/{name}" for name in names[:-1]] + ["best/meta.json", *older]
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in more]
    return [f"{STEP}/meta.json", "best/weights.safetensors", *slow]


@pytest.mark.parametrize("name", files_of_checkpoints())
def test_a_run_goes_on_from_what_is_whole(longer, transfer, tmp_path, name):
    whole, begun = longer
    run = shutil.copytree(begun, tmp_path / "run")
    flip(run / "checkpoints" / name, 0.6)

    ended = transfer("pretrain", f"resume={run}", "loop.steps=8").ok()

    newest = name.startswith(STEP)
    assert ("trying step 3, with 0 more left" in ended.err) is newest
    for file in ("model/weights.safetensors", "checkpoints/best/weights.safetensors"):
        assert (run / file).read_bytes() == (whole / file).read_bytes()
    measures = [json.loads((folder / "results.json").read_text())["measures"]
                for folder in (run, whole)]  # fmt: skip
    assert measures[0] == measures[1]


def test_a_finished_run_holds_what_is_equal_once(longer):
    files = [path for path in longer[1].rglob("*") if path.suffix in (".safetensors", ".pt")]

    assert len({path.stat().st_ino for path in files}) == len({path.read_bytes() for path in files})
    assert len(files) == 8


# --- the cache ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    ["encoded/*/tokens.bin", "encoded/*/meta.json", "encoded/*/seal.json",
     "tokenizers/*/tokenizer.json", "tokenizers/*/seal.json", "fisher/*/fisher.safetensors",
     "fisher/*/seal.json"],
)  # fmt: skip
@pytest.mark.parametrize("share", SHARES)
def test_a_flipped_bit_of_the_cache_changes_no_run(
    transfer, deep_words, adapting, monkeypatch, tmp_path, file, share
):
    words = ("finetune", *adapting("ewc")) if "fisher" in file else deep_words
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))
    transfer(*words, "loop.steps=1", "run.dir=first").ok()
    damaged = list((tmp_path / "cache").glob(file))
    for path in damaged:
        flip(path, share)

    second = transfer(*words, "loop.steps=1", "run.dir=second").ok()

    assert second.err.count("in the cache is damaged and is made again") == len(damaged) > 0
    for name in ("model/weights.safetensors", "metrics.jsonl", "results.json"):
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes()
