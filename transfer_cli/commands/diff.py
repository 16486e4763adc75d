"""`transfer diff`: in what two runs differ."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from transfer_cli.config.flags import MANY, SWITCH, read
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.report import formats
from transfer_cli.report.collect import check_there, read_run
from transfer_cli.report.contents import FINISHED, Run
from transfer_cli.report.difference import Difference, DiffRow, difference, number
from transfer_cli.report.file_formats import as_json
from transfer_cli.report.statistics import CONFIDENCE
from transfer_cli.runs.directory import RunDirectory
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

_MOST_MEASURES = 40
"""Measures that are shown: a task of 50 labels has an accuracy for each."""


def diff(words: list[str]) -> None:
    """Print in what the second of two runs differs from the first, as tables or as JSON.

    Raises:
        ConfigError: There are not two runs.
        CheckpointError: One of them cannot be read.
    """
    asked = read(words, {"paths": MANY, "--json": SWITCH})
    if len(asked.paths) != 2:
        raise ConfigError(
            f"name two runs, got {len(asked.paths)}: transfer diff RUN_A RUN_B; "
            "transfer report compares more"
        )
    ours, theirs = (_run(Path(path).expanduser()) for path in asked.paths)
    found = difference(ours, theirs)
    if asked.json:
        content = {"a": ours.path, "b": theirs.path, "difference": found}
        print(as_json(content), end="")
    else:
        print_out(Page(*_blocks(ours, theirs, found)))


def _run(path: Path) -> Run:
    check_there(path)
    if not RunDirectory.holds_run(path):
        raise CheckpointError(f"{path} is no run directory: it holds no config.yaml")
    try:
        return read_run(path)
    except UnreadableError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _blocks(ours: Run, theirs: Run, found: Difference) -> Iterator[Renderable]:
    for name, run in (("a", ours), ("b", theirs)):
        state = run.status if run.reason is None else printable(f"{run.status}: {run.reason}")
        style: Style = "" if run.status == FINISHED and run.reason is None else "bad"
        place = Piece(str(run.path), "name")
        yield Line(f"{name}  ", place, f"  {run.command}, ", Piece(state, style))
    parts = (
        ("config", found.config),
        ("data", found.data),
        ("environment", found.environment),
        ("measures", found.measures[:_MOST_MEASURES]),
        ("costs", found.costs),
    )
    for title, rows in parts:
        yield BLANK
        if rows:
            yield _table(title, rows)
        else:
            alike = "nothing is known" if title in ("measures", "costs") else "no difference"
            yield Line(Piece(title, "heading"), f": {alike}")
    yield BLANK
    yield from _tests(found)


def _table(title: str, rows: Sequence[DiffRow]) -> TextTable:
    are_numbers = any(row.change is not None for row in rows)
    columns = [Column(title), Column("a", right=are_numbers), Column("b", right=are_numbers)]
    cells: list[list[Piece | str]] = [
        [Piece(row.name, "name"), row.ours, row.theirs] for row in rows
    ]
    if are_numbers:
        columns.append(Column("b - a", right=True))
        for row, line in zip(rows, cells, strict=True):
            sign = "+" if row.change and row.change > 0 else ""
            line.append("" if row.change is None else f"{sign}{number(row.change)}")
    return TextTable(columns, cells)


def _tests(found: Difference) -> Iterator[Renderable]:
    for test in found.tests:
        ends = [
            formats.signed(end, test.difference) for end in (test.low, test.high) if end is not None
        ]
        yield Entry(
            [Piece(f"{test.measure}  ", "heading")],
            [
                f"b - a {formats.signed(test.difference, test.difference)}, "
                f"{CONFIDENCE} % interval [{', '.join(ends)}], "
                f"p {formats.probability(test.p)} by {test.test} on {test.items:,} items"
            ],
            28,
        )
    for note in found.notes:
        yield Line(Piece(note, "note"))
