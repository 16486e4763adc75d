"""`items.jsonl`: what a run made of each example of its test and validation split.

Two runs on the same data can so be compared example by example, long after they have ended.
"""

import itertools
import json
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transfer_cli.errors import raised_as
from transfer_cli.runs.atomic import write_text
from transfer_cli.safe_files import MAX_WHOLE_NUMBER, UnreadableError

MOST_ITEMS = 200_000
"""Examples of a split; more would make some 30 MB, and nobody reads so many one by one."""

MOST_TEXTS = 20_000
"""Examples of a split whose texts are kept; of 500 characters each they make 10 MB."""

MOST_CHARACTERS = 500
"""A text is kept up to here: enough to recognise it."""

_CUT = " ..."

_SPLITS = ("test", "validation")
_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int)}


@dataclass(frozen=True)
class Item:
    """One example of a split and what a run made of it.

    Args:
        split: validation or test.
        index: Its place in the split, the same for all runs on the same data.
        label: The right answer; "" for language models.
        predicted: The run's answer; "" for language models.
        text: The text, shortened; "" if it is not kept.
        loss: Summed nats of its targets.
        targets: How many: 1 for a classifier, the tokens predicted for a language model.
        score: How right the answer is, 0 to 1; None: 1 if `predicted` is `label`, else 0.
    """

    split: str
    index: int
    label: str
    predicted: str
    probability: float
    text: str
    loss: float
    targets: int
    score: float | None = None

    @property
    def wrong(self) -> float:
        """How wrong it is, 0 to 1."""
        return float(self.predicted != self.label) if self.score is None else 1 - self.score

    @property
    def is_judged(self) -> bool:
        """Whether it is right or wrong; that no label fits may be the right answer."""
        return self.score is not None or bool(self.label)


_FIELDS = [
    (name, _KINDS[kind.__name__]) for name, kind in Item.__annotations__.items() if name != "score"
]


def shortened(text: str) -> str:
    """Return a text, cut to the length that an item keeps."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return text[: MOST_CHARACTERS - len(_CUT)] + _CUT


def is_cut(text: str) -> bool:
    """Return whether an item keeps a text in part."""
    return len(text) == MOST_CHARACTERS and text.endswith(_CUT)


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write a run's `items.jsonl`, whole."""
    # No score is no key.
    stored = ({k: v for k, v in asdict(item).items() if v is not None} for item in items)
    lines = [json.dumps(fields, ensure_ascii=False) for fields in stored]
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_items(path: Path, split: str) -> Iterator[Item]:
    """Yield the items of one split; a report reads hundreds of such files."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise UnreadableError("it is no plain file")  # to open a pipe could wait for ever
    # Nearly half of the lines need not be parsed.
    others = tuple(f'{{"split": "{name}"' for name in _SPLITS if name != split)
    count = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        # Characters of a line that is read: texts are short, and so are names of labels.
        most_line = 2**20
        for number in itertools.count(1):
            # Of a line that is too long no more than its beginning, which is no JSON.
            line = file.readline(most_line)
            if not line:
                return
            if line.startswith(others):
                continue
            with raised_as(UnreadableError, f"line {number}: ", UnreadableError):
                item = _item(line)
            if item.split != split:
                continue
            count += 1
            if count > MOST_ITEMS:
                raise UnreadableError(f"it has more than {MOST_ITEMS:,} examples of {split}")
            yield item


def _item(line: str) -> Item:
    # Not by `parse_json`, which takes five times as long: nothing here is nested, and what an item
    # does not have is not looked at.
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"it is not JSON ({getattr(error, 'msg', error)})") from error
    if not isinstance(fields, dict):
        raise UnreadableError("it is no JSON object")
    for name, kinds in _FIELDS:
        value = fields.get(name)
        if type(value) not in kinds:
            raise UnreadableError(f"its {name} is no {kinds[0].__name__}: {str(value)[:40]!r}")
        if type(value) is int and not 0 <= value <= MAX_WHOLE_NUMBER:
            raise UnreadableError(f"its {name} is below 0, or has more than 64 bits")
    score = fields.get("score")
    if score is not None and (type(score) not in (float, int) or not 0 <= score <= 1):
        raise UnreadableError(f"its score is not between 0 and 1: {str(score)[:40]!r}")
    values: dict[str, Any] = {name: fields[name] for name, _ in _FIELDS}
    return Item(**values, score=score)
