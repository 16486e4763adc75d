"""Properties of tokens that are seen without a model.

Legend: S sequences, T positions, V vocabulary, N tokens, P properties.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.data.tokenizer import Tokenizer

MOST_LABELS = 60
"""With more, labels are no properties here."""

_MARKS = "\u0120\u2581#"
"""By which pieces say whether they begin a word."""


class TokenProperties:
    """Position, kind of token, and the class of the text.

    Args:
        tokenizer: The model's.
        labels: Names of the classes; the batches have them as `label`.

    Attributes:
        names: Of the properties.
    """

    def __init__(self, tokenizer: Tokenizer, labels: Sequence[str]) -> None:
        kinds = {
            "starts a word": tokenizer.starts_word.tolist(),
            **{name: [] for name in ("capital", "number", "punctuation")},
        }
        for piece in tokenizer.pieces(range(tokenizer.size)):
            text = piece.lstrip(_MARKS) or piece
            kinds["capital"].append(text[:1].isupper())
            kinds["number"].append(text.isdigit())
            kinds["punctuation"].append(not any(each.isalnum() for each in text))
        self._kinds_VK = torch.tensor(list(kinds.values()), dtype=torch.float64).T
        self._labels = len(labels) if len(labels) <= MOST_LABELS else 0
        self.names = ["position", *kinds, *(f"label {name}" for name in labels[: self._labels])]
        # What makes a row of a text is not the text.
        around = {tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask}
        self._is_text_V = torch.ones(tokenizer.size, dtype=torch.bool)
        self._is_text_V[sorted(around)] = False

    def is_text(self, batch: Batch) -> Tensor:
        """Return which of the real tokens, row by row, are of texts."""
        return self._is_text_V[_sequences(batch["tokens"])[_sequences(batch["mask"])]]

    def of_batch(self, batch: Batch) -> Tensor:
        """Return the properties of the real tokens, row by row, `[N, P]` in float64."""
        mask_ST, tokens_ST = _sequences(batch["mask"]), _sequences(batch["tokens"])
        position_ST = (mask_ST.cumsum(1) - 1).double()
        parts = [position_ST[mask_ST][:, None], self._kinds_VK[tokens_ST[mask_ST]]]
        if self._labels:
            each = len(mask_ST) // len(batch["label"])
            label_ST = batch["label"].repeat_interleave(each)[:, None].expand_as(mask_ST)
            label_NC = F.one_hot(label_ST[mask_ST], self._labels)
            parts.append(label_NC.double())
        return torch.cat(parts, dim=1)


def contexts_of(batch: Batch, beside: int) -> Tensor:
    """Return each real token with `beside` on each side, `[N, 2 beside + 1]`; -1: there is none."""
    mask_ST = _sequences(batch["mask"])
    tokens_ST = _sequences(batch["tokens"]).where(mask_ST, -1)
    padded = F.pad(tokens_ST, (beside, beside), value=-1)
    return padded.unfold(1, 2 * beside + 1, 1)[mask_ST].int()


def _sequences(values: Tensor) -> Tensor:
    return values.flatten(0, -2)
