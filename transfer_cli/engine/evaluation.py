"""Score a split: sums over all of it, divided once.

Measures do not depend on the batch size, the order or the number of processes. Masks are drawn from
a seed of the evaluation and each example's number.
"""

import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NoReturn

import numpy as np
import torch
from ignite.engine import Engine
from ignite.metrics import Metric
from ignite.metrics.metric import reinit__is_reduced
from torch import Tensor, nn

from transfer_cli.batch import IGNORE, Batch, micro_batches, shard, to_device, with_facts
from transfer_cli.data.split import Dataset, Split, TextContext
from transfer_cli.engine import distributed
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import ConfigError, DataError, NotFiniteError
from transfer_cli.fitting import FILLED, Result, free_bytes, halve_if_out_of_memory, rows_that_fit
from transfer_cli.model.block import FEED_FORWARDS
from transfer_cli.model.memory import Memory
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, ExampleResults, Objective, Sample
from transfer_cli.progress import progress
from transfer_cli.seeds import ExampleNoise

MIN_LANE_BLOCKS = 32
"""Blocks of a lane, at least: its first ones are read twice, to have something to remember."""


@dataclass(frozen=True)
class Portion:
    """Rows that pass through a model at once.

    Args:
        is_scored: Which of them count; the others are read to be remembered.
        begins: Whether nothing before them is remembered.
    """

    rows: np.ndarray
    is_scored: np.ndarray
    begins: bool = True

    @classmethod
    def of(cls, rows: np.ndarray) -> "Portion":
        """Return a portion of rows that all count."""
        return cls(rows, np.ones(len(rows), dtype=np.bool_))

    def targets_in(self, batch: Batch) -> Batch:
        """Return their batch without targets in rows that do not count."""
        if self.is_scored.all():
            return batch
        next_BT = batch["next_tokens"].clone()
        next_BT[~self.is_scored] = IGNORE
        return {**batch, "next_tokens": next_BT}


def portions_by_process(
    split: Split, context: TextContext | None, batch: int, world_size: int
) -> list[list[Portion]]:
    """Return the portions of each process, of `batch` rows at most; every row counts once.

    By memory, running text is read in lanes, and which ones there are depends on the text and the
    context alone: so do the measures, and neither on `batch` nor on processes.
    """
    order = split.rows
    if context is None or context.by != "memory":
        whole = [Portion.of(rows) for rows in micro_batches(order, batch)]
        return [shard(whole, rank, world_size) for rank in range(world_size)]
    lanes = _cut_into_lanes(order, math.ceil(context.tokens / context.stride))
    return [_batch_lanes(shard(lanes, rank, world_size), batch) for rank in range(world_size)]


def _cut_into_lanes(rows: np.ndarray, read_before: int) -> list[Portion]:
    """Cut the blocks of a text into lanes, equally long but for the last one.

    All but the first begin with `read_before` blocks that the lane before has scored.
    """
    # Lanes in which running text is scored, so that several blocks pass through the model at once.
    most_lanes = 16
    count = max(1, min(most_lanes, len(rows) // max(MIN_LANE_BLOCKS, 4 * read_before)))
    length = math.ceil((len(rows) + (count - 1) * read_before) / count)
    lanes = [Portion.of(rows[:length])]
    for number in range(1, count):
        blocks = rows[number * (length - read_before) :][:length]
        if len(blocks) > read_before:
            lanes.append(Portion(blocks, np.arange(len(blocks)) >= read_before))
    return lanes


def _batch_lanes(lanes: Sequence[Portion], batch: int) -> list[Portion]:
    """Return the n-th blocks of up to `batch` lanes, for each n, then those of the next lanes."""
    portions = []
    for begin in range(0, len(lanes), batch):
        group = lanes[begin : begin + batch]
        for number in range(max(len(lane.rows) for lane in group)):
            longer = [lane for lane in group if number < len(lane.rows)]
            rows = np.array([lane.rows[number] for lane in longer])
            is_scored = np.array([lane.is_scored[number] for lane in longer])
            portions.append(Portion(rows, is_scored, begins=number == 0))
    return portions


USUAL_ROWS, MAX_ROWS = 32, 512
"""Rows that `batch=auto` lets pass at once: on a CPU, and on a GPU at least and at most."""

SHOWN_CHARACTERS = 60
"""Characters of a text in an error."""


@dataclass(frozen=True)
class Scores:
    """The results of an evaluation.

    Args:
        measures: Numbers by name.
        tables: Counts by name, such as a confusion table.
        counts: What was scored by each term of the objective, such as tokens.
    """

    measures: dict[str, float]
    tables: dict[str, list[list[int]]]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class Outcome:
    """The results of one row; see `objectives.base.ExampleResults`.

    Args:
        index: Its number in the split.
        loss: Summed over its targets, in nats.
        predicted: The predictions of its task, by name.
    """

    index: int
    loss: float
    targets: int
    predicted: Mapping[str, Any]


class EachExample:
    """The results of every row of a split, collected during an evaluation.

    Args:
        method: The objective's method that returns them.
    """

    def __init__(self, method: str = "example_results") -> None:
        self.results_of: Callable[[Objective], Callable[..., ExampleResults | None]]
        self.results_of = attrgetter(method)
        self._rows: list[tuple[Any, ...]] = []

    def note(self, scored: Iterable[tuple[Portion, ExampleResults | None]]) -> None:
        """Add the rows of portions that this process has scored, if they have results."""
        for portion, results in scored:
            if results is None:
                continue
            rows = zip(
                map(int, portion.rows),
                results.loss.double().tolist(),
                results.targets.tolist(),
                values_by_row(results.predicted, len(results.loss)),
                strict=True,
            )
            self._rows += itertools.compress(rows, portion.is_scored)

    def gathered(self) -> list[Outcome]:
        """Return those of all processes, by number; none if the objective has no outcomes."""
        rows = itertools.chain.from_iterable(
            json.loads(text) for text in distributed.all_gather_text(json.dumps(self._rows))
        )
        return [Outcome(*row) for row in sorted(rows, key=itemgetter(0))]


def values_by_row(tensors: Mapping[str, Tensor], count: int) -> list[dict[str, Any]]:
    """Return the values of each row of a batch, as plain numbers and lists of them."""
    columns = {name: value.tolist() for name, value in tensors.items()}
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


class SplitSums(Metric):
    """Sums of an objective over a split, exact on any number of processes."""

    @reinit__is_reduced
    def reset(self) -> None:
        """Forget everything."""
        self._sums: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        self.finite: list[bool] = []
        """Whether all tallies of a batch were finite, batch by batch."""

    @reinit__is_reduced
    def update(self, output: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
        """Add the tallies and counts of a batch's parts, in float64."""
        finite = True
        for number, values in itertools.chain.from_iterable(map(enumerate, output)):
            sums = self._sums[number]
            for name, value in values.items():
                addend = torch.as_tensor(value).detach().to("cpu", torch.float64)
                sums[name] = sums.get(name, 0) + addend
                finite = finite and bool(addend.isfinite().all())
        self.finite.append(finite)

    def compute(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return the totals and counts over everything."""
        totals, counts = map(_sum_over_processes, self._sums)
        return totals, {name: int(count) for name, count in counts.items()}


def _sum_over_processes(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # A process without examples has no names; the first one always has some. Gathered, since a
    # broadcast waits without limit for a process that hangs in its share.
    shapes_here = json.dumps({name: list(value.shape) for name, value in sums.items()})
    shapes: dict[str, list[int]] = json.loads(distributed.all_gather_text(shapes_here)[0])
    zeros = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    values = {name: sums.get(name, zero) for name, zero in zeros.items()}
    flat = torch.cat([value.flatten() for value in values.values()])
    summed = torch.tensor(distributed.all_reduce_sum(flat.tolist()), dtype=torch.float64)
    parts = summed.split([value.numel() for value in values.values()])
    return {name: part.view(shapes[name]) for name, part in zip(values, parts, strict=True)}


def inference_batch_size(asked: int | str, model: TransferModel, device: torch.device) -> int:
    """Return how many rows pass at once where nothing trains; for auto what fits into a GPU."""
    if asked != "auto":
        return int(asked)
    if device.type != "cuda":
        return USUAL_ROWS
    shape = model.backbone.shape
    kept = 8 * shape.width + FEED_FORWARDS[shape.feedforward_kind].kept_states * shape.feedforward
    row = 4 * shape.positions * kept  # of one block at a time, in float32
    fitting = rows_that_fit(MAX_ROWS, FILLED * free_bytes(device), lambda rows: rows * row)
    return max(USUAL_ROWS, fitting)


def evaluate(
    model: TransferModel,
    objective: Objective,
    split: Split,
    *,
    batch: int,
    precision: Precision,
    each: EachExample | None = None,
) -> Scores:
    """Return the objective's measures on a split; the model is left in evaluation mode.

    Each process scores its share of the batches of `batch` examples, and all return the same.
    `each` collects the results of every row, which takes a second pass through the head. Where
    `split.answered` are fewer, of those alone.
    """
    scored = partial(_evaluate_split, model, objective, batch=batch, precision=precision)
    some = split.answered_part()
    if not objective.writes_answers or some is split:
        return scored(split, each=each)
    whole, part = scored(replace(split, scorer=None)), scored(some, each=each)
    return replace(whole, measures=part.measures | whole.measures)


def _evaluate_split(
    model: TransferModel,
    objective: Objective,
    split: Split,
    *,
    batch: int,
    precision: Precision,
    each: EachExample | None = None,
) -> Scores:
    if each is None and split.scorer is not None:
        each = EachExample()
    context = split.context if objective.keeps_tokens else None
    memory = _new_memory(context)
    shares = portions_by_process(split, context, batch, distributed.world_size())
    share = shares[distributed.rank()]

    def score_view(
        whole: TransferModel, view: Batch
    ) -> tuple[dict[str, Tensor], ExampleResults | None]:
        encoded = Encoding(whole, view, memory)
        tallies = objective.metric_sums(whole, view, encoded)
        results = None if each is None else each.results_of(objective)(whole, view, encoded)
        return tallies, results

    def score_portion(portion: Portion) -> tuple[Batch, dict[str, Tensor], ExampleResults | None]:
        if memory is not None:
            memory.keep_first(0 if portion.begins else len(portion.rows))
        read = portion.targets_in(split.data.batch(portion.rows))
        prepared = objective.prepare(read, evaluation_noise())
        view = to_device(with_facts(prepared), precision.device)
        with without_gradients(model), precision.context():
            return prepared, *model(lambda whole: score_view(whole, view))

    def score(engine: Engine, portion: Portion) -> list[tuple[dict[str, Tensor], dict[str, int]]]:
        passed = _in_parts(portion, score_portion, model, memory)
        more(1)
        if engine.state.iteration > len(share):
            # This process has no more batches, but the others need its part of the model.
            return []
        if each is not None:
            each.note((part, results) for part, (_, _, results) in passed)
        return [(tallies, objective.counts(prepared)) for _, (prepared, tallies, _) in passed]

    engine = Engine(score)
    engine.logger.setLevel(logging.CRITICAL)  # an error is reported once, by the command
    sums = SplitSums(skip_unrolling=True)
    sums.attach(engine, "sums")
    model.eval()
    missing = max(map(len, shares)) - len(share)
    with progress(f"scoring {split.name}", len(share) + missing, "batches") as more:
        engine.run([*share, *shares[0][:1] * missing])
    totals, counts = engine.state.metrics["sums"]
    if not all(bool(total.isfinite().all()) for total in totals.values()):
        finite = zip(share, sums.finite, strict=False)
        _raise_not_finite(split, finite, lambda row: score_portion(Portion.of(row))[1])
    distributed.reshard(model)
    measures = _measures(objective, totals, counts, split)
    if split.scorer is not None and each is not None:
        predicted = {outcome.index: outcome.predicted for outcome in each.gathered()}
        # A loss that answers nothing has no predictions, or no rows.
        measures |= split.scorer(predicted) if predicted and all(predicted.values()) else {}
    return Scores(measures, objective.tables(totals), counts)


def _measures(
    objective: Objective, totals: dict[str, Tensor], counts: dict[str, int], split: Split
) -> dict[str, float]:
    if objective.predicts_tokens and not counts.get("loss", 1):
        raise DataError(f"{split.name}: its texts have no token to predict; give other texts")
    return objective.compute_metrics(totals, counts, split.text)


def _new_memory(context: TextContext | None) -> Memory | None:
    return Memory(context.tokens) if context is not None and context.by == "memory" else None


def _in_parts(
    portion: Portion, score: Callable[[Portion], Result], model: nn.Module, memory: Memory | None
) -> list[tuple[Portion, Result]]:
    """Return a portion and its results, or parts of it where memory ran out."""
    if memory is not None or hasattr(model, "reshard"):  # lanes and shards pass as a whole
        return [(portion, score(portion))]
    parts = halve_if_out_of_memory(portion.rows, lambda rows: score(Portion.of(rows)))
    return [(Portion.of(rows), outcome) for rows, outcome in parts]


def _raise_not_finite(
    split: Split,
    finite: Iterable[tuple[Portion, bool]],
    tallies_of: Callable[[np.ndarray], Mapping[str, Tensor]],
) -> NoReturn:
    """Raise an error that names the first row whose tallies are not finite.

    Args:
        finite: The portions of this process, and whether all tallies of each are.
        tallies_of: Scores rows; all processes call it with the same ones.
    """
    doubtful = [portion.rows for portion, is_finite in finite if not is_finite]
    rows_here = json.dumps([int(row) for batch in doubtful for row in batch])
    gathered = distributed.all_gather_text(rows_here)
    subject = "a sum over examples"
    for row in sorted(itertools.chain.from_iterable(map(json.loads, gathered))):
        tallies = tallies_of(np.array([row])).values()
        wrong = not all(bool(torch.as_tensor(tally).isfinite().all()) for tally in tallies)
        if distributed.all_reduce_max(int(wrong)):
            subject = f"the loss of {_row_name(split, row)}"
            break
    raise NotFiniteError(f"{split.name}: {subject}")


def _row_name(split: Split, row: int) -> str:
    """Return what people call a row, with the beginning of its text if it has one."""
    example = row if split.example_of is None else int(split.example_of[row])
    shown = f" ({split.shown(example)[:SHOWN_CHARACTERS]!r})" if split.shown else ""
    return f"{split.unit.removesuffix('s')} {example + 1:,}{shown}"


def without_gradients(model: TransferModel) -> AbstractContextManager[None]:
    """Return the context of a forward pass without a backward pass."""
    # Tensors made in inference mode would stay in the buffers of a sharded model.
    return torch.no_grad() if hasattr(model, "reshard") else torch.inference_mode()


def evaluation_noise() -> ExampleNoise:
    """Return the random numbers of an evaluation, the same in every run, so that runs compare."""
    return ExampleNoise(0, "evaluate")


def samples(
    model: TransferModel, objective: Objective, split: Split, *, count: int, precision: Precision
) -> list[Sample]:
    """Return predictions for the first few examples of a split."""
    first = np.arange(min(count, len(split.data)))
    prepared = objective.prepare(split.data.batch(first), evaluation_noise())
    view = to_device(with_facts(prepared), precision.device)
    model.eval()
    with without_gradients(model), precision.context():
        shown: list[Sample] = model(lambda m: objective.samples(m, view, Encoding(m, view)))
    distributed.reshard(model)
    return shown


def index_batches(data: Dataset, order: np.ndarray | None, batch: int) -> list[np.ndarray]:
    """Return the example numbers of each batch, every example once."""
    return micro_batches(np.arange(len(data)) if order is None else order, batch)


def predictions(
    model: TransferModel,
    objective: Objective,
    data: Dataset,
    *,
    batch: int,
    precision: Precision,
    order: np.ndarray | None = None,
    beside: Sequence[tuple[Objective, TransferModel, Dataset]] = (),
) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
    """Yield the numbers of each batch's rows, in this order, and the predictions for them.

    `beside` are models that write the answers with this one, and the same rows as they read them.
    """
    model.eval()

    def answers(indices: np.ndarray) -> dict[str, Tensor]:
        views = [
            to_device(with_facts(rows.batch(indices)), precision.device)
            for rows in (data, *(other[2] for other in beside))
        ]
        with torch.inference_mode(), precision.context():
            if beside:
                runs = ((objective, model), *(other[:2] for other in beside))
                requests = [(*run, view) for run, view in zip(runs, views, strict=True)]
                predicted = objective.predictions_together(requests)
            else:
                predicted = objective.predictions(model, views[0], Encoding(model, views[0]))
        if not predicted:
            name = type(objective).__name__
            raise ConfigError(f"objective: {name} has no predictions, so it answers nothing")
        return {name: value.cpu() for name, value in predicted.items()}

    for rows in index_batches(data, order, batch):
        yield from halve_if_out_of_memory(rows, answers)
