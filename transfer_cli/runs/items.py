"""What a run made of each example of its test and validation split: one JSON line an example.

Two runs on the same data can so be compared example by example, long after they have ended.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from transfer_cli.runs.atomic import write_text
from transfer_cli.safe_files import UnreadableError, parse_json

MOST_ITEMS = 200_000
"""Examples of a split; more would make some 30 MB, and nobody reads so many one by one."""

MOST_TEXTS = 20_000
"""Examples of a split whose texts are kept; of 500 characters each they make 10 MB."""

MOST_CHARACTERS = 500
"""A text is kept up to here: enough to recognise it."""

_CUT = " ..."
_MOST_LINE = 2**20
"""Characters of a line that is read: texts are short, and so are names of labels."""

_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}


@dataclass(frozen=True)
class Item:
    """One example of a split and what a run made of it.

    Args:
        split: validation or test.
        index: Its place in the split, the same for all runs on the same data.
        label: What would have been right; "" for language models.
        predicted: What the run said; "" for language models.
        probability: How sure it was of that, 0 to 1.
        text: The text, shortened; "" where it is not kept.
        loss: Summed nats of its targets.
        targets: How many: 1 for a classifier, the tokens predicted for a language model.
    """

    split: str
    index: int
    label: str
    predicted: str
    probability: float
    text: str
    loss: float
    targets: int


def shortened(text: str) -> str:
    """Return a text as an item keeps it."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return text[: MOST_CHARACTERS - len(_CUT)] + _CUT


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write a run's `items.jsonl`, whole."""
    lines = [json.dumps(asdict(item), ensure_ascii=False) for item in items]
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_items(path: Path, split: str) -> Iterator[Item]:
    """Yield the items of one split.

    Raises:
        OSError: The file is not there.
        UnreadableError: A line is not what `write_items` writes, or there are more than it ever
            writes; says which.
    """
    found = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(_lines(file), start=1):
            try:
                item = _item(line)
            except UnreadableError as error:
                raise UnreadableError(f"line {number}: {error}") from error
            if item.split == split:
                found += 1
                yield item
            if found > MOST_ITEMS:
                raise UnreadableError(f"it has more than {MOST_ITEMS:,} examples of {split}")


def _lines(file: TextIO) -> Iterator[str]:
    """Yield lines; of one that is too long no more than its beginning, which is no JSON."""
    while line := file.readline(_MOST_LINE):
        yield line


def _item(line: str) -> Item:
    found = parse_json(line)
    values: dict[str, Any] = {}
    for name, kind in Item.__annotations__.items():
        value = found.get(name)
        if isinstance(value, bool) or not isinstance(value, _KINDS[kind.__name__]):
            raise UnreadableError(f"its {name} is no {kind.__name__}: {str(value)[:40]!r}")
        values[name] = value
    return Item(**values)
