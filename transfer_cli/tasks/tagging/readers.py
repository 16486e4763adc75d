"""Read tagged words: columns as in CoNLL's files, CoNLL-U, and JSON lines.

Each reader yields sentences with the line of each word. No word is left out: what cannot be read is
a `DataError` with file and line.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from transfer_cli.data.columns import check_accepted, other_data_hint
from transfer_cli.data.json_tables import json_rows
from transfer_cli.data.readers import numbered_lines
from transfer_cli.data.records import Record, text_of
from transfer_cli.errors import DataError, list_names
from transfer_cli.tasks.tagging.schemes import Entity, bio_tags

Format = Literal["conll", "conllu", "jsonl"]

FIELDS = {"upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
"""The columns of CoNLL-U that hold tags, counted from 0."""

_COLUMNS = 10
_WORD_ID = re.compile(r"[1-9][0-9]*")
_OTHER_ID = re.compile(r"[0-9]+[-.][0-9]+")
"""Words that are written as one (3-4), and empty nodes (8.1)."""

_BLANKS = re.compile("[ \t]+")
_BRAT = re.compile(r"T[0-9]+\t\S+ [0-9]+ [0-9]+.*\t")
_ENTITIES = ("entities", "spans", "label", "labels")
_START, _END = ("start", "start_offset"), ("end", "end_offset")
"""As doccano, Prodigy and Label Studio call them."""

WORDS = {"blanks": re.compile(r"\S+"), "marks": re.compile(r"\w+|[^\w\s]")}
"""What a word of a text is: what stands between blanks, or between blanks and marks."""


@dataclass(frozen=True, slots=True)  # there may be millions
class TagExample:
    """A text, and a tag for each of its words.

    Args:
        spans: The characters of each word: the first one, and the one after the last.
        label: The number of each word's tag; None: not known.
    """

    text: str
    spans: Sequence[Sequence[int]]
    label: Sequence[int] | None = None

    @property
    def words(self) -> list[str]:
        """The words."""
        return [self.text[start:end] for start, end in self.spans]

    @classmethod
    def of_words(cls, words: Sequence[str], label: Sequence[int] | None = None) -> "TagExample":
        """Return words with a blank between any two."""
        starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
        spans = tuple(
            (start, start + len(word)) for start, word in zip(starts, words, strict=False)
        )
        return cls(" ".join(words), spans, None if label is None else tuple(label))


@dataclass(frozen=True)
class Sentence:
    """Words with their tags as they stand in a file.

    Args:
        lines: The line of each word in its file.
        text: What they are cut from, and
        spans: the characters of each word in it; None: nothing but words was given.
    """

    words: Sequence[str]
    tags: Sequence[str]
    lines: Sequence[int]
    text: str | None = None
    spans: Sequence[tuple[int, int]] | None = None


def format_of(path: Path, tag: int | str) -> Format:
    """Return the format that a file's name tells, or else the column of its tags."""
    suffixes = path.suffixes
    if ".jsonl" in suffixes or ".json" in suffixes or ".ndjson" in suffixes:
        return "jsonl"
    return "conllu" if ".conllu" in suffixes or isinstance(tag, str) else "conll"


def read_conll(path: Path, word: int, tag: int, *, comments: bool) -> Iterator[Sentence]:
    """Yield the sentences of a file with columns.

    Args:
        word: The column of the word, from 0; below 0 from the end.
        tag: That of the tag.
        comments: Whether lines that begin with `#` are none of a sentence.
    """
    width, cure = 0, ""

    def word_of(line: str, number: int) -> tuple[str, str] | None:
        nonlocal width, cure
        if line.startswith("-DOCSTART-") or (comments and line.startswith("#")):
            return None
        if number == 1 and _BRAT.match(line):
            raise DataError(
                f"{path} is brat's standoff; its tools/anntoconll.py makes CoNLL of it and the "
                "text, which data=conll reads."
            )
        if line.startswith("#FORMAT=WebAnno"):
            raise DataError(
                f"{path} is WebAnno TSV; export CoNLL 2002 in its place, which data=conll reads."
            )
        if line.startswith("#"):
            cure = " With data.comments=true lines that begin with # are left out."
        cells = line.split("\t") if "\t" in line else _BLANKS.split(line.strip(" "))
        width = width or len(cells)
        if len(cells) != width or width < 2:
            usual = f"the lines before have {width}" if width > 1 else "a word and a tag are two"
            if line.count(",") >= len(cells):
                cure = " Tabs or blanks part columns, commas do not; or give JSON lines."
            raise DataError(f"{path}, line {number}: {len(cells)} columns, and {usual}.{cure}")
        try:
            return cells[word].strip(" "), cells[tag].strip(" ")
        except IndexError as error:
            raise DataError(
                f"{path}, line {number}: it has {width} columns, and data.word={word} or "
                f"data.tag={tag} is none of them; they are counted from 0, or from -1 at the end."
            ) from error

    yield from _sentences_of_lines(path, word_of)


def read_conllu(path: Path, field: str) -> Iterator[Sentence]:
    """Yield the sentences of a file in CoNLL-U, whose tags are in one of `FIELDS`."""

    def word_of(line: str, number: int) -> tuple[str, str] | None:
        if line.startswith("#"):
            return None
        cells = line.split("\t")
        if len(cells) != _COLUMNS:
            raise DataError(
                f"{path}, line {number}: {len(cells)} columns parted by tabs, and CoNLL-U has "
                f"{_COLUMNS}; for other columns say data=conll data.tag=-1."
            )
        if _OTHER_ID.fullmatch(cells[0]):
            return None
        if not _WORD_ID.fullmatch(cells[0]):
            raise DataError(
                f"{path}, line {number}: the first column is {cells[0]!r:.40}, expected the number "
                "of a word, such as 3, 3-4 or 8.1."
            )
        return cells[1], cells[FIELDS[field]]

    yield from _sentences_of_lines(path, word_of)


def _sentences_of_lines(
    path: Path, word_of: Callable[[str, int], tuple[str, str] | None]
) -> Iterator[Sentence]:
    """Yield what stands between empty lines; `word_of` gives a word and its tag, or None."""
    words = list[tuple[str, str, int]]()
    for number, line in chain(numbered_lines(path), [(0, "")]):
        if not line.strip(" \t"):
            if words:
                tokens, tags, lines = zip(*words, strict=True)
                yield Sentence(tokens, tags, lines)
            words = []
            continue
        tagged = word_of(line, number)
        if tagged is None:
            continue
        if not all(tagged):
            what = "word" if not tagged[0] else "tag"
            raise DataError(f"{path}, line {number}: the {what} is empty.")
        words.append((*tagged, number))


def read_jsonl(path: Path, names: Sequence[str] | None) -> Iterator[Sentence]:
    """Yield the sentences of JSON lines, whose tags may be numbers of `names`."""
    for record in json_rows(path):
        fields, where = record.fields, f"{path}, line {record.line}"
        if "_input_hash" in fields:
            check_accepted([fields.get("answer")], str(path))
        if "tokens" in fields and "tags" in fields:
            yield _tagged_tokens(fields, where, record.line, names)
        elif "text" in fields and not {*_ENTITIES}.isdisjoint(fields):
            yield _text_with_entities(record, str(path))
        else:
            raise DataError(
                f"{where}: expected 'tokens' and 'tags', or 'text' and 'entities'; there is "
                f"{list_names(map(repr, fields), 10) or 'nothing'}.{other_data_hint(fields)}"
            )


def _tagged_tokens(
    fields: Mapping[str, object], where: str, line: int, names: Sequence[str] | None
) -> Sentence:
    words, tags = (_list(fields, key, where) for key in ("tokens", "tags"))
    if len(words) != len(tags):
        raise DataError(f"{where}: {len(words)} tokens and {len(tags)} tags; each token has one.")
    wrong = next((word for word in words if not isinstance(word, str)), None)
    if wrong is not None or not words:
        fault = f"{wrong!r:.40} is no text" if words else "there are none"
        raise DataError(f"{where}: 'tokens' are texts, and {fault}.")
    return Sentence(words, [_tag(tag, where, names) for tag in tags], [line] * len(words))


def _tag(tag: object, where: str, names: Sequence[str] | None) -> str:
    if isinstance(tag, str) and tag:
        return tag
    if type(tag) is not int:
        raise DataError(f"{where}: the tag {tag!r:.40} is neither a text nor a whole number.")
    if names is None:
        raise DataError(f"{where}: the tag {tag} is a number; data.names=[O,B-PER,...] names them.")
    if not 0 <= tag < len(names):
        raise DataError(f"{where}: the tag {tag} is none of the {len(names)} of data.names.")
    return names[tag]


def _text_with_entities(record: Record, name: str) -> Sentence:
    """Return the words of a text, parted at blanks and punctuation, with BIO tags."""
    where, text = f"{name}, line {record.line}", text_of(record, "text", name)
    spans = [match.span() for match in WORDS["marks"].finditer(text)]
    words = [text[start:end] for start, end in spans]
    if not words:
        raise DataError(f"{where}: the text has no words.")
    first_at = {start: word for word, (start, _) in enumerate(spans)}
    past_at = {end: word + 1 for word, (_, end) in enumerate(spans)}
    entities = list[Entity]()
    key = next(key for key in _ENTITIES if key in record.fields)
    for entry in _list(record.fields, key, where):
        kind, start, end = _entity(entry, text, where)
        first, past = first_at.get(start), past_at.get(end)
        if first is None or past is None:
            cut = next(
                word for word, (left, right) in zip(words, spans, strict=True)
                if left < (start if first is None else end) < right
            )  # fmt: skip
            raise DataError(
                f"{where}: the entity {text[start:end]!r:.80} ({start} to {end}) cuts the word "
                f"{cut!r:.80}."
            )
        entities.append(Entity(kind, first, past))
    entities.sort(key=lambda entity: entity.first)
    for one, other in pairwise(entities):
        if other.first < one.past:
            raise DataError(
                f"{where}: the entities {one.type} and {other.type} share the word "
                f"{words[other.first]!r:.80}; a word has one tag."
            )
    tags = bio_tags(entities, len(words))
    return Sentence(words, tags, [record.line] * len(words), text, spans)


def _entity(entry: object, text: str, where: str) -> tuple[str, int, int]:
    """Return the type of an entity and its characters without blanks around them."""
    fields: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    if isinstance(entry, list) and len(entry) == 3:  # as doccano writes it
        fields = dict(zip(("start", "end", "label"), entry, strict=True))
    start, end = (
        next((fields[key] for key in keys if key in fields), None) for keys in (_START, _END)
    )
    kind = fields.get("label", fields.get("labels"))
    kind = kind[0] if isinstance(kind, list) and len(kind) == 1 else kind
    if not (isinstance(kind, str) and kind and type(start) is int and type(end) is int):
        raise DataError(
            f"{where}: an entity is {entry!r:.80}, expected "
            '{"start": number, "end": number, "label": text}.'
        )
    part = text[start:end] if 0 <= start < end <= len(text) else ""
    if not part.strip():
        raise DataError(
            f"{where}: the entity {kind!r:.40} is from {start} to {end}, which is no part of the "
            f"text, whose characters are 0 to {len(text)}."
        )
    return kind, start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


def _list(fields: Mapping[str, object], key: str, where: str) -> list[Any]:
    values = fields.get(key)
    if not isinstance(values, list):
        raise DataError(f"{where}: expected a list {key!r}, found {values!r:.40}.")
    return values
