"""A model with its heads and edits, built from its shape and the nodes of a config."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from transfer_cli.adaptation.edit import SPECIAL_TOKENS, Edit, apply_edit
from transfer_cli.config.build import build, resolved_node
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, raised_as
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.encoder_decoder import build_backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Loss
from transfer_cli.seeds import derive
from transfer_cli.tasks.base import Direction


def build_model(
    shape: BackboneShape, vocabulary: int, losses: Sequence[Loss], seed: int
) -> TransferModel:
    """Return a model with fresh weights, the same for the same seed."""
    torch.manual_seed(derive(seed, "weights"))
    backbone = build_backbone(shape, vocabulary)
    heads: dict[str, torch.nn.Module] = {}
    for loss in losses:
        for name, head in loss.objective.modules(backbone).items():
            if name in heads and _tensor_shapes(heads[name]) != _tensor_shapes(head):
                raise ConfigError(
                    f"losses.{loss.name}: its head {name!r} has another shape elsewhere"
                )
            heads.setdefault(name, head)
    return TransferModel(backbone, heads)


def _tensor_shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def apply_edits(
    model: TransferModel,
    nodes: Mapping[str, Any],
    tokenizer: Tokenizer,
    built: Mapping[str, Edit] | None = None,
) -> tuple[frozenset[str], dict[str, Any]]:
    """Change the network as config nodes say, in their order; `built` holds those built before.

    Returns:
        The names of inherited parameters that were drawn anew, and the nodes of what has to be made
        again before the weights can be loaded.
    """
    fresh, structure = set[str](), dict[str, Any]()
    for name, node in nodes.items():
        key = f"adaptation.edits.{name}"
        edit: Edit = built[name] if built and name in built else build(node, key, Edit)
        with raised_as(ConfigError, f"{key}: "):
            fresh |= apply_edit(edit, name, model, special_tokens(tokenizer))
        if edit.structural:
            structure[name] = node
    return frozenset(fresh), structure


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the numbers of the special tokens, by name."""
    return {name: getattr(tokenizer, name) for name in SPECIAL_TOKENS}


def edit_nodes(adaptation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nodes of the edits that an adaptation asks for, by name, in order."""
    nodes = resolved_node(adaptation.get("edits") or {}, "adaptation.edits")
    return {name: node for name, node in nodes.items() if node is not None}


def direction_of(shape: BackboneShape) -> Direction:
    """Return the direction of a model whose direction is settled."""
    if shape.direction == "auto":
        raise ValueError("the direction is not settled")
    return shape.direction


def block_length(length: int | None, positions: int) -> int:
    """Return the length of a block of text, at most the model's positions."""
    if length is not None and not 1 <= length <= positions:
        raise ConfigError(
            f"data.length: {length} does not fit the model's {positions} positions; "
            f"use 1 to {positions}, or a model with more (model.positions)"
        )
    return length or positions
