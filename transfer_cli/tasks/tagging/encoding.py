"""Sentences as rows of tokens: each word's tag stands at one of its pieces.

A sentence that is too long becomes windows of whole words, which overlap. Each word belongs to the
window in which it is furthest from an edge, so that none is without an answer or has two.

Legend: R rows, T positions.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from transfer_cli.batch import IGNORE
from transfer_cli.data.encoded_task import SHORTEST, EncodedRows, specials_around
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.progress import progress

if TYPE_CHECKING:
    from transfer_cli.tasks.tagging.task import TaggedSentence

Piece = Literal["auto", "first", "last"]

_PORTION = 8192


class EncodedTags(EncodedRows):
    """Sentences as rows of tokens.

    Attributes:
        words: For each row, its first word and the one after its last; and of these the words that
            belong to it.
        places: For each row, the positions at which its words are read.
    """

    words: list[tuple[int, int, int, int]]
    places: list[list[int]]


def encode_tags(
    examples: "Sequence[TaggedSentence]",
    tokenizer: Tokenizer,
    length: int,
    direction: Literal["causal", "bidirectional"],
    *,
    piece: Piece = "auto",
    label_all: Sequence[int] | None = None,
    overlap: int | None = None,
) -> EncodedTags:
    """Return sentences as rows of at most `length` tokens.

    Keys of a batch: `word`, True where a word is read; `tag`, its number there, of examples that
    have tags. A word without a piece, such as an invisible character, has the unknown token; of one
    that is longer than a row the end is cut.

    Args:
        examples: The sentences.
        tokenizer: Turns words into pieces, as words of a running text, the first one too.
        length: The longest row in tokens, special tokens included.
        direction: The model's.
        piece: The piece at which a word is read. auto: the first, of a causal model the last, which
            alone has seen all of the word.
        label_all: For each tag, the one that the other pieces of the word learn; None: they learn
            nothing.
        overlap: How many words two windows share; None: half of a window.

    Raises:
        ConfigError: `length` leaves no room for a word.
        DataError: Some sentences have tags and some have none.
    """
    if length < SHORTEST:
        raise ConfigError(
            f"data.length is {length}: with the special tokens an input needs at least {SHORTEST} "
            "positions."
        )
    known = [example.label is not None for example in examples]
    if any(known) and not all(known):
        raise DataError(
            f"Sentence {known.index(False) + 1} of {len(known)} has no tags, others have some."
        )
    at_last = piece == "last" or (piece == "auto" and direction == "causal")
    before, after = specials_around(tokenizer, direction)
    room = length - len(before) - len(after)
    rows, example_of, words, places = [], list[int](), [], []
    is_word, tags, is_cut = [], [], []
    for number, (example, pieces) in enumerate(_encoded(examples, tokenizer)):
        sizes = [min(len(each), room) for each in pieces]
        is_cut.append(any(len(each) > room for each in pieces))
        windows = word_windows(sizes, room, overlap)
        for (first, past), own in zip(windows, owned_words(windows), strict=True):
            row, read, tag = array("i", before), list[int](), [IGNORE] * len(before)
            for word in range(first, past):
                start, size = len(row), sizes[word]
                row.extend(pieces[word][:size])
                read.append(start + size - 1 if at_last else start)
                label = IGNORE if example.label is None else example.label[word]
                further = IGNORE if label_all is None or label == IGNORE else label_all[label]
                tag += [further] * size
                tag[read[-1]] = label
            row.extend(after)
            rows.append(row)
            tags.append(tag + [IGNORE] * len(after))
            marked = np.zeros(len(row), dtype=np.int64)
            marked[read] = 1
            is_word.append(marked)
            example_of.append(number)
            words.append((first, past, *own))
            places.append(read)
    targets: dict[str, Sequence[Any]] = {"word": is_word}
    if any(known):
        targets["tag"] = tags
    found = EncodedTags(
        examples,
        rows,
        tokenizer.pad,
        targets=targets,
        fill={"word": 0, "tag": IGNORE},
        example_of=example_of,
        is_cut=is_cut,
    )
    found.words, found.places = words, places
    return found


def word_windows(sizes: Sequence[int], room: int, overlap: int | None) -> list[tuple[int, int]]:
    """Return windows of whole words, each from its first word to the one after its last.

    Args:
        sizes: How many pieces each word has, at most `room`.
        room: Most pieces of a window.
        overlap: How many words two windows share, at most all but one; None: half of the first.
    """
    found, first = [], 0
    while True:
        past, held = first, 0
        while past < len(sizes) and held + sizes[past] <= room:
            held += sizes[past]
            past += 1
        found.append((first, past))
        if past >= len(sizes):
            return found
        shared = (past - first) // 2 if overlap is None else overlap
        first = max(first + 1, past - shared)


def owned_words(windows: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return which words belong to each window: from the first to the one after the last.

    Each belongs to the window in which it is furthest from an edge, of two such to the first.
    """
    count = windows[-1][1]
    most, owner = np.full(count, -1), np.zeros(count, dtype=np.int64)
    for number, (first, past) in enumerate(windows):
        place = np.arange(first, past)
        context = np.minimum(place - first, past - 1 - place)
        better = context > most[first:past]
        owner[first:past][better] = number
        most[first:past] = np.maximum(context, most[first:past])
    # The distances to the edges of two windows, which rise and fall by one, cross once.
    bounds = np.searchsorted(owner, np.arange(len(windows) + 1))
    return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))


def _encoded(
    examples: "Sequence[TaggedSentence]", tokenizer: Tokenizer
) -> "Iterator[tuple[TaggedSentence, list[list[int]]]]":
    """Yield sentences with the pieces of each of their words, one piece at least."""
    with progress("encoding", len(examples), "sentences") as more:
        for first in range(0, len(examples), _PORTION):
            portion = examples[first : first + _PORTION]
            # With a blank in front the first word has the pieces that it has inside of a text.
            texts = [f" {' '.join(example.words)}" for example in portion]
            for example, (ids, spans) in zip(
                portion, tokenizer.encode_with_offsets(texts), strict=True
            ):
                ends = np.cumsum([1 + len(word) for word in example.words])
                owners = np.searchsorted(ends, [start for start, _ in spans], side="left")
                pieces: list[list[int]] = [[] for _ in example.words]
                for token, owner in zip(ids, owners.tolist(), strict=True):
                    pieces[min(owner, len(pieces) - 1)].append(token)
                yield example, [each or [tokenizer.unk] for each in pieces]
            more(len(portion))
