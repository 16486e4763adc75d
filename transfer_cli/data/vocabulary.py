"""What a loss and a model may ask of a tokenizer: the numbers of its tokens, and their texts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class Vocabulary(ABC):
    """The tokens of a model.

    Attributes:
        size: How many there are.
        pad: Fills up a row of a batch.
        unk: Stands for what is none of the others.
        cls: Stands before a text, or behind it where models read from left to right.
        sep: Ends a text, or a line.
        mask: Hides a token.
        special: These five, of which several may be the same one (GPT-2).
        has_mask: Whether `mask` is a token of its own, by which others can be hidden.
        starts_word: `[size]`, True where a token begins a word.
        sentinels: The tokens `<extra_id_0>`, `<extra_id_1>` and so on, as many as there are.
    """

    size: int
    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    special: frozenset[int]
    has_mask: bool
    starts_word: npt.NDArray[np.bool_]
    sentinels: tuple[int, ...]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`, without special tokens around them."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; special tokens appear by name."""

    @abstractmethod
    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return each token's entry in the vocabulary."""
