"""Does the measure that decides which weights are best exist? Asked before anything is trained."""

import numpy as np
import torch
from omegaconf import DictConfig

from transfer_cli.batch import Batch
from transfer_cli.engine.evaluate import Split, evaluate
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.step import Loss
from transfer_cli.errors import ConfigError, nearest
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.transfer_model import TransferModel

LENGTH = 4
"""Positions of the stand-in example."""


class _OneExample:
    """A data set of one example that says nothing, and has all that an objective may ask for."""

    def __init__(self, token: int) -> None:
        self._token = token

    def __len__(self) -> int:
        return 1

    def batch(self, indices: np.ndarray) -> Batch:
        tokens = torch.full((1, LENGTH), self._token)
        return {
            "tokens": tokens,
            "mask": torch.ones(1, LENGTH, dtype=torch.bool),
            "index": torch.zeros(1, dtype=torch.long),
            "next_tokens": tokens,
            "label": torch.zeros(1, dtype=torch.long),
        }


def check_monitor(config: DictConfig, main: Loss, vocabulary: int, direction: str) -> None:
    """Refuse a `loop.monitor` that the main objective does not measure.

    The objective measures one made-up example with a model of the smallest size, which takes
    milliseconds whatever the run's own model is.

    Raises:
        ConfigError: There is no such measure.
    """
    monitor = config.loop.monitor
    shape = BackboneShape(8, 1, 1, 8, LENGTH, direction=direction)  # type: ignore[arg-type]
    state = torch.get_rng_state()
    small = Backbone(shape, vocabulary)
    model = TransferModel(small, main.objective.modules(small))
    torch.set_rng_state(state)
    ordinary = next(
        n for n in range(vocabulary) if n not in main.objective.facts.vocabulary.special
    )
    split = Split("validation", _OneExample(ordinary))
    precision = Precision("fp32", torch.device("cpu"))
    known = evaluate(model, main.objective, split, batch=1, precision=precision).measures
    # What is measured of a class, or of another loss, depends on what there is.
    if monitor not in known and "/" not in monitor:
        raise ConfigError(
            f"loop.monitor: there is no measure {monitor!r}.{nearest(monitor, known)} "
            f"This run measures {', '.join(name for name in known if '/' not in name)}"
        )
