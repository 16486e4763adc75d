"""What a run made of each example of its test and validation split: one JSON line an example.

Two runs on the same data can so be compared example by example, long after they have ended.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from transfer_cli.runs.directory import write_text
from transfer_cli.safe_files import UnreadableError, parse_json

MOST_CHARACTERS = 500
"""A text is kept up to here: enough to recognise it."""


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


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write a run's `items.jsonl`, whole."""
    lines = [json.dumps(asdict(item), ensure_ascii=False) for item in items]
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_items(path: Path, split: str) -> Iterator[Item]:
    """Yield the items of one split.

    Raises:
        OSError: The file is not there.
        UnreadableError: A line is not what `write_items` writes; says which.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                found = parse_json(line)
                item = Item(**{name: found[name] for name in Item.__dataclass_fields__})
            except (UnreadableError, KeyError, TypeError) as error:
                raise UnreadableError(f"line {number}: {error}") from error
            if item.split == split:
                yield item
