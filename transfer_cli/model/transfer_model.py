"""The model that is trained: a backbone, a readout and the heads that the objectives asked for."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from transfer_cli.model.added import added_parameters
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.readout import Readout, TopLayer

Result = TypeVar("Result")


class TransferModel(nn.Module):
    """Backbone, readout, heads.

    Args:
        backbone: Tokens to the hidden states of every layer.
        heads: What the objectives added, by name.
    """

    backbone: Backbone

    def __init__(self, backbone: Backbone, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.backbone = backbone
        self.readout: Readout = TopLayer()
        self.heads = nn.ModuleDict(dict(heads))

    def forward(self, work: Callable[["TransferModel"], Result]) -> Result:
        """Return `work(model)`.

        All that one pass needs of the model happens inside of this call, so that what hooks into it
        (the synchronisation of gradients, the gathering of weights that lie on several processes)
        sees a pass as a whole, whatever losses it computes.
        """
        return work(self)


@dataclass(frozen=True)
class LayerGroup:
    """Parameters that stand at one height of the model and are trained or frozen together.

    Args:
        name: "embeddings", "block.0", ..., "added.0", ..., "head.class".
        depth: 0 for the embeddings, L + 1 for the heads and for whatever an edit added.
        parameters: Their full names in the model.
        inherited: Whether all of them came from the pretrained weights.
    """

    name: str
    depth: int
    parameters: tuple[str, ...]
    inherited: bool


@dataclass(frozen=True, order=True)
class _Place:
    """Where a group stands: by depth, then added groups from the bottom up, then heads by name."""

    depth: int
    order: int
    name: str


def layer_groups(model: TransferModel, inherited: Set[str]) -> list[LayerGroup]:
    """Return the groups that partition the model's parameters, from the bottom to the top.

    A norm after the last block belongs to that block, a norm on the embeddings to the embeddings.
    What an edit added to a block or to the embeddings is a group of its own, `added.0` or
    `added.embeddings`: it is new like a head, wherever it lies, and learns at a head's rate.

    Args:
        model: Any model, edited or not.
        inherited: Names of the parameters that pretrained weights filled.
    """
    depth, added = len(model.backbone.blocks), added_parameters(model)
    members: dict[_Place, list[str]] = {}
    for name, _ in model.named_parameters():
        place = _place(name, depth)
        if name in added and place.depth <= depth:
            place = _Place(depth + 1, place.depth, f"added.{place.name.removeprefix('block.')}")
        members.setdefault(place, []).append(name)
    return [
        LayerGroup(place.name, place.depth, tuple(names), inherited=set(names) <= inherited)
        for place, names in sorted(members.items())
    ]


def _place(name: str, depth: int) -> _Place:
    part, *rest = name.split(".")
    top = depth + 1
    if part != "backbone":
        return _Place(top, top, f"head.{rest[0]}" if part == "heads" else f"head.{part}")
    if rest[0] == "blocks":
        return _Place(int(rest[1]) + 1, 0, f"block.{rest[1]}")
    if rest[0] == "final_norm":
        return _Place(depth, 0, f"block.{depth - 1}")
    return _Place(0, 0, "embeddings")
