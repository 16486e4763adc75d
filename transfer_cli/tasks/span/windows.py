"""Questions with their texts as rows of tokens: a long text becomes several windows.

A row is a question and a window of the text, laid out as a pair of texts. Windows begin at 0, at
the step, at twice the step, ... until one reaches the end. A piece of the text that is in several
windows belongs to the one in which it has the most context (Devlin et al. 2019): else an answer
would be counted once for each.

Legend: P pieces of a text, W windows of it, R rows of all.
"""

import logging
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from transfer_cli.data.encoded_task import (
    EncodedRows,
    have_answers,
    iterate_portions,
    specials_around,
    specials_between,
)
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError
from transfer_cli.tasks.scoring import best_score, exact_match
from transfer_cli.tasks.span.readers import SpanExample

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]

NULL, FIRST, PAST, OWN_FIRST, OWN_PAST = range(5)
"""Columns of the batch key `window`: where "no answer" stands; the window of the text, from its
first position to the one after its last; and of it the pieces that belong to this window."""

_LONGEST_STEP, _LONGEST_QUESTION = 128, 64


class EncodedSpans(EncodedRows):
    """Questions with their texts as tokens.

    Attributes:
        offsets: For each example, the characters of the text's pieces, `[P, 2]`.
        shift: For each row, what is to be added to the number of a piece to have its position.
    """

    offsets: list[Ints]
    shift: list[int]

    def character_span(self, row: int, start: int, end: int) -> tuple[int, int]:
        """Return where the pieces at two positions of a row begin and end in the text."""
        offsets, shift = self.offsets[self.example_of[row]], self.shift[row]
        return int(offsets[start - shift, 0]), int(offsets[end - shift, 1])


@dataclass(frozen=True)
class RowLayout:
    """The special tokens of a row, and how many other tokens are whose.

    Args:
        before: The special tokens before the question.
        between: Those between it and the text.
        after: Those behind the text.
        question: Most tokens of a question.
        step: How far apart windows begin.
        room: What is left for a question and a window.
    """

    before: list[int]
    between: list[int]
    after: list[int]
    question: int
    step: int
    room: int

    @classmethod
    def for_length(
        cls,
        tokenizer: Tokenizer,
        direction: str,
        length: int,
        question: int | None = None,
        step: int | None = None,
    ) -> "RowLayout":
        """Return the layout of rows of `length`.

        Args:
            question: See `RowLayout`; None: a sixth of the length, at most 64.
            step: None: a third of the length, at most 128. With 384 tokens both are BERT's.
        """
        before, after = specials_around(tokenizer, direction)
        between = specials_between(tokenizer)
        question = question or default_question_length(length)
        step = step or max(1, min(_LONGEST_STEP, length // 3))
        room = length - len(before) - len(between) - len(after)
        if room - question <= step:
            raise ConfigError(
                f"data.step is {step} and data.question_length is {question}: of data.length="
                f"{length}, they leave {max(0, room - question)} tokens for a window of the text, "
                "which must be more than a step; lower one of them, or leave both out"
            )
        return cls(before, between, after, question, step, room)


@dataclass(frozen=True)
class _Row:
    """A window with its question; see `EncodedSpans`."""

    tokens: "array[int]"
    shift: int
    window: tuple[int, ...]
    span: tuple[int, int]

    @property
    def holds_answer(self) -> bool:
        return self.span[0] != self.window[NULL]


def encode_spans(
    examples: Sequence[SpanExample], tokenizer: Tokenizer, layout: RowLayout
) -> EncodedSpans:
    """Return questions with their texts as rows; of a question that is too long the end is cut.

    The targets of a row, `span`, are the positions of the answer's first and last piece if its
    window holds all of it, else twice that of the special token that begins a row (bidirectional)
    or ends it (causal): no answer.
    """
    known = have_answers([example.answers for example in examples], "answers")
    rows, example_of, all_offsets = list[_Row](), list[int](), list[Ints]()
    is_cut, num_answers, num_unreachable = list[bool](), 0, 0
    for example, question, text, offsets in _encode_texts(examples, tokenizer):
        answer = answer_pieces(example, offsets)
        windows = _window_rows(question[: layout.question], text, answer, layout)
        if example.answer_windows_only:
            windows = [row for row in windows if row.holds_answer] or windows
        example_of += [len(all_offsets)] * len(windows)
        rows += windows
        all_offsets.append(offsets)
        is_cut.append(len(question) > layout.question)
        num_answers += answer is not None
        num_unreachable += answer is not None and not _is_reachable(example, offsets, answer)
    if num_unreachable:
        log.info(
            "%s of %s answers begin or end inside a token, so none of whole tokens is equal",
            f"{num_unreachable:,}", f"{num_answers:,}",
        )  # fmt: skip
    targets = {"window": np.array([row.window for row in rows], dtype=np.int64)}
    if known:
        targets["span"] = np.array([row.span for row in rows], dtype=np.int64)
    encoded = EncodedSpans(
        examples,
        [row.tokens for row in rows],
        tokenizer.pad,
        firsts=[row.window[FIRST] for row in rows],
        targets=targets,
        example_of=example_of,
        is_cut=is_cut,
    )
    encoded.offsets, encoded.shift = all_offsets, [row.shift for row in rows]
    return encoded


def default_question_length(length: int) -> int:
    """Return how many tokens of a question are kept where nobody says it: a sixth of the length."""
    return max(1, min(_LONGEST_QUESTION, length // 6))


def window_starts(pieces: int, size: int, step: int) -> range:
    """Return where windows of `size` begin: every step, until one reaches the last piece."""
    return range(0, max(1, pieces - size + step), step)


def owned_pieces(pieces: int, size: int, starts: Sequence[int]) -> list[tuple[int, int]]:
    """Return which pieces belong to each window: from the first to the one after the last.

    Each piece belongs to the window where the smaller of its left and right context, with a
    hundredth of the window's length, is largest; of two such windows to the first.
    """
    place_P = np.arange(pieces)
    most_P, owner_P = np.full(pieces, -np.inf), np.zeros(pieces, dtype=np.int64)
    for window, start in enumerate(starts):
        past = min(start + size, pieces)
        context_P = np.minimum(place_P - start, past - 1 - place_P)
        score_P = np.where(context_P >= 0, context_P + 0.01 * (past - start), -np.inf)
        owner_P[score_P > most_P] = window
        most_P = np.maximum(most_P, score_P)
    # The contexts of two windows, which both grow and fall by one, cross once.
    bounds = np.searchsorted(owner_P, np.arange(len(starts) + 1))
    return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))


def answer_pieces(example: SpanExample, offsets: Ints) -> tuple[int, int] | None:
    """Return the pieces that hold the first and the last character of the first answer.

    None where there is no answer, or no piece holds it.
    """
    if example.start is None or not example.answers:
        return None
    answer = example.answers[0]
    first = example.start + len(answer) - len(answer.lstrip())
    last = example.start + len(answer.rstrip()) - 1
    start = int(np.searchsorted(offsets[:, 1], first, side="right"))
    end = int(np.searchsorted(offsets[:, 0], last, side="right")) - 1
    return (start, end) if start <= end else None


def _is_reachable(example: SpanExample, offsets: Ints, answer: tuple[int, int]) -> bool:
    """Return whether the answer that is cut from the text by whole pieces is right."""
    predicted = example.context[offsets[answer[0], 0] : offsets[answer[1], 1]]
    return best_score(exact_match, example.answers or (), predicted) == 1


def _encode_texts(
    examples: Sequence[SpanExample], tokenizer: Tokenizer
) -> Iterator[tuple[SpanExample, list[int], list[int], Ints]]:
    """Yield examples with the tokens of both texts, and the characters of those of the second."""
    for portion in iterate_portions(examples, "questions"):
        # A blank question is none, as RoBERTa's truncation in other libraries fails on it.
        questions = tokenizer.encode_batch([example.question.lstrip() for example in portion])
        contexts = list(dict.fromkeys(example.context for example in portion))
        encoded = {
            context: (tokens, np.array(places, dtype=np.int64).reshape(-1, 2))
            for context, (tokens, places) in zip(
                contexts, tokenizer.encode_with_offsets(contexts), strict=True
            )
        }
        for example, question in zip(portion, questions, strict=True):
            yield example, question, *encoded[example.context]


def _window_rows(
    question: Sequence[int], text: Sequence[int], answer: tuple[int, int] | None, layout: RowLayout
) -> list[_Row]:
    """Return the windows of a text, each with the question before it."""
    head = [*layout.before, *question, *layout.between]
    size = layout.room - len(question)
    starts = window_starts(len(text), size, layout.step)
    rows = []
    for start, owned in zip(starts, owned_pieces(len(text), size, starts), strict=True):
        tokens = text[start : start + size]
        row = array("i", [*head, *tokens, *layout.after])
        shift, past = len(head) - start, start + len(tokens)
        null = 0 if layout.before else len(row) - 1
        span = (null, null)
        if answer is not None and start <= answer[0] and answer[1] < past:
            span = (answer[0] + shift, answer[1] + shift)
        window = (null, *(place + shift for place in (start, past, *owned)))
        rows.append(_Row(row, shift, window, span))
    return rows
