"""Running text as pairs of texts; a model learns whether they belong together.

Devlin et al. 2019 (NSP) and Lan et al. 2020 (SOP). Each document is walked from its beginning.
Units, which are sentences or lines, are collected until they have as many tokens as an example has
room for, or now and then fewer. They are split in two at a place drawn among them.

nsp: half of the time both parts are a pair (0). Else the second text is from another document,
begins with any of its units (1), and what was not used is collected again.
sop: half of the time both parts are swapped (1), else they are not (0).
translation: the two lines of a document are a pair; nothing is asked of it. Positions count from
0 in each, so that a word stands near its translation (Conneau and Lample 2019).

Unlike the released code of either, a unit that fills an example alone is joined by the next one,
and no second text is from the first one's document. A unit that is left at a document's end alone
is in no pair.

Legend: U units, D documents, W walks, N pairs, B examples, T positions, V vocabulary.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.batch import Batch, gather
from transfer_cli.data.corpus import EncodedText
from transfer_cli.data.encoded_task import MIN_LENGTH, kept_sizes, specials_around, specials_between
from transfer_cli.data.text import Pairs, Units
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, DataError

SHORTER_SHARE = 0.1
"""How often fewer tokens are collected than an example has room for (BERT's `short_seq_prob`)."""

_PORTION = 2**22
"""Tokens that are cut into units at a time, so that little memory is taken."""

_LONGEST_WALK = 4096
"""Units of a walk. All walks go on side by side, so a longer document is several."""

_ENDS_SENTENCE = re.compile(r"[\u2581\u0120]?[.?!]+[\"'\u201d\u2019)\]]*")
"""Tokens that end a sentence, perhaps with the space that some tokenizers put in front."""


@dataclass(frozen=True, eq=False)
class TextUnits:
    """The sentences or lines of a text, in its order.

    Attributes:
        starts: `[U]`, where each begins in the text's tokens.
        reached: `[U + 1]`, how many tokens all before each have; last, how many all have.
        first: `[D + 1]`, the first unit of each document that has any; last, U.
    """

    starts: npt.NDArray[np.int64]
    reached: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_documents(self) -> int:
        """D, the number of documents with a unit."""
        return len(self.first) - 1


def units_of(text: EncodedText, tokenizer: Tokenizer, kind: Units) -> TextUnits:
    """Cut a text whose documents are told apart into units, without the ends of lines.

    A sentence ends with a line, or with a token of `.?!` before one that begins a word.
    """
    ends_V = np.zeros(tokenizer.size, dtype=np.bool_)
    if kind == "sentence":
        pieces = tokenizer.pieces(range(tokenizer.size))
        ends_V = np.array([_ENDS_SENTENCE.fullmatch(piece) is not None for piece in pieces])
    # Only the last of several marks ends a sentence.
    follows_V = np.asarray(tokenizer.starts_word, dtype=np.bool_) & ~ends_V
    starts, lengths, begin = [], [], 0
    for first in range(0, len(text.tokens), _PORTION):
        now = np.asarray(text.tokens[first : first + _PORTION])
        after = np.append(text.tokens[first + 1 : first + _PORTION + 1], tokenizer.sep)[: len(now)]
        is_line_end = now == tokenizer.sep
        places = np.flatnonzero(is_line_end | (ends_V[now] & follows_V[after]))
        begins = np.append(begin, first + places + 1)
        begin = int(begins[-1])
        sizes = first + places + ~is_line_end[places] - begins[:-1]
        starts.append(begins[:-1][sizes > 0])
        lengths.append(sizes[sizes > 0])
    starts_U, lengths_U = np.concatenate(starts), np.concatenate(lengths)
    if text.starts is None:
        raise ValueError("the documents of this text are not told apart")
    document_U = np.searchsorted(text.starts, starts_U, side="right")
    first_D = np.flatnonzero(np.diff(document_U, prepend=-1, append=-1))
    return TextUnits(starts_U, np.cumsum(np.append(0, lengths_U)), first_D)


@dataclass(frozen=True, eq=False)
class DrawnPairs:
    """Which units are paired.

    Attributes:
        spans: `[N, 4]`, the first unit of the first text and the one after its last; the same of
            the second.
        labels: `[N]`, 0 where the second text follows the first, else 1; None: nothing is asked.
        num_left_out: Units that are left at the end of a document alone, or in no pair.
    """

    units: TextUnits
    spans: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int8] | None
    num_left_out: int


def translation_pairs(units: TextUnits) -> DrawnPairs:
    """Return the pairs of documents of two units; those of others are left out."""
    size_D, first_D = np.diff(units.first), units.first[:-1]
    at_N = first_D[size_D == 2]
    if not len(at_N):
        raise DataError("has no document of two lines, and no row of two texts")
    spans_N4 = np.stack([at_N, at_N + 1, at_N + 1, at_N + 2], axis=1).astype(np.int32)
    return DrawnPairs(units, spans_N4, None, int(size_D[size_D != 2].sum()))


def draw_pairs(units: TextUnits, kind: Pairs, room: int, seed: int, copies: int = 1) -> DrawnPairs:
    """Draw the pairs of a text, a pure function of the arguments.

    Args:
        room: Tokens of both texts of an example together.
        copies: How often each document is walked, with other draws.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    at_W, end_W, document_W = _walks(units, copies)
    if kind == "nsp" and units.num_documents < 2:
        raise DataError("is one document, and second texts are taken from others")
    walk_W, num_left_out, rounds = np.arange(len(at_W)), 0, []
    while True:
        num_left_out += int((end_W - at_W == 1).sum())
        goes_on = end_W - at_W > 1
        walk_W, at_W, end_W, document_W = (
            values_W[goes_on] for values_W in (walk_W, at_W, end_W, document_W)
        )
        if not len(walk_W):
            break
        shorter, size, place, choice, *other = generator.random((6, len(walk_W)))
        wanted_W = np.where(shorter < SHORTER_SHARE, 2 + _draw_below(size, room - 1), room)
        full_W = np.searchsorted(units.reached, units.reached[at_W] + wanted_W)
        stop_W = np.clip(full_W, at_W + 2, end_W)
        middle_W = at_W + 1 + _draw_below(place, stop_W - at_W - 1)
        is_1 = choice < 0.5
        spans_W4 = np.stack([at_W, middle_W, middle_W, stop_W], axis=1)
        if kind == "sop":
            spans_W4[is_1] = spans_W4[is_1][:, [2, 3, 0, 1]]
            at_W = stop_W
        else:
            rest_W = wanted_W - units.reached[middle_W] + units.reached[at_W]
            spans_W4[is_1, 2:] = _spans_elsewhere(
                units, document_W[is_1], rest_W[is_1], [place_W[is_1] for place_W in other]
            )
            at_W = np.where(is_1, middle_W, stop_W)
        rounds.append((walk_W, spans_W4.astype(np.int32), is_1.astype(np.int8)))
    if not rounds:
        raise DataError("has no document of two units")
    walk_N, spans_N4, label_N = (np.concatenate(parts) for parts in zip(*rounds, strict=True))
    order_N = np.argsort(walk_N, kind="stable")
    return DrawnPairs(units, spans_N4[order_N], label_N[order_N], num_left_out)


def _walks(units: TextUnits, copies: int) -> list[npt.NDArray[np.int64]]:
    """Return the first unit of each walk, the one after its last, and its document."""
    size_D = np.diff(units.first)
    parts_D = -(-size_D // _LONGEST_WALK)
    document_W = np.repeat(np.arange(units.num_documents), parts_D)
    part_W = np.arange(len(document_W)) - (np.cumsum(parts_D) - parts_D)[document_W]
    begin_W, end_W = (
        units.first[document_W] + size_D[document_W] * part // parts_D[document_W]
        for part in (part_W, part_W + 1)
    )
    return [np.tile(values_W, copies) for values_W in (begin_W, end_W, document_W)]


def _draw_below(draw: npt.NDArray[np.float64], count: Any) -> npt.NDArray[np.int64]:
    """Return draws from 0, ..., count - 1, given some from [0, 1)."""
    number: npt.NDArray[np.int64] = (draw * count).astype(np.int64)
    return number


def _spans_elsewhere(
    units: TextUnits,
    document_W: npt.NDArray[np.int64],
    wanted_W: npt.NDArray[np.int64],
    draws: list[npt.NDArray[np.float64]],
) -> npt.NDArray[np.int64]:
    """Return a span of units in another document, `[W, 2]`, that begins at any of its units."""
    which, place = draws
    other_W = _draw_below(which, units.num_documents - 1)
    other_W += other_W >= document_W
    first_W, end_W = units.first[other_W], units.first[other_W + 1]
    begin_W = first_W + _draw_below(place, end_W - first_W)
    full_W = np.searchsorted(units.reached, units.reached[begin_W] + np.maximum(wanted_W, 1))
    return np.stack([begin_W, np.minimum(full_W, end_W)], axis=1)


@dataclass(frozen=True, eq=False)
class SentencePairs:
    """Pairs as examples: `cls` A `sep` B `sep`, or as the tokenizer's family has them.

    The longer text loses tokens at its end until both fit.
    """

    text: EncodedText
    drawn: DrawnPairs
    tokenizer: Tokenizer
    length: int

    def __len__(self) -> int:
        return len(self.drawn.spans)

    def batch(self, indices: npt.NDArray[np.integer[Any]]) -> Batch:
        """Return `tokens`, `mask`, `segment`, `index` and `pair` or `restart` of some pairs."""
        index_B = np.asarray(indices, dtype=np.int64)
        start, end = specials_around(self.tokenizer, "bidirectional")
        between, room = specials_between(self.tokenizer), text_room(self.tokenizer, self.length)
        rows, firsts = [], []
        for first, stop, second, last in self.drawn.spans[index_B].tolist():
            one, other = self.tokens(first, stop), self.tokens(second, last)
            stays, other_stays = kept_sizes(len(one), len(other), room)
            rows.append(np.concatenate([start, one[:stays], between, other[:other_stays], end]))
            firsts.append(len(start) + stays + len(between))
        lengths_B = np.array([len(row) for row in rows])
        tokens_BT, mask_BT = gather(
            np.concatenate(rows), np.cumsum(lengths_B) - lengths_B, lengths_B, self.tokenizer.pad
        )
        second_BT = np.arange(tokens_BT.shape[1]) >= np.array(firsts)[:, None]
        segment_BT = torch.from_numpy((second_BT & mask_BT).astype(np.int64))
        labels_N = self.drawn.labels
        return {
            "tokens": torch.from_numpy(tokens_BT),
            "mask": torch.from_numpy(mask_BT),
            "segment": segment_BT,
            "index": torch.from_numpy(index_B.copy()),
            **(
                {"restart": segment_BT}
                if labels_N is None
                else {"pair": torch.from_numpy(labels_N[index_B].astype(np.int64))}
            ),
        }

    def describe(self) -> str:
        """Return in words how many pairs there are, and of what."""
        drawn, units = self.drawn, self.drawn.units
        where = "alone at the end of a document" if drawn.labels is not None else "of no two texts"
        return (
            f"{len(self):,} pairs of {len(units):,} units in {units.num_documents:,} documents; "
            f"{drawn.num_left_out:,} units are left out, {where}"
        )

    def tokens(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the tokens of the units from `first` to before `stop`."""
        units = self.drawn.units
        size = units.reached[stop] - units.reached[stop - 1]
        tokens = self.text.tokens[units.starts[first] : units.starts[stop - 1] + size]
        return np.asarray(tokens[tokens != self.tokenizer.sep], np.int64)


def text_room(tokenizer: Tokenizer, length: int) -> int:
    """Return how many tokens of an example are no special ones."""
    around = sum(map(len, specials_around(tokenizer, "bidirectional")))
    return length - around - len(specials_between(tokenizer))


def pair_text(
    text: EncodedText,
    tokenizer: Tokenizer,
    length: int,
    kind: Pairs,
    units: Units,
    *,
    seed: int,
    copies: int = 1,
) -> SentencePairs:
    """Return a text as pairs; see `draw_pairs` for the other arguments."""
    room = text_room(tokenizer, length)
    if room < 2:
        raise ConfigError(
            f"data.length: {length} leaves no room for two texts among their special tokens; "
            f"give {MIN_LENGTH + tokenizer.separators - 1} or more"
        )
    spans = units_of(text, tokenizer, units)
    is_drawn = kind != "translation"
    drawn = draw_pairs(spans, kind, room, seed, copies) if is_drawn else translation_pairs(spans)
    return SentencePairs(text, drawn, tokenizer, length)
