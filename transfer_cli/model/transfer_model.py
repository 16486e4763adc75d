"""The whole model: a backbone, a readout and the heads of the objectives."""

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from transfer_cli.model.added import added_parameters
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.readout import Readout, TopLayer

Result = TypeVar("Result")


@dataclass(frozen=True)
class Pass:
    """What went through a backbone at once.

    Args:
        tokens: Positions that were computed.
        sequences: As attention saw them, with padding.
        positions: Of each sequence.
        causal: Whether no query saw a later key.
        lengths: Real tokens of each text.
        earlier: Positions of a memory that all of a text's tokens saw.
        source: What went through the encoder for it; None: there is none.
    """

    tokens: int
    sequences: int
    positions: int
    causal: bool
    lengths: Sequence[int]
    earlier: int = 0
    source: "Pass | None" = None


class TransferModel(nn.Module):
    """Backbone, readout, heads."""

    backbone: Backbone

    def __init__(self, backbone: Backbone, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.backbone = backbone
        self.readout: Readout = TopLayer()
        self.heads = nn.ModuleDict(dict(heads))
        self.on_pass: Callable[[Pass], None] | None = None
        """Called with each pass of a batch through the backbone; see `engine.cost`."""
        self.around_pass: Callable[[Pass], AbstractContextManager[object]] | None = None
        """Returns the context of each; see `engine.compiling`."""

    def forward(self, work: Callable[["TransferModel"], Result]) -> Result:
        """Return `work(model)`.

        A whole pass happens inside this call, whatever losses it computes, so that the hooks of
        DistributedDataParallel and `fully_shard` see one forward pass.
        """
        return work(self)


@dataclass(frozen=True)
class LayerGroup:
    """Parameters of one depth that are trained or frozen together.

    Args:
        name: "embeddings", "block.0", ..., "added.0", ..., "head.class"; with two stacks
            "encoder.block.0", ..., "decoder.block.0", ...
        depth: 0 for the embeddings, L + 1 for heads and added modules.
        inherited: Whether all of them came from the pretrained weights.
    """

    name: str
    depth: int
    parameters: tuple[str, ...]
    inherited: bool

    @property
    def is_block(self) -> bool:
        """Whether it is a block, without what edits added to it."""
        return self.name.startswith(("block.", "encoder.block.", "decoder.block."))


_Place = tuple[int, int, str]
"""Order of the groups: by depth, then added groups from the bottom up, then heads by name."""


def layer_groups(model: TransferModel, inherited: Set[str]) -> list[LayerGroup]:
    """Return the groups that partition the model's parameters, from bottom to top.

    A norm after the last block belongs to that block, a norm on the embeddings to the embeddings.
    Modules that an edit added to a block or to the embeddings are a separate group, `added.0` or
    `added.embeddings`: new like a head, with a head's learning rate. `inherited` are the names of
    the parameters that pretrained weights filled.
    """
    depth, added = len(model.backbone.blocks), added_parameters(model)
    shape = model.backbone.shape
    below = {"encoder": 0, "decoder": depth - shape.depth} if shape.has_encoder else {}
    members: dict[_Place, list[str]] = {}
    for name, _ in model.named_parameters():
        place = _group_place(name, depth, below)
        if name in added and place[0] <= depth:
            place = (depth + 1, place[0], f"added.{place[2].replace('block.', '')}")
        members.setdefault(place, []).append(name)
    return [
        LayerGroup(group, place, tuple(names), inherited=set(names) <= inherited)
        for (place, _, group), names in sorted(members.items())
    ]


def _group_place(name: str, depth: int, below: Mapping[str, int]) -> _Place:
    """Return the place of a parameter; `below` says how many blocks are below those of a stack."""
    part, *rest = name.split(".")
    top = depth + 1
    if part != "backbone":
        return top, top, f"head.{rest[0]}" if part == "heads" else f"head.{part}"
    first, stack = 0, ""
    if rest[0] in below:
        first, stack = below[rest[0]], f"{rest.pop(0)}."
        depth = below["decoder"] if stack == "encoder." else depth
    if rest[0] == "blocks":
        return first + int(rest[1]) + 1, 0, f"{stack}block.{rest[1]}"
    if rest[0] == "final_norm":
        return depth, 0, f"{stack}block.{depth - 1 - first}"
    return 0, 0, "embeddings"
