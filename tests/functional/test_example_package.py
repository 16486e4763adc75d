"""The package of `docs/example`: a user's own parts, by command line and by our contracts."""

import importlib
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.model.weights import read_description
from transfer_cli.objectives.base import Facts
from transfer_cli.runs.records import read_metrics
from transfer_cli.seeds import ExampleNoise
from transfer_cli.testing.objectives import check_objective
from transfer_cli.testing.plans import check_plan

pytestmark = pytest.mark.functional

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


@pytest.fixture
def mylab(tmp_path, monkeypatch):
    """Put a copy of the example into the test's folder, and know no other one."""
    forget()
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    importlib.invalidate_caches()
    yield tmp_path
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


def test_every_command_of_the_readme_runs(transfer, mylab, read_json):
    ended = {}
    for tool, command, *words in commands():
        assert tool == "transfer"
        done = transfer(command, *words, *QUICK[command])
        assert done.code == 0, done.err
        ended[command] = done.out

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
    assert [(each["name"], each["higher_is_better"]) for each in declared] == [
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

    check_objective(SwappedNeighbours(rate=0.5), Facts(tiny.VOCABULARY), batch)


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
