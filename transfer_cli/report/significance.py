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
        counts: What counts of each item.
        of_mean: From the mean over targets to the measure.
        is_of_errors: Whether an item counts as right or wrong, and not for its loss.
    """

    name: str
    counts: Callable[[RunOutcomes], Floats]
    of_mean: Callable[[Floats], Floats]
    is_of_errors: bool = False


def compare(
    ours: Sequence[Run], theirs: Sequence[Run], measure: str, reader: OutcomeReader
) -> Comparison | str:
    """Return how a group differs from a baseline; or why that cannot be told, in a few words.

    Args:
        ours: The group's runs.
        theirs: The baseline's.
        measure: `split/measure`. One that is not a sum over items, such as macro-F1, is replaced
            by the first declared one that is (the error rate), and where there is none by the loss.
        reader: Reads what the runs made of each item.
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
    return len({each.sheet.fingerprint for outcomes in several for each in outcomes}) == 1


def _measure(name: str, runs: Sequence[Run], split: str, sample: Sequence[RunOutcomes]) -> _Measure:
    """Return how a measure, or the one that takes its place, is made of items."""
    declared = merged(run.metrics for run in runs)
    asked = find(name, declared)
    for metric in (*filter(None, (asked,)), *by_preference(declared)):
        if not metric.per_example:
            continue
        if metric.unit in ("fraction", "percent"):
            found = _of_errors(metric) if sample[0].sheet.has_labels else None
        else:
            found = _of_losses(metric, _scale(metric, runs, split))
        if found is not None:
            return found
    return _Measure(_LOSS, lambda each: each.loss, lambda mean: mean)


def _of_errors(metric: Metric) -> _Measure:
    """Return how a share of right or wrong items is made of them."""
    whole = 100 if metric.unit == "percent" else 1
    if metric.higher_is_better:
        return _Measure(metric.name, _wrong, lambda mean: whole * (1 - mean), is_of_errors=True)
    return _Measure(metric.name, _wrong, lambda mean: whole * mean, is_of_errors=True)


def _wrong(outcomes: RunOutcomes) -> Floats:
    return outcomes.wrong


def _of_losses(metric: Metric, scale: float | None) -> _Measure | None:
    """Return how a measure is made of losses; None where it is not, or was not measured."""
    if metric.unit == "nats":
        return _Measure(metric.name, lambda each: each.loss, lambda mean: mean)
    if scale is None:
        return None
    if metric.unit == "perplexity":
        # By word or by token: the text is the same, and so is the number of tokens in a word.
        return _Measure(metric.name, lambda each: each.loss, lambda mean: np.exp(scale * mean))
    return _Measure(metric.name, lambda each: each.loss, lambda mean: scale * mean)


def _scale(metric: Metric, runs: Sequence[Run], split: str) -> float | None:
    """Return what the loss of a token is to be multiplied by for a measure or its logarithm."""
    for run in runs:
        measures = run.results.get("measures")
        found = measures.get(split) if isinstance(measures, dict) else None
        if isinstance(found, dict):
            value, loss = _positive(found.get(metric.name)), _positive(found.get(_LOSS))
            if value is not None and loss is not None:
                return (math.log(value) if metric.unit == "perplexity" else value) / loss
    return None


def _positive(value: Any) -> float | None:
    known = isinstance(value, int | float) and math.isfinite(value) and value > 0
    return float(value) if known else None


def _tested(
    parts: Sequence[Part], measure: _Measure, split: str, *, same_seeds: bool
) -> Comparison:
    scored = [
        Scored(
            np.stack([_mean_counts(outcomes, measure) for outcomes in mine]),
            np.stack([_mean_counts(outcomes, measure) for outcomes in base]),
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


def _mean_counts(outcomes: Sequence[RunOutcomes], measure: _Measure) -> Floats:
    """Return what counts of each item; of a seed that ran several times the mean."""
    mean: Floats = np.mean([measure.counts(each) for each in outcomes], axis=0)
    return mean
