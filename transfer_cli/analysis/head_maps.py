"""What a model reads of a text, the attention of every head while it reads, and sums of that.

Legend: B examples, C sequences of an example, S sequences, L places of blocks, H heads, T tokens
(queries or keys).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transfer_cli.analysis.analysis import Subject, batch_of_tokens
from transfer_cli.batch import Batch, to_device, with_facts
from transfer_cli.data.split import Split
from transfer_cli.model.probes import set_probe
from transfer_cli.objectives.base import Encoding

_BY_POSITION = {"segment": 0, "document": -1}
"""What a pass reads for each position beside tokens and mask, and its value at padding."""


@dataclass(frozen=True)
class ReadSequence:
    """A row of tokens as the model reads it.

    Args:
        example: The number of its example in the split.
        part: Which of its sequences or windows it is; empty: there is one.
        tokens: `[T]`, without padding.
        by_position: `segment` and `document`, where there are some, each `[T]`.
        prefix: The length of its prefix; None: it has none.
        length: Its tokens before it was cut.
    """

    example: int
    part: str
    tokens: Tensor
    by_position: dict[str, Tensor]
    prefix: Tensor | None
    length: int

    def cut(self, most: int, *, keeps_end: bool) -> "ReadSequence":
        """Return its first `most` tokens; with `keeps_end` the last of them is its last one."""
        if len(self.tokens) <= most:
            return self
        kept = torch.arange(most)
        if keeps_end:
            kept[-1] = len(self.tokens) - 1
        return replace(
            self,
            tokens=self.tokens[kept],
            by_position={name: values[kept] for name, values in self.by_position.items()},
            prefix=None if self.prefix is None else self.prefix.clamp(max=most),
        )


def sequences_of(split: Split, rows: Sequence[int]) -> Iterator[ReadSequence]:
    """Yield the sequences of some rows of a split, in this order.

    The end of a text, a special token, stays where it is cut; running text has no end.
    """
    for row in rows:
        batch = split.data.batch(np.array([row]))
        example, window = _window_of(split, row)
        mask_ST = batch["mask"].flatten(0, -2)
        is_group = batch["mask"].dim() > 2
        for number, mask_T in enumerate(mask_ST):
            if not mask_T.any():
                continue
            by_position = {
                name: batch[name].flatten(0, -2)[number][mask_T]
                for name in _BY_POSITION
                if name in batch
            }
            tokens_T = batch["tokens"].flatten(0, -2)[number][mask_T]
            part = f"choice {number + 1}" if is_group else window
            prefix = batch["prefix"][0] if "prefix" in batch else None
            yield ReadSequence(example, part, tokens_T, by_position, prefix, len(tokens_T))


def _window_of(split: Split, row: int) -> tuple[int, str]:
    if split.example_of is None:
        return row, ""
    example = int(split.example_of[row])
    windows = np.flatnonzero(split.example_of == example)
    number = int(np.searchsorted(windows, row)) + 1
    return example, f"window {number} of {len(windows)}" if len(windows) > 1 else ""


def batch_of(sequences: Sequence[ReadSequence], subject: Subject) -> Batch:
    """Return sequences as a batch on the device, padded on the right to the longest."""
    batch = batch_of_tokens([sequence.tokens for sequence in sequences], subject.tokenizer.pad)
    for name in sequences[0].by_position:
        rows = [sequence.by_position[name] for sequence in sequences]
        batch[name] = pad_sequence(rows, batch_first=True, padding_value=_BY_POSITION[name])
    prefixes = [sequence.prefix for sequence in sequences if sequence.prefix is not None]
    if prefixes:
        batch["prefix"] = torch.stack(prefixes)
    return to_device(with_facts(batch), subject.precision.device)


FloatArray = npt.NDArray[np.floating]


@dataclass(frozen=True)
class TextMaps:
    """The attention of all heads while a model reads one sequence.

    Args:
        maps: `[L, H, T, T]`; the probabilities of a query are a row, and sum to 1.
    """

    sequence: ReadSequence
    maps: FloatArray
    rollout: FloatArray


def attention_maps(subject: Subject, sequence: ReadSequence) -> TextMaps:
    """Return the attention of a model that reads this sequence alone, so without padding."""
    maps_of_places: list[FloatArray] = []

    def keep_maps(place: int, probabilities_1HTT: Tensor) -> None:
        maps_of_places.append(renormalise(probabilities_1HTT)[0].cpu().numpy())

    with (
        torch.no_grad(),
        subject.precision.context(),
        set_probe(subject.model.backbone, probabilities=keep_maps),
    ):
        _ = Encoding(subject.model, batch_of([sequence], subject)).states
    maps = np.stack(maps_of_places)
    return TextMaps(sequence, maps, rollout(maps))


def renormalise(probabilities: Tensor) -> Tensor:
    """Return rows of probabilities in float32 that sum to 1, also where bf16 has rounded them."""
    rows = probabilities.float()
    return rows / rows.sum(-1, keepdim=True)


def rollout(maps: FloatArray) -> FloatArray:
    """Return how much of each token of the text is in each state, `[L, T, T]`.

    Place by place the product of (A + I) / 2, where A is the mean over heads and I the residual
    stream (Abnar and Zuidema 2020, section 3); its rows sum to 1.
    """
    mixed = np.eye(maps.shape[-1])
    products = []
    for heads in maps.astype(np.float64):
        mixed = (heads.mean(0) @ mixed + mixed) / 2
        products.append(mixed)
    return np.stack(products)


def round_to_units(shares: FloatArray, units: int) -> npt.NDArray[np.int64]:
    """Return shares as whole numbers whose rows, the last axis, sum to `units`.

    What is left after rounding down goes to the largest remainders, so that each is off by less
    than one and zeros stay.
    """
    exact = shares / shares.sum(-1, keepdims=True, dtype=np.float64) * units
    low = np.floor(exact).astype(np.int64)
    missing = units - low.sum(-1, keepdims=True)
    order = np.argsort(low - exact, axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    rounded: npt.NDArray[np.int64] = low + (rank < missing)
    return rounded


# --- sums over many texts ----------------------------------------------------------------------

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
    """Sums over queries of many sequences at L places of H heads; see `means` for what of."""

    def __init__(self, places: int, heads: int, separator: int) -> None:
        self._sums = {name: torch.zeros(places, heads, dtype=torch.float64) for name in MEASURES}
        self._counts = {name: torch.zeros(places, dtype=torch.float64) for name in MEASURES}
        self._separator = separator

    def add(self, place: int, probabilities_SHTT: Tensor, batch: Batch) -> None:
        """Add the attention probabilities of a place; sequences are padded on the right."""
        shares_SHTT = renormalise(probabilities_SHTT)
        measures = _measures(shares_SHTT, batch, self._separator)
        for name, (values_SHT, counted_ST) in measures.items():
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


def _measures(
    shares_SHTT: Tensor, batch: Batch, separator: int
) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Return each measure of every query, `[S, H, T]`, and the queries it counts for, `[S, T]`."""
    mask_ST, tokens_ST = batch["mask"], batch["tokens"]
    sequences, longest = mask_ST.shape
    place_T = torch.arange(longest, device=mask_ST.device)
    last_S = mask_ST.sum(1) - 1
    is_separator_ST = (tokens_ST == separator) & mask_ST
    # What diagonals beside the main one lack: the first query has no token before it.
    before_SHT = F.pad(shares_SHTT.diagonal(-1, dim1=-2, dim2=-1), (1, 0))
    after_SHT = F.pad(shares_SHTT.diagonal(1, dim1=-2, dim2=-1), (0, 1))
    end_SHT = shares_SHTT[torch.arange(sequences, device=mask_ST.device), :, :, last_S]
    distance_TT = (place_T[:, None] - place_T).abs().to(shares_SHTT.dtype)
    is_later_ST, is_earlier_ST = mask_ST & (place_T > 0), place_T < last_S[:, None]
    return {
        "entropy": (torch.special.entr(shares_SHTT).sum(-1), mask_ST),
        "previous": (before_SHT, is_later_ST),
        "next": (after_SHT, is_earlier_ST),
        "self": (shares_SHTT.diagonal(dim1=-2, dim2=-1), mask_ST),
        "first": (shares_SHTT[..., 0], is_later_ST),
        "separator": (
            (shares_SHTT * is_separator_ST[:, None, None]).sum(-1),
            mask_ST & is_separator_ST.any(1, keepdim=True),
        ),
        "end": (end_SHT, is_earlier_ST),
        "distance": ((shares_SHTT * distance_TT).sum(-1), mask_ST),
    }
