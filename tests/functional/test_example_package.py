"""The package of `docs/example`: a user's own parts, by command line and by our contracts."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests import tiny
from tests.records import read_metrics
from transfer_cli.batch import IGNORE
from transfer_cli.model.weights import read_description
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.seeds import ExampleNoise
from transfer_cli.testing.edits import check_edit
from transfer_cli.testing.objectives import check_objective
from transfer_cli.testing.plans import check_plan

EXAMPLE = Path(__file__).parents[2] / "docs" / "example"
QUICK = {
    "pretrain": ("device=cpu", "loop.steps=4", "schedule.warmup=1"),
    "finetune": ("device=cpu", "loop.steps=8", "schedule.warmup=1"),
    "evaluate": ("device=cpu",),
    "presets": (),
}


def commands():
    """Return the words of every command of the example's README."""
    (block,) = re.findall(r"```bash\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    return [shlex.split(line) for line in block.splitlines()]


@pytest.mark.slow
def test_every_command_of_the_readme_runs(transfer, mylab, read_json):
    ended = {}
    for tool, command, *words in commands():
        assert tool == "transfer"
        done = transfer(command, *words, *QUICK[command]).ok()
        ended[command] = done.out

    next_line = re.search(r"  next +(transfer .*)", ended["finetune"])[1]
    assert next_line.endswith(" --plugin mylab --config-dir conf")
    typed = shlex.split(next_line.replace("FILE", "names/validation.jsonl"))[1:]
    transfer(*typed, "text=words", "output=tags.jsonl").ok()
    assert "Swapped neighbours" in ended["presets"]
    assert "bottom_up" in ended["presets"]
    description = read_description(mylab / "runs" / "swapped" / "model")
    assert description.objective["_target_"].startswith("mylab.")
    assert description.shape.direction == "bidirectional"
    assert "accuracy" in ended["evaluate"]
    assert read_json(mylab / "runs" / "swapped" / "results.json")["measures"].keys() == {
        "validation", "test",
    }  # fmt: skip
    declared = read_json(mylab / "runs" / "swapped" / "results.json")["metrics"]
    assert [(metric["name"], metric["higher_is_better"]) for metric in declared] == [
        ("accuracy", True), ("loss", False),
    ]  # fmt: skip
    # It does not say what becomes of single examples.
    assert not (mylab / "runs" / "swapped" / "items.jsonl").exists()
    chosen = read_json(mylab / "runs" / "bottom-up" / "presets.json")
    assert chosen["adaptation/plan"] == "bottom_up"
    first = read_metrics(mylab / "runs" / "both" / "metrics.jsonl")[0]
    assert first["loss"] == pytest.approx(first["loss/main/loss"] + 0.1 * first["loss/order/loss"])


def test_the_own_objective_keeps_the_contract(mylab):
    from mylab.swapped_neighbours import SwappedNeighbours

    batch = tiny.Questions(causal=False).batch(np.arange(8))

    check_objective(SwappedNeighbours(rate=0.5), TaskInfo(tiny.VOCABULARY), batch)


def test_the_own_plan_keeps_the_contract(mylab):
    from mylab.plans import BottomUp

    check_plan(BottomUp())
    check_plan(BottomUp("7 steps"))
    with pytest.raises(ValueError, match="'soon' is no length"):
        BottomUp("soon")


def test_swapping_moves_neighbours_and_nothing_else(mylab):
    from mylab.swapped_neighbours import SwappedNeighbours

    objective = tiny.bound(SwappedNeighbours(rate=0.5))
    batch = tiny.Questions(causal=False).batch(np.arange(64))
    prepared = objective.prepare(batch, ExampleNoise(0, "swap"))
    before_BT, after_BT, target_BT = batch["tokens"], prepared["tokens"], prepared["target"]

    special_BT = torch.isin(before_BT, torch.tensor(sorted(tiny.VOCABULARY.special)))
    assert torch.equal(target_BT == IGNORE, special_BT)
    assert torch.equal((target_BT == 1) & (before_BT != after_BT), target_BT == 1)
    assert torch.equal(before_BT[target_BT != 1], after_BT[target_BT != 1])
    # Swapped tokens come in pairs, each of which holds what the other one held.
    for row in range(len(before_BT)):
        places = (target_BT[row] == 1).nonzero().squeeze(1)
        left, right = places[0::2], places[1::2]
        assert torch.equal(right, left + 1)
        assert torch.equal(after_BT[row, left], before_BT[row, right])
        assert torch.equal(after_BT[row, right], before_BT[row, left])
    assert 0.2 < float((target_BT == 1).sum() / (target_BT != IGNORE).sum()) < 0.8


@pytest.mark.slow
def test_a_size_a_data_set_and_a_sweep_are_one_yaml_each(transfer, mylab, deep, few_questions):
    configs = {
        "model/slim": "defaults:\n  - tiny\n  - _self_\nwidth: 8\nheads: 2\ndepth: 1\n",
        "data/quiz": f"defaults:\n  - table\n  - _self_\ntrain: {few_questions}\n",
        "sweep/clips": "# @package _global_\nsweep: {over: {loop.clip: '1,2'}}\n",
    }
    for name, text in configs.items():
        file = mylab / "conf" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    small = ("--config-dir", "conf", "data=quiz", "device=cpu", "loop.steps=2", "schedule=constant")

    fresh = (*small, "init=scratch", "model=slim", "tokenizer=wordpiece", "run.dir=fresh")
    transfer("finetune", *fresh, "tokenizer.size=300").ok()
    transfer("finetune", *small, "sweep=clips", f"init_from={deep}", "run.dir=swept",
             "sweep.isolate=false").ok()  # fmt: skip

    assert read_description(Path("fresh/model")).shape.width == 8
    assert [(Path("swept") / job / "results.json").is_file() for job in "01"] == [True, True]


# --- an edit whose parameter has a name that the package has never seen ------------------------

OWN = ("--plugin", "mylab", "--config-dir", "conf")


@pytest.fixture
def scaled(transfer, mylab, adapting):
    """Return how to fine-tune a few steps with the example's edit; gives the ended command."""

    def call(run, *words):
        pooling = "objective.pooling=cls_last"  # as published models pool
        chosen = (*adapting("scaled_attention"), pooling, "loop.steps=4", f"run.dir={run}")
        return transfer("finetune", *OWN, *chosen, *words)

    return call


def stored(run):
    return load_file(Path(run) / "model" / "weights.safetensors")


def rewrite(module, old, new):
    text = module.read_text()
    assert old in text
    module.write_text(text.replace(old, new))


def test_the_own_edit_keeps_the_contract(mylab):
    from mylab.scaled_attention import ScaledAttention

    check_edit(ScaledAttention())


def test_only_the_own_edit_and_the_head_train_and_only_they_are_stored(scaled, deep, read_json):
    ended = scaled("run", "adaptation/layer_scale=geometric", "schedule=constant")

    assert ended.code == 0, ended.err
    names = {f"backbone.blocks.{n}.attention.packed.factors.stretch" for n in (0, 1)}
    weights = stored("run")
    assert {name for name in weights if not name.startswith("heads.class.")} == names
    assert not any(torch.equal(weights[name], torch.ones(32)) for name in names)
    heads = sum(t.numel() for n, t in weights.items() if n.startswith("heads."))
    assert read_json(Path("run/results.json"))["parameters"]["trainable"] == 64 + heads
    (first, *_) = read_metrics(Path("run/metrics.jsonl"))
    rates = {key: value for key, value in first.items() if key.startswith("rate/")}
    # Those of pretrained blocks would shrink with depth.
    assert rates.keys() == {"rate/added.0", "rate/added.1", "rate/head.class"}
    assert rates["rate/added.0"] == rates["rate/added.1"] == rates["rate/head.class"] > 0
    assert read_json(Path("run/model/model.json"))["edits"] == {
        "scaled_attention": {"_target_": "mylab.scaled_attention.ScaledAttention"}
    }


def test_the_own_edit_is_there_again_when_a_run_is_opened(transfer, scaled, predictions):
    assert scaled("run").code == 0
    transfer("evaluate", *OWN, "run=run", "split=validation", "output=found.json").ok()
    again = json.loads(Path("found.json").read_text())["measures"]["validation"]

    assert again == json.loads(Path("run/results.json").read_text())["measures"]["validation"]
    assert len(predictions("run", *OWN)) == 30


WITH_LORA = ("adaptation/edits=[scaled_attention,lora]", "adaptation.edits.lora.targets=[output]")


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), WITH_LORA], ids=["alone", "beside lora"])
def test_the_own_edit_is_merged_because_it_says_that_it_can_be(scaled, deep, predictions, words):
    assert scaled("apart", *words).code == 0
    ended = scaled("merged", *words, "adaptation.store=merged")

    assert ended.code == 0, ended.err
    assert {n for n in stored("merged") if n.startswith("backbone.")} == {
        n for n in stored(deep) if n.startswith("backbone.")
    }
    assert not read_description(Path("merged/model")).edits
    assert torch.allclose(predictions("merged", *OWN), predictions("apart", *OWN), atol=1e-5)


def test_what_cannot_be_merged_is_refused_by_its_edits_name(transfer, scaled, mylab):
    rewrite(mylab / "mylab" / "scaled_attention.py", "def merged(", "def in_one(")
    what = "scaled keys and values (adaptation.edits.scaled_attention)"

    scaled("merged", "adaptation.store=merged").refusal("adaptation.store: merged", what)
    assert scaled("run").code == 0
    exported = transfer("export", *OWN, "run=run", "to=out")
    exported.refusal(what, "format=onnx takes any model")
    assert not Path("merged").exists()
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_search_goes_by_the_metric_that_the_own_objective_declares(transfer, mylab, read_json):
    pytest.importorskip("optuna", reason="needs Optuna: the extra `search`")

    ended = transfer(
        "pretrain", "--plugin", "mylab", "--config-dir", "conf", "experiment=sample/pretrain",
        "objective=swapped_neighbours", *QUICK["pretrain"], "sweep=search", "sweep.trials=2",
        "sweep.objective=validation/accuracy", "sweep.isolate=false", "optimizer.lr=1e-3,1e-2",
        "run.dir=runs/searched",
    ).ok()  # fmt: skip

    assert read_json(mylab / "runs" / "searched" / "sweep.json")["direction"] == "maximize"
    for number in (0, 1):
        reached = read_json(mylab / "runs" / "searched" / f"job-{number}.json")["value"]
        results = read_json(mylab / "runs" / "searched" / f"{number}" / "results.json")
        assert reached == results["measures"]["validation"]["accuracy"]
    assert "best run by validation: " in ended.out
