"""Pairs of texts whose vectors are to be near: the record of the task, and tables of them.

Legend: N examples, K texts of an example, D width, Z sizes of a vector.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from transfer_cli.data.columns import is_yes
from transfer_cli.data.encoded_groups import EncodedGroups
from transfer_cli.data.encoded_task import Truncate, encode_texts, have_answers
from transfer_cli.data.labelled import Example
from transfer_cli.data.records import Record, label_of, plain_number, text_of
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.wanted import Chosen, Wanted
from transfer_cli.errors import DataError
from transfer_cli.tasks.base import DECIMALS, Answer, Direction, Encoded, Result, Rows, Task
from transfer_cli.tasks.regression import correlations, format_number, number_problem
from transfer_cli.tasks.similarity.retrieval import retrieval_measures
from transfer_cli.tasks.table import Table, TableRow, nonempty_text


@dataclass(frozen=True, slots=True)  # there may be millions
class PairExample:
    """A text, the anchor, and one that belongs to it, or whose likeness to it has a score.

    Args:
        negative: A text that does not belong to the anchor; None: there is none of its own.
        topic: The number of what all of its texts are about; texts of one topic are not told from
            each other. None: each text is about something else.
    """

    text: str
    pair: str
    negative: str | None = None
    value: float | None = None
    topic: int | None = None
    line: int | None = field(default=None, compare=False)
    file: str | None = field(default=None, compare=False)

    @property
    def texts(self) -> tuple[str, ...]:
        """Its two texts, or three."""
        both = (self.text, self.pair)
        return both if self.negative is None else (*both, self.negative)


@dataclass(frozen=True)
class SimilarityTask(Task):
    """How near two texts are: the cosine of their vectors.

    Args:
        scored: Whether training examples have scores; else their pairs belong together.
        highest: What scores are divided by to be cosines: the largest one, at least 1.
        sizes: How many of a vector's first numbers are measured alone, too (Matryoshka).
        by_template: Whether the template of a published tokenizer says what is around a text.
        prompt: What stands before each text.
        lowercase: Whether both are lower-cased.
    """

    name, objective, head, example = "similarity", "contrastive", "vector", PairExample
    fields, expected = ("cosine",), "cosine"
    files, export_head = f"{__name__}.PairsTable", ""
    scores_answers = reads_pairs = True

    scored: bool = field(default=False, compare=False)
    highest: float = field(default=1.0, compare=False)
    sizes: tuple[int, ...] = field(default=(), compare=False)
    by_template: bool = field(default=False, compare=False)
    prompt: str = field(default="", compare=False)
    lowercase: bool = field(default=False, compare=False)

    def read(self, record: Record, text: str, pair: str | None, name: str) -> PairExample:
        if pair is None:
            raise DataError(
                f"{name}: this model compares two texts, and there is one column of them; say "
                "text=COLUMN pair=COLUMN, or take transfer embed for a vector of each"
            )
        first, second = (text_of(record, column, name) for column in (text, pair))
        return PairExample(first, second, line=record.line)

    def texts(self, example: PairExample) -> tuple[str, ...]:
        return example.texts

    def labels_of(self, example: PairExample) -> Sequence[str]:
        return () if example.value is None else (format_number(example.value),)

    def unlabelled(self, example: PairExample) -> PairExample:
        return replace(example, value=None)

    def check(self, train: Sequence[PairExample], where: str) -> None:
        scores = {example.value for example in train}
        score = next((format_number(score) for score in scores if score is not None), "")
        if len(train) < 2 or (len(scores) == 1 and score):
            few = f"all pairs have the score {score}" if len(train) > 1 else "there is one pair"
            raise DataError(f"{where}: {few}, so that there is nothing to tell apart; give others")

    def facts(self, train: Sequence[PairExample]) -> dict[str, Any]:
        values = [example.value for example in train if example.value is not None]
        return {"scored": bool(values), "highest": max([1.0, *map(abs, values)])}

    def encode(
        self,
        examples: Sequence[PairExample],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedGroups:
        """See `Task`; `texts` `[N, K]` has one number for texts that are not told apart, or -1."""
        read = str.lower if self.lowercase else str
        texts = [
            Example(read(self.prompt + text)) for example in examples for text in example.texts
        ]
        numbers: dict[str, int] = {}
        most = max(len(example.texts) for example in examples)
        number_NK: Any = np.full((len(examples), most), -1)
        for row, example in enumerate(examples):
            for place, text in enumerate(example.texts):
                number = numbers.setdefault(text, len(numbers))
                number_NK[row, place] = number if example.topic is None else example.topic
        values, highest = [example.value for example in examples], self.highest
        known: dict[str, Any] = {}
        if have_answers(values, "score"):  # a model without scores may be measured by some
            highest = max([highest, *(abs(value) for value in values if value is not None)])
            known = {"value": [float(value or 0) / highest for value in values]}
        return EncodedGroups(
            examples,
            encode_texts(
                texts, tokenizer, length, "template" if self.by_template else direction, {}
            ),
            [len(example.texts) for example in examples],
            tokenizer.pad,
            {"texts": number_NK, **known},
        )

    @classmethod
    def sample(cls) -> tuple["SimilarityTask", Sequence[PairExample]]:
        return cls(), (
            PairExample("Where is it ?", "It is there"),
            PairExample("How many rivers are there ?", "Many", "Where is it ?"),
            PairExample("Where do the rivers go ?", "There do they go", "How many ?"),
            PairExample("How many ?", "Many rivers are there"),
        )

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        (row,) = rows.values()
        return {"cosine": float(row["cosine"][0])}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; how right a cosine is falls with its distance from the score."""
        (row,) = rows.values()
        expected, cosine = row["expected"], row["cosine"][0]
        score = max(0.0, 1 - abs(cosine - expected))
        return Result(format_number(expected), format_number(cosine), score=score)

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return correlations of cosines and scores, or how well anchors find their texts.

        Any other text of the split that is no anchor alone can be found; an anchor that stands in
        several pairs has several texts to find. A correlation that is undefined is left out.
        """
        parts = {"": 0, **{f"/{size}": place for place, size in enumerate(self.sizes, 1)}}
        row_of = {at: row for at, windows in rows.items() for row in windows.values()}
        if not all("vectors" in row for row in row_of.values()):
            given = [data.examples[at].value for at in row_of]
            return {
                f"{measure}{name}": value
                for name, place in parts.items()
                for measure, value in correlations(
                    [row["cosine"][place] for row in row_of.values()], given
                ).items()
            }
        anchors, documents = dict[str, Any](), dict[str, Any]()
        relevant = defaultdict[str, set[str]](set)
        for at, row in row_of.items():
            example = data.examples[at]
            anchor, *others = zip(example.texts, row["vectors"], strict=False)
            anchors[anchor[0]] = anchor[1]
            documents |= dict(others)
            relevant[anchor[0]].add(example.pair)
        place_of = {text: place for place, text in enumerate(documents)}
        expected = [[place_of[text] for text in relevant[anchor]] for anchor in anchors]
        equal = [place_of.get(anchor) for anchor in anchors]
        queries_ND, documents_ND = (
            np.array([*vectors.values()], dtype=np.float32) for vectors in (anchors, documents)
        )
        return {
            f"{measure}{name}": value
            for name, place in parts.items()
            for size in (self.sizes[place - 1] if place else None,)
            for measure, value in retrieval_measures(
                queries_ND[:, :size], documents_ND[:, :size], expected, equal
            ).items()
        }

    def written(self, answer: Answer) -> dict[str, Any]:
        return {"cosine": round(answer["cosine"], DECIMALS)}


@dataclass(kw_only=True)
class PairsTable(Table):
    """Own tables of pairs of texts; see `tasks.table.Table`.

    `text` is the column of the anchor, `pair` that of the text that belongs to it. With `label`, a
    score, or yes and no, says how much they do.

    Args:
        negative: The column of a text that does not belong to the anchor; None: the one that is
            called so, if there is one.
    """

    task: ClassVar[type[Task]] = SimilarityTask
    named: ClassVar[bool] = False
    truncate: Truncate = field(default="longest_first", init=False)  # each text is read alone

    negative: str | int | None = None

    @property
    def columns(self) -> Wanted:
        return replace(super().columns, numbers=True, paired=True)

    def read_row(self, record: Record, columns: Chosen, name: str) -> TableRow:
        record = columns.join_texts(record, name)
        anchor, other = (
            nonempty_text(record, str(key), name) for key in (columns.text, columns.pair)
        )
        column = "negative" if self.negative is None else str(self.negative)
        negative = None
        if self.negative is not None or record.fields.get(column):
            negative = nonempty_text(record, column, name)
        value = _score_of(record, columns.label, name) if columns.label else None
        if value is not None and negative is not None:
            raise DataError(
                f"{name}, line {record.line}: a pair with the score {columns.label!r} has a "
                f"{column!r}, too. Say which to learn from: leave one of these columns out."
            )
        texts = [text for text in (anchor, other, negative) if text is not None]
        if value is None and len({*map(str.strip, texts)}) < len(texts):
            raise DataError(
                f"{name}, line {record.line}: two of its texts are equal, so that there is "
                "nothing to learn from them. Leave such pairs out.",
                "equal texts",
            )
        return TableRow(record.line, anchor, (value, negative), other)

    def build_example(self, row: TableRow, numbers: tuple[int, ...]) -> PairExample:
        value, negative = row.label
        return PairExample(row.text, str(row.pair), negative, value, line=row.line, file=row.file)


def _score_of(record: Record, column: str, name: str) -> float:
    """Return the score in a column: a number, or 1 and 0 for yes and no."""
    text = label_of(record, column, name)
    number = plain_number(text)
    problem = number_problem(number)
    if problem is None:
        return float(number)
    yes = is_yes(text)
    if yes is None:
        raise DataError(
            f"{name}, line {record.line}: {text!r:.80} in {column!r} {problem}, and neither yes "
            "nor no.",
            f"{column!r} {problem}",
        )
    return float(yes)


_ENTAILED, _CONTRADICTED, _OTHERS = (
    ("entailment", "entails", "0"), ("contradiction", "contradicts", "2"),
    ("neutral", "1", "-", "-1"),
)  # fmt: skip
"""What people call these; the numbers are those of SNLI and MNLI on the hub."""


@dataclass(kw_only=True)
class InferenceTable(PairsTable):
    """Tables of premises, hypotheses and what follows (SNLI, MNLI), read as pairs and triples.

    A premise and what it entails belong together; hypotheses that contradict the same premise are
    the negatives of its pairs, in turn (Reimers and Gurevych 2019; Gao et al. 2021, section 4).
    """

    negative: None = field(default=None, init=False)

    @property
    def columns(self) -> Wanted:
        return replace(super().columns, numbers=False, paired=False)

    def read_row(self, record: Record, columns: Chosen, name: str) -> TableRow:
        text = label_of(record, columns.label, name)
        label = text.lower()
        if label not in (*_ENTAILED, *_CONTRADICTED, *_OTHERS):
            raise DataError(
                f"{name}, line {record.line}: {text!r:.80} in {columns.label!r} is none of "
                f"{_ENTAILED[0]}, {_OTHERS[0]} and {_CONTRADICTED[0]}."
            )
        if columns.pair is None:
            raise DataError(
                f"{name}: which columns are the premise and the hypothesis? Say data.text=COLUMN "
                "data.pair=COLUMN."
            )
        premise, hypothesis = (
            nonempty_text(record, key, name) for key in (columns.text, columns.pair)
        )
        return TableRow(record.line, premise, label, hypothesis)

    def build_examples(
        self, rows: Sequence[TableRow], labels: Sequence[str], where: str, split: str
    ) -> list[PairExample]:
        against = defaultdict[str, list[str]](list)
        for row in rows:
            if row.label in _CONTRADICTED:
                against[row.text].append(str(row.pair))
        turns, examples = defaultdict[str, int](int), list[PairExample]()
        for row in rows:
            if row.label not in _ENTAILED or row.text.strip() == str(row.pair).strip():
                continue  # a premise that is repeated says nothing
            others = [text for text in against[row.text] if text != row.pair]
            negative = others[turns[row.text] % len(others)] if others else None
            turns[row.text] += 1
            examples.append(
                PairExample(row.text, str(row.pair), negative, line=row.line, file=row.file)
            )
        if not examples:
            raise DataError(f"{where}: no premise of {split} entails anything; give such rows")
        return examples
