"""How far the weights of a model are from those that it began with."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from transfer_cli.model.added import Mergeable, added_parameters, merged_layers
from transfer_cli.model.attention import SelfAttention
from transfer_cli.model.block import FeedForward
from transfer_cli.model.norms import NORMS
from transfer_cli.model.transfer_model import TransferModel, layer_groups

ALL = "all"


@dataclass(frozen=True)
class MovedWeights:
    """How far some weights have moved.

    Args:
        group: Their layer group (`model.transfer_model`), or `ALL`.
        kind: attention, feed_forward, norms, embeddings, head, added; or `ALL`.
        parameters: How many there are.
        compared: How many the other model has in the same shape.
        relative: The norm of their change by that of the other's weights, of those that are
            compared; None: there are none, or all of the other's are 0.
    """

    group: str
    kind: str
    parameters: int
    compared: int
    relative: float | None


def moved_weights(model: TransferModel, start: TransferModel) -> list[MovedWeights]:
    """Return how far each kind of weights in each layer group has moved, with all sums.

    Weights are those that the model computes with: what edits have put beside them is folded in
    where it can be (LoRA), and stands apart, too, as `added`.
    """
    before = {name: weight for _, name, weight in _effective(start)}
    added, modules = added_parameters(model), dict(model.named_modules())
    # Parameters, those that are compared, the squared norms of their change and of what they were.
    sums: dict[tuple[str, str], npt.NDArray[np.float64]] = defaultdict(lambda: np.zeros(4))
    for group, name, weight in _effective(model):
        kind = "added" if name in added else _kind(modules, group, name)
        keys = [(group, ALL), (group, kind)]
        keys += [] if name in added else [(ALL, ALL), (ALL, kind)]
        for key in keys:
            sums[key] += _change(weight, before.get(name))
    return [
        MovedWeights(*key, int(parameters), int(compared), math.sqrt(change / old) if old else None)
        for key, (parameters, compared, change, old) in sorted(
            sums.items(), key=lambda item: item[0][0] == ALL
        )
    ]


def _change(weight: Tensor, before: Tensor | None) -> tuple[float, float, float, float]:
    if before is None or before.shape != weight.shape:
        return weight.numel(), 0, 0, 0
    now, then = weight.detach().double(), before.detach().double()
    change, start = float((now - then).square().sum()), float(then.square().sum())
    return weight.numel(), weight.numel(), change, start


def _effective(model: TransferModel) -> Iterator[tuple[str, str, Tensor]]:
    """Yield group, name and value of each parameter, with what can be folded into it."""
    parameters, layers = dict(model.named_parameters()), merged_layers(model)
    folded: dict[str, nn.Module] = {}
    for group in layer_groups(model, inherited=frozenset()):
        for name in group.parameters:
            place, _, last = name.rpartition(".")
            if place in layers:
                if place not in folded:
                    # One at a time: they are copies.
                    folded = {place: cast("Mergeable", layers[place]).merged()}
                yield group.name, name, folded[place].get_parameter(last)
            else:
                yield group.name, name, parameters[name]


def _kind(modules: Mapping[str, nn.Module], group: str, name: str) -> str:
    if group.startswith("head."):
        return "head"
    parts = name.split(".")[:-1]
    owners = [modules[".".join(parts[: end + 1])] for end in range(len(parts))]
    if isinstance(owners[-1], tuple(NORMS.values())):
        return "norms"
    if any(isinstance(owner, SelfAttention) for owner in owners):
        return "attention"
    if any(isinstance(owner, FeedForward) for owner in owners):
        return "feed_forward"
    return "embeddings"
