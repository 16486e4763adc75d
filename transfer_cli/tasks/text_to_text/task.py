"""The record of the task: its examples, their tokens, its answers; tables of them.

==============  ===============================  ================================
direction       source and target                segments
==============  ===============================  ================================
causal          source `sep` target `cls`        0 up to `sep`, then 1
bidirectional   `cls` source `sep` target `sep`  0 up to the first `sep`, then 1
==============  ===============================  ================================

The prefix ends with the token before the target, which predicts its first token; the last token
ends the target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from transfer_cli.batch import IGNORE
from transfer_cli.data.columns import Chosen, Wanted, source_of
from transfer_cli.data.encoded_task import EncodedRows, Truncate, all_known
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.vocabulary import Vocabulary
from transfer_cli.errors import ConfigError, DataError, at_least
from transfer_cli.objectives.replies import text_until
from transfer_cli.tasks.base import Answer, Direction, Encoded, Result, Rows, Task
from transfer_cli.tasks.scoring import exact, rouge_l
from transfer_cli.tasks.table import Table, TableRow


@dataclass(frozen=True, slots=True)  # there may be millions
class TextToTextExample:
    """A text, and the one that people made of it."""

    source: str
    target: str | None = None


class EncodedTexts(EncodedRows):
    """Sources as rows of tokens, with their targets if they have one."""

    tokenizer: Tokenizer
    end: int
    """The token that ends a target."""

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of a target, whose tokens go on after its end."""
        return text_until(list(tokens), self.tokenizer, self.end)


@dataclass(frozen=True)
class TextToTextTask(Task):
    """A text that is made from another.

    Args:
        prefix: Whether all of the source sees all of it; else it is read from left to right.
        target_length: The most tokens of a target with its end; None: half of an input.
    """

    name: ClassVar[str] = "text to text"
    objective: ClassVar[str] = "prefix_lm"
    head: ClassVar[str] = "lm"
    example: ClassVar[type] = TextToTextExample
    files: ClassVar[str | None] = f"{__name__}.TextPairsTable"
    fields: ClassVar[tuple[str, ...]] = ("answer",)
    expected: ClassVar[str] = "target"
    scores_answers: ClassVar[bool] = True

    prefix: bool = True
    target_length: int | None = None

    def __post_init__(self) -> None:
        if self.target_length is not None:
            at_least("target_length", self.target_length, 2)

    def text_column(self, names: Sequence[str], name: str) -> str | None:
        """See `Task`."""
        return source_of(names)

    def read(self, record: Record, text: str, pair: str | None, name: str) -> TextToTextExample:
        """See `Task`."""
        return TextToTextExample(text_of(record, text, name))

    def texts(self, example: TextToTextExample) -> tuple[str, ...]:
        """See `Task`."""
        return (example.source,) if example.target is None else (example.source, example.target)

    def unlabelled(self, example: TextToTextExample) -> TextToTextExample:
        """See `Task`."""
        return replace(example, target=None)

    def most_new(self, length: int) -> int:
        """Return the most tokens of a target with its end, of an input of `length`."""
        return max(2, length // 2) if self.target_length is None else self.target_length

    def encode(
        self,
        examples: Sequence[TextToTextExample],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedTexts:
        """See `Task`; a source that is too long is cut at its end, and so is a target.

        The room of a source is the same whether its target is known and however long that is.

        Raises:
            DataError: Some examples have a target and some have none.
        """
        is_causal = direction == "causal"
        begin, end = ends(tokenizer, causal=is_causal)
        room = length - self.most_new(length) - len(begin) - 1
        if room < 1:
            raise ConfigError(
                f"data.target_length is {self.most_new(length)}: of the {length} tokens of an "
                f"input (data.length), {length - len(begin) - 2} at most may be a target's"
            )
        known = all_known([example.target for example in examples], "target")
        sources = tokenizer.encode_batch([example.source for example in examples])
        targets = tokenizer.encode_batch([example.target or "" for example in examples])
        rows, firsts, following, is_cut = [], [], [], []
        for source, target in zip(sources, targets, strict=True):
            first = [*begin, *source[:room], tokenizer.sep]
            kept = target[: self.most_new(length) - 1]
            second = [*kept, end] if known else []
            rows.append([*first, *second])
            firsts.append(len(first))
            following.append([*[IGNORE] * (len(first) - 1), *second, IGNORE])
            is_cut.append(len(source) > room or len(target) > len(kept))
        of_rows: dict[str, Sequence[Any]] = {"next_tokens": following} if known else {}
        if self.prefix:
            of_rows["prefix"] = firsts
        elif not is_causal:
            of_rows["prefix"] = [0] * len(rows)
        found = EncodedTexts(
            examples, rows, tokenizer.pad, firsts=firsts, targets=of_rows,
            fill={"next_tokens": IGNORE}, is_cut=is_cut,
        )  # fmt: skip
        found.tokenizer, found.end = tokenizer, end
        return found

    @classmethod
    def sample(cls) -> tuple["TextToTextTask", Sequence[TextToTextExample]]:
        """See `Task`."""
        return cls(target_length=3), (
            TextToTextExample("Where is it ?", "there"),
            TextToTextExample("How many rivers are there ?", "How many ?"),
            TextToTextExample("Where do the rivers go ?", "Where ?"),
            TextToTextExample("How many ?", "How many rivers are there ?"),
        )

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        """Return the text."""
        return {"answer": self._said(data, rows)}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; an answer is as right as its ROUGE-L."""
        given, said = data.examples[example].target, self._said(data, rows)
        return Result(given, said, score=rouge_l(given, said))

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return the share of exact matches, and the mean ROUGE-L."""
        pairs = [(data.examples[at].target, self._said(data, own)) for at, own in rows.items()]
        measured = {"exact_match": exact, "rouge_l": rouge_l}
        return {
            name: sum(score(*pair) for pair in pairs) / len(pairs)
            for name, score in measured.items()
        }

    def _said(self, data: Encoded, rows: Rows) -> str:
        (found,) = rows.values()
        text: str = data.text_of(found["answer"])  # type: ignore[attr-defined]  # of `encode`
        return text


def ends(tokenizer: Vocabulary, *, causal: bool) -> tuple[list[int], int]:
    """Return the special tokens before a source, and the one that ends a target."""
    return ([], tokenizer.cls) if causal else ([tokenizer.cls], tokenizer.sep)


@dataclass(kw_only=True)
class TextPairsTable(Table):
    """Own tables of source and target texts; see `tasks.table.Table`.

    `text` is the column of the source, `label` that of the target.

    Args:
        prefix: See `TextToTextTask`; so is
        target_length: the most tokens of a target.
    """

    task: ClassVar[type[Task]] = TextToTextTask
    truncate: Truncate = field(default="longest_first", init=False)  # there is one text

    prefix: bool = True
    target_length: int | None = None

    @property
    def columns(self) -> Wanted:
        """The columns as they were typed."""
        return replace(super().columns, written=True)

    def row_of(
        self, record: Record, columns: Chosen, name: str, labels: dict[str, str]
    ) -> TableRow:
        """See `Table`."""
        source, target = (text_of(record, column, name) for column in (columns.text, columns.label))
        for column, text in ((columns.text, source), (columns.label, target)):
            if not text.strip():
                raise DataError(f"{name}, line {record.line}: {column!r} is empty.")
        return TableRow(record.line, source, target)

    def labels(self, train: Sequence[TableRow]) -> tuple[str, ...]:
        """Return none: a text is no name."""
        return ()

    def of_rows(
        self, rows: Sequence[TableRow], labels: Sequence[str], path: Path, split: str
    ) -> list[TextToTextExample]:
        """See `Table`."""
        return [TextToTextExample(row.text, row.label) for row in rows]

    def check(self, task: Task, train: Sequence[Any], where: str) -> None:
        """See `LabelledSource`: any texts can be learnt."""
