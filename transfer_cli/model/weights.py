"""Weights on disk, and what happened to each tensor when they were loaded."""

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transfer_cli.errors import CheckpointError
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.transfer_model import TransferModel

WEIGHTS = "weights.safetensors"
DESCRIPTION = "model.json"


@dataclass(frozen=True)
class LoadReport:
    """What loading did.

    Args:
        loaded: Parameters that the checkpoint filled.
        new: Parameters that keep their fresh values.
        dropped: Tensors of the checkpoint that the model has no use for.
    """

    loaded: tuple[str, ...]
    new: tuple[str, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class Base:
    """The model whose weights a run did not store again.

    Args:
        path: Where its weights lie.
        relative: The same place as seen from the folder of the description, for runs that moved
            together.
        hash: `backbone_hash` of its weights.
    """

    path: str
    relative: str
    hash: str


@dataclass(frozen=True)
class ModelDescription:
    """What must be known to build a model before its weights can be loaded.

    Args:
        shape: The backbone's, with its direction settled.
        vocabulary: Number of tokens.
        objective: The config node of the objective whose head the weights hold.
        labels: Class names, for a model that classifies.
        tokenizer_hash: Of the tokenizer that the model was trained with.
        edits: Config nodes of what was added to the network, by name, in order.
        base: Where the weights are that are not stored beside this description; None: all are.
    """

    shape: BackboneShape
    vocabulary: int
    objective: Mapping[str, Any]
    labels: tuple[str, ...]
    tokenizer_hash: str
    edits: Mapping[str, Any] = field(default_factory=dict)
    base: Base | None = None


def save_weights(model: nn.Module, folder: Path, leave_out: Set[str] = frozenset()) -> None:
    """Write the tensors of the model to `folder` in safetensors.

    Args:
        model: The model.
        folder: Where to write `weights.safetensors`.
        leave_out: Names of tensors that stand elsewhere.
    """
    tensors = {
        name: tensor.detach().contiguous()
        for name, tensor in model.state_dict().items()
        if name not in leave_out
    }
    save_file(tensors, folder / WEIGHTS)
    # The library lets the owner alone read it; others get what they get of any new file.
    (folder / WEIGHTS).chmod((folder.stat().st_mode & 0o666) | 0o600)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors in `folder`.

    Raises:
        CheckpointError: There are none, they are damaged, or they come as a pickle, which could run
            code and is never opened.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        pickles = sorted(
            p.name for p in folder.glob("*") if p.suffix in {".bin", ".pt", ".pth", ".pkl"}
        )
        if pickles:
            raise CheckpointError(
                f"{folder / pickles[0]} is a pickle, which could run code when opened; "
                f"only safetensors are read ({WEIGHTS})"
            )
        raise CheckpointError(
            f"{folder} holds no {WEIGHTS}: a run writes it when it is finished; before that, take "
            "one of its checkpoints/"
        )
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or no safetensors file ({error}); files with pickled code in them "
            "are never opened"
        ) from error


def backbone_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return a fingerprint of a model's backbone: its tensors' names, shapes and exact values."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(name for name in tensors if name.startswith("backbone.")):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_shapes(folder: Path) -> dict[str, Tensor]:
    """Return the tensors in `folder` without their values, on the meta device; reads no weights.

    Raises:
        CheckpointError: There are none, or they are damaged.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        return read_weights(folder)  # which says why not
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return {
                name: torch.empty(found.get_shape(), device="meta")
                for name, found in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file ({error})") from error


def load_strictly(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    source: Path,
    leave_out: Set[str] = frozenset(),
) -> None:
    """Fill every tensor of the model; for weights that this very model wrote.

    Args:
        model: The model.
        tensors: Its weights.
        source: Where they come from, for the error.
        leave_out: Names of tensors that stand elsewhere, and keep their values.

    Raises:
        CheckpointError: A tensor is missing, left over or of another shape.
    """
    own = {name: tensor for name, tensor in model.state_dict().items() if name not in leave_out}
    wrong = sorted(own.keys() ^ tensors.keys())
    wrong += sorted(n for n in own.keys() & tensors.keys() if own[n].shape != tensors[n].shape)
    if wrong:
        raise CheckpointError(
            f"{source} does not fit this model: {_some(wrong)} missing, left over "
            "or of another shape"
        )
    model.load_state_dict(dict(tensors), strict=not leave_out)


def load_pretrained(
    model: TransferModel, tensors: Mapping[str, Tensor], source: Path
) -> LoadReport:
    """Fill the backbone and every head that fits; leave the other heads fresh.

    On the meta device, where there is nothing to fill, only the report is made.

    Raises:
        CheckpointError: A tensor of the backbone is missing, left over or of another shape. That is
            never skipped: the run would look normal with a random model.
    """
    own = model.state_dict()
    fits = {n for n in own.keys() & tensors.keys() if own[n].shape == tensors[n].shape}
    lost = sorted(n for n in own if n.startswith("backbone.") and n not in fits)
    if lost:
        raise CheckpointError(
            f"{source} does not fill this model's backbone: {_some(lost)} missing or of another "
            "shape; leave model= out to take the pretrained model's own"
        )
    over = sorted(n for n in tensors if n.startswith(("backbone.", "readout.")) and n not in own)
    if over:
        raise CheckpointError(
            f"{source} holds {_some(over)}, which the description of its model does not have; "
            "start from the run itself, whose model/ is whole"
        )
    # A head is taken whole or not at all: half of an old classifier under a new one means nothing.
    named = own.keys() | tensors.keys()
    broken = {_head(n) for n in named if n.startswith("heads.") and n not in fits}
    loaded = {n for n in fits if _head(n) not in broken}
    with torch.no_grad():
        for name in sorted(loaded):
            if not own[name].is_meta:
                own[name].copy_(tensors[name])
    return LoadReport(
        loaded=tuple(sorted(loaded)),
        new=tuple(sorted(own.keys() - loaded)),
        dropped=tuple(sorted(tensors.keys() - loaded)),
    )


def write_description(description: ModelDescription, folder: Path) -> None:
    """Write `model.json`."""
    text = json.dumps(asdict(description), indent=2) + "\n"
    (folder / DESCRIPTION).write_text(text, encoding="utf-8")


def read_description(folder: Path) -> ModelDescription:
    """Read `model.json`.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    path = folder / DESCRIPTION
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        found["shape"] = BackboneShape(**found["shape"])
        found["labels"] = tuple(found["labels"])
        if found.get("base") is not None:
            found["base"] = Base(**found["base"])
        return ModelDescription(**found)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} holds no model: {DESCRIPTION} is missing") from error
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _head(name: str) -> str | None:
    return name.split(".")[1] if name.startswith("heads.") else None


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
