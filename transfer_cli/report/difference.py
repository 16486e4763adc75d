"""In what two runs differ: config, data, environment, measures, costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transfer_cli.config.flat import flat
from transfer_cli.metrics import by_preference
from transfer_cli.report.contents import Comparison, Run
from transfer_cli.report.differing_settings import canonical, shown_values
from transfer_cli.report.outcomes import OutcomeReader, compare
from transfer_cli.report.untrusted import is_number, mapping, nested
from transfer_cli.runs.results import merged

MISSING = "-"
"""A value that one of the runs does not have."""

_PASSED_OVER = ("run", "resume", "data_dir", "data")
"""Keys that differ between any two runs and say nothing, and data, which is compared apart."""

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
    """What differs between two runs, and all measures and costs.

    There is a paired test on the items of each split, second minus first, or a note why not.
    """

    config: Sequence[DiffRow]
    data: Sequence[DiffRow]
    environment: Sequence[DiffRow]
    measures: Sequence[DiffRow]
    costs: Sequence[DiffRow]
    tests: Sequence[Comparison]
    notes: Sequence[str]


def difference(ours: Run, theirs: Run) -> Difference:
    """Return in what the second run differs from the first."""
    return Difference(
        _differing(_settings(ours), _settings(theirs)),
        _differing(_of_data(ours), _of_data(theirs)),
        _differing(_environment(ours), _environment(theirs)),
        _numbers(ours.measures, theirs.measures),
        _numbers(_costs(ours), _costs(theirs)),
        *_tests(ours, theirs),
    )


def _settings(run: Run) -> dict[str, Any]:
    """Return the config without the data, presets before their parts."""
    return {
        key: run.settings[key]
        for key in sorted(run.settings, key=lambda key: "." in key)
        if key.partition(".")[0] not in _PASSED_OVER
    } | {"command": run.command}


def _of_data(run: Run) -> dict[str, Any]:
    """Return what identifies a run's data, its labels and its sizes as far as they are known."""
    ours = ("data.", "streams.")
    found = {k: v for k, v in run.settings.items() if k == "data" or k.startswith(ours)}
    found |= {"labels": ", ".join(run.labels)} if run.labels else {}
    for split in mapping(run.results, "tables"):
        confusion = nested(run.results, "tables", split, "confusion")
        if isinstance(confusion, list):
            lines = (line for line in confusion if isinstance(line, list))
            found[f"{split} examples"] = sum(n for line in lines for n in line if type(n) is int)
    return found


def _environment(run: Run) -> dict[str, Any]:
    found = flat(run.environment)
    return {key.replace(".", " ", 1): value for key, value in found if key != "command"}


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


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[DiffRow]:
    rows = []
    for key in {**ours, **theirs}:
        both = [ours.get(key), theirs.get(key)]
        if (key in ours) != (key in theirs) or canonical(both[0]) != canonical(both[1]):
            shown = zip(shown_values(key, both), (ours, theirs), strict=True)
            one, other = (text if key in run else MISSING for text, run in shown)
            rows.append(DiffRow(key, one, other))
    return rows


def _numbers(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[DiffRow]:
    rows = []
    for name in {**ours, **theirs}:
        one, other = ours.get(name), theirs.get(name)
        change = None if one is None or other is None else other - one
        rows.append(DiffRow(name, number(one), number(other), change))
    return rows


def number(value: float | None) -> str:
    """Return a number with six digits, an integer with all."""
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
