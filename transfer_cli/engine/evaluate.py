"""Score a split: sums over all of it, divided once.

The batch size, the order and the number of processes cannot change a measure, and nothing random is
shared with training: masks come from a seed of their own and each example's number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import ignite.distributed as idist
import numpy as np
import torch
from ignite.engine import Engine
from ignite.metrics import Metric
from ignite.metrics.metric import reinit__is_reduced
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.data.steps import in_portions
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.split import Dataset, Split
from transfer_cli.engine.step import on_device
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective, Sample
from transfer_cli.seeds import ExampleNoise

EVALUATION_SEED = 0
"""Masks of an evaluation never depend on the run's seed, so that runs can be compared."""


@dataclass(frozen=True)
class Scores:
    """What an evaluation found.

    Args:
        measures: Numbers by name.
        tables: Counts by name, such as a confusion table.
    """

    measures: dict[str, float]
    tables: dict[str, list[list[int]]]


class Sums(Metric):
    """What an objective adds up over a split, exactly, on any number of processes."""

    @reinit__is_reduced
    def reset(self) -> None:
        """Forget everything."""
        self._totals: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}

    @reinit__is_reduced
    def update(self, output: tuple[dict[str, Tensor], dict[str, int]]) -> None:
        """Add a batch's tallies, in float64, and its counts."""
        tallies, counts = output
        for name, value in tallies.items():
            value = value.detach().to("cpu", torch.float64)
            self._totals[name] = self._totals.get(name, torch.zeros_like(value)) + value
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, torch.tensor(0)) + count

    def compute(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return the totals and counts over everything."""
        totals = {name: torch.as_tensor(idist.all_reduce(v)) for name, v in self._totals.items()}
        counts = {name: int(idist.all_reduce(count)) for name, count in self._counts.items()}
        return totals, counts


def evaluate(
    model: TransferModel,
    objective: Objective,
    split: Split,
    *,
    batch: int,
    precision: Precision,
) -> Scores:
    """Return what the objective measures on a split; the model is left in evaluation mode."""

    def score(engine: Engine, indices: np.ndarray) -> tuple[dict[str, Tensor], dict[str, int]]:
        prepared = objective.prepare(split.data.batch(indices), evaluation_noise())
        view = on_device({"": prepared}, precision.device)[""]
        with torch.inference_mode(), precision.context():
            tallies = objective.tallies(model, view, Encoding(model, view))
        return tallies, objective.counts(prepared)

    engine = Engine(score)
    Sums().attach(engine, "sums")
    model.eval()
    engine.run(portions(split, batch))
    totals, counts = engine.state.metrics["sums"]
    return Scores(objective.measures(totals, counts, split.text), objective.tables(totals))


def evaluation_noise() -> ExampleNoise:
    """Return the randomness of every evaluation, the same for any run."""
    return ExampleNoise(EVALUATION_SEED, "evaluate")


def samples(
    model: TransferModel, objective: Objective, split: Split, *, count: int, precision: Precision
) -> list[Sample]:
    """Return predictions for the first few examples of a split."""
    first = np.arange(min(count, len(split.data)))
    prepared = objective.prepare(split.data.batch(first), evaluation_noise())
    view = on_device({"": prepared}, precision.device)[""]
    model.eval()
    with torch.inference_mode(), precision.context():
        return objective.samples(model, view, Encoding(model, view))


def portions(split: Split, batch: int) -> Sequence[np.ndarray]:
    """Return the example numbers of each batch, every example once."""
    order = np.arange(len(split.data)) if split.order is None else split.order
    return in_portions(order, batch)


@runtime_checkable
class Classifier(Protocol):
    """An objective that can be asked for the logits of classes."""

    def class_logits(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return `[B, C]`, in float32."""


def logits(
    model: TransferModel, objective: Objective, data: Dataset, *, batch: int, precision: Precision
) -> Iterator[Tensor]:
    """Yield each batch's logits of classes, in the order of the data.

    Raises:
        ConfigError: The objective has no `class_logits`.
    """
    if not isinstance(objective, Classifier):
        raise ConfigError(
            f"objective: {type(objective).__name__} has no class_logits, so it predicts no label"
        )
    model.eval()
    for indices in in_portions(np.arange(len(data)), batch):
        view = on_device({"": data.batch(indices)}, precision.device)[""]
        with torch.inference_mode(), precision.context():
            yield objective.class_logits(model, view, Encoding(model, view)).cpu()
