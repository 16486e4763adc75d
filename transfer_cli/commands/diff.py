"""`transfer diff`: in what two runs differ."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer_cli.config.flags import MANY, SWITCH, read_flags
from transfer_cli.config.flat import flat_items
from transfer_cli.errors import CheckpointError, ConfigError, raised_as
from transfer_cli.metrics import Metric, headlines_first
from transfer_cli.reports import formats
from transfer_cli.reports.collect import check_folder_exists, read_run, resolve_run
from transfer_cli.reports.contents import CONFIDENCE, FINISHED, Comparison, Run, metric_of
from transfer_cli.reports.grouping import canonical_text, shown_values
from transfer_cli.reports.outcomes import OutcomeReader, compare
from transfer_cli.reports.tables import as_json
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.results import merged_metrics
from transfer_cli.runs.untrusted import is_number
from transfer_cli.safe_files import UnreadableError, printable
from transfer_cli.terminal import (
    BLANK,
    Column,
    Entry,
    Line,
    Page,
    Piece,
    Renderable,
    Style,
    TextTable,
    print_out,
)

_MISSING = "-"
"""A value that one of the runs does not have."""

_IGNORED_KEYS = ("run", "resume", "data_dir", "data")
"""Keys that differ between any two runs and say nothing, and data, which is compared apart."""

_SPLITS = ("test", "validation")


@dataclass(frozen=True)
class DiffRow:
    """A value of both runs, as it is shown; `change` is second minus first, of numbers."""

    name: str
    ours: str
    theirs: str
    change: float | None = None


def diff(words: list[str]) -> None:
    """Print in what the second of two runs differs from the first, as tables or as JSON."""
    flags = read_flags(words, {"paths": MANY, "--json": SWITCH})
    if len(flags.paths) != 2:
        raise ConfigError(
            f"name two runs, got {len(flags.paths)}: transfer diff RUN_A RUN_B; "
            "transfer report compares more"
        )
    ours, theirs = (_read_run(Path(resolve_run(path, "run")).expanduser()) for path in flags.paths)
    parts = {
        "config": _differences(_settings(ours), _settings(theirs)),
        "data": _differences(_data_facts(ours), _data_facts(theirs)),
        "environment": _differences(_environment(ours), _environment(theirs)),
        "measures": _compared_numbers(ours.results.by_name, theirs.results.by_name),
        "costs": _compared_numbers(_costs(ours), _costs(theirs)),
    }
    tests, notes = _paired_tests(ours, theirs)
    if flags.json:
        difference = {**parts, "tests": tests, "notes": notes}
        print(as_json({"a": ours.path, "b": theirs.path, "difference": difference}), end="")
    else:
        parts["measures"] = _compared_numbers(_shown_measures(ours), _shown_measures(theirs))
        tables = (*_run_headings(a=ours, b=theirs), *_difference_tables(parts))
        lines = (Line(Piece(note, "note")) for note in notes)
        shown = (_test_entry(test, metric_of(test.measure, ours.results.metrics)) for test in tests)
        print_out(Page(*tables, *shown, *lines))


def _read_run(path: Path) -> Run:
    check_folder_exists(path)
    if not RunDirectory.holds_run(path):
        raise CheckpointError(f"{path} is no run directory: it holds no config.yaml")
    with raised_as(CheckpointError, f"{path} cannot be read: ", UnreadableError):
        return read_run(path)


def _run_headings(**runs: Run) -> Iterator[Renderable]:
    for name, run in runs.items():
        state = run.status if run.reason is None else printable(f"{run.status}: {run.reason}")
        style: Style = "" if run.status == FINISHED and run.reason is None else "bad"
        place = Piece(str(run.path), "name")
        yield Line(f"{name}  ", place, f"  {run.command}, ", Piece(state, style))


def _difference_tables(parts: Mapping[str, Sequence[DiffRow]]) -> Iterator[Renderable]:
    most_measures = 40  # measures that are shown: a task of 50 labels has an accuracy for each
    for title, rows in parts.items():
        yield BLANK
        shown = rows[:most_measures] if title == "measures" else rows
        if rows:
            yield _difference_table(title, shown)
        else:
            alike = "nothing is known" if title in ("measures", "costs") else "no difference"
            yield Line(Piece(title, "heading"), f": {alike}")
        if len(shown) < len(rows):
            yield Line(Piece(f"and {len(rows) - len(shown):,} more, which --json shows", "note"))
    yield BLANK


def _difference_table(title: str, rows: Sequence[DiffRow]) -> TextTable:
    are_numbers = any(row.change is not None for row in rows)
    columns = [Column(title), Column("a", right=are_numbers), Column("b", right=are_numbers)]
    cells: list[list[Piece | str]] = [
        [Piece(row.name, "name"), row.ours, row.theirs] for row in rows
    ]
    if are_numbers:
        columns.append(Column("b - a", right=True))
        for row, line in zip(rows, cells, strict=True):
            sign = "+" if row.change and row.change > 0 else ""
            line.append("" if row.change is None else f"{sign}{_number_text(row.change)}")
    return TextTable(columns, cells)


def _test_entry(test: Comparison, metric: Metric) -> Entry:
    times, points = metric.display_scale, " points" if metric.display_unit else ""
    known = [end for end in (test.difference, test.low, test.high) if end is not None]
    size, *ends = (formats.signed(times * end, times * test.difference) for end in known)
    p = formats.NOTHING if test.p is None else formats.probability(test.p)
    text = (
        f"b - a {size}{points}, {CONFIDENCE} % interval [{', '.join(ends)}], "
        f"p {p} by {test.test} on {test.items:,} items"
    )
    return Entry([Piece(f"{test.measure}  ", "heading")], [text], 28)


# --- what differs ------------------------------------------------------------------------------


def _settings(run: Run) -> dict[str, Any]:
    """Return the config without the data, presets before their parts."""
    return {
        key: run.settings[key]
        for key in sorted(run.settings, key=lambda key: "." in key)
        if key.partition(".")[0] not in _IGNORED_KEYS
    } | {"command": run.command}


def _data_facts(run: Run) -> dict[str, Any]:
    """Return what identifies a run's data, its labels and its sizes as far as they are known."""
    ours = ("data.", "streams.")
    facts = {k: v for k, v in run.settings.items() if k == "data" or k.startswith(ours)}
    facts |= {"labels": ", ".join(run.results.labels)} if run.results.labels else {}
    for split, tables in run.results.tables.items():
        confusion = tables.get("confusion")
        if isinstance(confusion, list):
            lines = (line for line in confusion if isinstance(line, list))
            facts[f"{split} examples"] = sum(n for line in lines for n in line if type(n) is int)
    return facts


def _environment(run: Run) -> dict[str, Any]:
    facts = flat_items(run.environment)
    return {key.replace(".", " ", 1): value for key, value in facts if key != "command"}


def _costs(run: Run) -> dict[str, float]:
    costs = {
        "parameters": run.results.parameters.total,
        "parameters trained": run.trained,
        "steps": run.results.seen.steps,
        "flops": run.results.flops,
        "seconds": run.timing.get("seconds"),
        "joules": run.joules,
        "peak memory, bytes": run.timing.get("peak_memory_bytes"),
        "stored, bytes": run.results.stored_bytes,
    }
    return {name: value for name, value in costs.items() if is_number(value)}


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[DiffRow]:
    rows = []
    for key in {**ours, **theirs}:
        both = [ours.get(key), theirs.get(key)]
        if (key in ours) != (key in theirs) or canonical_text(both[0]) != canonical_text(both[1]):
            shown = zip(shown_values(key, both), (ours, theirs), strict=True)
            one, other = (text if key in run else _MISSING for text, run in shown)
            rows.append(DiffRow(key, one, other))
    return rows


def _shown_measures(run: Run) -> dict[str, float]:
    """Return the measures of a run as people read them: shares in percent, as errors are."""
    measures = {}
    for name, value in run.results.by_name.items():
        metric = metric_of(name, run.results.metrics)
        unit = f" ({metric.display_unit.strip()})" if metric.display_unit else ""
        measures[name + unit] = metric.display_scale * value
    return measures


def _compared_numbers(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[DiffRow]:
    rows = []
    for name in {**ours, **theirs}:
        one, other = ours.get(name), theirs.get(name)
        change = None if one is None or other is None else other - one
        rows.append(DiffRow(name, _number_text(one), _number_text(other), change))
    return rows


def _number_text(value: float | None) -> str:
    """Return a number with six digits, an integer with all."""
    if value is None:
        return _MISSING
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _paired_tests(ours: Run, theirs: Run) -> tuple[list[Comparison], list[str]]:
    """Return a paired test of each split on which both were measured, or why there is none."""
    reader = OutcomeReader()
    tests, notes = [], []
    shared = ours.results.by_name.keys() & theirs.results.by_name.keys()
    preferred = headlines_first(merged_metrics((ours.results.metrics, theirs.results.metrics)))
    for split in _SPLITS:
        named = [f"{split}/{metric.name}" for metric in preferred]
        measure = next((name for name in named if name in shared), None)
        if measure is None:
            continue
        result = compare([theirs], [ours], measure, reader, ours.name)
        if isinstance(result, Comparison):
            tests.append(result)
        else:
            notes.append(f"no test on the items of {split}: {result}")
    return tests, notes
