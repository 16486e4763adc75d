"""Patterns: how an example is written as a text with a gap, and which tokens that has."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transfer_cli.data.encoded_task import (
    Truncate,
    check_truncation,
    iterate_portions,
    kept_sizes,
)
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, DataError, did_you_mean, list_names
from transfer_cli.objectives.class_weights import spelt_as_labels

_FIELD = re.compile(r"\{(\w*)\}")
_KNOWN = ("text", "pair", "mask")
_EXAMPLE = "such as objective.pattern='{text} It is about {mask}'"

_OF_PATTERN, _OF_TEXT, _OF_PAIR, _OF_GAP = " ", "t", "p", "m"
"""Whose a character, or a token, is."""


@dataclass(frozen=True)
class ClozePattern:
    r"""A text with `{text}`, perhaps `{pair}`, and `{mask}`, where the word of the label stands.

    Args:
        written: The text; `\n` ends a line.

    Raises:
        ValueError: It lacks its text or its gap, or holds something else.
    """

    written: str

    def __post_init__(self) -> None:
        fields = _FIELD.findall(self.written)
        for name in fields:
            if name not in _KNOWN:
                raise ValueError(
                    f"pattern has {{{name}}}, and there are {{text}}, {{pair}} and {{mask}}"
                    f".{did_you_mean(name, _KNOWN)}"
                )
        for name in ("text", "mask"):
            if name not in fields:
                raise ValueError(f"pattern {self.written!r} has no {{{name}}}; give it, {_EXAMPLE}")
        twice = next((name for name in _KNOWN if fields.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"pattern {self.written!r} has {{{twice}}} twice")

    @property
    def has_pair(self) -> bool:
        """Whether a second text has a place in it."""
        return "{pair}" in self.written

    def fill(self, text: str, pair: str | None) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return what stands before the gap and after it, each with whose each character is."""
        values = {"text": (text, _OF_TEXT), "pair": (pair or "", _OF_PAIR)}

        def filled_side(side: str) -> tuple[str, str]:
            # Every second part is the name of a field.
            parts = [
                values[part] if place % 2 else (part, _OF_PATTERN)
                for place, part in enumerate(_FIELD.split(side))
            ]
            whole = "".join(value for value, _ in parts)
            return whole, "".join(owner * len(value) for value, owner in parts)

        before, _, after = self.written.replace("\\n", "\n").partition("{mask}")
        return filled_side(before), filled_side(after)

    def word_token(self, tokenizer: Tokenizer, word: str) -> int:
        """Return the one token of a word in the gap, with the space that stands before it."""
        (before, _), _ = self.fill("a", "a")
        stem = tokenizer.encode(before.rstrip(" "))
        whole = tokenizer.encode(before + word)
        # Some tokenizers join the end of the pattern and the beginning of the word.
        pairs = zip(stem, whole, strict=False)
        first = next((at for at, (one, other) in enumerate(pairs) if one != other), len(stem))
        if len(whole) == first + 1 and whole[first] != tokenizer.unk:
            return whole[first]
        pieces = tokenizer.pieces(whole[first:])
        raise ConfigError(
            f"objective.words: {word!r} is no single token ({list_names(pieces, 5) or 'none'}), "
            "and a gap has room for one; choose other words for all labels, "
            "objective.words={LABEL:WORD,...} (transfer fill shows which the model knows)"
        )


def label_words(
    typed: Mapping[str, object], labels: Sequence[str], key: str
) -> tuple[tuple[str, ...], ...]:
    """Return the words that stand for each label: those typed, else the label itself.

    Args:
        typed: A word, or a list of words, by label; empty: labels are their own words.
        key: The key of `typed` in messages.
    """
    typed = spelt_as_labels(typed, labels)
    unknown = next((name for name in typed if name not in labels), None)
    if unknown is not None:
        raise ConfigError(
            f"{key}: {unknown!r} is no label; there are {list_names(labels, 10)}"
            f".{did_you_mean(unknown, labels)}"
        )
    lacking = [label for label in labels if typed and label not in typed]
    if lacking:
        raise ConfigError(f"{key}: says nothing of {list_names(lacking)}")
    by_label: list[tuple[str, ...]] = []
    for label in labels:
        words: Any = typed.get(label, label)
        several = [words] if isinstance(words, str) else words
        are_words = isinstance(several, list | tuple) and all(
            isinstance(word, str) and word.strip() for word in several
        )
        if not are_words or not several:
            raise ConfigError(f"{key}.{label}: expected a word or a list of words")
        by_label.append(tuple(several))
    return tuple(by_label)


@dataclass(frozen=True)
class _Chunk:
    """A text that is encoded in one piece.

    Args:
        owners: Whose each of its characters is.
        opening: The token before it, with whose it is; None: there is none.
        is_glued: Whether it follows a word without a space, as a comma does.
    """

    text: str
    owners: str
    opening: tuple[int, str] | None = None
    is_glued: bool = False


@dataclass(frozen=True)
class PatternEncoder:
    """Written examples as tokens, laid out as the texts that the model was pretrained on.

    Args:
        start: The tokens before all.
        end: The tokens behind all.
        line: The token before each line; None: line ends are ordinary text.
        has_gap: Whether a mask token stands in the gap; else the text ends there.
    """

    pattern: ClozePattern
    tokenizer: Tokenizer
    start: tuple[int, ...]
    end: tuple[int, ...]
    line: int | None
    has_gap: bool

    def rows(
        self, examples: Sequence[Any], length: int, truncate: Truncate
    ) -> Iterator[tuple[list[int], int, bool]]:
        """Yield each example's tokens, the place of its gap, and whether it was cut.

        Where they are too many, its texts alone lose some, at their ends.
        """
        for portion in iterate_portions(examples):
            chunks = [self._chunks(example.text, example.pair) for example in portion]
            encoded = self._encode_chunks([chunk for parts in chunks for chunk in parts])
            for example, parts in zip(portion, chunks, strict=True):
                tokens = [pair for _ in parts for pair in next(encoded)]
                yield self._truncated(example, tokens, length, truncate)

    def _chunks(self, text: str, pair: str | None) -> list[_Chunk]:
        (before, owners), (after, owners_after) = self.pattern.fill(text, pair)
        # The space before the gap belongs to its word: that is how tokens are cut.
        before = before.removesuffix(" ") if self.has_gap else before.rstrip(" ")
        opening = None if self.line is None else (self.line, _OF_PATTERN)
        chunks = self._lines(before, owners, opening)
        if not self.has_gap:
            return chunks
        gap = (self.tokenizer.mask, _OF_GAP)
        first, *others = self._lines(after, owners_after, gap)
        is_glued = bool(first.text) and not (first.text[0].isspace() or first.text[0].isalnum())
        return [*chunks, _Chunk(first.text, first.owners, gap, is_glued), *others]

    def _lines(self, text: str, owners: str, opening: tuple[int, str] | None) -> list[_Chunk]:
        if self.line is None:
            return [_Chunk(text, owners, opening)]
        chunks, at = [], 0
        for number, line in enumerate(text.split("\n")):
            before = opening if number == 0 else (self.line, owners[at - 1])
            chunks.append(_Chunk(line, owners[at : at + len(line)], before))
            at += len(line) + 1
        return chunks

    def _encode_chunks(self, chunks: Sequence[_Chunk]) -> Iterator[list[tuple[int, str]]]:
        """Yield the tokens of each chunk, behind the one that opens it, with whose they are."""
        word = self.tokenizer.encode("a")
        # A comma is encoded as after a word, so that it has no space before it.
        written = [f"a{chunk.text}" if chunk.is_glued else chunk.text for chunk in chunks]
        encoded = self.tokenizer.encode_with_offsets(written)
        for chunk, (tokens, spans) in zip(chunks, encoded, strict=True):
            shift = 0
            if chunk.is_glued and tokens[: len(word)] == word:
                tokens, spans, shift = tokens[len(word) :], spans[len(word) :], 1
            elif chunk.is_glued:
                ((tokens, spans),) = self.tokenizer.encode_with_offsets([chunk.text])
            owners = (_owner(chunk.owners, begin - shift, end - shift) for begin, end in spans)
            opening = [] if chunk.opening is None else [chunk.opening]
            yield [*opening, *zip(tokens, owners, strict=True)]

    def _truncated(
        self, example: Any, tokens: Sequence[tuple[int, str]], length: int, truncate: Truncate
    ) -> tuple[list[int], int, bool]:
        counts = {name: sum(owner == name for _, owner in tokens) for name in (_OF_TEXT, _OF_PAIR)}
        fixed = len(self.start) + len(self.end) + len(tokens) - sum(counts.values())
        if fixed >= length:
            raise DataError(
                f"the pattern alone has {fixed} tokens, and data.length leaves {length} for all; "
                "shorten objective.pattern, or let data.length be longer"
            )
        sizes, room = (counts[_OF_TEXT], counts[_OF_PAIR]), length - fixed
        stay = kept_sizes(*sizes, room, truncate)
        check_truncation(example, sizes, stay, truncate, room, length)
        left = dict(zip(counts, stay, strict=True))
        row, gap = list(self.start), 0
        for token, owner in tokens:
            if owner in left:
                left[owner] -= 1
                if left[owner] < 0:
                    continue
            if owner == _OF_GAP:
                gap = len(row)
            row.append(token)
        row += self.end
        # A text that a tokenizer finds nothing in still has a place to go on from.
        return row or [self.tokenizer.sep], gap, sum(sizes) > room


def _owner(owners: str, begin: int, end: int) -> str:
    """Return whose a token is; one that reaches into the pattern is the pattern's."""
    if begin >= end:  # blanks, which are before that place
        begin = max(0, end - 1)
        end = begin + 1
    whose = set(owners[max(0, begin) : end])
    return whose.pop() if len(whose) == 1 else _OF_PATTERN
