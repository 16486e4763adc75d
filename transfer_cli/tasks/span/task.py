"""The record of the task: its questions, its answers, its scores."""

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from transfer_cli.data.columns import ANY, Wanted
from transfer_cli.data.labelled import LabelledData
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import DataError, at_least, one_of
from transfer_cli.tasks import scoring
from transfer_cli.tasks.base import CURE, DECIMALS, Answer, Direction, Encoded, Result, Rows, Task
from transfer_cli.tasks.sources import LabelledFiles
from transfer_cli.tasks.span.readers import SpanExample, read_questions
from transfer_cli.tasks.span.windows import EncodedSpans, RowLayout, encode_spans, most_of_question

log = logging.getLogger(__name__)

NO_ANSWER = "(no answer)"
"""Stands for "" where people look at answers."""

HAS_ANSWER, HAS_NONE = "HasAns", "NoAns"
"""What SQuAD's script calls the two parts of the questions."""

MARGIN = 2.0
"""The F1, in percent, up to which a run has learnt to find no answer."""


class ScoredSpan(NamedTuple):
    """A part of a text, from a character to the one after its last, and its score.

    No answer is a candidate without characters.
    """

    score: float
    start: int | None
    end: int | None


@dataclass(frozen=True)
class SpanTask(Task):
    """The answer to a question, cut from a text.

    Args:
        unanswerable: Whether some training questions have no answer, so that none may be given.
        question_length: Most tokens of a question, and
        step: how far apart windows of a long text begin: see `windows.RowLayout`.
    """

    name, objective, head, example = "span", "span", "span", SpanExample
    fields, expected = ("answer", "start", "end", "probability", "n_best"), "answer"
    files, export_head = f"{__name__}.Squad", "question_answering"
    makes_windows = scores_answers = can_fail = True

    # Tasks that differ in these alone share their heads.
    unanswerable: bool = field(default=False, compare=False)
    question_length: int | None = field(default=None, compare=False)
    step: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("question_length", "step"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)

    def read(self, record: Record, text: str, pair: str | None, name: str) -> SpanExample:
        if pair is None:
            raise DataError(
                f"{name}, line {record.line}: a question needs its text; give columns 'question' "
                "and 'context', or name them by text= and pair="
            )
        return SpanExample(text_of(record, text, name), text_of(record, pair, name))

    def texts(self, example: SpanExample) -> tuple[str, ...]:
        return example.question, example.context

    def labels_of(self, example: SpanExample) -> Sequence[str]:
        if example.answers is None:
            return ()
        return (example.answers[0] if example.answers else NO_ANSWER,)

    def unlabelled(self, example: SpanExample) -> SpanExample:
        return replace(example, answers=None, start=None)

    def check(self, train: Sequence[SpanExample], where: str) -> None:
        if not any(question.answers for question in train):
            raise DataError(f"{where}: no question has an answer; there is nothing to learn.")

    def strata(self, examples: Sequence[SpanExample]) -> Sequence[int]:
        """Return whether each question has an answer."""
        return [int(bool(question.answers)) for question in examples]

    def group(self, example: SpanExample) -> Hashable:
        """Return the text, which is held out with all its questions."""
        return example.context

    def facts(self, train: Sequence[SpanExample]) -> dict[str, bool]:
        """Return whether some questions have no answer."""
        return {"unanswerable": not all(question.answers for question in train)}

    def encode(
        self,
        examples: Sequence[SpanExample],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedSpans:
        """See `Task` and `encode_spans`."""
        layout = RowLayout.of(tokenizer, direction, length, self.question_length, self.step)
        return encode_spans(examples, tokenizer, layout)

    def kept(self, length: int) -> tuple[int, str]:
        """Return how many tokens of a question are kept."""
        return self.question_length or most_of_question(length), "data.question_length"

    @classmethod
    def sample(cls) -> tuple["SpanTask", Sequence[SpanExample]]:
        rivers = "Where do the rivers go ? Many go there"
        return cls(unanswerable=True, question_length=1, step=1), (
            SpanExample("Where ?", rivers, ("there",), 33),
            SpanExample("How many ?", "Many rivers", ("Many", "Many rivers"), 0),
            SpanExample("Where do they go ?", "Where is it ?", ()),
        )

    def candidates(self, data: Any, rows: Rows) -> list[ScoredSpan]:
        """Return the answers that the windows of a text offer, from the best on.

        No answer, if that may be given, is among them with the lowest score that it has in any.
        """
        spans = [
            ScoredSpan(score, *data.characters(row, start, end))
            for row, window in rows.items()
            for score, start, end in zip(
                window["score"], window["start"], window["end"], strict=True
            )
            if score > -np.inf
        ]
        null = min(window["null"] for window in rows.values())
        if null > -np.inf or not spans:
            spans.append(ScoredSpan(null, None, None))
        # Of equal scores the first one in the text is better than a later one, or none.
        spans.sort(key=lambda span: (-span.score, span.start is None, span.start, span.end))
        return spans

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        """Return the best answer, with the n best and their probabilities.

        They are as many as each window offers; the probabilities are a softmax over their scores.
        """
        text = data.examples[example].context
        best = self.candidates(data, rows)[: max(len(window["score"]) for window in rows.values())]
        scores = np.array([span.score for span in best])
        shares = np.exp(scores - scores[0]) if len(best) > 1 else np.ones(1)
        n_best = [
            {
                "answer": "" if span.start is None else text[span.start : span.end],
                "start": span.start,
                "end": span.end,
                "probability": float(share),
            }
            for span, share in zip(best, shares / shares.sum(), strict=True)
        ]
        return {**n_best[0], "n_best": n_best}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; the score is the F1 of words."""
        predicted, given = self.answer(data, example, rows), data.examples[example].answers or ()
        return Result(
            expected=given[0] if given else NO_ANSWER,
            predicted=predicted["answer"] or NO_ANSWER,
            probability=predicted["probability"],
            score=scoring.best_of(scoring.f1, given, predicted["answer"]),
        )

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return `exact_match` and `f1` in percent, as SQuAD's script does.

        Where some questions have no answer, also of the others and of these alone.
        """
        by_part: dict[str, dict[str, list[float]]] = {HAS_ANSWER: {}, HAS_NONE: {}}
        for example, windows in rows.items():
            predicted = self.answer(data, example, windows)["answer"]
            given = data.examples[example].answers or ()
            # As the script does: an answer of which nothing is left is one all the same.
            part = by_part[HAS_ANSWER if given else HAS_NONE]
            for name, score in (("exact_match", scoring.exact), ("f1", scoring.f1)):
                part.setdefault(name, []).append(100 * scoring.best_of(score, given, predicted))
        both = [name for name, part in by_part.items() if part]
        measures = {}
        for name in ("exact_match", "f1"):
            every = [score for part in both for score in by_part[part][name]]
            measures[name] = float(np.mean(every))
            if len(both) > 1:
                measures |= {f"{name}/{part}": float(np.mean(by_part[part][name])) for part in both}
        return measures

    def fit(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return the `null_threshold` of the best F1; see `objective.SpanExtraction`."""
        margins, answered, unanswered = [], [], []
        for example, windows in rows.items():
            candidates, given = self.candidates(data, windows), data.examples[example].answers or ()
            best = next((span for span in candidates if span.start is not None), None)
            if best is None:  # whatever the threshold is
                continue
            predicted = data.examples[example].context[best.start : best.end]
            margins.append(min(row["null"] for row in windows.values()) - best.score)
            answered.append(scoring.best_of(scoring.f1, given, predicted))
            unanswered.append(scoring.best_of(scoring.f1, given, ""))
        if not margins:
            return {}
        fitted = scoring.best_threshold(*map(np.array, (margins, answered, unanswered)))
        return {"null_threshold": fitted}

    def written(self, answer: Answer) -> dict[str, Any]:
        written = {name: answer[name] for name in self.fields}
        written["probability"] = round(answer["probability"], DECIMALS)
        written["n_best"] = [
            {**candidate, "probability": round(candidate["probability"], DECIMALS)}
            for candidate in answer["n_best"]
        ]
        return written

    def cells(self, answer: Answer) -> list[Any]:
        """See `Task`; no answer has empty cells for its place."""
        return ["" if cell is None else cell for cell in super().cells(answer)]

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        """Return why nothing was learnt: no answer is found where there is one."""
        f1 = measures.get(f"f1/{HAS_ANSWER}", measures.get("f1", 100.0))
        if f1 > MARGIN:
            return None
        return (
            f"the F1 of training questions that have an answer is {f1:.1f} %: they are answered "
            f"at random or not at all; {CURE}"
        )


@dataclass(kw_only=True)
class Squad(LabelledFiles):
    """Questions in SQuAD's files, of version 1.1 or 2.0, or in JSON lines (or Parquet).

    A line is an object with `question`, `context` and `answers`: a list of
    `{"text": ..., "answer_start": ...}`, or an object of two lists `text` and `answer_start`; empty
    where there is no answer. An `id` is optional there.

    A training question is left out where its first answer does not stand in the text at the
    character that is said.

    Args:
        question_length: Most tokens of a question, and
        step: how far apart windows of a long text begin: see `windows.RowLayout`.
        null_windows: Whether training windows without the answer of a question that has one are
            kept, to learn that they have none, or dropped.
    """

    task: ClassVar[type[Task]] = SpanTask

    question_length: int | None = None
    step: int | None = None
    null_windows: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("null_windows", self.null_windows, ("keep", "drop"), ValueError)

    def read(self, path: Path) -> list[SpanExample]:
        return read_questions(path)

    def examples(self, paths: Mapping[str, Path], own: Wanted = ANY) -> LabelledData:
        data = super().examples(paths, own)
        if "train" not in paths:
            return data
        questions = data.splits["train"]
        train = [
            replace(
                question, answer_windows_only=self.null_windows == "drop" and bool(question.answers)
            )
            for question in questions
            if question.start is not None or not question.answers
        ]
        if len(train) < len(questions):
            log.warning(
                "%s: %s of %s questions are left out, whose answers are not in their texts",
                paths["train"], f"{len(questions) - len(train):,}", f"{len(questions):,}",
            )  # fmt: skip
        return replace(data, splits={**data.splits, "train": train})
