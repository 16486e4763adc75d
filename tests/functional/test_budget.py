"""`budget=`: a run that ends in time, with the depth and length that were chosen."""

import json
import time
from pathlib import Path

import pytest
import yaml

from transfer_cli.training.budgeted_adaptation import FEWEST_TEXTS

DIAL = ("data=sample_text", "tokenizer.size=600", "model.positions=64", "device=cpu", "logger=null")


@pytest.mark.slow
def test_a_run_ends_within_its_budget_and_says_what_it_chose(transfer):
    transfer("plan", "pretrain", *DIAL, "model=dial", "plan.steps=0").ok()  # encodes the text
    began = time.perf_counter()

    ended = transfer("pretrain", *DIAL, "budget=45s", "run.dir=run").ok()

    assert time.perf_counter() - began < 45
    assert ended.err.count("budget: ") == 3
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    choice = json.loads(Path("run/results.json").read_text())["dial"]
    assert choice["model.depth"] == config["model"]["depth"]
    assert config["loop"]["minutes"] < 45 / 60
    assert choice["foreseen"] > 0
    again = ("pretrain", *DIAL, "budget=45s", "run.dir=run", "resume=auto")
    assert "is finished" in transfer(*again).ok().err


def test_a_budget_below_a_step_is_refused(transfer):
    transfer("pretrain", *DIAL, "budget=1e8flop", "model.width=32").refusal("budget: 1e8flop")


@pytest.mark.slow
def test_a_budget_of_operations_is_spent(transfer):
    transfer("pretrain", *DIAL, "budget=3e10flop", "run.dir=run", "model.width=32").ok()

    cost = json.loads(Path("run/results.json").read_text())["cost"]
    assert cost["flops"] == pytest.approx(3e10, rel=0.15)
    assert planned(transfer, "pretrain") == Path("run/plan.txt").read_text()


@pytest.mark.parametrize(
    ("of_depth_3", "depth"), [pytest.param(7e-5, 3, marks=pytest.mark.slow), (5e-4, 4)]
)
def test_a_depth_that_turns_out_slow_is_not_chosen(of_depth_3, depth, transfer, monkeypatch):
    seconds = {2: 4e-5, 3: of_depth_3, 4: 1.4e-4, 8: 1e-3}

    class Speeds(dict):
        def get(self, key, default):
            return seconds[json.loads(key)["depth"]]

    monkeypatch.setattr("transfer_cli.training.budgeted._read_speeds", lambda place: Speeds())
    ended = transfer("plan", "pretrain", *DIAL, "plan.steps=0", "budget=600s").ok()

    assert f"budget: 600s: depth {depth} and" in ended.err


@pytest.mark.parametrize(
    ("budget", "measured"), [("200s", 1), pytest.param("9000s", 3, marks=pytest.mark.slow)]
)
def test_compiled_depths_are_measured_once_chosen(budget, measured, transfer, monkeypatch):
    asked = []

    class Speeds(dict):
        def get(self, key, default):
            asked.append(json.loads(key)["depth"])
            return 1e-7 * asked[-1] ** 2

    monkeypatch.setattr("transfer_cli.training.budgeted._read_speeds", lambda place: Speeds())
    words = ("plan.steps=0", f"budget={budget}", "loop.compile=true")
    ended = transfer("plan", "pretrain", *DIAL, *words).ok()

    assert len(asked) == len(set(asked)) == measured
    assert f"budget: {budget}: depth {asked[-1]} and" in ended.err


def planned(transfer, command):
    """Return the plan of a run that repeats another one, which has a budget."""
    shown = transfer("plan", command, "run/config.yaml", "plan.steps=0").ok()
    assert "budget: " not in shown.err
    return shown.out[: len(Path("run/plan.txt").read_text())]


def adapted(*words):
    """Return the words of a fine-tuning within a budget."""
    return ("finetune", "device=cpu", "logger=null", "run.dir=run", *words)


@pytest.mark.slow
def test_an_adaptation_ends_within_its_budget_and_goes_on(transfer, pretrained, masked, questions):
    table = ("data=table", f"data.train={questions}")
    words = adapted(*table, f"models=[{pretrained},{masked}]", "budget=1min")
    began = time.perf_counter()

    ended = transfer(*words).ok()

    assert time.perf_counter() - began < 60
    assert ended.err.count("budget: ") == 3
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert json.loads(Path("run/presets.json").read_text())["adaptation"] == "full"
    assert config["loop"]["minutes"] < 1
    assert config["init_from"] in {str(pretrained), str(masked)}
    assert "is finished" in transfer(*words, "resume=auto").ok().err
    assert planned(transfer, "finetune") == Path("run/plan.txt").read_text()


def test_a_time_too_short_to_train_has_an_answer(transfer, pretrained, questions):
    words = ("data=table", f"data.train={questions}", f"init_from={pretrained}")
    transfer(*adapted(*words, "budget=1s")).ok()
    again = transfer("plan", *adapted(*words, "budget=1s", "resume=auto", "plan.steps=0")).ok()

    assert "budget: " not in again.err
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert config["data"]["labelled"] == FEWEST_TEXTS
    assert "LBFGS" in config["optimizer"]["_target_"]


@pytest.mark.parametrize(
    ("word", "key"),
    [("dial.law=null", "dial.law"), ("~dial.law.D", "dial.law"), ("dial.law.N=0", "dial.law.N")],
)
def test_a_law_that_is_none_is_refused(transfer, word, key):
    ended = transfer("pretrain", *DIAL, "budget=1min", word)

    assert (ended.code, ended.err.count(f"{key}: ")) == (2, 1)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words",
    [("budget=10",), ("budget=1min", "model=tiny"), ("budget=1min", "loop.steps=5"),
     ("budget=1min", "loop.tokens=5e5"), ("budget=1min", "loop.minutes=5")],
)  # fmt: skip
def test_a_budget_that_cannot_be_is_refused(transfer, words):
    ended = transfer("pretrain", *DIAL[:1], *words)

    assert (ended.code, ended.err.count("budget: ")) == (2, 1)
