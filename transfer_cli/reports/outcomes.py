"""What runs made of the single items of a split, of slices of them, and whether groups differ."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from transfer_cli.errors import DataError
from transfer_cli.metrics import LOSS, Metric, find_metric, headlines_first
from transfer_cli.reports.contents import (
    BOOTSTRAP,
    FEWEST_SEEDS,
    FINISHED,
    MCNEMAR,
    Comparison,
    Run,
    SharedError,
)
from transfer_cli.reports.statistics import Floats, Measure, Scored, bootstrap, mcnemar
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.items import Item, is_cut, read_items
from transfer_cli.runs.results import merged_metrics
from transfer_cli.runs.slices import Slice, scores_by_slice
from transfer_cli.runs.untrusted import error_reason
from transfer_cli.safe_files import UnreadableError

NO_LABEL = "(none)"
"""What the answer is called that no label fits."""


@dataclass(frozen=True, eq=False)
class SplitItems:
    """The items of a split: one and the same object for runs that were judged on the same.

    Labels of language models are "", and so are texts that were not stored. `targets` is `[N]`.
    `is_judged` says that each item is right or wrong.
    """

    labels: tuple[str, ...]
    texts: tuple[str, ...]
    targets: Floats
    is_judged: bool


@dataclass(frozen=True)
class RunOutcomes:
    """What a run made of the items.

    `wrong` is `[N]`: 1 for a wrong prediction, less for a partly right one. `loss` is `[N]`: the
    summed nats of each item's targets.
    """

    sheet: SplitItems
    predicted: tuple[str, ...]
    wrong: Floats
    loss: Floats


class OutcomeReader:
    """Reads each run's items once, and keeps items that runs share once."""

    def __init__(self) -> None:
        self._read: dict[tuple[Path, str], RunOutcomes | str] = {}
        self._sheets: dict[bytes, SplitItems] = {}

    def read(self, run: Run, split: str) -> RunOutcomes | str:
        """Return the outcomes of a run on a split, or why there are none, in a few words."""
        key = (run.path, split)
        if key not in self._read:
            items = _items_of(run, split)
            self._read[key] = items if isinstance(items, str) else self._outcomes(items)
        return self._read[key]

    def _outcomes(self, items: Sequence[Item]) -> RunOutcomes:
        fields = [(item.index, item.label, item.text, item.targets) for item in items]
        key = hashlib.blake2b(repr(fields).encode(), digest_size=16).digest()
        if key not in self._sheets:
            _, labels, texts, targets = zip(*fields, strict=True)
            is_judged = all(item.is_judged for item in items)
            self._sheets[key] = SplitItems(labels, texts, np.array(targets, float), is_judged)
        return RunOutcomes(
            self._sheets[key],
            tuple(item.predicted for item in items),
            np.array([item.wrong for item in items], float),
            np.array([item.loss for item in items], float),
        )


def _items_of(run: Run, split: str) -> list[Item] | str:
    """Return the items of a split, or why there are none, in a few words."""
    try:
        items = list(read_items(RunDirectory(run.path).items, split))
    except FileNotFoundError:
        return "without items.jsonl"
    except (OSError, UnreadableError) as error:
        return f"items.jsonl: {error_reason(error)}"
    return items or f"items.jsonl holds nothing of {split}"


def shared_errors(outcomes: Sequence[RunOutcomes]) -> tuple[SharedError, ...]:
    """Return what most runs get wrong, the worst first; those on the commonest items count."""
    sheets = Counter(outcome.sheet for outcome in outcomes if outcome.sheet.is_judged)
    if not sheets:
        return ()
    sheet = sheets.most_common(1)[0][0]
    alike = [outcome for outcome in outcomes if outcome.sheet is sheet]
    wrong = np.sum([run.wrong > 0 for run in alike], axis=0)
    errors = []
    most_shared = 100  # shared errors that a report holds
    for at in np.argsort(-wrong, kind="stable")[:most_shared]:
        if 2 * wrong[at] > len(alike):
            answers = Counter(run.predicted[at] or NO_LABEL for run in alike)
            text, label = sheet.texts[at], sheet.labels[at] or NO_LABEL
            predicted = dict(answers.most_common())
            errors.append(SharedError(text, label, predicted, int(wrong[at]), len(alike)))
    return tuple(errors)


Seeds = Sequence[Sequence[RunOutcomes]]
"""The outcomes of the runs of each seed."""


class _IncomparableError(Exception):
    """Why two groups cannot be compared item by item."""


@dataclass(frozen=True)
class _Measure:
    """How a measure is made of items; `is_of_errors` says that an item is right or wrong."""

    name: str
    of_mean: Measure
    is_of_errors: bool
    bounds: tuple[float, float] = LOSS.bounds

    def counts(self, seeds: Seeds) -> Floats:
        """Return what counts of each item, `[S, N]`; of a seed that ran several times the mean."""
        which = "wrong" if self.is_of_errors else "loss"
        return np.stack([np.mean([getattr(run, which) for run in runs], axis=0) for runs in seeds])


def compare(
    ours: Sequence[Run], theirs: Sequence[Run], measure: str, reader: OutcomeReader, baseline: str
) -> Comparison | str:
    """Return how a group differs from a `baseline`; or why that cannot be told, in a few words.

    Where a side has several seeds and a side fewer than three, there is no interval and no p: they
    would be mostly chance, or lack the spread of a side. A `split/measure` that is not a sum over
    items, such as macro-F1, is replaced by the first declared one that is (the error rate), and
    where there is none by the loss.
    """
    split, _, name = measure.partition("/")
    try:
        mine, base = (_by_seed(runs, split, reader) for runs in (ours, theirs))
        parts = _on_same_items(mine, base)
        is_judged = parts[0][1][0][0].sheet.is_judged
        measured = _measure_of_items(name, theirs, split, is_judged=is_judged)
        with np.errstate(all="ignore"):
            comparison = _comparison(parts, measured, split, same_seeds=list(mine) == list(base))
        fewest, most = sorted((len(mine), len(base)))
        if most > 1 and fewest < FEWEST_SEEDS:
            comparison = replace(comparison, low=None, high=None, p=None)
        return replace(comparison, baseline=baseline)
    except _IncomparableError as error:
        return str(error)


def _by_seed(
    runs: Sequence[Run], split: str, reader: OutcomeReader
) -> Mapping[str, list[RunOutcomes]]:
    """Return the outcomes of the finished runs of each seed, the seeds in order."""
    by_seed: dict[str, list[RunOutcomes]] = {}
    finished = (run for run in runs if run.status == FINISHED)
    for run in sorted(finished, key=lambda run: str(run.seed)):
        outcomes = reader.read(run, split)
        if isinstance(outcomes, str):
            raise _IncomparableError(outcomes)
        by_seed.setdefault(str(run.seed), []).append(outcomes)
    if not by_seed:
        raise _IncomparableError("no run is finished")
    return by_seed


def _on_same_items(
    mine: Mapping[str, list[RunOutcomes]], base: Mapping[str, list[RunOutcomes]]
) -> Sequence[tuple[Seeds, Seeds]]:
    """Return all runs together where they share their items, else the pairs of each seed."""
    together = [([*mine.values()], [*base.values()])]
    pairs = [([mine[seed]], [base[seed]]) for seed in mine] if list(mine) == list(base) else []
    for parts in (together, pairs):
        sheets = [{run.sheet for seeds in part for runs in seeds for run in runs} for part in parts]
        if parts and all(len(sheet) == 1 for sheet in sheets):
            return parts
    raise _IncomparableError("they were not judged on the same items")


def _measure_of_items(name: str, runs: Sequence[Run], split: str, *, is_judged: bool) -> _Measure:
    """Return how a measure, or the one that takes its place, is made of items."""
    declared = merged_metrics(run.results.metrics for run in runs)
    item_metric = find_metric(name, declared)
    for metric in (*filter(None, (item_metric,)), *headlines_first(declared)):
        is_of_errors = metric.unit in ("fraction", "percent")
        if metric.per_example and (is_judged or not is_of_errors):
            of_mean = _measure_of_mean(metric, runs, split)
            if of_mean is not None:
                return _Measure(metric.name, of_mean, is_of_errors, metric.bounds)
    return _Measure("loss", lambda mean: mean, is_of_errors=False)


def _measure_of_mean(metric: Metric, runs: Sequence[Run], split: str) -> Measure | None:
    """Return how a measure is made of errors or losses; None where it was not measured."""
    scale = 100 if metric.unit == "percent" else 1
    if metric.unit in ("fraction", "percent") and metric.higher_is_better:
        return lambda mean: scale * (1 - mean)
    if metric.unit in ("fraction", "percent", "nats"):
        return lambda mean: scale * mean
    names = (f"{split}/{metric.name}", f"{split}/loss")
    pairs = ([run.results.by_name.get(name, 0.0) for name in names] for run in runs)
    value, loss = next((pair for pair in pairs if all(0 < n < math.inf for n in pair)), (0.0, 0.0))
    if not loss:
        return None
    if metric.unit == "perplexity":
        # By word or by token: the text is the same, and so is the number of tokens in a word.
        return lambda mean: np.exp(math.log(value) / loss * mean)
    return lambda mean: value / loss * mean


def _comparison(
    parts: Sequence[tuple[Seeds, Seeds]], measure: _Measure, split: str, *, same_seeds: bool
) -> Comparison:
    scored = [
        Scored(measure.counts(mine), measure.counts(base), base[0][0].sheet.targets)
        for mine, base in parts
    ]
    for part in scored:
        if not (np.isfinite(part.ours).all() and np.isfinite(part.theirs).all()):
            raise _IncomparableError("losses are not finite")
        if part.targets.sum() == 0:
            raise _IncomparableError("there is nothing to predict")
    estimate = bootstrap(scored, measure.of_mean, same_seeds=same_seeds, bounds=measure.bounds)
    if not math.isfinite(estimate.low) or not math.isfinite(estimate.high):
        raise _IncomparableError("a measure is not finite")
    p, test = estimate.p, BOOTSTRAP
    (mine, base), *others = parts
    are_single = not others and all(len(seeds) == len(seeds[0]) == 1 for seeds in (mine, base))
    if are_single and measure.is_of_errors:
        wrong, theirs = mine[0][0].wrong, base[0][0].wrong
        p = mcnemar(int((wrong < theirs).sum()), int((wrong > theirs).sum()))
        test = MCNEMAR
    items = sum(len(part.targets) for part in scored)
    return Comparison(
        f"{split}/{measure.name}", estimate.difference, estimate.low, estimate.high, p, test, items
    )


# --- slices ------------------------------------------------------------------------------------


def with_slices(run: Run, slices: Mapping[str, Slice], problems: list[str]) -> Run:
    """Return a run with the measures of slices beside its own; note what is in the way."""
    measures = dict(run.results.measures)
    for split, measured in run.results.measures.items():
        items = _items_of(run, split)
        if not isinstance(items, str) and not all(item.is_judged for item in items):
            items = "its items are neither right nor wrong"
        elif not isinstance(items, str) and not any(item.text for item in items):
            items = "items.jsonl holds no texts"
        if isinstance(items, str):
            problems.append(f"{run.path}: no slices of {split}: {items}")
            continue
        measures[split] = {**measured, **_scores(items, split, slices)}
        cut = sum(is_cut(item.text) for item in items)
        if cut:
            problems.append(
                f"{run.path}: {cut:,} texts of {split} are kept in part, so slices by length or "
                "regex are of that part; transfer evaluate sees all of it"
            )
    return replace(run, results=replace(run.results, measures=measures))


def _scores(items: Sequence[Item], split: str, slices: Mapping[str, Slice]) -> dict[str, float]:
    between = " / "  # stands between the texts of an item
    texts = [item.text.split(between) for item in items]
    return scores_by_slice(
        {name: part.mask(split, texts, _refuse_column) for name, part in slices.items()},
        [replace(item, index=number) for number, item in enumerate(items)],
    )


def _refuse_column(name: str) -> Sequence[str]:
    raise DataError(
        f"--slice: runs do not keep the column {name!r} of their tables; transfer evaluate does"
    )
