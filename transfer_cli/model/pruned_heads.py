"""Attention that has lost some of its heads for good (Michel et al. 2019, Voita et al. 2019).

The answers are those of a model in which these heads give nothing (`model.probes.set_gates`);
their weights are gone, so that the others are computed alone.
"""

from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn

from transfer_cli.errors import ConfigError
from transfer_cli.model.backbone import Backbone


def prune_heads(backbone: Backbone, heads: Mapping[int, Set[int]]) -> None:
    """Remove heads, by the number of their block; a block that loses all keeps an empty one.

    Raises:
        ConfigError: What is computed of one head depends on others.
    """
    shape = backbone.shape
    wrong = {
        f"share={shape.share}": shape.distinct_blocks < shape.depth,
        f"key_value_heads={shape.kv_heads}": shape.kv_heads < shape.heads,
        f"attention={shape.attention}": shape.is_sparse,
        f"position_kind={shape.position_kind}": shape.position_kind
        in ("relative", "relative_bias", "bias"),
    }
    if any(wrong.values()):
        names = ", ".join(name for name, is_wrong in wrong.items() if is_wrong)
        raise ConfigError(f"prune: no head of this model can go alone ({names}); leave it out")
    for number, gone in heads.items():
        attention: Any = backbone.blocks[number].attention
        if attention.prefix is not None or {type(attention.packed), type(attention.output)} != {
            nn.Linear
        }:
            raise ConfigError(
                "prune: what this run added to attention cannot be merged into its matrices; leave "
                "it out"
            )
        kept = [head for head in range(shape.heads) if head not in gone] or [0]
        places = torch.arange(shape.heads * shape.head_size).view(shape.heads, -1)[kept].flatten()
        offsets = torch.arange(3)[:, None] * shape.heads * shape.head_size
        attention.packed = _part(attention.packed, rows=(offsets + places).flatten())
        attention.output = _part(attention.output, columns=places)
        attention.rows = (len(places),) * 3
        if len(gone) == shape.heads:
            nn.init.zeros_(attention.output.weight)


def _part(layer: nn.Linear, rows: Tensor | None = None, columns: Tensor | None = None) -> nn.Linear:
    """Return a layer with some of its outputs, or of its inputs."""
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    weight = weight if columns is None else weight[:, columns]
    if rows is not None:
        weight, bias = weight[rows], None if bias is None else bias[rows]
    outputs, inputs = weight.shape
    part = nn.Linear(inputs, outputs, bias=bias is not None)
    part.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return part
