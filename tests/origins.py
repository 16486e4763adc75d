"""What the runs of `begun` are made from, and how it may change."""

from collections.abc import Sequence
from pathlib import Path

from tests.task_kinds import CITIES, THINGS

Row = tuple[str, str]


def rows() -> list[Row]:
    """Return 60 questions with three labels."""
    kinds = (
        lambda n: (f"Where is the {THINGS[n % 5]}, number {n} ?", "place"),
        lambda n: (f"Who built the one in {CITIES[n % 6]} numbered {n} ?", "person"),
        lambda n: (f"How many are there of number {n} ?", "amount"),
    )
    return [kinds[n % 3](n) for n in range(60)]


def write_table(path: str | Path, table: Sequence[Row]) -> None:
    """Write texts with their labels."""
    lines = (f'"{text}",{label}\n' for text, label in [("text", "label"), *table])
    Path(path).write_text("".join(lines))


def swapped(table: list[Row]) -> list[Row]:
    """Return a table with two labels in each other's place."""
    other = {"place": "person", "person": "place"}
    return [(text, other.get(label, label)) for text, label in table]


CHANGES = {
    "labels swapped": swapped,
    "rows cut": lambda table: table[:48],
    "one letter": lambda table: [(table[0][0].upper(), table[0][1]), *table[1:]],
    "another order": lambda table: table[::-1],
    "a label gone": lambda table: [row for row in table if row[1] != "amount"],
    "a label renamed": lambda table: [(text, label.replace("ce", "t")) for text, label in table],
}
