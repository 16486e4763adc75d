"""The first losses of three tiny runs, as they were when somebody last looked.

A "refactoring" that changes the mathematics fails here first. Where a change is meant to, write the
files anew, in a commit that says why:

    TRANSFER_GOLDEN=write python -m pytest tests/golden
"""

import json
import os
from pathlib import Path

import pytest

from tests import tiny
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.optim.layer_scale import Geometric
from transfer_cli.optim.schedules import Cosine, Linear, Slanted

STEPS = 20

# No dropout: its random numbers are not the same on every processor.
RUNS = {
    "clm": lambda: tiny.run(
        CausalLM(), tiny.blocks(), tiny.Recipe(total=STEPS, schedule=Cosine(4), clip=1.0),
        micro_batch=5,
    ),
    "mlm": lambda: tiny.run(
        MaskedLM(), tiny.blocks(), tiny.Recipe(total=STEPS, schedule=Linear(0.2), clip=0.25),
        direction="bidirectional", residual="post",
    ),
    "classification": lambda: tiny.run(
        Classification(dropout=0.0), tiny.Questions(),
        tiny.Recipe(total=STEPS, schedule=Slanted(), layer_scale=Geometric(1.2)),
        residual="tutorial", activation="relu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_the_first_losses_are_those_of_before(name):
    path = Path(__file__).with_name(f"{name}.json")
    losses = RUNS[name]().go().losses
    if os.environ.get("TRANSFER_GOLDEN") == "write":
        path.write_text(json.dumps([round(loss, 6) for loss in losses], indent=1) + "\n")

    expected = json.loads(path.read_text())

    assert len(losses) == STEPS
    assert losses == pytest.approx(expected, rel=1e-4)
