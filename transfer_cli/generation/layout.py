"""How text becomes the tokens that a language model was trained on, and which it may say.

Text to pretrain on is a stream of lines with a `sep` after each and one in front of all
(`data.corpus`): to such a model `sep` is the end of a line, and nothing is the end of a text.
Tokenizers like that of GPT-2 have one special token for everything, which ends a whole document;
line ends are ordinary text there, and a prompt stands for itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Layout:
    """The lines of a text as tokens, and the tokens that mean no text.

    Args:
        tokenizer: The run's.
        has_lines: Whether the model was trained on lines as ours are; published ones were not.
    """

    tokenizer: Tokenizer
    has_lines: bool = True

    @property
    def text_end(self) -> int | None:
        """The token that ends a text; None where only lines end."""
        ends_texts = not self.has_lines or self.tokenizer.sep == self.tokenizer.cls
        return self.tokenizer.sep if ends_texts else None

    @property
    def line_end(self) -> int | None:
        """The token that ends a line; None where that is ordinary text."""
        return self.tokenizer.sep if self.text_end is None else None

    def prompt(self, text: str) -> list[int]:
        """Return what a text begins with, laid out as in pretraining; it goes on in the last line.

        There is nothing in it for a text in which the tokenizer finds no token.
        """
        if self.line_end is None:
            return self.tokenizer.encode(text)
        rows = self.tokenizer.encode_batch(text.split("\n"))
        return [token for row in rows for token in (self.line_end, *row)] if any(rows) else []

    def drops_space(self, text: str, tokens: Sequence[int]) -> bool:
        """Return whether a prompt ends in a space that its tokens know nothing of."""
        return text.endswith(" ") and not self.tokenizer.decode(tokens).endswith(" ")

    def allowed(self) -> Tensor:
        """Return `[V]`, True at tokens of text, and at those that end a text or a line."""
        size = self.tokenizer.size
        # Numbers between others may belong to no token.
        allowed_V = torch.tensor([bool(each) for each in self.tokenizer.pieces(range(size))])
        allowed_V[sorted(self.tokenizer.special)] = False
        allowed_V[self.tokenizer.sep] = True
        return allowed_V
