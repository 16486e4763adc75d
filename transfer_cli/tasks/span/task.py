"""Questions about texts: the record, and the loss of an answer's first and last token.

Legend: B rows, T positions, D width, N best.
"""

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import Batch
from transfer_cli.data.labelled import LabelledData
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.wanted import ANY, Wanted
from transfer_cli.errors import DataError, at_least
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.backbone import Backbone, initialise_plain
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import Answering
from transfer_cli.objectives.base import Encoding
from transfer_cli.tasks import scoring
from transfer_cli.tasks.base import CURE, DECIMALS, Answer, Direction, Encoded, Result, Rows, Task
from transfer_cli.tasks.sources import LabelledFiles
from transfer_cli.tasks.span.readers import SpanExample, read_questions
from transfer_cli.tasks.span.windows import (
    FIRST,
    NULL,
    OWN_FIRST,
    OWN_PAST,
    PAST,
    EncodedSpans,
    RowLayout,
    default_question_length,
    encode_spans,
)

log = logging.getLogger(__name__)

NO_ANSWER = "(no answer)"
"""Stands for "" where people look at answers."""

HAS_ANSWER, HAS_NONE = "HasAns", "NoAns"
"""What SQuAD's script calls the two parts of the questions."""

MIN_F1 = 2.0
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

    def text_column(self, names: Sequence[str], name: str) -> None:
        """Return None; SQuAD's own tree of articles is no table of questions."""
        if "paragraphs" in names:
            raise DataError(
                f"{name} is SQuAD's tree of articles; transfer evaluate reads it, and predict a "
                "line of JSON for each question: jq -c '.data[].paragraphs[] | {context} + "
                "(.qas[] | {id, question})' writes them."
            )

    def read(self, record: Record, text: str, pair: str | None, name: str) -> SpanExample:
        if pair is None:
            raise DataError(
                f"{name}, line {record.line}: a question needs its text; give a table or JSON "
                "lines with columns 'question' and 'context', or name them by text= and pair=."
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
        return [int(bool(question.answers)) for question in examples]

    def group(self, example: SpanExample) -> Hashable:
        """Return the text, which is held out with all its questions."""
        return example.context

    def facts(self, train: Sequence[SpanExample]) -> dict[str, bool]:
        return {"unanswerable": not all(question.answers for question in train)}

    def encode(
        self,
        examples: Sequence[SpanExample],
        tokenizer: Tokenizer,
        length: int,
        direction: Direction,
    ) -> EncodedSpans:
        layout = RowLayout.for_length(tokenizer, direction, length, self.question_length, self.step)
        return encode_spans(examples, tokenizer, layout)

    def kept(self, length: int) -> tuple[int, str]:
        return self.question_length or default_question_length(length), "data.question_length"

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
            ScoredSpan(score, *data.character_span(row, start, end))
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
            score=scoring.best_score(scoring.word_f1, given, predicted["answer"]),
        )

    def scores(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return `exact_match` and `f1` in percent, as SQuAD's script does.

        Where some questions have no answer, also of the others and of these alone.
        """
        by_part: dict[str, dict[str, list[float]]] = {HAS_ANSWER: {}, HAS_NONE: {}}
        for example, windows in rows.items():
            predicted = self.answer(data, example, windows)["answer"]
            given = data.examples[example].answers or ()
            # As the script does: an answer with nothing left still counts as one.
            part = by_part[HAS_ANSWER if given else HAS_NONE]
            for name, score in (("exact_match", scoring.exact_match), ("f1", scoring.word_f1)):
                part.setdefault(name, []).append(100 * scoring.best_score(score, given, predicted))
        both = [name for name, part in by_part.items() if part]
        measures = {}
        for name in ("exact_match", "f1"):
            all_scores = [score for part in both for score in by_part[part][name]]
            measures[name] = float(np.mean(all_scores))
            if len(both) > 1:
                measures |= {f"{name}/{part}": float(np.mean(by_part[part][name])) for part in both}
        return measures

    def fit(self, data: Encoded, rows: Mapping[int, Rows]) -> dict[str, float]:
        """Return the `null_threshold` of the best F1; see `SpanExtraction`."""
        margins, answered, unanswered = [], [], []
        for example, windows in rows.items():
            candidates, given = self.candidates(data, windows), data.examples[example].answers or ()
            best = next((span for span in candidates if span.start is not None), None)
            if best is None:  # whatever the threshold is
                continue
            predicted = data.examples[example].context[best.start : best.end]
            margins.append(min(row["null"] for row in windows.values()) - best.score)
            answered.append(scoring.best_score(scoring.word_f1, given, predicted))
            unanswered.append(scoring.best_score(scoring.word_f1, given, ""))
        if not margins:
            return {}
        fitted = scoring.best_null_threshold(*map(np.array, (margins, answered, unanswered)))
        return {"null_threshold": fitted}

    def written(self, answer: Answer) -> dict[str, Any]:
        written = {name: answer[name] for name in self.fields}
        written["probability"] = round(answer["probability"], DECIMALS)
        written["n_best"] = [
            {**candidate, "probability": round(candidate["probability"], DECIMALS)}
            for candidate in answer["n_best"]
        ]
        return written

    def said(self, answer: Answer) -> tuple[str, float]:
        return answer["answer"], answer["probability"]

    def failure(
        self, measures: Mapping[str, float], tables: Mapping[str, list[list[int]]]
    ) -> str | None:
        f1 = measures.get(f"f1/{HAS_ANSWER}", measures.get("f1", 100.0))
        if f1 > MIN_F1:
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

    def read(self, path: Path) -> list[SpanExample]:
        return read_questions(path)

    def examples(self, paths: Mapping[str, Sequence[Path]], columns: Wanted = ANY) -> LabelledData:
        data = super().examples(paths, columns)
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
                data.source("train"), f"{len(questions) - len(train):,}", f"{len(questions):,}",
            )  # fmt: skip
        return replace(data, splits={**data.splits, "train": train})


@dataclass(eq=False, repr=False)
class SpanExtraction(Answering):
    """Cross-entropy of the positions of an answer's first and last token (Devlin et al. 2019).

    A linear layer scores each token as the first and as the last one of the answer; the loss is the
    mean of the two cross-entropies over the positions of a row. An answer's score is the sum of two
    logits, and so is that of no answer, at the row's special token.

    Args:
        mask_question: Whether only the text and the place of no answer can be chosen; else all
            positions can in the loss, as in BERT's code. Answers are in the text either way.
        n_best: How many first and last tokens of a window are combined, and how many answers are
            kept.
        longest_answer: Most tokens of an answer.
        null_threshold: A question has no answer if the score of none is more than this above that
            of the best one. `fit`: what is best for the validation questions at the end; until
            then 0. If all training questions have answers, so have all others.
    """

    task = "span"
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS,)
    task_metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("f1", higher_is_better=True, unit="percent", headline=True, per_example=True),
        Metric("exact_match", higher_is_better=True, unit="percent"),
    )

    mask_question: bool = field(default=True, kw_only=True)
    n_best: int = field(default=20, kw_only=True)
    longest_answer: int = field(default=30, kw_only=True)
    null_threshold: float | Literal["fit"] = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        at_least("n_best", self.n_best, 1)
        at_least("longest_answer", self.longest_answer, 1)

    @property
    def head(self) -> str:
        return "span" if self.info.name == "main" else f"span_{self.info.name}"

    @property
    def token_head(self) -> str:
        return self.head

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        linear = nn.Linear(backbone.shape.width, 2)
        initialise_plain(linear)
        return {self.head: linear}

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the scores of each position as first and as last of the answer, `[B, T, 2]`."""
        logits_BT2: Tensor = model.heads[self.head](encoded.top).float()
        allowed_BT = batch["mask"]
        if self.mask_question:
            place_T = torch.arange(allowed_BT.shape[1], device=allowed_BT.device)
            is_null_BT = place_T == batch["window"][:, NULL, None]
            allowed_BT = is_null_BT | _is_between(batch, FIRST, PAST)
        ruled_out = -1e9  # the logit of a position that is no answer
        return torch.where(allowed_BT[..., None], logits_BT2, ruled_out)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs, batch["span"], reduction="none").mean(1)

    def answers(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the best answers of each row, and the score of none.

        They are made of the N best first tokens among those that belong to the window and the N
        best last ones in its text.

        Returns:
            `score`, `start`, `end`: `[B, N]`, positions in the row; a score of -inf is no answer.
            `null`: `[B]`, less the threshold; -inf where there must be an answer.
        """
        start_BT, end_BT = outputs.unbind(2)
        count = min(self.n_best, start_BT.shape[1])
        start_BN, first_BN = _masked_logits(start_BT, batch, OWN_FIRST, OWN_PAST).topk(count)
        end_BN, last_BN = _masked_logits(end_BT, batch, FIRST, PAST).topk(count)
        length_BNN = last_BN[:, None, :] - first_BN[:, :, None] + 1
        fits_BNN = (length_BNN >= 1) & (length_BNN <= self.longest_answer)
        pairs_BNN = start_BN[:, :, None] + end_BN[:, None, :]
        pairs_BNN = torch.where(fits_BNN, pairs_BNN, -torch.inf)
        score_BN, pair_BN = pairs_BNN.flatten(1).topk(min(self.n_best, count**2))
        # Equally many whatever the row is padded to.
        missing = (0, self.n_best - score_BN.shape[1])
        null_B1 = batch["window"][:, NULL, None]
        null_B = (start_BT.gather(1, null_B1) + end_BT.gather(1, null_B1)).squeeze(1)
        return {
            "score": F.pad(score_BN, missing, value=-torch.inf),
            "start": F.pad(first_BN.gather(1, pair_BN // count), missing),
            "end": F.pad(last_BN.gather(1, pair_BN % count), missing),
            "null": null_B - self._null_threshold(),
        }

    def _null_threshold(self) -> float:
        if not getattr(self.info.task, "unanswerable", False):
            return float("inf")
        if self.null_threshold == "fit":
            return float(self.info.task.fitted.get("null_threshold", 0.0))
        return float(self.null_threshold)

    @property
    def fits_answers(self) -> bool:  # type: ignore[override]
        """Whether the task is to choose the threshold at the end of the run."""
        return self.null_threshold == "fit" and self.info.task.unanswerable

    def display_pairs(self, outputs: Tensor, batch: Batch) -> Iterable[tuple[list[int], list[int]]]:
        """Return each row's answer and the predicted one; of a row without one, none."""
        best = self.answers(outputs, batch)
        predicted_B2 = torch.stack([best["start"][:, 0], best["end"][:, 0]], 1)
        is_none_B1 = (best["null"] > best["score"][:, 0])[:, None]
        predicted_B2 = torch.where(is_none_B1, batch["window"][:, NULL, None], predicted_B2)
        for tokens, *spans in zip(
            batch["tokens"].tolist(), batch["span"].tolist(), predicted_B2.tolist(), strict=True
        ):
            expected, predicted = (tokens[first : last + 1] for first, last in spans)
            yield expected, predicted


def _is_between(batch: Batch, first: int, past: int) -> Tensor:
    """Return whether positions are between two columns of a row's window, `[B, T]`."""
    place_T = torch.arange(batch["tokens"].shape[1], device=batch["tokens"].device)
    return (place_T >= batch["window"][:, first, None]) & (place_T < batch["window"][:, past, None])


def _masked_logits(logits_BT: Tensor, batch: Batch, first: int, past: int) -> Tensor:
    return torch.where(_is_between(batch, first, past), logits_BT, -torch.inf)
