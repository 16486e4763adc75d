"""In what two runs differ: config, data, environment, measures, costs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transfer_cli.metrics import by_preference
from transfer_cli.report.contents import Comparison, Run
from transfer_cli.report.differing_settings import canonical, shown_values
from transfer_cli.report.outcomes import OutcomeReader
from transfer_cli.report.significance import compare
from transfer_cli.report.untrusted import is_number, mapping, nested
from transfer_cli.runs.results import merged

MISSING = "-"
"""What stands for a value that one of the runs does not have."""

_NAMES = ("run", "resume", "data_dir")
"""Keys that differ between any two runs, and say nothing."""

_SPLITS = ("test", "validation")


@dataclass(frozen=True)
class DiffRow:
    """A value of both runs, as it is shown; `change` is second minus first, of numbers."""

    name: str
    ours: str
    theirs: str
    change: float | None = None


@dataclass(frozen=True)
class Difference:
    """What tells the second run from the first.

    Args:
        config: Settings that differ; presets by their group.
        data: What is known of the data: all of it, where anything differs.
        environment: Versions and machines that differ.
        tests: A paired test on the items of each split, second minus first.
        notes: Why there is no test, a line each.
    """

    config: tuple[DiffRow, ...]
    data: tuple[DiffRow, ...]
    environment: tuple[DiffRow, ...]
    measures: tuple[DiffRow, ...]
    costs: tuple[DiffRow, ...]
    tests: tuple[Comparison, ...]
    notes: tuple[str, ...]


def difference(ours: Run, theirs: Run) -> Difference:
    """Return in what the second run differs from the first."""
    tests, notes = _tests(ours, theirs)
    return Difference(
        config=tuple(_differing(_settings(ours), _settings(theirs))),
        data=tuple(_differing(_of_data(ours), _of_data(theirs))),
        environment=tuple(_differing(_environment(ours), _environment(theirs))),
        measures=tuple(_numbers(ours.measures, theirs.measures)),
        costs=tuple(_numbers(_costs(ours), _costs(theirs))),
        tests=tuple(tests),
        notes=tuple(notes),
    )


def _settings(run: Run) -> dict[str, Any]:
    """Return the config but for the data, whole parts and presets before what is in them."""
    return {
        key: run.settings[key]
        for key in sorted(run.settings, key=lambda key: "." in key)
        if key.split(".")[0] not in _NAMES and not key.startswith("data.") and key != "data"
    } | {"command": run.command}


def _of_data(run: Run) -> dict[str, Any]:
    """Return what identifies a run's data, its labels and its sizes as far as they are known."""
    ours = ("data.", "streams.")
    keys = (key for key in run.settings if key == "data" or key.startswith(ours))
    found = {key: run.settings[key] for key in keys}
    found |= {"labels": ", ".join(run.labels)} if run.labels else {}
    for split in mapping(run.results, "tables"):
        confusion = nested(run.results, "tables", split, "confusion")
        if isinstance(confusion, list):
            lines = (line for line in confusion if isinstance(line, list))
            found[f"{split} examples"] = sum(n for line in lines for n in line if type(n) is int)
    return found


def _environment(run: Run) -> dict[str, Any]:
    """Return versions, machine and devices, flat."""
    found: dict[str, Any] = {}
    for name, value in run.environment.items():
        if isinstance(value, dict):
            found |= {f"{name} {each}": value[each] for each in value}
        elif name != "command":
            found[name] = value
    return found


def _costs(run: Run) -> dict[str, float]:
    found = {
        "parameters": nested(run.results, "parameters", "total"),
        "parameters trained": run.trained,
        "steps": nested(run.results, "seen", "steps"),
        "seconds": run.timing.get("seconds"),
        "peak memory, bytes": run.timing.get("peak_memory_bytes"),
        "stored, bytes": run.results.get("stored_bytes"),
    }
    return {name: value for name, value in found.items() if is_number(value)}


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[DiffRow]:
    for key in dict.fromkeys((*ours, *theirs)):
        both = [ours.get(key), theirs.get(key)]
        if (key in ours) == (key in theirs) and canonical(both[0]) == canonical(both[1]):
            continue
        one, other = shown_values(key, both)
        yield DiffRow(key, one if key in ours else MISSING, other if key in theirs else MISSING)


def _numbers(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Iterator[DiffRow]:
    for name in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(name), theirs.get(name)
        change = None if one is None or other is None else other - one
        yield DiffRow(name, number(one), number(other), change)


def number(value: float | None) -> str:
    """Return a number with six digits, whole ones with all."""
    if value is None:
        return MISSING
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _tests(ours: Run, theirs: Run) -> tuple[list[Comparison], list[str]]:
    """Return a paired test of each split on which both were measured, or why there is none."""
    reader = OutcomeReader()
    tests, notes = [], []
    shared = ours.measures.keys() & theirs.measures.keys()
    preferred = by_preference(merged((ours.metrics, theirs.metrics)))
    for split in _SPLITS:
        named = [f"{split}/{each.name}" for each in preferred]
        measure = next((each for each in named if each in shared), None)
        if measure is None:
            continue
        found = compare([theirs], [ours], measure, reader, ours.name)
        if isinstance(found, Comparison):
            tests.append(found)
        else:
            notes.append(f"no test on the items of {split}: {found}")
    return tests, notes
