"""The attention of every head while a model reads a text, and what follows from it.

Legend: L places of blocks, H heads, T tokens.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transfer_cli.analysis.analysis import Subject
from transfer_cli.analysis.attention.read_sequences import ReadSequence, batch_of
from transfer_cli.model.captures import attention_by_place
from transfer_cli.objectives.base import Encoding

FloatArray = npt.NDArray[np.floating]


@dataclass(frozen=True)
class TextMaps:
    """The attention of all heads while a model reads one sequence.

    Args:
        sequence: What it reads.
        maps: `[L, H, T, T]`; the probabilities of a query are a row, and sum to 1.
        rollout: `[L, T, T]`, see `rollout`.
    """

    sequence: ReadSequence
    maps: FloatArray
    rollout: FloatArray


def maps_of(subject: Subject, sequence: ReadSequence) -> TextMaps:
    """Return the attention of a model that reads this sequence alone, so without padding."""
    found: list[FloatArray] = []

    def keep(place: int, probabilities_1HTT: Tensor) -> None:
        found.append(shares_of(probabilities_1HTT)[0].cpu().numpy())

    with (
        torch.no_grad(),
        subject.precision.context(),
        attention_by_place(subject.model.backbone, keep),
    ):
        _ = Encoding(subject.model, batch_of([sequence], subject)).states
    maps = np.stack(found)
    return TextMaps(sequence, maps, rollout(maps))


def shares_of(probabilities: Tensor) -> Tensor:
    """Return rows of probabilities in float32 that sum to 1, also where bf16 has rounded them."""
    found = probabilities.float()
    return found / found.sum(-1, keepdim=True)


def rollout(maps: FloatArray) -> FloatArray:
    """Return how much of each token of the text is in each state, `[L, T, T]`.

    Place by place the product of (A + I) / 2, where A is the mean over heads and I the residual
    stream (Abnar and Zuidema 2020, section 3); its rows sum to 1.

    Args:
        maps: `[L, H, T, T]`.
    """
    mixed = np.eye(maps.shape[-1])
    found = []
    for heads in maps.astype(np.float64):
        mixed = (heads.mean(0) @ mixed + mixed) / 2
        found.append(mixed)
    return np.stack(found)


def in_units(shares: FloatArray, units: int) -> npt.NDArray[np.int64]:
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
