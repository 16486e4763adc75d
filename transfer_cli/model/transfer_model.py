"""The model that is trained: a backbone, a readout and the heads that the objectives asked for."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from torch import Tensor, nn

from transfer_cli.model.backbone import Backbone


class TopLayer(nn.Module):
    """The readout of most models: the last hidden state."""

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Return `[B, T, D]` from L + 1 of them."""
        return states[-1]


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
        self.readout: nn.Module = TopLayer()
        self.heads = nn.ModuleDict(dict(heads))


@dataclass(frozen=True)
class LayerGroup:
    """Parameters that stand at one height of the model and are trained or frozen together.

    Args:
        name: "embeddings", "block.0", ..., "head.class".
        depth: 0 for the embeddings, L + 1 for the heads.
        parameters: Their full names in the model.
        inherited: Whether all of them came from the pretrained weights.
    """

    name: str
    depth: int
    parameters: tuple[str, ...]
    inherited: bool


def layer_groups(model: TransferModel, inherited: Set[str]) -> list[LayerGroup]:
    """Return the groups that partition the model's parameters, from the bottom to the top.

    A norm after the last block belongs to that block, a norm on the embeddings to the embeddings.

    Args:
        model: Any model, edited or not.
        inherited: Names of the parameters that pretrained weights filled.
    """
    depth = len(model.backbone.blocks)
    members: dict[tuple[int, str], list[str]] = {}
    for name, _ in model.named_parameters():
        members.setdefault(_place(name, depth), []).append(name)
    return [
        LayerGroup(group, height, tuple(names), inherited=set(names) <= inherited)
        for (height, group), names in sorted(members.items())
    ]


def _place(name: str, depth: int) -> tuple[int, str]:
    part, *rest = name.split(".")
    if part != "backbone":
        return depth + 1, f"head.{rest[0]}" if part == "heads" else f"head.{part}"
    if rest[0] == "blocks":
        return int(rest[1]) + 1, f"block.{rest[1]}"
    if rest[0] == "final_norm":
        return depth, f"block.{depth - 1}"
    return 0, "embeddings"
