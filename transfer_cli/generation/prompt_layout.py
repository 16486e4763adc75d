"""Encodes prompts as in pretraining, and lists the tokens that may be generated.

Where lines end by `sep` (`data.lines=end`), pretraining text is a stream of lines with one after
each and one before the first: to such a model no token ends a text. Elsewhere `sep` ends a
document, line breaks are text or spaces, and what stands before a prompt is what the tokenizer puts
before a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer

Around = Literal["lines", "sentence", "text"]
"""What surrounded the texts that a masked language model was trained on."""


@dataclass(frozen=True)
class PromptLayout:
    """Special tokens between the lines of a text.

    Args:
        has_lines: Whether the model was trained on lines that end by `sep`; published models were
            not.
        before_text: The token before a text that is no lines; None: none.
        joins_lines: Whether line breaks of a text that is no lines were spaces.
        answer_end: The token that ends an answer, of a model that was trained on texts with answers
            and does not go on with the text before one; None: it goes on.
    """

    tokenizer: Tokenizer
    has_lines: bool = True
    before_text: int | None = None
    joins_lines: bool = False
    answer_end: int | None = None

    @property
    def text_end(self) -> int | None:
        """The token that ends a text; None if no token does."""
        if self.answer_end is not None:
            return self.answer_end
        return None if self.has_lines else self.tokenizer.sep

    @property
    def line_end(self) -> int | None:
        """The token that ends a line; None if line ends are ordinary text."""
        return self.tokenizer.sep if self.text_end is None else None

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a prompt, laid out as in pretraining; its last line stays open.

        They are empty if the tokenizer finds no token in the text, and before an answer.
        """
        if self.answer_end is not None:
            return []
        if self.line_end is None:
            tokens = self.tokenizer.encode(text.replace("\n", " ") if self.joins_lines else text)
            return tokens if self.before_text is None or not tokens else [self.before_text, *tokens]
        rows = self.tokenizer.encode_batch(text.split("\n"))
        return [token for row in rows for token in (self.line_end, *row)] if any(rows) else []

    def allowed_tokens(self) -> Tensor:
        """Return `[V]`, True at tokens of text and at the special one that ends it."""
        size = self.tokenizer.size
        # Some ids may belong to no token.
        allowed_V = torch.tensor([bool(piece) for piece in self.tokenizer.pieces(range(size))])
        allowed_V[sorted(self.tokenizer.special)] = False
        allowed_V[self.tokenizer.sep if self.answer_end is None else self.answer_end] = True
        return allowed_V


@dataclass(frozen=True)
class Prompt:
    """A prompt as a model reads it, to go on with, or a source or conversation to be answered.

    Args:
        segment: That of what is added.
        segments: Those of its tokens; none: 0 for all.
    """

    layout: PromptLayout
    tokens: list[int]
    prefix: int | None = None
    segment: int = 0
    segments: Sequence[int] = ()

    @property
    def is_source(self) -> bool:
        """Whether it is to be answered."""
        return self.layout.answer_end is not None
