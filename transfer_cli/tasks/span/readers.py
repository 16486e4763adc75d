"""Questions with texts and answers, and their files, which are SQuAD's."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from transfer_cli.data import readers
from transfer_cli.data.layout import Layout
from transfer_cli.data.records import json_kind
from transfer_cli.data.table import open_table
from transfer_cli.data.wanted import Wanted
from transfer_cli.errors import DataError
from transfer_cli.safe_files import STRICT_JSON

T = TypeVar("T")

MOST_LEFT_OUT = 0.01
"""The share of answers that are not where they should be from which on something is wrong with all:
mostly the encoding, or characters that were counted as bytes."""

_EXPECTED = {list: "a list", dict: "an object", str: "text", int: "a whole number"}


@dataclass(frozen=True, slots=True)  # there may be millions
class SpanExample:
    """A question, the text that answers it, and the answers that people gave.

    Args:
        answers: Those of several people; none where the text has no answer; None: not known.
        start: The character of the text at which the first answer begins; None where that is not
            known.
        answer_windows_only: Whether windows of the text without the answer are left out.
    """

    question: str
    context: str
    answers: Sequence[str] | None = None
    start: int | None = None
    answer_windows_only: bool = False

    @property
    def text(self) -> str:
        """The first text."""
        return self.question

    @property
    def pair(self) -> str:
        """The second text."""
        return self.context


def read_questions(path: Path) -> list[SpanExample]:
    """Return the questions of a file, those with misplaced answers without a `start`."""
    places: dict[str, str] = {}
    questions, misplaced = list[SpanExample](), list[str]()
    for where, fields in _records(path):
        identifier = fields.get("id")
        if identifier is not None:
            key = json.dumps(identifier)
            if key in places:
                raise DataError(
                    f"{path}, {where}: the id {identifier!r:.80} is also that of {places[key]}; "
                    "leave one of the two out."
                )
            places[key] = where
        example = _example(fields, f"{path}, {where}")
        if example.answers and example.start is None:
            misplaced.append(where)
        questions.append(example)
    if not questions:
        raise DataError(f"{path} has no questions.")
    if len(misplaced) > MOST_LEFT_OUT * len(questions):
        raise DataError(
            f"{path}, {misplaced[0]}: its answer does not stand in the text at answer_start, and "
            f"so it is with {len(misplaced):,} of {len(questions):,} questions; is the file in "
            "UTF-8, and does answer_start count characters?"
        )
    return questions


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each question stands in a file, and its fields, `context` among them."""
    table_format = readers.format_of(path)
    if table_format not in ("jsonl", "parquet"):
        raise DataError(
            f"{path}: expected a file of SQuAD's form (.json) or JSON lines (.jsonl); "
            "questions in other tables have no place for several answers."
        )
    tree = _read_tree(path) if ".json" in path.suffixes else None
    if tree is not None:
        yield from _tree_questions(tree, str(path))
        return
    with open_table(path, table_format, Layout(None, None, None), Wanted()) as table:
        for record in table.records(readers.refuse):
            yield f"line {record.line}", record.fields


def _read_tree(path: Path) -> dict[str, Any] | None:
    """Return what a file of SQuAD's form holds; None: it is JSON lines."""
    with readers.open_file(path) as file:
        raw = file.read()
    try:
        tree = STRICT_JSON.decode(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 (byte {error.start}).") from error
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return None
        raise DataError(
            f"{path}, line {error.lineno}: not JSON ({error.msg} at column {error.colno})."
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: JSON that cannot be read ({error}).") from error
    if isinstance(tree, dict) and "data" not in tree and "question" in tree:
        return None  # JSON lines with one line
    return _checked(tree, dict, str(path))


def _tree_questions(tree: dict[str, Any], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    def inside(node: Any, key: str, where: str) -> Iterator[tuple[Any, str]]:
        prefix = f"{where}." if where else ""
        parts = _field(node, key, list, f"{name}, {where}" if where else name)
        for number, part in enumerate(parts):
            place = f"{prefix}{key}[{number}]"
            yield _checked(part, dict, f"{name}, {place}"), place

    for article, in_article in inside(tree, "data", ""):
        for paragraph, in_paragraph in inside(article, "paragraphs", in_article):
            context = _field(paragraph, "context", str, f"{name}, {in_paragraph}")
            for question, where in inside(paragraph, "qas", in_paragraph):
                yield where, {**question, "context": context}


def _example(fields: Mapping[str, Any], where: str) -> SpanExample:
    question, context = (_text(fields, key, where) for key in ("question", "context"))
    if fields.get("is_impossible") is True:
        return SpanExample(question, context, ())
    answers = _answers(fields, where)
    if not answers:
        return SpanExample(question, context, ())
    texts = tuple(text for text, _ in answers)
    first, start = answers[0]
    is_there = first.strip() and start >= 0 and context[start : start + len(first)] == first
    return SpanExample(question, context, texts, start if is_there else None)


def _answers(fields: Mapping[str, Any], where: str) -> list[tuple[str, int]]:
    """Return the text of each answer and the character at which it begins."""
    entries = fields.get("answers")
    where = f"{where}: 'answers'"
    if isinstance(entries, dict):
        texts = _field(entries, "text", list, where)
        starts = _field(entries, "answer_start", list, where)
        if len(texts) != len(starts):
            raise DataError(f"{where} has {len(texts)} texts and {len(starts)} times answer_start.")
        entries = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    if not isinstance(entries, list):
        raise DataError(
            f"{where} is {json_kind(entries)}, expected a list; empty where there is no answer."
        )
    parts = [_checked(entry, dict, where) for entry in entries]
    return [
        (_text(entry, "text", where), _field(entry, "answer_start", int, where)) for entry in parts
    ]


def _text(fields: Mapping[str, Any], key: str, where: str) -> str:
    text = _field(fields, key, str, where)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {key!r} holds half of a surrogate pair, which is no character."
        ) from error
    return text


def _field(fields: Mapping[str, Any], key: str, kind: type[T], where: str) -> T:
    if key not in fields:
        there = ", ".join(map(repr, list(fields)[:10])) or "nothing"
        raise DataError(f"{where}: no {key!r}; there is {there:.200}.")
    return _checked(fields[key], kind, f"{where}: {key!r}")


def _checked(value: Any, kind: type[T], where: str) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"{where} is {json_kind(value)}, expected {_EXPECTED[kind]}.")
    return value
