"""`transfer analyze analysis=similarity`: two runs, and a run over time."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.functional

HERE = ("analysis=similarity", "device=cpu")


@pytest.fixture
def found(transfer, read_json):
    """Return how to compare; gives what was written."""

    def call(*words):
        ended = transfer("analyze", *words, *HERE, "output=out")
        assert ended.code == 0, ended.err
        return read_json(Path("out/analyses/similarity.json"))

    return call


@pytest.fixture(scope="module")
def frozen(pretrained, loop):
    from transfer_cli.cli import main

    run = pretrained.with_name("frozen")
    words = ("data=sample_questions", f"init_from={pretrained}", *loop, "adaptation=frozen")
    assert main(["finetune", *map(str, words), "loop.steps=2", f"run.dir={run}"]) == 0
    return run


@pytest.mark.slow
def test_frozen_weights_have_not_moved_and_say_the_same(found, frozen):
    # What the run began with is the other model.
    content = found(frozen, "--html", "page.html")

    assert content["over"] == "tokens"
    assert [content["cka"][at][at] for at in (0, 1)] == pytest.approx([1, 1], abs=1e-6)
    assert content["cosine"] == pytest.approx([1, 1], abs=1e-6)
    moved = {(each["group"], each["kind"]): each["relative"] for each in content["moved"]}
    assert moved["embeddings", "all"] == moved["block.0", "all"] == moved["all", "all"] == 0
    assert moved["head.class", "all"] is None
    assert 'class="cells shades"' in Path("page.html").read_text()


def test_checkpoints_are_compared_over_time(found, pretrained):
    first = sorted(pretrained.glob("checkpoints/step-*"))[0]
    words = ("analysis.similarity.over_time=true", "analysis.similarity.most=50")
    content = found(pretrained, f"other={first}", *words, "split=validation")

    assert content["estimate"] == "debiased"
    steps = content["over_time"]
    assert [each["step"] for each in steps] == sorted(each["step"] for each in steps)
    assert steps[0]["cka"] == pytest.approx([1, 1], abs=1e-6)
    assert steps[0]["moved"]["all"] == 0 < steps[-1]["moved"]["all"]


def test_models_that_read_other_tokens_are_compared_by_texts(found, transfer, finetuned, teacher):
    content = found(finetuned, f"other={teacher}")

    assert (content["over"], content["cosine"]) == ("texts", None)
    assert (len(content["cka"]), len(content["cka"][0])) == (2, 3)
    words = (finetuned, f"other={teacher}", "analysis.similarity.over=tokens", "output=two")
    ended = transfer("analyze", *words, *HERE)
    assert ended.code == 2
    assert "do not read these texts as the same tokens" in ended.err
    assert not Path("two").exists()
