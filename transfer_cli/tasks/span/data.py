"""Questions with texts and answers: SQuAD's files, and an embedded sample."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from transfer_cli.data import any_table, readers, sample
from transfer_cli.data.columns import Wanted
from transfer_cli.data.drawing import hold_out
from transfer_cli.data.labelled import INPUT, Drawn, LabelledData, LabelledFiles
from transfer_cli.data.layout import Layout
from transfer_cli.data.split import Whole
from transfer_cli.errors import DataError, at_least, one_of
from transfer_cli.safe_files import STRICT_JSON
from transfer_cli.tasks.span.task import SpanExample, SpanTask

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_LEFT_OUT = 0.01
"""The share of answers that are not where they should be from which on something is wrong with all:
mostly the encoding, or characters that were counted as bytes."""

_KINDS = {list: "a list", dict: "an object", str: "text", int: "a whole number"}


@dataclass(kw_only=True)
class _AskedOfTexts(Drawn):
    """Questions with texts and answers.

    Args:
        question_length: Most tokens of a question, and
        step: how far apart windows of a long text begin: see `windows.RowLayout`.
    """

    kind: ClassVar[str | None] = "span"

    question_length: int | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("question_length", "step"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)

    def unlabelled(self, example: SpanExample) -> SpanExample:
        """See `Drawn`."""
        return replace(example, answers=None, start=None)

    def strata(self, examples: Sequence[SpanExample]) -> Sequence[int]:
        """Return whether each question has an answer."""
        return [int(bool(each.answers)) for each in examples]

    def check(self, train: Sequence[SpanExample], labels: Sequence[str], where: str) -> None:
        """See `Drawn`."""
        if not any(each.answers for each in train):
            raise DataError(f"{where}: no question has an answer; there is nothing to learn.")

    def held_out(
        self, train: Sequence[SpanExample], share: float, seed: int, where: str
    ) -> tuple[tuple[SpanExample, ...], tuple[SpanExample, ...]]:
        """Hold out a share of the texts, with all their questions."""
        contexts = tuple(dict.fromkeys(each.context for each in train))
        _, held = hold_out(contexts, share, seed, where, [0] * len(contexts))
        out = set(held)
        return (
            tuple(each for each in train if each.context not in out),
            tuple(each for each in train if each.context in out),
        )

    def _with_task(self, data: LabelledData) -> LabelledData:
        task = SpanTask.node(
            unanswerable=not all(each.answers for each in data.splits["train"]),
            question_length=self.question_length,
            step=self.step,
        )
        return replace(data, task=task)


@dataclass(kw_only=True)
class Squad(_AskedOfTexts, LabelledFiles):
    """Questions in SQuAD's files, of version 1.1 or 2.0, or in JSON lines (or Parquet).

    A line is an object with `question`, `context` and `answers`: a list of
    `{"text": ..., "answer_start": ...}`, or an object of two lists `text` and `answer_start`; empty
    where there is no answer. An `id` is optional there.

    A training question is left out where its first answer does not stand in the text at the
    character that is said.

    Args:
        null_windows: Whether training windows without the answer of a question that has one are
            kept, to learn that they have none, or dropped.
    """

    null_windows: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("null_windows", self.null_windows, ("keep", "drop"), ValueError)

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        paths = self.paths
        splits = {name: tuple(_questions(path)) for name, path in paths.items()}
        found = len(splits["train"])
        splits["train"] = tuple(
            replace(each, answer_windows_only=self.null_windows == "drop" and bool(each.answers))
            for each in splits["train"]
            if each.start is not None or not each.answers
        )
        if len(splits["train"]) < found:
            log.warning(
                "%s: %s of %s questions are left out, whose answers are not in their texts",
                paths["train"], f"{found - len(splits['train']):,}", f"{found:,}",
            )  # fmt: skip
        data = LabelledData(paths["train"].stem, (), splits, SpanTask.node(), files=paths)
        return self._with_task(self._drawn(data, seed, self.validation_share))

    def whole(self, own: Wanted) -> LabelledData:
        """See `LabelledFiles`."""
        path = self.paths["train"]
        found = tuple(_questions(path))
        part_of = {INPUT: Whole(str(path), len(found), ())}
        files = {"train": path}
        return LabelledData(path.stem, (), {INPUT: found}, SpanTask.node(), part_of, files)


@dataclass(kw_only=True)
class SampleSpans(_AskedOfTexts):
    """The embedded questions about the made-up encyclopedia, answered by a name in a text.

    Which of the names in the text it is, only the encyclopedia tells; see `data.sample`.

    Args:
        world: Which made-up world they ask about: the one of the encyclopedia read before.
    """

    world: int = 0

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        splits = {
            name: [
                SpanExample(question, text, (answer,), text.index(answer)) if answer
                else SpanExample(question, text, ())
                for question, text, answer in rows
            ]
            for name, rows in sample.spans(self.world).items()
        }  # fmt: skip
        data = LabelledData("sample_spans", (), splits, SpanTask.node())
        return self._with_task(self._drawn(data, seed))


# ---------------------------------------------------------------------------------- reading


def _questions(path: Path) -> Iterator[SpanExample]:
    """Yield the questions of a file, those with misplaced answers without a `start`.

    Raises:
        DataError: It cannot be read, has no questions or an identifier twice; or more than 1 % of
            the answers are not in their texts.
    """
    places: dict[str, str] = {}
    count, misplaced = 0, list[str]()
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
        count += 1
        if example.answers and example.start is None:
            misplaced.append(where)
        yield example
    if not count:
        raise DataError(f"{path} has no questions.")
    if len(misplaced) > MOST_LEFT_OUT * count:
        raise DataError(
            f"{path}, {misplaced[0]}: its answer does not stand in the text at answer_start, and "
            f"so it is with {len(misplaced):,} of {count:,} questions; is the file in UTF-8, and "
            "does answer_start count characters?"
        )


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each question stands in a file, and its fields, `context` among them."""
    table_format = readers.format_of(path)
    if table_format not in ("jsonl", "parquet"):
        raise DataError(
            f"{path}: expected a file of SQuAD's form (.json) or JSON lines (.jsonl); "
            "questions in other tables have no place for several answers."
        )
    tree = _tree(path) if ".json" in path.suffixes else None
    if tree is not None:
        yield from _of_tree(tree, str(path))
        return
    with any_table.opened(path, table_format, Layout(None, None, None), Wanted()) as table:
        for record in table.records(readers.refuse):
            yield f"line {record.line}", record.fields


def _tree(path: Path) -> dict[str, Any] | None:
    """Return what a file of SQuAD's form holds; None: it is JSON lines."""
    with readers.open_file(path) as file:
        raw = file.read()
    try:
        found = STRICT_JSON.decode(raw.decode("utf-8-sig"))
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
    if isinstance(found, dict) and "data" not in found and "question" in found:
        return None  # JSON lines with one line
    return _as(found, dict, str(path))


def _of_tree(tree: dict[str, Any], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    def inside(node: Any, key: str, where: str) -> Iterator[tuple[Any, str]]:
        prefix = f"{where}." if where else ""
        parts = _field(node, key, list, f"{name}, {where}" if where else name)
        for number, part in enumerate(parts):
            place = f"{prefix}{key}[{number}]"
            yield _as(part, dict, f"{name}, {place}"), place

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
    found = fields.get("answers")
    where = f"{where}: 'answers'"
    if isinstance(found, dict):
        texts = _field(found, "text", list, where)
        starts = _field(found, "answer_start", list, where)
        if len(texts) != len(starts):
            raise DataError(f"{where} has {len(texts)} texts and {len(starts)} times answer_start.")
        found = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    if not isinstance(found, list):
        raise DataError(
            f"{where} is {_kind(found)}, expected a list; it is empty where there is no answer."
        )
    every = [_as(each, dict, where) for each in found]
    return [
        (_text(each, "text", where), _field(each, "answer_start", int, where)) for each in every
    ]


def _text(fields: Mapping[str, Any], key: str, where: str) -> str:
    found = _field(fields, key, str, where)
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {key!r} holds half of a surrogate pair, which is no character."
        ) from error
    return found


def _field(fields: Mapping[str, Any], key: str, kind: type[T], where: str) -> T:
    if key not in fields:
        there = ", ".join(map(repr, list(fields)[:10])) or "nothing"
        raise DataError(f"{where}: no {key!r}; there is {there:.200}.")
    return _as(fields[key], kind, f"{where}: {key!r}")


def _as(value: Any, kind: type[T], where: str) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"{where} is {_kind(value)}, expected {_KINDS[kind]}.")
    return value


def _kind(value: object) -> str:
    return "null" if value is None else _KINDS.get(type(value), repr(value)[:40])
