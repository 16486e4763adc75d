"""The record of the task: its questions, its answers, its scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from transfer_cli.data.labelled import LabelledFiles
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import DataError
from transfer_cli.tasks.base import Answer, Direction, Encoded, Result, Rows, Task
from transfer_cli.tasks.span import scoring
from transfer_cli.tasks.span.windows import EncodedSpans, RowLayout, encode_spans, most_of_question

DECIMALS = 6
"""Decimals of a probability."""

NO_ANSWER = "(no answer)"
"""Stands for "" where people look at answers."""

HAS_ANSWER, HAS_NONE = "HasAns", "NoAns"
"""What SQuAD's script calls the two parts of the questions."""

MARGIN = 2.0
"""The F1, in percent, up to which a run has learnt to find no answer."""


@dataclass(frozen=True, slots=True)  # there may be millions
class SpanExample:
    """A question, the text that answers it, and the answers that people gave.

    Args:
        question: The question.
        context: The text.
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

    name: ClassVar[str] = "span"
    objective: ClassVar[str] = "span"
    head: ClassVar[str] = "span"
    example: ClassVar[type] = SpanExample
    fields: ClassVar[tuple[str, ...]] = ("answer", "start", "end", "probability", "n_best")
    expected: ClassVar[str] = "answer"
    export_head: ClassVar[str | None] = "question_answering"
    makes_windows: ClassVar[bool] = True
    scores_answers: ClassVar[bool] = True
    can_fail: ClassVar[bool] = True

    # Tasks that differ in these alone share their heads.
    unanswerable: bool = field(default=False, compare=False)
    question_length: int | None = field(default=None, compare=False)
    step: int | None = field(default=None, compare=False)

    @classmethod
    def table(cls) -> type[LabelledFiles]:
        """See `Task`."""
        # Only here: it imports this module.
        from transfer_cli.tasks.span.data import Squad

        return Squad

    def read(self, record: Record, text: str, pair: str | None, name: str) -> SpanExample:
        """See `Task`."""
        if pair is None:
            raise DataError(
                f"{name}, line {record.line}: a question needs its text; give columns 'question' "
                "and 'context', or name them by text= and pair="
            )
        return SpanExample(text_of(record, text, name), text_of(record, pair, name))

    def texts(self, example: SpanExample) -> tuple[str, ...]:
        """See `Task`."""
        return example.question, example.context

    def labels_of(self, example: SpanExample) -> Sequence[str]:
        """Return the first answer."""
        if example.answers is None:
            return ()
        return (example.answers[0] if example.answers else NO_ANSWER,)

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
        """See `Task`."""
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
        found = [
            ScoredSpan(score, *data.characters(row, start, end))
            for row, own in rows.items()
            for score, start, end in zip(own["score"], own["start"], own["end"], strict=True)
            if score > -np.inf
        ]
        null = min(own["null"] for own in rows.values())
        if null > -np.inf or not found:
            found.append(ScoredSpan(null, None, None))
        # Of equal scores the first one in the text is better than a later one, or none.
        found.sort(key=lambda each: (-each.score, each.start is None, each.start, each.end))
        return found

    def answer(self, data: Encoded, example: int, rows: Rows) -> Answer:
        """Return the best answer, with the n best and their probabilities.

        They are as many as each window offers; the probabilities are a softmax over their scores.
        """
        text = data.examples[example].context
        found = self.candidates(data, rows)[: max(len(own["score"]) for own in rows.values())]
        scores = np.array([each.score for each in found])
        shares = np.exp(scores - scores[0]) if len(found) > 1 else np.ones(1)
        n_best = [
            {
                "answer": "" if each.start is None else text[each.start : each.end],
                "start": each.start,
                "end": each.end,
                "probability": float(share),
            }
            for each, share in zip(found, shares / shares.sum(), strict=True)
        ]
        return {**n_best[0], "n_best": n_best}

    def result(self, data: Encoded, example: int, rows: Rows) -> Result:
        """See `Task`; the score is the F1 of words."""
        said, given = self.answer(data, example, rows), data.examples[example].answers or ()
        return Result(
            expected=given[0] if given else NO_ANSWER,
            predicted=said["answer"] or NO_ANSWER,
            probability=said["probability"],
            score=scoring.best_of(scoring.f1, given, said["answer"]),
        )

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return `exact_match` and `f1` in percent, as SQuAD's script does.

        Where some questions have no answer, also of the others and of these alone.
        """
        found: dict[str, dict[str, list[float]]] = {HAS_ANSWER: {}, HAS_NONE: {}}
        for example, own in rows.items():
            said = self.answer(data, example, own)["answer"]
            given = data.examples[example].answers or ()
            # As the script does: an answer of which nothing is left is one all the same.
            part = found[HAS_ANSWER if given else HAS_NONE]
            for name, score in (("exact_match", scoring.exact), ("f1", scoring.f1)):
                part.setdefault(name, []).append(100 * scoring.best_of(score, given, said))
        both = [name for name, part in found.items() if part]
        measures = {}
        for name in ("exact_match", "f1"):
            every = [score for part in both for score in found[part][name]]
            measures[name] = float(np.mean(every))
            if len(both) > 1:
                measures |= {f"{name}/{part}": float(np.mean(found[part][name])) for part in both}
        return measures

    def fit(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return the `null_threshold` of the best F1; see `objective.SpanExtraction`."""
        margins, answered, unanswered = [], [], []
        for example, own in rows.items():
            found, given = self.candidates(data, own), data.examples[example].answers or ()
            best = next((each for each in found if each.start is not None), None)
            if best is None:  # whatever the threshold is
                continue
            said = data.examples[example].context[best.start : best.end]
            margins.append(min(row["null"] for row in own.values()) - best.score)
            answered.append(scoring.best_of(scoring.f1, given, said))
            unanswered.append(scoring.best_of(scoring.f1, given, ""))
        if not margins:
            return {}
        fitted = scoring.best_threshold(*map(np.array, (margins, answered, unanswered)))
        return {"null_threshold": fitted}

    def written(self, answer: Answer) -> dict[str, Any]:
        """See `Task`."""
        found = {name: answer[name] for name in self.fields}
        found["probability"] = round(answer["probability"], DECIMALS)
        found["n_best"] = [
            {**each, "probability": round(each["probability"], DECIMALS)}
            for each in answer["n_best"]
        ]
        return found

    def cells(self, answer: Answer) -> list[Any]:
        """See `Task`; no answer has empty cells for its place."""
        return ["" if cell is None else cell for cell in super().cells(answer)]

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        """Return why nothing was learnt: no answer is found where there is one."""
        found = measures.get(f"f1/{HAS_ANSWER}", measures.get("f1", 100.0))
        if found > MARGIN:
            return None
        return (
            f"the F1 of training questions that have an answer is {found:.1f} %: they are answered "
            "at random or not at all; try another seed, another optimizer.lr or a longer run"
        )
