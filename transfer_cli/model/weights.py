"""Reads and writes weights and `model.json`; loading reports what became of each tensor."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transfer_cli.config.build import TARGET, build
from transfer_cli.errors import CheckpointError, ConfigError, listed
from transfer_cli.model.backbone import MAX_SIZE, BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.runs.atomic import write_text
from transfer_cli.safe_files import read_json

WEIGHTS = "weights.safetensors"
DESCRIPTION = "model.json"

MAX_HEADER_BYTES = 4 * 2**20
"""Maximum header of a safetensors file, for some 30,000 tensors: each becomes an object."""

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_OURS = frozenset({"F64", "F32", "F16", "BF16", "I64"})
"""Data types in our own models; files of others may also hold other types."""


@dataclass(frozen=True)
class LoadReport:
    """What loading did with each tensor.

    Args:
        loaded: Parameters that the checkpoint filled.
        new: Parameters that keep their initial values.
        dropped: Tensors of the checkpoint that the model does not have.
    """

    loaded: tuple[str, ...]
    new: tuple[str, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class Base:
    """The model whose weights a run refers to instead of storing them.

    Args:
        path: The folder of its weights.
        relative: The same folder, relative to that of the description, for runs that were moved
            together.
        hash: `backbone_hash` of its weights.
    """

    path: str
    relative: str
    hash: str


@dataclass(frozen=True)
class ModelDescription:
    """Everything that is needed to build a model, except its weights.

    Args:
        shape: Shape of the backbone; its direction is not "auto".
        vocabulary: Number of tokens.
        objective: Config node of the objective whose head the weights hold.
        labels: Class names of a classifier.
        tokenizer_hash: Hash of the tokenizer that the model was trained with.
        edits: Config nodes of the structural edits, by name, in order.
        base: The model that holds the weights not stored here; None: all are stored here.
        task: Config node of the task of the data; None: that of older and of published models is
            told by `labels` (`tasks.base.task_of`).
    """

    shape: BackboneShape
    vocabulary: int
    objective: Mapping[str, Any]
    labels: tuple[str, ...]
    tokenizer_hash: str
    edits: Mapping[str, Any] = field(default_factory=dict)
    base: Base | None = None
    task: Mapping[str, Any] | None = None


def save_weights(model: nn.Module, folder: Path, leave_out: Set[str] = frozenset()) -> None:
    """Write the tensors of the model to `folder` in safetensors.

    Args:
        model: The model.
        folder: The folder of `weights.safetensors`.
        leave_out: Names of tensors that are not written.
    """
    kept = {name: tensor for name, tensor in model.state_dict().items() if name not in leave_out}
    save_tensors(kept, folder / WEIGHTS)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write the tensors of a model to a file."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, path)
    readable_like(path, path.parent)


def readable_like(path: Path, folder: Path) -> None:
    """Give a file the permissions of its folder: safetensors lets only the owner read it."""
    path.chmod((folder.stat().st_mode & 0o666) | 0o600)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors in `folder`.

    Raises:
        CheckpointError: There are none, they are damaged, or they are a pickle, which could run
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
    read_shapes(folder)
    return tensors_of(path)


def tensors_of(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.

    Raises:
        CheckpointError: The file is damaged.
    """
    with _reading(path):
        shapes_of(path)
        return load_file(path)


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
        return read_weights(folder)  # which raises the error
    found = shapes_of(path)
    for name, dtype in _DTYPES.items():
        if name not in _OURS and any(tensor.dtype == dtype for tensor in found.values()):
            raise CheckpointError(f"{path} holds numbers of type {name}; expected F32")
    return found


def shapes_of(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file without their values, on the meta device.

    Raises:
        CheckpointError: The file is damaged.
    """
    with _reading(path):
        _check_header(path)
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return {
                name: torch.empty(found.get_shape(), dtype=_dtype_of(found, path), device="meta")
                for name, found in slices.items()
            }


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, TypeError, ValueError) as error:
        # torch raises the last three on impossible shapes.
        raise CheckpointError(
            f"{path} is damaged or no safetensors file ({error}); files with pickled code in them "
            "are never opened"
        ) from error


def _check_header(path: Path) -> None:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > MAX_HEADER_BYTES:
        raise ValueError(f"its list of tensors has {size:,} bytes")


def _dtype_of(found: Any, path: Path) -> torch.dtype:
    name = found.get_dtype()
    if name not in _DTYPES:
        raise CheckpointError(f"{path} holds numbers of type {name}; expected F32")
    return _DTYPES[name]


def load_strictly(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    source: Path,
    leave_out: Set[str] = frozenset(),
) -> None:
    """Load every tensor of the model, from weights that the same model wrote.

    Args:
        model: The model.
        tensors: Its weights.
        source: Their path, for the error.
        leave_out: Names of tensors that are not loaded and keep their values.

    Raises:
        CheckpointError: A tensor is missing, left over or of another shape.
    """
    own = {name: tensor for name, tensor in model.state_dict().items() if name not in leave_out}
    wrong = sorted(own.keys() ^ tensors.keys())
    wrong += sorted(n for n in own.keys() & tensors.keys() if not _fits(own[n], tensors[n]))
    if wrong:
        raise CheckpointError(
            f"{source} does not fit this model: {listed(wrong)} missing, left over "
            "or of another shape"
        )
    model.load_state_dict(dict(tensors), strict=not leave_out)


def load_pretrained(
    model: TransferModel, tensors: Mapping[str, Tensor], source: Path
) -> LoadReport:
    """Load the backbone and every head that fits; the other heads keep their initial values.

    On the meta device only the report is made.

    Raises:
        CheckpointError: A tensor of the backbone is missing, left over or of another shape. It is
            never skipped: the run would look normal with random weights.
    """
    own = model.state_dict()
    fits = {n for n in own.keys() & tensors.keys() if _fits(own[n], tensors[n])}
    lost = sorted(n for n in own if n.startswith("backbone.") and n not in fits)
    if lost:
        raise CheckpointError(
            f"{source} does not fill this model's backbone: {listed(lost)} missing or of another "
            "shape; leave model= out to take the pretrained model's own"
        )
    over = sorted(n for n in tensors if n.startswith(("backbone.", "readout.")) and n not in own)
    if over:
        raise CheckpointError(
            f"{source} holds {listed(over)}, which the description of its model does not have; "
            "start from the run itself, whose model/ is whole"
        )
    # A head is loaded completely or not at all: half of an old classifier is useless.
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
    write_text(folder / DESCRIPTION, json.dumps(asdict(description), indent=2) + "\n")


def read_description(folder: Path) -> ModelDescription:
    """Read `model.json`.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    path = folder / DESCRIPTION
    try:
        return _description(read_json(path))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} holds no model: {DESCRIPTION} is missing") from error
    except KeyError as error:
        raise CheckpointError(f"{path} is damaged: it has no {error}") from error
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _description(found: dict[str, Any]) -> ModelDescription:
    shape: BackboneShape = build(found["shape"], "shape", BackboneShape)
    if shape.direction == "auto":
        raise ValueError("shape.direction is not settled")
    vocabulary, labels = found["vocabulary"], found["labels"]
    if type(vocabulary) is not int or not 1 <= vocabulary <= MAX_SIZE:
        raise ValueError(f"vocabulary is {vocabulary!r}")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise TypeError("labels is no list of texts")
    if len(set(labels)) < len(labels):
        raise ValueError("labels holds a label twice")
    objective, edits = found["objective"], found.get("edits", {})
    task = found.get("task")
    named = {"objective": objective, **({} if task is None else {"task": task})}
    for name, node in {**named, **_mapping(edits, "edits")}.items():
        if not isinstance(_mapping(node, name).get(TARGET), str):
            raise TypeError(f"{name} names no class")
    base = found.get("base")
    described = {
        **found,
        "shape": shape,
        "labels": tuple(labels),
        "tokenizer_hash": str(found["tokenizer_hash"]),
        "base": None if base is None else build(base, "base", Base),
    }
    return ModelDescription(**described)


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is no mapping")
    return value


def _fits(own: Tensor, found: Tensor) -> bool:
    return own.shape == found.shape and own.is_floating_point() == found.is_floating_point()


def _head(name: str) -> str | None:
    return name.split(".")[1] if name.startswith("heads.") else None
