"""Score a split: sums over all of it, divided once.

The batch size, the order and the number of processes cannot change a measure, and nothing random is
shared with training: masks come from a seed of their own and each example's number.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from ignite.engine import Engine
from ignite.metrics import Metric
from ignite.metrics.metric import reinit__is_reduced
from torch import Tensor, nn

from transfer_cli.batch import Batch
from transfer_cli.data.sampler import micro_batches, num_micro_batches, shard
from transfer_cli.data.split import Dataset, Split
from transfer_cli.engine import distributed
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.step import on_device
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults, Objective, Sample
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


@dataclass(frozen=True)
class Outcome:
    """What became of one row.

    Args:
        index: Its number in the split.
        loss: Summed over its targets, in nats.
        targets: How many it has.
        predicted: What its task makes a result of, by name; see `objectives.base.ExampleResults`.
    """

    index: int
    loss: float
    targets: int
    predicted: Mapping[str, Any]


class EachExample:
    """What became of every row of a split, noted while an evaluation goes through it."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def note(self, indices: Iterable[int], found: ExampleResults) -> None:
        """Note the rows of a batch that this process has scored."""
        self._rows += zip(
            map(int, indices),
            found.loss.double().tolist(),
            found.targets.tolist(),
            row_by_row(found.predicted, len(found.loss)),
            strict=True,
        )

    def gathered(self) -> list[Outcome]:
        """Return those of all processes, by number; nothing where the objective has no outcomes."""
        rows = itertools.chain.from_iterable(
            json.loads(text) for text in distributed.all_gather_text(json.dumps(self._rows))
        )
        return [Outcome(*row) for row in sorted(rows, key=itemgetter(0))]


def row_by_row(found: Mapping[str, Tensor], count: int) -> list[dict[str, Any]]:
    """Return what was found of each row of a batch, as plain numbers and lists of them."""
    columns = {name: value.tolist() for name, value in found.items()}
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


class Sums(Metric):
    """What an objective adds up over a split, exactly, on any number of processes."""

    @reinit__is_reduced
    def reset(self) -> None:
        """Forget everything."""
        self._totals: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    @reinit__is_reduced
    def update(self, output: tuple[dict[str, Tensor], dict[str, int]]) -> None:
        """Add a batch's tallies, in float64, and its counts."""
        tallies, counts = output
        for name, value in tallies.items():
            value = value.detach().to("cpu", torch.float64)
            self._totals[name] = self._totals.get(name, torch.zeros_like(value)) + value
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, 0) + count

    def compute(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return the totals and counts over everything."""
        # A process without examples does not know what is counted; the first one always has some.
        shapes = {name: list(value.shape) for name, value in self._totals.items()}
        # Gathered, since a broadcast waits without limit for a process that hangs in its share.
        texts = distributed.all_gather_text(json.dumps([shapes, [*self._counts]]))
        named: list[Any] = json.loads(texts[0])
        empty = {n: torch.zeros(shape, dtype=torch.float64) for n, shape in named[0].items()}
        totals = empty | self._totals
        flat = torch.cat([value.flatten() for value in totals.values()]).tolist()
        summed = distributed.all_reduce_sum(
            [*flat, *(float(self._counts.get(n, 0)) for n in named[1])]
        )
        sizes = [value.numel() for value in totals.values()]
        parts = torch.tensor(summed[: len(flat)], dtype=torch.float64).split(sizes)
        return (
            {n: part.reshape(totals[n].shape) for n, part in zip(totals, parts, strict=True)},
            dict(zip(named[1], map(int, summed[len(flat) :]), strict=True)),
        )


def evaluate(
    model: TransferModel,
    objective: Objective,
    split: Split,
    *,
    batch: int,
    precision: Precision,
    each: EachExample | None = None,
) -> Scores:
    """Return what the objective measures on a split; the model is left in evaluation mode.

    Of several processes each takes its share of the batches, and all of them return the same.

    Args:
        model: The model.
        objective: What it is judged by.
        split: The examples.
        batch: How many pass through the model at once.
        precision: Of the pass.
        each: Where to note what became of every single row, at the price of a second pass through
            the head; None: nowhere, unless the split has measures that need it.
    """
    if each is None and split.scorer is not None:
        each = EachExample()

    def judged(
        whole: TransferModel, view: Batch
    ) -> tuple[dict[str, Tensor], ExampleResults | None]:
        encoded = Encoding(whole, view)
        tallies = objective.metric_sums(whole, view, encoded)
        return tallies, None if each is None else objective.example_results(whole, view, encoded)

    def score(engine: Engine, indices: np.ndarray) -> tuple[dict[str, Tensor], dict[str, int]]:
        prepared = objective.prepare(split.data.batch(indices), evaluation_noise())
        view = on_device({"": prepared}, precision.device)[""]
        with without_gradients(model), precision.context():
            tallies, outcomes = model(lambda whole: judged(whole, view))
        if engine.state.iteration > len(own):
            # This process has no more batches, but the others need its part of the model.
            return {}, {}
        if each is not None and outcomes is not None:
            each.note(indices, outcomes)
        return tallies, objective.counts(prepared)

    engine = Engine(score)
    Sums().attach(engine, "sums")
    model.eval()
    batches = portions(split, batch)
    own = shard(batches, distributed.rank(), distributed.world_size())
    missing = num_micro_batches(len(batches), 1, distributed.world_size()) - len(own)
    engine.run([*own, *batches[:1] * missing])
    reshard(model)
    totals, counts = engine.state.metrics["sums"]
    measures = objective.compute_metrics(totals, counts, split.text)
    if split.scorer is not None and each is not None:
        predicted = {found.index: found.predicted for found in each.gathered()}
        measures |= split.scorer(predicted) if all(predicted.values()) else {}
    return Scores(measures, objective.tables(totals))


def without_gradients(model: TransferModel) -> AbstractContextManager[None]:
    """Return the context of a pass that only measures."""
    # Tensors made in inference mode would stay in the buffers of a sharded model.
    return torch.no_grad() if isinstance(model, _HasParts) else torch.inference_mode()


def reshard(model: nn.Module) -> None:
    """Keep this process's part of the model alone, if there are parts.

    What a pass has gathered stays until the backward pass, and here there is none.
    """
    if isinstance(model, _HasParts):
        model.reshard()


@runtime_checkable
class _HasParts(Protocol):
    """What torch makes of a model that is sharded."""

    def reshard(self) -> None: ...


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
    with without_gradients(model), precision.context():
        found: list[Sample] = model(lambda m: objective.samples(m, view, Encoding(m, view)))
    reshard(model)
    return found


def portions(split: Split, batch: int) -> list[np.ndarray]:
    """Return the example numbers of each batch, every example once."""
    order = np.arange(len(split.data)) if split.order is None else split.order
    return micro_batches(order, batch)


def predictions(
    model: TransferModel,
    objective: Objective,
    data: Dataset,
    *,
    batch: int,
    precision: Precision,
    order: np.ndarray | None = None,
) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
    """Yield the numbers of each batch's rows, and what an objective predicts for them.

    Args:
        model: The model.
        objective: The one that predicts.
        data: The examples.
        batch: How many pass through the model at once.
        precision: Of the pass.
        order: In which the examples are taken; None: in that of the data.

    Raises:
        ConfigError: The objective has no `predictions`.
    """
    model.eval()
    for indices in micro_batches(np.arange(len(data)) if order is None else order, batch):
        view = on_device({"": data.batch(indices)}, precision.device)[""]
        with torch.inference_mode(), precision.context():
            found = objective.predictions(model, view, Encoding(model, view))
            if not found:
                name = type(objective).__name__
                raise ConfigError(f"objective: {name} has no predictions, so it answers nothing")
            yield indices, {name: value.cpu() for name, value in found.items()}
