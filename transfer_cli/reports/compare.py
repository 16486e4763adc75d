"""From runs to tables: tasks apart, seeds together, the best first, each against a baseline.

What is best validation decides; what is compared is the test split.
"""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transfer_cli.errors import ConfigError, did_you_mean, list_names, raised_as
from transfer_cli.metrics import Metric, headlines_first
from transfer_cli.progress import progress
from transfer_cli.reports.best import best_run, criterion, learnt_runs, rank, tie_break
from transfer_cli.reports.contents import (
    FINISHED,
    Comparison,
    Criterion,
    Group,
    Run,
    Spread,
    TaskRuns,
    metric_of,
)
from transfer_cli.reports.formats import plain
from transfer_cli.reports.grouping import (
    canonical_text,
    group_by_settings,
    group_by_task,
    group_labels,
    is_setting,
    matches,
    varying_keys,
)
from transfer_cli.reports.ladder import ladder_of
from transfer_cli.reports.outcomes import OutcomeReader, RunOutcomes, compare, shared_errors
from transfer_cli.reports.results_table import FLOPS, JOULES, MEMORY, SECONDS, TRAINED
from transfer_cli.reports.statistics import holm
from transfer_cli.runs.results import merged_metrics
from transfer_cli.runs.untrusted import is_number
from transfer_cli.safe_files import printable

COSTS = (SECONDS, TRAINED, FLOPS, JOULES, MEMORY)
"""What a table can be sorted by beside measures; of all of them less is better."""

Words = Mapping[str, str]
"""Settings of a baseline as they were typed: `adaptation` -> `full`."""

_SPLITS = ("test", "validation")
_MOST_NAMED = 12
_MOST_UNEVEN = 3


def compare_tasks(
    runs: Sequence[Run], sort: str | None = None, baseline: str | None = None
) -> tuple[TaskRuns, ...]:
    """Return the runs task by task, each sorted by a measure or one of `COSTS`.

    Without `sort` it is the one by which the best is chosen. `baseline` are settings, with spaces
    between, of the group that others are compared with; without them it is full fine-tuning where
    there is such a group, else the best one.
    """
    grouped = {name: _groups(members) for name, members in group_by_task(runs).items()}
    _check_sort(grouped.values(), sort)
    words = _parse_words(baseline)
    _check_words(words, [group for groups in grouped.values() for group in groups])
    reader = OutcomeReader()
    return tuple(_task(name, groups, sort, words, reader) for name, groups in grouped.items())


def _groups(runs: Sequence[Run]) -> list[Group]:
    parts = group_by_settings(runs)
    settings = [part[0].settings for part in parts]
    keys = varying_keys(parts)
    # A single group is called by what it is.
    shown = keys or [key for key in ("adaptation", "model") if key in settings[0]][:1]
    called = group_labels(shown, settings) if shown else [parts[0][0].name]
    return [
        make_group(label, {key: known[key] for key in keys if key in known}, part)
        for label, known, part in zip(called, settings, parts, strict=True)
    ]


def make_group(label: str, settings: Mapping[str, Any], runs: Sequence[Run]) -> Group:
    """Return runs as a group, with what their results hold."""
    finished = [run for run in runs if run.status == FINISHED]
    measured = [run.results.by_name for run in finished]
    names = dict.fromkeys(name for values in measured for name in values)
    spreads = {name: Spread.over(values.get(name) for values in measured) for name in names}
    return Group(
        label=label,
        settings=settings,
        runs=tuple(runs),
        measures={name: spread for name, spread in spreads.items() if spread is not None},
        trained=next((run.trained for run in finished if run.trained is not None), None),
        flops=Spread.over(run.results.flops for run in finished),
        seconds=Spread.over(run.timing.get("seconds") for run in finished),
        joules=Spread.over(run.joules for run in finished),
        memory=Spread.over(run.timing.get("peak_memory_bytes") for run in finished),
        published=_published(runs[0].settings),
    )


def _published(settings: Mapping[str, Any]) -> float | None:
    below = "sweep.published."
    for key, figure in settings.items():
        name, _, value = key.removeprefix(below).partition("=")
        if key.startswith(below) and is_number(figure) and matches(settings, {name: value}):
            return figure
    return None


def _task(
    name: str, groups: Sequence[Group], sort: str | None, words: Words, reader: OutcomeReader
) -> TaskRuns:
    runs = [run for group in groups for run in group.runs]
    metrics = merged_metrics(run.results.metrics for run in runs)
    measure = _measure(groups, sort, metrics)
    finished = [run for run in runs if run.status == FINISHED]
    choice = criterion(learnt_runs(runs)) or criterion(finished)
    best_first, ties = _best_first(groups, choice, measure, metrics)
    baseline, compared, notes = _against_baseline(best_first, words, measure, reader)
    by = choice.measure if sort is None and choice is not None else measure
    by = sort if sort in COSTS else by
    split = measure.partition("/")[0]
    outcomes = [reader.read(run, split) for group in groups for run in group.finished]
    return TaskRuns(
        name=name,
        groups=tuple(compared if sort is None else _sorted(compared, by, metrics)),
        varying=varying_keys([group.runs for group in groups]),
        measure=measure,
        metrics=metrics,
        baseline=baseline,
        labels=next((run.results.labels for run in runs if run.results.labels), ()),
        expected=printable(next(filter(None, (run.results.expected for run in runs)), "label")),
        errors=shared_errors([outcome for outcome in outcomes if isinstance(outcome, RunOutcomes)]),
        sort=by,
        notes=(*ties, *notes, *_same_seeds(groups)),
        choice=choice,
        best=best_run(runs, choice) if len(runs) > 1 else None,
        ladder=ladder_of(runs),
    )


def _best_first(
    groups: Sequence[Group], choice: Criterion | None, measure: str, metrics: Sequence[Metric]
) -> tuple[list[Group], list[str]]:
    """Return the groups, the best first and marked, and what must be said of that.

    Groups that learnt nothing are behind all that did. Without validation none is marked.
    """
    if choice is None:
        several = len(groups) > 1 and bool(measure)
        note = "no group is marked as the best: nothing was measured on a validation split"
        return _sorted(groups, measure, metrics), [note] if several else []
    known = {}
    for group in groups:
        means = {name: spread.mean for name, spread in group.measures.items()}
        key = rank(choice, means, group.trained)
        if key is not None and learnt_runs(group.runs):
            known[group.label] = key
    ordered = _sorted(groups, choice.measure, metrics)
    ordered.sort(key=lambda group: (group.label not in known, known.get(group.label, ())))
    if len(groups) < 2 or not known:
        none = "no group is marked as the best: none learnt anything"
        has_ended = any(group.finished for group in groups)
        return ordered, [none] if len(groups) > 1 and has_ended else []
    first = ordered[0].label
    equal = [label for label in known if label != first and known[label][0] == known[first][0]]
    ties = []
    if equal:
        broken = tie_break(known[first], [known[label] for label in equal])
        with_same = f"{list_names(equal)} with the same {choice.measure} as the best"
        ties.append(f"a tie: {with_same}; {broken}")
    return [replace(one, is_best=one.label == first) for one in ordered], ties


def _measure(groups: Sequence[Group], sort: str | None, metrics: Sequence[Metric]) -> str:
    """Return the measure to report: the one asked for, else the first headline that is known."""
    known = dict.fromkeys(name for group in groups for name in group.measures)
    sorted_by = [] if sort is None else [sort, *(f"{split}/{sort}" for split in _SPLITS)]
    preferred = [f"{split}/{main.name}" for main in headlines_first(metrics) for split in _SPLITS]
    return next((metric for metric in (*sorted_by, *preferred, *known) if metric in known), "")


def _sorted(groups: Iterable[Group], by: str, metrics: Sequence[Metric]) -> list[Group]:
    sign = -1 if metric_of(by, metrics).higher_is_better else 1

    def place(group: Group) -> tuple[bool, float, str]:
        value = group.mean(by)
        if value is None or math.isnan(value):
            return True, 0.0, group.label
        return False, sign * value, group.label

    return sorted(groups, key=place)


def _same_seeds(groups: Iterable[Group]) -> Iterable[str]:
    seeds = {group.label: [str(run.seed) for run in group.finished] for group in groups}
    repeated = [label for label, known in seeds.items() if len(set(known)) < len(known)]
    if repeated:
        which = list_names(repeated, 1)
        yield f"{which}: runs with the same seed; their deviation is not one over seeds"


def _check_sort(tasks: Iterable[Sequence[Group]], sort: str | None) -> None:
    known = dict.fromkeys(name for groups in tasks for group in groups for name in group.measures)
    meant = {sort, *(f"{split}/{sort}" for split in _SPLITS)}
    if sort is None or meant & {*known, *COSTS}:
        return
    # Those of single classes would hide the others.
    some = [*(name for name in known if name.count("/") == 1), *COSTS]
    raise ConfigError(
        f"--sort {sort}: nothing finished has that.{did_you_mean(sort, [*some, *known])} "
        f"There are {', '.join(some[:_MOST_NAMED])}"
    )


def _parse_words(typed: str | None) -> Words:
    """Return what `--baseline` asks for: `adaptation=full optimizer.lr=1e-3`."""
    with raised_as(ConfigError, f"--baseline {typed}: "):
        words = shlex.split(typed or "")
    if typed is not None and (not words or not all("=" in word for word in words)):
        raise ConfigError(
            f"--baseline {typed!r}: expected KEY=VALUE, several in quotes, such as "
            '"adaptation=full optimizer.lr=1e-3"'
        )
    return dict(word.split("=", 1) for word in words)


def _check_words(words: Words, groups: Sequence[Group]) -> None:
    """Refuse a baseline that no group is; the message names what may be meant."""
    settings = [group.runs[0].settings for group in groups]
    keys = {key for setting in settings for key in setting if is_setting(key)}
    for key, value in words.items():
        if key not in keys:
            raise ConfigError(f"--baseline: there is no setting {key!r}.{did_you_mean(key, keys)}")
        known = dict.fromkeys(plain(setting[key]) for setting in settings if key in setting)
        if not any(matches(group.runs[0].settings, {key: value}) for group in groups):
            raise ConfigError(
                f"--baseline: no run has {key}={value}.{did_you_mean(value, known)} "
                f"There are {', '.join([*known][:_MOST_NAMED])}"
            )
    if words and not any(matches(group.runs[0].settings, words) for group in groups):
        raise ConfigError(f"--baseline: no run has all of {_join_words(words)}; leave some out")


def _against_baseline(
    groups: Sequence[Group], words: Words, measure: str, reader: OutcomeReader
) -> tuple[str | None, list[Group], list[str]]:
    """Return the name of the baseline, the groups with their differences to it, and notes.

    The groups are those of a task, best first. Without words the baseline is the group of full
    fine-tuning if there is one such group, else the best one. Where words fit several, each group
    is compared with the one that shares most of its settings, of several with the best.
    """
    if len(groups) < 2 or not measure:
        return None, list(groups), []
    matching = [group for group in groups if words and matches(group.runs[0].settings, words)]
    usual = [group for group in groups if matches(group.runs[0].settings, {"adaptation": "full"})]
    bases = matching or (usual if len(usual) == 1 else groups[:1])
    name = _join_words(words) if len(bases) > 1 else bases[0].label
    outcomes: dict[str, Comparison | str] = {}
    with progress("comparing groups", len(groups), "groups") as more:
        for group in groups:
            if group.finished and group.label not in {base.label for base in bases}:
                base = max(bases, key=lambda base: _num_shared_settings(base, group))
                outcomes[group.label] = compare(group.runs, base.runs, measure, reader, base.label)
            more(1)
    known = {label: outcome for label, outcome in outcomes.items() if not isinstance(outcome, str)}
    tested = {label: outcome.p for label, outcome in known.items() if outcome.p is not None}
    if len(tested) > 1:
        pairs = zip(tested, holm([*tested.values()]), strict=True)
        known |= {label: replace(known[label], corrected=p) for label, p in pairs}
    notes = [*_uneven_seeds({group.label: group for group in groups}, known)]
    if words and not matching:
        notes.append(f"no group here has {_join_words(words)}; the baseline is {bases[0].label}")
    others = {outcome.measure for outcome in known.values() if outcome.measure != measure}
    if others:
        notes.append(f"differences are in {', '.join(sorted(others))}, which is a sum over items")
    reasons = Counter(outcome for outcome in outcomes.values() if isinstance(outcome, str))
    for reason, count in reasons.items():
        which = "no group" if count == len(outcomes) else f"{count} of {len(outcomes)} groups not"
        notes.append(f"{which} compared item by item: {reason}")
    return name, [replace(group, against=known.get(group.label)) for group in groups], notes


def _uneven_seeds(groups: Mapping[str, Group], compared: Mapping[str, Comparison]) -> Iterator[str]:
    """Yield which groups have other seeds than what they are compared with."""
    seeds = {
        label: ", ".join(sorted({str(run.seed) for run in group.finished}))
        for label, group in groups.items()
    }
    pairs = [(label, comparison.baseline) for label, comparison in compared.items()]
    uneven = [
        f"{label} ({seeds[label]}) and {base} ({seeds[base]})"
        for label, base in pairs
        if seeds[label] != seeds[base]
    ]
    if uneven:
        yield f"uneven seeds, which are not paired: {list_names(uneven, _MOST_UNEVEN)}"


def _num_shared_settings(base: Group, group: Group) -> int:
    return sum(
        canonical_text(group.settings.get(key)) == canonical_text(base.settings.get(key))
        for key in group.settings.keys() | base.settings.keys()
    )


def _join_words(words: Words) -> str:
    return " ".join(f"{key}={value}" for key, value in words.items())
