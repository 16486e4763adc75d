"""Which runs belong together, on one task or in one group of seeds; in what groups differ."""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from transfer_cli.config.plain_yaml import scalar
from transfer_cli.config.roles import Role, role_of
from transfer_cli.errors import list_names
from transfer_cli.reports.contents import FINISHED, LEFT, Run
from transfer_cli.reports.formats import ALL_DIGITS, cut, plain
from transfer_cli.safe_files import printable

Settings = Mapping[str, Any]

_TEXT = ("data.", "tokenizer.")

_ALWAYS_TOLD = frozenset({"init_from", "optimizer.lr"})
"""Keys that are told though a preset explains them: each scheme brings its own rate, and some begin
with a model of another kind."""

MOST_WORDS = 8
"""A label of more words says no more than its first ones."""

_MOST_CHARACTERS = 60


def is_setting(key: str) -> bool:
    """Return whether a key of the config can change what a run learns."""
    return Role.SETTING in role_of(key)


def names_teachers(key: str) -> bool:
    """Return whether a key names runs that a run learns from, such as `losses.rest.teachers`."""
    return key.rpartition(".")[2] == "teachers"


def identity(settings: Settings) -> dict[str, str]:
    """Return what tells a run from others but for its seed, each value as a text to compare."""
    return {
        key: canonical_text(value)
        for key, value in settings.items()
        if value is not None and is_setting(key)
    }


def canonical_text(value: Any) -> str:
    """Return a text that is equal for equal values: 1 and 1.0 are."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(float(value))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def matches(settings: Settings, words: Mapping[str, str]) -> bool:
    """Return whether a run has the values that were typed for some keys."""
    return all(
        key in settings and canonical_text(settings[key]) in (canonical_text(scalar(value)), value)
        for key, value in words.items()
    )


def first_difference(some: Settings, others: Settings, parts: tuple[str, ...] = _TEXT) -> str:
    """Return the first key in which runs differ, of text or tokenizer by default; "" for none."""
    keys = sorted(key for key in {*some, *others} if key.startswith(parts) and is_setting(key))
    ours, theirs = ([canonical_text(run.get(key)) for key in keys] for run in (some, others))
    pairs = zip(keys, ours, theirs, strict=True)
    return next((key for key, one, other in pairs if one != other), "")


def varying_keys(groups: Sequence[Sequence[Run]]) -> tuple[str, ...]:
    """Return the fewest keys that say in what groups differ.

    What was typed is among them if it differs at all, and so is the learning rate. Of the rest,
    which presets brought along, only what does not follow from the keys before it.
    """
    settings = [identity(runs[0].settings) for runs in groups]
    keys = dict.fromkeys(key for group in settings for key in group)
    differing = [key for key in keys if len({group.get(key) for group in settings}) > 1]
    typed = {key for runs in groups for run in runs for key in run.typed}
    # Each seed may have teachers of its own.
    named_keys = {key for key in typed if not names_teachers(key)} | _ALWAYS_TOLD
    # What was typed, then presets, each before its parts.
    differing.sort(key=lambda key: (key not in typed, "." in key, "/" in key or "@" in key, key))
    known: list[tuple[str | None, ...]] = [()] * len(settings)
    chosen = []
    for key in differing:
        more = [(*so_far, group.get(key)) for so_far, group in zip(known, settings, strict=True)]
        if key in named_keys or len(set(more)) > len(set(known)):
            chosen.append(key)
            known = more
    return tuple(chosen)


def shown_values(key: str, values: Sequence[Any]) -> list[str]:
    """Return how groups' values of a key are written: different ones differ, in few characters."""
    ways = [[plain(value) for value in values]]
    is_place = "." in key or key == "init_from"
    if any(isinstance(value, float) for value in values):
        ways = [[plain(value, digits) for value in values] for digits in range(3, ALL_DIGITS + 1)]
    elif is_place and any(isinstance(value, str) and "/" in value for value in values):
        parts = [PurePosixPath(value).parts if isinstance(value, str) else () for value in values]
        sizes = range(1, max(map(len, parts)) + 1)
        ways = [["/".join(part[-size:]).replace("//", "/") for part in parts] for size in sizes]
    distinct = len(set(map(canonical_text, values)))
    texts = next((way for way in ways if len(set(way)) >= distinct), ways[-1])
    return [printable(text or plain(value)) for text, value in zip(texts, values, strict=True)]


def group_labels(keys: Sequence[str], groups: Sequence[Settings]) -> list[str]:
    """Return names of groups that differ in some keys: `adaptation=lora optimizer.lr=0.001`."""
    columns = {key: shown_values(key, [group.get(key) for group in groups]) for key in keys}
    called: list[str] = []
    for place, settings in enumerate(groups):
        words = [
            f"{printable(key)}={cut(columns[key][place], _MOST_CHARACTERS, '...')}"
            for key in keys
            if key in settings
        ]
        label = " ".join(words[:MOST_WORDS]) + (" ..." if len(words) > MOST_WORDS else "")
        label = label or "(as it is)"
        called.append(label if label not in called else f"{label} #{place + 1}")
    return called


# --- tasks, and groups of seeds ----------------------------------------------------------------

_USES = ("data.labelled", "data.length")
"""How data is used: runs that differ in these are judged on the same texts."""

_ANY_FILE = ("table", "text", "table_text")
"""Presets of data that read any file."""


def group_by_task(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs apart by command, data, task and labels, by name; the largest part first.

    A task can be learnt by several objectives: `adaptation=pet` answers as a classifier does. Jobs
    of a sweep that have not begun are left out: nothing is known of them.
    """
    parts: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in _with_sibling_settings(runs):
        parts[(run.command, *sorted(_data_of(run).items()))].append(run)
    apart = [answered for part in parts.values() for answered in _by_answers(part)]
    apart.sort(key=len, reverse=True)
    return dict(zip(_task_names(apart), apart, strict=True))


def group_by_settings(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs apart by all but their seeds, which are in order within each part.

    Where each seed has teachers of its own, these are no difference, either.
    """
    ordered = sorted(
        runs,
        key=lambda run: (run.seed if isinstance(run.seed, int) else 0, str(run.seed), run.name),
    )
    known = {os.path.realpath(run.path): _settings_but_teachers(run) for run in runs}

    def kinds(run: Run) -> Hashable:
        return tuple(known.get(os.path.realpath(path), path) for path in _teachers(run))

    groups = []
    for part in _group_by(ordered, _settings_but_teachers):
        ways = ([part], _group_by(part, kinds), _group_by(part, _teachers))
        groups += next((way for way in ways if all(map(_is_taught_by_seed, way))), ways[-1])
    return groups


def _group_by(runs: Iterable[Run], key: Callable[[Run], Hashable]) -> list[list[Run]]:
    parts: dict[Hashable, list[Run]] = defaultdict(list)
    for run in runs:
        parts[key(run)].append(run)
    return list(parts.values())


def _settings_but_teachers(run: Run) -> frozenset[tuple[str, str]]:
    """Return what tells a run from others but for its seed and its teachers."""
    known = identity(run.settings).items()
    return frozenset(item for item in known if not names_teachers(item[0]))


def _teachers(run: Run) -> tuple[str, ...]:
    values = (run.settings[key] for key in sorted(run.settings) if names_teachers(key))
    return tuple(
        str(path) for value in values for path in (value if isinstance(value, list) else [value])
    )


def _is_taught_by_seed(runs: Sequence[Run]) -> bool:
    """Return whether all runs have the same teachers, or each seed has its own."""
    pairs = {(str(run.seed), _teachers(run)) for run in runs}
    seeds, teachers = (set(column) for column in zip(*pairs, strict=True))
    return len(teachers) == 1 or len(seeds) == len(teachers) == len(pairs)


def _task_names(tasks: Sequence[Sequence[Run]]) -> list[str]:
    """Return what each task is called, no two alike: `finetune on trec6`."""
    firsts = [runs[0] for runs in tasks]
    called = [f"{printable(run.command)} on {_data_name(run)}" for run in firsts]
    objectives = (
        run.settings.get("objective") or _objective(run)[0].rpartition(".")[2] for run in firsts
    )
    for further in (
        [printable(str(objective)) for objective in objectives],
        [printable(f"objective.mode={_objective(run)[1]}") for run in firsts],
        _first_difference(firsts),
        [f"{max(len(run.results.labels) for run in runs)} labels" for runs in tasks],
        [f"number {place}" for place in range(1, len(tasks) + 1)],
    ):
        pairs = list(zip(called, further, strict=True))
        meanings = Counter(name for name, _ in set(pairs))
        called = [f"{name} ({word})" if meanings[name] > 1 else name for name, word in pairs]
    return called


def _data_of(run: Run) -> dict[str, str]:
    return {
        key: canonical_text(value)
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
    sources = source if isinstance(source, list) else [source]
    file = list_names((PurePosixPath(path).name for path in sources if isinstance(path, str)), 1)
    if preset is None:
        kind = str(run.settings.get("data._target_", "unknown data")).rpartition(".")[2]
        return printable(f"{kind} {file}" if file else kind)
    return printable(f"{preset} {file}" if file and preset in _ANY_FILE else str(preset))


def _first_difference(runs: Sequence[Run]) -> list[str]:
    """Return, of each run, the first setting of the data that differs among them."""
    known = [_data_of(run) for run in runs]
    for key in sorted({key for settings in known for key in settings}):
        if len({settings.get(key) for settings in known}) > 1 and not key.endswith("_target_"):
            return [printable(f"{key}={plain(run.settings.get(key))}") for run in runs]
    return ["data"] * len(runs)


def _with_sibling_settings(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield the runs that have begun.

    A job that failed before it had a directory is known by its overrides alone. All else is as in
    a job of the same sweep, if possible one that differs in the seed alone.
    """
    whole = [run for run in runs if "data._target_" in run.settings]
    for run in runs:
        if run.status != LEFT and (run.sweep is None or "data._target_" in run.settings):
            yield run
        elif run.status != LEFT:
            siblings = [other for other in whole if other.sweep == run.sweep]
            # The first that differs in nothing else, or else the first.
            siblings.sort(key=lambda sibling: _without_seed(sibling) != _without_seed(run))
            for like in siblings[:1]:
                yield replace(run, settings={**like.settings, **run.settings})


def _without_seed(run: Run) -> set[str]:
    return {word for word in run.overrides if not word.startswith("seed=")}
