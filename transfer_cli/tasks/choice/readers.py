"""The formats of files with choices: own JSON lines, SWAG, RACE, COPA and StoryCloze.

In all but RACE a row, or a line, is a question; a line of RACE is a passage with several.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transfer_cli.data import readers
from transfer_cli.data.columns import ANY, other_data
from transfer_cli.data.layout import Layout
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.table import open_table
from transfer_cli.errors import DataError, nearest
from transfer_cli.progress import progress

_CONNECTIVES = {"cause": "because", "effect": "so"}
_BLANK = "_"
"""Stands in a question of RACE where the answer goes."""


@dataclass(frozen=True, slots=True)  # there may be millions
class ChoiceExample:
    """A context, what stands before each choice ("" for nothing), the choices, and the right one.

    Choices and the number of the right one count from 0.
    """

    context: str
    choices: Sequence[str]
    question: str = ""
    label: int | None = None

    def endings(self) -> Iterator[str]:
        """Yield what follows the context, choice by choice."""
        for choice in self.choices:
            yield f"{self.question} {choice}" if self.question else choice


@dataclass(frozen=True)
class RowFormat:
    """A format with one question a row.

    Args:
        columns: Those that tell it from the others.
        context: The one that is shown.
        read: Returns the question, without its answer; raises `DataError`.
        label: Returns the number of the right choice, as it stands there.
        first: What the first choice is called there.
    """

    columns: tuple[str, ...]
    context: str
    read: Callable[[Record, str], ChoiceExample]
    label: str = "label"
    first: int = 0


def _own(record: Record, name: str) -> ChoiceExample:
    question = text_of(record, "question", name) if "question" in record.fields else ""
    choices = _texts(record, "choices", name)
    return ChoiceExample(text_of(record, "context", name), choices, question.strip())


def _swag(record: Record, name: str) -> ChoiceExample:
    context, begun = (text_of(record, column, name) for column in ("sent1", "sent2"))
    endings = [text_of(record, f"ending{number}", name) for number in range(4)]
    return ChoiceExample(context, endings, begun.strip())


def _copa(record: Record, name: str) -> ChoiceExample:
    choices = [text_of(record, f"choice{number}", name) for number in (1, 2)]
    asked = text_of(record, "question", name).strip()
    return ChoiceExample(text_of(record, "premise", name), choices, _CONNECTIVES.get(asked, asked))


def _story_cloze(record: Record, name: str) -> ChoiceExample:
    context = [text_of(record, f"InputSentence{number}", name) for number in range(1, 5)]
    endings = [text_of(record, f"RandomFifthSentenceQuiz{number}", name) for number in (1, 2)]
    return ChoiceExample(" ".join(context), endings)


ROWS: Mapping[str, RowFormat] = {
    "jsonl": RowFormat(("context", "choices"), "context", _own),
    "swag": RowFormat(("sent1", "sent2", "ending0"), "sent1", _swag),
    "copa": RowFormat(("premise", "choice1", "choice2", "question"), "premise", _copa),
    "storycloze": RowFormat(
        ("InputSentence1", "RandomFifthSentenceQuiz1"), "InputSentence1", _story_cloze,
        "AnswerRightEnding", 1,
    ),
}  # fmt: skip

_RACE = ("article", "questions", "options", "answers")

FORMATS = ("auto", *ROWS, "race")


def row_format(names: Sequence[str], name: str, line: int | None = None) -> RowFormat:
    """Return the format of a table with one question a row, by its columns."""
    return ROWS[_recognised(names, name, line, tuple(ROWS))]


def read_examples(path: Path, chosen: str) -> list[ChoiceExample]:
    """Return the questions of a file, with their answers; of a folder, those of its files.

    Args:
        path: A table or JSON lines; RACE's split is a folder of files with a passage each.
        chosen: One of `FORMATS`.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*.[tj][xs][to]*") if file.is_file())
        if not files:
            raise DataError(
                f"{path} has no .txt or .json files, of which a folder of RACE is made."
            )
    examples: list[ChoiceExample] = []
    lines = partial(readers.count_lines, path)
    with progress(f"reading {path}", lines, "lines") as more:
        for file in files:
            for record in _records(file):
                examples += _questions(record, str(file), chosen)
                more(1)
    return examples


def _records(path: Path) -> Iterator[Record]:
    table_format = readers.format_of(path) or "jsonl"
    with open_table(path, table_format, Layout(header=True), ANY) as table:
        yield from table.records(readers.refuse)


def _questions(record: Record, name: str, chosen: str) -> Iterator[ChoiceExample]:
    """Yield the questions of a record, each with its answer."""
    kind = chosen
    if chosen == "auto":
        kind = _recognised(tuple(record.fields), name, record.line, FORMATS[1:])
    if kind == "race":
        yield from _passage(record, name)
        return
    form = ROWS[kind]
    example, number = form.read(record, name), record.fields.get(form.label)
    if isinstance(number, str) and number.strip().isdecimal():
        number = int(number)  # of CSV
    yield _judged(example, number, form.label, form.first, f"{name}, line {record.line}")


def _judged(
    example: ChoiceExample, number: object, label: str, first: int, where: str
) -> ChoiceExample:
    count = len(example.choices)
    if type(number) is not int or not first <= number < first + count:
        said = "is missing" if number is None else f"is {number!r:.40}"
        raise DataError(
            f"{where}: {label!r} {said}, expected a number from {first} to {first + count - 1}, "
            f"since there are {count} choices."
        )
    return ChoiceExample(example.context, example.choices, example.question, number - first)


def _passage(record: Record, name: str) -> Iterator[ChoiceExample]:
    """Yield the questions of a passage of RACE."""
    where = f"{name}, line {record.line}"
    article, questions = text_of(record, "article", name), _texts(record, "questions", name, 1)
    options, answers = record.fields.get("options"), _texts(record, "answers", name, 1)
    if not isinstance(options, list) or not len(options) == len(questions) == len(answers):
        raise DataError(f"{where}: there are not as many options and answers as questions.")
    for number, (question, answer) in enumerate(zip(questions, answers, strict=True), 1):
        of_question = Record(record.line, {"options": options[number - 1]})
        choices = _texts(of_question, "options", name)
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(choices)]
        if len(answer) != 1 or answer not in letters:
            raise DataError(
                f"{where}: the answer to question {number} is {answer!r:.40}, expected one of "
                f"{', '.join(letters)}."
            )
        right = letters.index(answer)
        if _BLANK in question:
            whole = [question.replace(_BLANK, choice) for choice in choices]
            yield ChoiceExample(article, whole, label=right)
        else:
            yield ChoiceExample(article, choices, question.strip(), right)


def _texts(record: Record, column: str, name: str, least: int = 2) -> list[str]:
    """Return a list of texts in a column."""
    cells = record.fields.get(column)
    where = f"{name}, line {record.line}: {column!r}"
    if not isinstance(cells, list) or len(cells) < least:
        few = f"has {len(cells)}" if isinstance(cells, list) else "is no list of texts"
        raise DataError(f"{where} {few}, expected at least {least}.")
    return [text_of(Record(record.line, {column: cell}), column, name) for cell in cells]


def _recognised(names: Sequence[str], name: str, line: int | None, among: Sequence[str]) -> str:
    columns = {**{kind: form.columns for kind, form in ROWS.items()}, "race": _RACE}
    for kind in among:
        if set(columns[kind]) <= set(names):
            return kind
    where = name if line is None else f"{name}, line {line}"
    if not names:
        raise DataError(
            f"{where}: no columns, of which a context and its choices are; give a table, or JSON "
            'lines such as {"context": "It rains.", "choices": ["I get wet.", "I sing."]}.'
        )
    expected = "; ".join(f"{kind}: {', '.join(columns[kind])}" for kind in among)
    close = next(filter(None, (nearest(column, sum(columns.values(), ())) for column in names)), "")
    columns_there = ", ".join(repr(column[:40]) for column in names[:10])
    raise DataError(
        f"{where}: the columns {columns_there} are those of no format ({expected})."
        f"{other_data(names) or close}"
    )
