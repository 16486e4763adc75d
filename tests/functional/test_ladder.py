"""A ladder foretells the loss of a run before it begins, and the run has both."""

import json
import shutil

import pytest

SIZES = (0.25, 0.5, 1, 2)


def law(size):
    return 2 + 3 * size**-0.2


@pytest.fixture
def words(tiny, loop):
    """Return the command line of the run that `pretrained` is."""
    return ("pretrain", "data=sample_text", "data.length=32", *tiny, *loop, "loop.steps=6")


@pytest.fixture
def ladder(tmp_path, pretrained):
    """Return a sweep of made-up runs on the text of `pretrained`, some smaller and some larger."""
    whole = json.loads((pretrained / "results.json").read_text())
    for number, size in enumerate(SIZES):
        run = tmp_path / "ladder" / str(number)
        run.mkdir(parents=True)
        for name in ("config.yaml", "status.json", "timing.json", "environment.json"):
            shutil.copy(pretrained / name, run)
        presets = json.loads((pretrained / "presets.json").read_text())
        (run / "presets.json").write_text(json.dumps({**presets, "sweep": "ladder"}))
        cost = {"flops": int(size * whole["cost"]["flops"])}
        measures = {"validation": {"loss": law(size)}}
        made = {**whole, "measures": measures, "cost": cost, "presets": presets}
        (run / "results.json").write_text(json.dumps(made))
    return tmp_path / "ladder"


@pytest.mark.slow
def test_a_run_says_what_was_foretold_of_it(transfer, words, ladder, read_json):
    said = transfer("plan", *words, "plan.steps=0", f"ladder.of={ladder}").ok().out
    transfer(*words, "run.dir=run", f"ladder.of={ladder}").ok()

    foretold = read_json("run/results.json")["prediction"]
    assert list(foretold) == ["loss", "low", "high"]
    assert foretold["low"] <= foretold["loss"] <= foretold["high"]
    assert foretold["loss"] == pytest.approx(law(1), abs=0.05)
    assert f"{foretold['loss']:.3f}" in said
    assert "foretold" in transfer("report", "run", str(ladder)).ok().out


@pytest.mark.parametrize(
    "more", ["loop.steps=600", "data.length=16", "tokenizer.size=300"],
    ids=["too far", "other blocks", "other tokens"],
)  # fmt: skip
def test_nothing_is_foretold_beyond_the_law_or_of_other_losses(transfer, words, ladder, more):
    ended = transfer(*words, "run.dir=run", f"ladder.of={ladder}", more)

    assert (ended.code, ended.err.count("ladder.of:")) == (2, 1)


@pytest.mark.slow
def test_a_budget_chooses_by_a_ladder_that_has_read_more_and_less(transfer, ladder, words):
    for number, run in enumerate(sorted(ladder.iterdir())):
        for ratio in (1, 4):  # of tokens a parameter
            made = json.loads((run / "results.json").read_text())
            made["parameters"]["total"] = size = 30_000 * 4**number
            made["seen"]["tokens"] = size * ratio
            made["cost"]["flops"] = 6 * size**2 * ratio
            made["measures"]["validation"]["loss"] = 1 + 9 * size**-0.2 + 9 * (size * ratio) ** -0.2
            copy = shutil.copytree(run, run.with_name(f"{run.name}-{ratio}"))
            (copy / "results.json").write_text(json.dumps(made))
        shutil.rmtree(run)
    of_text = [word for word in words if not word.startswith(("model", "loop", "logger"))]

    said = transfer("plan", *of_text, "budget=1e11flop", f"ladder.of={ladder}", "plan.steps=0").ok()

    assert f"is foreseen by {ladder}" in said.err


@pytest.mark.parametrize("word", ["ladder.target=soon", "ladder.of=nowhere"])
def test_a_ladder_that_is_none_is_refused_at_once(transfer, words, word):
    ended = transfer(*words, "run.dir=run", word)

    assert (ended.code, ended.err.count(word.partition("=")[0])) == (2, 1)


def test_a_ladder_is_a_sweep_over_depths(transfer, words):
    shown = transfer(*words, "sweep=ladder", "--cfg", "job").ok().out

    assert "2,3,4,5" in shown
    assert "dial" in shown
