"""Which runs belong together: on one task, and in one group of seeds."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from transfer_cli.report.contents import FINISHED, LEFT, Run
from transfer_cli.report.differing_settings import canonical, identity, names_teachers
from transfer_cli.report.formats import plain
from transfer_cli.safe_files import printable

_USES = ("data.labelled", "data.length")
"""How data is used: runs that differ in these are judged on the same texts."""

_ANY_FILE = ("table", "text", "table_text")
"""Presets of data that read any file."""


def by_task(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs apart by command, data, task and labels; the largest part first.

    A task can be learnt by several objectives: `adaptation=pet` answers as a classifier does. Jobs
    of a sweep that have not begun are left out: nothing is known of them.
    """
    parts: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in _adopted(runs):
        parts[(run.command, *sorted(_data_of(run).items()))].append(run)
    apart = [answered for part in parts.values() for answered in _by_answers(part)]
    return sorted(apart, key=len, reverse=True)


def by_settings(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs apart by all but their seeds, which are in order within each part.

    Where each seed has teachers of its own, these are no difference, either.
    """
    ordered = sorted(
        runs,
        key=lambda run: (run.seed if isinstance(run.seed, int) else 0, str(run.seed), run.name),
    )
    known = {os.path.realpath(run.path): _untaught(run) for run in runs}

    def kinds(run: Run) -> Hashable:
        return tuple(known.get(os.path.realpath(path), path) for path in _teachers(run))

    found = []
    for part in _apart(ordered, _untaught):
        ways = ([part], _apart(part, kinds), _apart(part, _teachers))
        found += next((way for way in ways if all(map(_is_taught_by_seed, way))), ways[-1])
    return found


def _apart(runs: Iterable[Run], key: Callable[[Run], Hashable]) -> list[list[Run]]:
    parts: dict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        parts[key(run)].append(run)
    return list(parts.values())


def _untaught(run: Run) -> frozenset[tuple[str, str]]:
    """Return what tells a run from others but for its seed and its teachers."""
    known = identity(run.settings).items()
    return frozenset(item for item in known if not names_teachers(item[0]))


def _teachers(run: Run) -> tuple[str, ...]:
    values = (run.settings[key] for key in sorted(run.settings) if names_teachers(key))
    return tuple(
        str(path) for each in values for path in (each if isinstance(each, list) else [each])
    )


def _is_taught_by_seed(runs: Sequence[Run]) -> bool:
    """Return whether all runs have the same teachers, or each seed has its own."""
    pairs = {(str(run.seed), _teachers(run)) for run in runs}
    seeds, teachers = (set(each) for each in zip(*pairs, strict=True))
    return len(teachers) == 1 or len(seeds) == len(teachers) == len(pairs)


def names(tasks: Sequence[Sequence[Run]]) -> list[str]:
    """Return what each task is called, no two alike: `finetune on trec6`."""
    firsts = [runs[0] for runs in tasks]
    found = [f"{printable(run.command)} on {_data_name(run)}" for run in firsts]
    objectives = (
        run.settings.get("objective") or _objective(run)[0].rpartition(".")[2] for run in firsts
    )
    for further in (
        [printable(str(each)) for each in objectives],
        [printable(f"objective.mode={_objective(run)[1]}") for run in firsts],
        _what_differs(firsts),
        [f"{max(len(run.results.labels) for run in runs)} labels" for runs in tasks],
        [f"number {place}" for place in range(1, len(tasks) + 1)],
    ):
        pairs = list(zip(found, further, strict=True))
        meanings = Counter(name for name, _ in set(pairs))
        found = [f"{name} ({word})" if meanings[name] > 1 else name for name, word in pairs]
    return found


def _data_of(run: Run) -> dict[str, str]:
    return {
        key: canonical(value)
        for key, value in run.settings.items()
        if key.startswith("data.") and key not in _USES and value is not None
    }


def _objective(run: Run) -> tuple[str, str]:
    """Return the class of the objective and its mode: losses of two modes are not alike."""
    kind, mode = (run.settings.get(f"objective.{key}", "") for key in ("_target_", "mode"))
    return str(kind), str(mode)


def _by_answers(runs: Sequence[Run]) -> list[list[Run]]:
    """Return runs apart by task and labels; where there is no task, by objective.

    Those that have not finished join the largest part of their objective, if there is one.
    """
    parts: dict[Hashable, list[Run]] = {}
    finished = [run for run in runs if run.status == FINISHED]
    for run in finished:
        task = run.results.task or _objective(run)
        parts.setdefault((task, run.results.labels), []).append(run)
    largest = sorted(parts.values(), key=len, reverse=True)
    of_objective = {_objective(run): part for part in reversed(largest) for run in part}
    for run in runs:
        if run.status != FINISHED:
            key = _objective(run)
            part = of_objective.setdefault(key, [])
            if not part:
                parts[key] = part
            part.append(run)
    return [*parts.values()]


def _data_name(run: Run) -> str:
    preset = run.settings.get("data")
    source = run.settings.get("data.train")
    if isinstance(source, list) and source:
        source = source[0]
    file = PurePosixPath(source).name if isinstance(source, str) else None
    if preset is None:
        kind = str(run.settings.get("data._target_", "unknown data")).rpartition(".")[2]
        return printable(f"{kind} {file}" if file else kind)
    return printable(f"{preset} {file}" if file and preset in _ANY_FILE else str(preset))


def _what_differs(runs: Sequence[Run]) -> list[str]:
    """Return, of each run, the first setting of the data that differs among them."""
    known = [_data_of(each) for each in runs]
    for key in sorted({key for each in known for key in each}):
        if len({each.get(key) for each in known}) > 1 and not key.endswith("_target_"):
            return [printable(f"{key}={plain(run.settings.get(key))}") for run in runs]
    return ["data"] * len(runs)


def _adopted(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield the runs that have begun.

    A job that failed before it had a directory is known by its overrides alone. All else is as in
    a job of the same sweep, if possible one that differs in the seed alone.
    """
    whole = [run for run in runs if "data._target_" in run.settings]
    for run in runs:
        if "data._target_" in run.settings and run.status != LEFT:
            yield run
        elif run.status != LEFT:
            siblings = [each for each in whole if each.sweep == run.sweep]
            # The first that differs in nothing else, or else the first.
            siblings.sort(key=lambda each: _without_seed(each) != _without_seed(run))
            for like in siblings[:1]:
                yield replace(run, settings={**like.settings, **run.settings})


def _without_seed(run: Run) -> set[str]:
    return {word for word in run.overrides if not word.startswith("seed=")}
