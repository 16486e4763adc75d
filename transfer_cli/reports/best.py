"""Which run to take: the best by validation of those that learnt anything.

The test split has no say, so that its numbers stay what they are for. What decides is what a search
was told to look for, else what the runs were told to monitor, else the metric by which such runs
are judged. Equal runs are told apart by their validation loss, then by how many parameters they
trained: unlike time, that does not depend on what else a machine had to do.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from transfer_cli.metrics import headlines_first
from transfer_cli.reports.contents import FINISHED, Best, Criterion, Rank, Run, metric_of
from transfer_cli.reports.grouping import first_difference
from transfer_cli.runs.results import merged_metrics

_MEASURE_KEYS = {"sweep.objective": {"validation/error_rate"}, "loop.monitor": {"auto", "loss"}}
"""Settings that name the measure, the stronger first; their defaults, old and new, name none."""

_OF_VALIDATION = re.compile(r"^(measures\.)?validation[/.]")
"""How such a measure may begin."""

_LOSS = "validation/loss"
_TIE_BREAKS = ("the lower validation/loss", "the fewer trained parameters")

_DIGITS = 12
"""Means of the same numbers may differ in the last digits."""


def learnt_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the finished runs that learnt anything."""
    return [run for run in runs if run.status == FINISHED and run.reason is None]


def criterion(runs: Sequence[Run]) -> Criterion | None:
    """Return what decides which runs of a task are best; None where validation was not measured."""
    metrics = merged_metrics(run.results.metrics for run in runs)
    names: list[str] = []
    for key, defaults in _MEASURE_KEYS.items():
        criteria = {str(run.settings.get(key) or "") for run in runs} - defaults - {""}
        names += [_OF_VALIDATION.sub("", name, count=1) for name in criteria if len(criteria) == 1]
    names += [metric.name for metric in headlines_first(metrics)]
    preferred = [f"validation/{name}" for name in names]
    counts = Counter(name for run in runs for name in run.results.by_name)
    measure = max(preferred, key=lambda name: counts[name], default="")
    if not counts[measure]:
        return None
    return Criterion(measure, metric_of(measure, metrics))


def rank(choice: Criterion, measures: Mapping[str, float], trained: int | None) -> Rank | None:
    """Return the rank of a run or a group among others; None where it was not measured."""
    if choice.measure not in measures:
        return None
    value = measures[choice.measure] * (-1 if choice.metric.higher_is_better else 1)
    cost = math.inf if trained is None else trained
    numbers = (value, measures.get(_LOSS, math.inf), cost)
    return tuple(float(f"{number:.{_DIGITS}g}") for number in numbers)


def tie_break(first: Rank, tied: Iterable[Rank]) -> str:
    """Return what decided between equals, in a few words."""
    others = list(tied)
    for at, words in enumerate(_TIE_BREAKS, start=2):
        if all(other[:at] != first[:at] for other in others):
            return f"{words} decided"
    return "nothing else tells them apart, and the first was taken"


def best_run(runs: Sequence[Run], choice: Criterion | None) -> Best | None:
    """Return the best of the runs of a task; None where none learnt anything and was measured."""
    if choice is None:
        return None
    ranks = [(rank(choice, run.results.by_name, run.trained), run) for run in learnt_runs(runs)]
    ranked = [(key, run) for key, run in ranks if key is not None]
    if not ranked:
        return None
    # The first of those that are equal in everything.
    first, best = min(ranked, key=lambda pair: pair[0])
    tied = [(key, run) for key, run in ranked if run is not best and key[0] == first[0]]
    worse = [(key, run) for key, run in ranked if key[0] != first[0]]
    return Best(
        run=best,
        choice=choice,
        among=len(ranked),
        tied=tuple(run for _, run in tied),
        decided=tie_break(first, [key for key, _ in tied]) if tied else "",
        runner_up=min(worse, key=lambda pair: pair[0])[1] if worse else None,
        caveat=next(filter(None, (_caveat(choice, best, run) for _, run in ranked)), ""),
    )


def _caveat(choice: Criterion, run: Run, other: Run) -> str:
    """Return which setting may make a measure another one; "" where two runs can be compared.

    Words stay the same; tokens do not, nor do those that an objective hides.
    """
    metric, results = choice.metric, run.results
    is_of_tokens = metric.unit in ("nats", "perplexity") and metric.name != "word_perplexity"
    if not is_of_tokens or results.task is not None or results.labels:
        return ""
    parts = ("tokenizer.",) if metric.name == "token_perplexity" else ("tokenizer.", "objective.")
    key = first_difference(run.settings, other.settings, parts)
    return key and (
        f"these runs differ in {key}, which {choice.measure} may depend on: it need not say which "
        "has learnt more"
    )
