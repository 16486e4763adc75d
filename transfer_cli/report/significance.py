"""The difference between a group of runs and a baseline, tested on the same items."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from transfer_cli.metrics import Metric, by_preference, find
from transfer_cli.report.contents import FINISHED, Comparison, Run
from transfer_cli.report.outcomes import OutcomeReader, RunOutcomes
from transfer_cli.report.statistics import Scored, bootstrap, mcnemar
from transfer_cli.runs.results import merged

MCNEMAR, BOOTSTRAP = "McNemar", "bootstrap"

_LOSS = "loss"

Floats = npt.NDArray[np.float64]
BySeed = Mapping[Any, Sequence[RunOutcomes]]


class _IncomparableError(Exception):
    """Why two groups cannot be compared item by item."""


@dataclass(frozen=True)
class _Measure:
    """How a measure is made of items.

    Args:
        name: `error_rate`, for example.
        of_mean: From the mean over targets to the measure.
        is_of_errors: Whether an item counts as right or wrong, and not for its loss.
    """

    name: str
    of_mean: Callable[[Floats], Floats]
    is_of_errors: bool = False

    def counts(self, outcomes: Sequence[RunOutcomes]) -> Floats:
        """Return what counts of each item; of a seed that ran several times the mean."""
        each = [one.wrong if self.is_of_errors else one.loss for one in outcomes]
        mean: Floats = np.mean(each, axis=0)
        return mean


def compare(
    ours: Sequence[Run], theirs: Sequence[Run], measure: str, reader: OutcomeReader
) -> Comparison | str:
    """Return how a group differs from a baseline; or why that cannot be told, in a few words.

    A `split/measure` that is not a sum over items, such as macro-F1, is replaced by the first
    declared one that is (the error rate), and where there is none by the loss.
    """
    split, _, name = measure.partition("/")
    try:
        mine, base = (_by_seed(runs, split, reader) for runs in (ours, theirs))
        parts = _on_same_items(mine, base)
        made = _measure(name, theirs, split, parts[0][1][0])
        with np.errstate(all="ignore"):
            return _tested(parts, made, split, same_seeds=list(mine) == list(base))
    except _IncomparableError as error:
        return str(error)


def _by_seed(runs: Sequence[Run], split: str, reader: OutcomeReader) -> BySeed:
    """Return the outcomes of the finished runs of each seed, the seeds in order."""
    found: dict[Any, list[RunOutcomes]] = {}
    for run in sorted(runs, key=lambda run: str(run.seed)):
        if run.status != FINISHED:
            continue
        outcomes = reader.read(run, split)
        if isinstance(outcomes, str):
            raise _IncomparableError(outcomes)
        found.setdefault(str(run.seed), []).append(outcomes)
    if not found:
        raise _IncomparableError("no run is finished")
    return found


Part = tuple[Sequence[Sequence[RunOutcomes]], Sequence[Sequence[RunOutcomes]]]
"""Of both groups: the outcomes of each seed."""


def _on_same_items(mine: BySeed, base: BySeed) -> list[Part]:
    """Return all runs together where they share their items, else the pairs of each seed."""
    if _alike(*mine.values(), *base.values()):
        return [([*mine.values()], [*base.values()])]
    if list(mine) == list(base) and all(_alike(mine[seed], base[seed]) for seed in mine):
        return [([mine[seed]], [base[seed]]) for seed in mine]
    raise _IncomparableError("they were not judged on the same items")


def _alike(*several: Sequence[RunOutcomes]) -> bool:
    return len({each.sheet for outcomes in several for each in outcomes}) == 1


def _measure(name: str, runs: Sequence[Run], split: str, sample: Sequence[RunOutcomes]) -> _Measure:
    """Return how a measure, or the one that takes its place, is made of items."""
    declared = merged(run.metrics for run in runs)
    asked = find(name, declared)
    for metric in (*filter(None, (asked,)), *by_preference(declared)):
        if metric.per_example:
            found = (
                _of_errors(metric, sample)
                if metric.unit in ("fraction", "percent")
                else _of_losses(metric, runs, split)
            )
            if found is not None:
                return found
    return _Measure(_LOSS, lambda mean: mean)


def _of_errors(metric: Metric, sample: Sequence[RunOutcomes]) -> _Measure | None:
    """Return how a share of right or wrong items is made of them; None where there are no such."""
    if not sample[0].sheet.has_labels:
        return None
    whole = 100 if metric.unit == "percent" else 1
    if metric.higher_is_better:
        return _Measure(metric.name, lambda mean: whole * (1 - mean), is_of_errors=True)
    return _Measure(metric.name, lambda mean: whole * mean, is_of_errors=True)


def _of_losses(metric: Metric, runs: Sequence[Run], split: str) -> _Measure | None:
    """Return how a measure is made of losses; None where it is not, or was not measured."""
    if metric.unit == "nats":
        return _Measure(metric.name, lambda mean: mean)
    names = (f"{split}/{metric.name}", f"{split}/{_LOSS}")
    pairs = ([run.measures.get(name, 0.0) for name in names] for run in runs)
    value, loss = next((pair for pair in pairs if all(0 < n < math.inf for n in pair)), (0.0, 0.0))
    if not loss:
        return None
    if metric.unit == "perplexity":
        # By word or by token: the text is the same, and so is the number of tokens in a word.
        return _Measure(metric.name, lambda mean: np.exp(math.log(value) / loss * mean))
    return _Measure(metric.name, lambda mean: value / loss * mean)


def _tested(
    parts: Sequence[Part], measure: _Measure, split: str, *, same_seeds: bool
) -> Comparison:
    scored = [
        Scored(
            np.stack([measure.counts(outcomes) for outcomes in mine]),
            np.stack([measure.counts(outcomes) for outcomes in base]),
            base[0][0].targets,
        )
        for mine, base in parts
    ]
    for part in scored:
        if not (np.isfinite(part.ours).all() and np.isfinite(part.theirs).all()):
            raise _IncomparableError("losses are not finite")
        if part.targets.sum() == 0:
            raise _IncomparableError("there is nothing to predict")
    found = bootstrap(scored, measure.of_mean, same_seeds=same_seeds)
    if not math.isfinite(found.low) or not math.isfinite(found.high):
        raise _IncomparableError("a measure is not finite")
    p, test = found.p, BOOTSTRAP
    (mine, base), *others = parts
    are_single = not others and all(len(seeds) == len(seeds[0]) == 1 for seeds in (mine, base))
    if are_single and measure.is_of_errors:
        wrong, theirs = mine[0][0].wrong, base[0][0].wrong
        p = mcnemar(int((wrong < theirs).sum()), int((wrong > theirs).sum()))
        test = MCNEMAR
    items = sum(len(part.targets) for part in scored)
    return Comparison(
        f"{split}/{measure.name}", found.difference, found.low, found.high, p, test, items
    )
