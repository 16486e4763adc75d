"""What the toolkit asks of a tokenizer: text to tokens and back.

Two promises hold for every tokenizer:

- `<unk>` in a text (rare words of WikiText) is exactly one token, the unknown token, if there is
  one (GPT-2's tokenizer has none: its one special token ends a text);
- `[CLS]`, `[MASK]` and so on in a text are ordinary text: only we put in special tokens, or a chat
  template does (`encode_marked`).

It is made in `tokenizer_recipes`, or read from a file in `library_tokenizer`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt


class Tokenizer(ABC):
    """Text to tokens and back.

    Attributes:
        size: Size of the vocabulary.
        hash: Hexadecimal digest of everything that changes the output.
        pad: Fills up a row of a batch.
        unk: Stands for what has no token.
        cls: Stands before a text, or behind it where models read from left to right.
        sep: Ends a text, or a line.
        mask: Hides a token.
        special: These five; several may be the same one (GPT-2).
        has_mask: Whether `mask` is a token of its own, by which others can be hidden.
        starts_word: `[size]`, True where a token begins a word.
        begin: The token that stands before each text, where none stands behind it (Llama); None:
            there is none.
        sentinels: The tokens `<extra_id_0>`, `<extra_id_1>` and so on, as many as there are.
        before_text: The token that stands before each text, whatever is behind it; None: none.
        after_text: The token that its template puts behind each text; None: none.
        separators: How many `sep` stand between two texts: 1, in RoBERTa 2.
        template: What says these three, as the library has it; None: nothing.
        ends_texts: Whether `sep` is what models of others end a text by, and not a line.
        is_byte_level: Whether its tokens are made of bytes, the space before a word among them.
    """

    size: int
    hash: str
    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    special: frozenset[int]
    has_mask: bool
    starts_word: npt.NDArray[np.bool_]
    begin: int | None
    sentinels: tuple[int, ...]
    before_text: int | None
    after_text: int | None
    separators: int
    template: object
    ends_texts: bool
    is_byte_level: bool

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`, without special tokens around them."""
        return self.encode_batch([text])[0]

    def encode_within(self, word: str) -> list[int]:
        """Return the tokens of a word that stands behind another in a text."""
        before, tokens = self.encode_batch(["a", f"a {word}"])
        return tokens[len(before) :] if tokens[: len(before)] == before else tokens

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of every text, computed by many threads.

        Half a surrogate pair, which UTF-8 cannot encode, counts as `?`.
        """

    @abstractmethod
    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return the tokens of every text as `encode_batch`, and the span of each in characters.

        Spaces at either end of a token are not part of its span. Tokens that share one character,
        as the bytes of an emoji, all have the span of that character.
        """

    @abstractmethod
    def encode_marked(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Return the tokens of texts in which names of special tokens stand for these.

        So are texts that a chat template has written. Beside them: the character at which each
        token begins.
        """

    @abstractmethod
    def units(self, line: str) -> list[str]:
        """Cut a line into units: their tokens, one after the other, are the tokens of the line.

        Words repeat, so in much text each distinct unit can be encoded once. Where a tokenizer
        looks across spaces, the only unit is the line itself.
        """

    @abstractmethod
    def normalized(self, text: str) -> str:
        """Return a text as it is before it is cut into tokens: lower-cased, composed, ..."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; special tokens appear by name."""

    @abstractmethod
    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return each token's entry in the vocabulary."""

    @abstractmethod
    def token(self, piece: str) -> int | None:
        """Return the number of an entry of the vocabulary, or None."""

    @abstractmethod
    def with_added(self, names: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer with further tokens behind its own, which no text is read as."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write the `tokenizer.json` of the tokenizers library, complete or not at all."""

    @property
    def target_start(self) -> list[int]:
        """The tokens that an encoder-decoder's targets stand behind: T5's, BART's where it can."""
        return [self.pad] if self.cls == self.sep else [self.sep, self.cls]

    @property
    def document_start(self) -> int:
        """The token that stands before a document of running text."""
        return self.sep if self.before_text is None else self.before_text

    @cached_property
    def keeps_lines(self) -> bool:
        """Whether a line break is a token, or several, from which it comes back."""
        tokens = self.encode("\n\n")
        return self.unk not in tokens and self.decode(tokens).count("\n") == 2
