"""Does the measure that decides which weights are best exist? Asked before anything is trained."""

import torch
from omegaconf import DictConfig

from transfer_cli.batch import Batch
from transfer_cli.data.split import NO_TEXT
from transfer_cli.engine.step import Loss
from transfer_cli.errors import ConfigError, nearest
from transfer_cli.model.backbone import Backbone, BackboneShape, Direction
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.seeds import ExampleNoise

LENGTH = 4
"""Positions of the stand-in example."""


def _example(token: int) -> Batch:
    """Return an example that says nothing, with all that an objective may ask for."""
    tokens = torch.full((1, LENGTH), token)
    return {
        "tokens": tokens,
        "mask": torch.ones(1, LENGTH, dtype=torch.bool),
        "index": torch.zeros(1, dtype=torch.long),
        "next_tokens": tokens,
        "label": torch.zeros(1, dtype=torch.long),
    }


def check_monitor(config: DictConfig, main: Loss, vocabulary: int, direction: Direction) -> None:
    """Refuse a `loop.monitor` that the main objective does not measure.

    The objective measures one made-up example with a model of the smallest size, which takes
    milliseconds whatever the run's own model is.

    Raises:
        ConfigError: There is no such measure.
    """
    monitor = config.loop.monitor
    shape = BackboneShape(8, 1, 1, 8, LENGTH, direction=direction)
    state = torch.get_rng_state()
    small = Backbone(shape, vocabulary)
    model = TransferModel(small, main.objective.modules(small))
    torch.set_rng_state(state)
    special = main.objective.facts.vocabulary.special
    ordinary = next(token for token in range(vocabulary) if token not in special)
    batch = main.objective.prepare(_example(ordinary), ExampleNoise(0, "monitor"))
    model.eval()
    with torch.inference_mode():
        tallies = main.objective.tallies(model, batch, Encoding(model, batch))
    known = main.objective.measures(tallies, main.objective.counts(batch), NO_TEXT)
    # What is measured of a class, or of another loss, depends on what there is.
    if monitor not in known and "/" not in monitor:
        raise ConfigError(
            f"loop.monitor: there is no measure {monitor!r}.{nearest(monitor, known)} "
            f"This run measures {', '.join(name for name in known if '/' not in name)}"
        )
