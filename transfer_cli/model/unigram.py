"""The unigram model as a `TransferModel`: the baseline for perplexities.

Legend: B batch, T positions, V vocabulary.

It predicts the same distribution at every position: the counts of the training text, plus one. A
language model that does not clearly beat it has learned nothing.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.packing import Packing, pack
from transfer_cli.model.transfer_model import TransferModel


class ZeroBackbone(nn.Module):
    """A backbone whose hidden states are zero."""

    causal = True

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, 1)
        self.blocks = nn.ModuleList()

    def forward(
        self,
        tokens_BT: Tensor,
        *_: Tensor | None,
        packing: Packing | None = None,
        **ignored: object,
    ) -> list[Tensor]:
        """Return one hidden state of zeros, `[B, T, 1]`, or packed `[1, N, 1]`."""
        tokens_BT = pack(tokens_BT, packing)
        return [torch.zeros(*tokens_BT.shape, 1, device=tokens_BT.device)]


def unigram_model(chunks: Iterable[np.ndarray], vocabulary: int) -> TransferModel:
    """Return the add-one unigram model of a text, given in chunks of tokens."""
    counts = np.ones(vocabulary, dtype=np.int64)
    for chunk in chunks:
        counts += np.bincount(chunk, minlength=vocabulary)
    shape = BackboneShape(1, 1, 1, 1, 1, direction="causal")
    head = LanguageModelHead(shape, vocabulary)
    log_probability_V = torch.from_numpy(np.log(counts / counts.sum())).float()
    with torch.no_grad():
        head.bias.copy_(log_probability_V)  # type: ignore[union-attr]
    return TransferModel(ZeroBackbone(vocabulary), {"lm": head})  # type: ignore[arg-type]
