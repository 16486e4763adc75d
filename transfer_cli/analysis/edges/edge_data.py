"""Labelled spans in jiant's JSON lines (Tenney et al. 2019).

```
{"text": "Who wrote it ?", "targets": [{"span1": [1, 2], "span2": [0, 1], "label": "A0"}]}
```

Spans are of the words between blanks: the first one, and the one after the last. Where a target
has a `span2`, all have. A label may be a list of several, or of none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer_cli.data.json_tables import json_rows
from transfer_cli.data.records import Record, text_of
from transfer_cli.errors import DataError

Span = tuple[int, int]


@dataclass(frozen=True)
class EdgeTarget:
    """A span, or two, of a sentence, with its labels.

    Args:
        sentence: Its number.
        spans: One or two.
        labels: Any number.
    """

    sentence: int
    spans: tuple[Span, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class EdgeFile:
    """The sentences of a file, in words, and their targets."""

    sentences: Sequence[Sequence[str]]
    targets: Sequence[EdgeTarget]


def read_edges(path: Path) -> EdgeFile:
    """Return what a file holds."""
    sentences, targets = list[list[str]](), list[EdgeTarget]()
    for record in json_rows(path):
        words = text_of(record, "text", str(path)).split()
        targets += _targets(record, len(words), len(sentences), str(path))
        sentences.append(words)
        if targets and len(targets[-1].spans) != len(targets[0].spans):
            raise DataError(f"{path}, line {record.line}: some targets have a span2 and some none")
    if not targets:
        raise DataError(f"{path} has no targets")
    return EdgeFile(sentences, targets)


def _targets(record: Record, words: int, sentence: int, name: str) -> Iterator[EdgeTarget]:
    where = f"{name}, line {record.line}"
    given = record.fields.get("targets")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise DataError(f"{where}: there is no list of targets, as jiant's files have")
    for each in given:
        keys = [key for key in ("span1", "span2") if each.get(key) is not None]
        if "span1" not in keys:
            raise DataError(f"{where}: a target has no span1")
        spans = tuple(_span(each, key, words, where) for key in keys)
        label = each.get("label")
        labels = label if isinstance(label, list) else [label]
        if not all(isinstance(one, str) for one in labels):
            raise DataError(f"{where}: the label {label!r} is neither a text nor a list of texts")
        yield EdgeTarget(sentence, spans, tuple(labels))


def _span(target: Mapping[str, Any], key: str, words: int, where: str) -> Span:
    found = target[key]
    if (
        not isinstance(found, list)
        or [type(each) for each in found] != [int, int]
        or not 0 <= found[0] < found[1] <= words
    ):
        raise DataError(
            f"{where}: {key} is {found!r}, expected the first of the text's {words} words and the "
            "one after the last, counted from 0"
        )
    return found[0], found[1]
