"""Where each head looks, averaged over the tokens of many texts.

Legend: L places, H heads, S sequences, T queries or keys.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from transfer_cli.analysis.attention.text_maps import shares_of
from transfer_cli.batch import Batch

KINDS = {
    "previous": "the token before",
    "next": "the token after",
    "self": "itself",
    "first": "the first token",
    "separator": "separators",
    "end": "the last token",
}
"""The tokens whose share is measured, in words; one may be of several kinds."""

MEASURES = ("entropy", *KINDS, "distance")


class HeadSummaries:
    """Sums over the queries of many sequences, place by place; see `means` for what of.

    Args:
        places: L.
        heads: H.
        separator: The token that separates or ends texts.
    """

    def __init__(self, places: int, heads: int, separator: int) -> None:
        self._sums = {name: torch.zeros(places, heads, dtype=torch.float64) for name in MEASURES}
        self._counts = {name: torch.zeros(places, dtype=torch.float64) for name in MEASURES}
        self._separator = separator

    def add(self, place: int, probabilities_SHTT: Tensor, batch: Batch) -> None:
        """Add the attention probabilities of a place; sequences are padded on the right."""
        found_SHTT = shares_of(probabilities_SHTT)
        for name, (values_SHT, counted_ST) in _measured(found_SHTT, batch, self._separator).items():
            sums_H = (values_SHT * counted_ST[:, None]).sum((0, 2))
            self._sums[name][place] += sums_H.double().cpu()
            self._counts[name][place] += counted_ST.sum().cpu()

    @property
    def num_tokens(self) -> int:
        """How many queries were summed over."""
        return int(self._counts["self"][0])

    def means(self) -> Mapping[str, Tensor]:
        """Return `[L, H]` means over queries; without those that no query has a token for.

        `entropy` is in nats, `distance` in tokens, either way. The shares of `KINDS` are those of
        the token before, the one after, the query itself, the first token of its sequence, all
        separators, and the last token. A mean is over the queries that have such a token, and of
        `first` and `end` over those that are not it.
        """
        return {
            name: self._sums[name] / count[:, None]
            for name, count in self._counts.items()
            if count.all()
        }


def _measured(
    found_SHTT: Tensor, batch: Batch, separator: int
) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Return each measure of every query, `[S, H, T]`, and the queries it counts for, `[S, T]`."""
    mask_ST, tokens_ST = batch["mask"], batch["tokens"]
    sequences, longest = mask_ST.shape
    place_T = torch.arange(longest, device=mask_ST.device)
    last_S = mask_ST.sum(1) - 1
    is_separator_ST = (tokens_ST == separator) & mask_ST
    # What diagonals beside the main one lack: the first query has no token before it.
    before_SHT = torch.zeros_like(found_SHTT[..., 0])
    before_SHT[..., 1:] = found_SHTT.diagonal(-1, dim1=-2, dim2=-1)
    after_SHT = torch.zeros_like(before_SHT)
    after_SHT[..., :-1] = found_SHTT.diagonal(1, dim1=-2, dim2=-1)
    end_SHT = found_SHTT[torch.arange(sequences, device=mask_ST.device), :, :, last_S]
    distance_TT = (place_T[:, None] - place_T).abs().to(found_SHTT.dtype)
    is_later_ST, is_earlier_ST = mask_ST & (place_T > 0), place_T < last_S[:, None]
    return {
        "entropy": (torch.special.entr(found_SHTT).sum(-1), mask_ST),
        "previous": (before_SHT, is_later_ST),
        "next": (after_SHT, is_earlier_ST),
        "self": (found_SHTT.diagonal(dim1=-2, dim2=-1), mask_ST),
        "first": (found_SHTT[..., 0], is_later_ST),
        "separator": (
            (found_SHTT * is_separator_ST[:, None, None]).sum(-1),
            mask_ST & is_separator_ST.any(1, keepdim=True),
        ),
        "end": (end_SHT, is_earlier_ST),
        "distance": ((found_SHTT * distance_TT).sum(-1), mask_ST),
    }
