"""Reads and writes weights and `model.json`; loading reports what became of each tensor."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transfer_cli.config.build import TARGET, build
from transfer_cli.earlier_runs import with_new_names
from transfer_cli.errors import CheckpointError, ConfigError, list_names
from transfer_cli.model.backbone import MAX_SIZE, BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.runs.atomic import write_text
from transfer_cli.safe_files import UnreadableError, check_no_lfs_pointer, read_json

WEIGHTS = "weights.safetensors"
DESCRIPTION = "model.json"

MAX_HEADER_BYTES = 4 * 2**20
"""Maximum header of a safetensors file, enough for 30,000 tensors: each becomes an object."""

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_OUR_DTYPES = {name: _DTYPES[name] for name in ("F64", "F32", "F16", "BF16", "I64")}
"""Data types in our own models; published models may hold others."""


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
        relative: The same folder, relative to that of the description, for runs that were moved
            together.
    """

    path: str
    relative: str
    hash: str


@dataclass(frozen=True)
class ModelDescription:
    """All that is needed to build a model, except its weights.

    Args:
        shape: Shape of the backbone; its direction is not "auto".
        objective: Config node of the objective whose head the weights hold.
        edits: Config nodes of the structural edits, by name, in order.
        base: The model that holds the weights not stored here; None: all are stored here.
        task: Config node of the task of the data; None: older and published models, whose `labels`
            decide (`tasks.base.build_task`).
        pairs: Whether the running text that it was trained on was in pairs, laid out as labelled
            texts are, and not in lines.
        lines: What becomes of line breaks in running text, see `data.split.LineRule`; None: it
            is of an earlier version, for which the separator stood for each.

    Raises:
        TypeError, ValueError: A value cannot be right.
    """

    shape: BackboneShape
    vocabulary: int
    objective: Mapping[str, Any]
    labels: tuple[str, ...]
    tokenizer_hash: str
    edits: Mapping[str, Any] = field(default_factory=dict)
    base: Base | None = None
    task: Mapping[str, Any] | None = None
    pairs: bool = False
    lines: Literal["keep", "end", "join"] | None = None

    def __post_init__(self) -> None:
        if self.shape.direction == "auto":
            raise ValueError("shape.direction is not settled")
        if not 1 <= self.vocabulary <= MAX_SIZE:
            raise ValueError(f"vocabulary is {self.vocabulary!r}")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("labels holds a label twice")
        if self.lines not in (None, "keep", "end", "join"):
            raise ValueError(f"lines is {self.lines!r}")
        if not isinstance(self.edits, Mapping):
            raise TypeError("edits is no mapping")
        task = {} if self.task is None else {"task": self.task}
        for name, node in {"objective": self.objective, **task, **self.edits}.items():
            if not isinstance(node, Mapping) or not isinstance(node.get(TARGET), str):
                raise TypeError(f"{name} names no class")


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write the tensors of a model to a file."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, path)
    copy_permissions(path, path.parent)


def copy_permissions(path: Path, folder: Path) -> None:
    """Give a file the permissions of its folder: safetensors allows only the owner to read it."""
    path.chmod((folder.stat().st_mode & 0o666) | 0o600)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors in `folder`."""
    read_shapes(folder)  # which refuses what cannot be
    with _reporting_damage(folder / WEIGHTS):
        return load_file(folder / WEIGHTS)


def read_shapes(folder: Path) -> dict[str, Tensor]:
    """Return the tensors in `folder` without their values, on the meta device; reads no weights."""
    path = folder / WEIGHTS
    if path.is_file():
        return file_shapes(path, _OUR_DTYPES)
    suffixes = {".bin", ".pt", ".pth", ".pkl"}
    for pickle in sorted(path for path in folder.glob("*") if path.suffix in suffixes):
        raise CheckpointError(
            f"{pickle} is a pickle, which could run code when opened; "
            f"only safetensors are read ({WEIGHTS})"
        )
    raise CheckpointError(
        f"{folder} holds no {WEIGHTS}: a run writes it when it is finished; before that, take "
        "one of its checkpoints/"
    )


class LazyTensors(Mapping[str, Tensor]):
    """Tensors that are made when they are asked for, so that never two models are in memory."""

    def __init__(self, shapes: Mapping[str, Tensor], read: Callable[[str], Tensor]) -> None:
        self.shapes, self._read = shapes, read

    def __getitem__(self, name: str) -> Tensor:
        self.shapes[name]  # a KeyError names it
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def open_tensors(path: Path) -> LazyTensors:
    """Return the tensors of a safetensors file, each read when it is asked for."""

    def read(name: str) -> Tensor:
        # Opened anew each time, since an open file holds what was read of it in memory.
        with _reporting_damage(path), safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    return LazyTensors(file_shapes(path), read)


def without_values(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return tensors of the same shapes, for which none is read."""
    return tensors.shapes if isinstance(tensors, LazyTensors) else tensors


def check_finite(tensors: Mapping[str, Tensor], source: Path) -> None:
    """Refuse weights that are not numbers, with which every answer would be none."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if not torch.stack(tensor.aminmax()).isfinite().all():  # NaN is the least and the most
            raise CheckpointError(
                f"{source}: {name} holds numbers that are not finite (NaN or infinity): the file "
                "is damaged, or training has diverged; take another checkpoint or run"
            )


def backbone_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return a fingerprint of a model's backbone: its tensors' names, shapes and exact values."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(name for name in tensors if name.startswith("backbone.")):
        _update_digest(digest, name, tensors[name])
    return digest.hexdigest()


def weights_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return a fingerprint of any tensors, for which the threads of torch are taken."""

    def one(name: str) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        _update_digest(digest, name, tensors[name])
        return digest.digest()

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return hashlib.blake2b(b"".join(pool.map(one, sorted(tensors))), digest_size=16).hexdigest()


def _update_digest(digest: hashlib.blake2b, name: str, tensor: Tensor) -> None:
    tensor = tensor.detach().cpu().contiguous()
    digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
    digest.update(tensor.flatten().view(torch.uint8).numpy().data)


def file_shapes(path: Path, dtypes: Mapping[str, torch.dtype] = _DTYPES) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file without their values, on the meta device."""
    shapes = {}
    with _reporting_damage(path):
        with path.open("rb") as raw:
            start = raw.read(64)
        check_no_lfs_pointer(start)
        header = int.from_bytes(start[:8], "little")
        if header > MAX_HEADER_BYTES:
            raise ValueError(f"its list of tensors has {header:,} bytes")
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                part = file.get_slice(name)
                kind = part.get_dtype()
                if kind not in dtypes:
                    raise CheckpointError(f"{path} holds numbers of type {kind}; expected F32")
                shapes[name] = torch.empty(part.get_shape(), dtype=dtypes[kind], device="meta")
    return shapes


@contextmanager
def _reporting_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (UnreadableError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except (SafetensorError, RuntimeError, TypeError, ValueError) as error:
        # torch raises the last three for impossible shapes.
        raise CheckpointError(
            f"{path} is damaged or no safetensors file ({error}); files with pickled code in them "
            "are never opened"
        ) from error


def load_strictly(
    model: nn.Module, tensors: Mapping[str, Tensor], source: Path, leave_out: Set[str] = frozenset()
) -> None:
    """Load weights of the same model, which hold every tensor but those to leave out."""
    needed = {name: tensor for name, tensor in model.state_dict().items() if name not in leave_out}
    wrong = sorted(needed.keys() ^ tensors.keys())
    wrong += sorted(n for n in needed.keys() & tensors.keys() if not _fits(needed[n], tensors[n]))
    if wrong:
        raise CheckpointError(
            f"{source} does not fit this model: {list_names(wrong)} missing, left over "
            "or of another shape"
        )
    model.load_state_dict(dict(tensors), strict=not leave_out)


def load_pretrained(
    model: TransferModel, tensors: Mapping[str, Tensor], source: Path, fresh: Set[str] = frozenset()
) -> LoadReport:
    """Load the backbone and every head that fits; the other heads keep their initial values.

    So do parameters of the backbone that are `fresh`. On the meta device it only returns the
    report.
    """
    wanted, shapes = model.state_dict(), without_values(tensors)
    fits = {n for n in wanted.keys() & tensors.keys() if _fits(wanted[n], shapes[n])}
    needed = wanted.keys() - fresh
    missing = sorted(n for n in needed if n.startswith("backbone.") and n not in fits)
    if missing:
        raise CheckpointError(
            f"{source} does not fill this model's backbone: {list_names(missing)} missing or of "
            "another shape; leave model= out to take the pretrained model's own"
        )
    over = sorted(n for n in tensors if n.startswith(("backbone.", "readout.")) and n not in wanted)
    if over:
        raise CheckpointError(
            f"{source} holds {list_names(over)}, which the description of its model does not have; "
            "start from the run itself, whose model/ is whole"
        )
    # A head is loaded completely or not at all: a part of an old classifier is useless.
    named = wanted.keys() | tensors.keys()
    broken = {_head_name(n) for n in named if n.startswith("heads.") and n not in fits}
    loaded = {n for n in fits if _head_name(n) not in broken}
    with torch.no_grad():
        for name in sorted(loaded):
            if not wanted[name].is_meta:
                wanted[name].copy_(tensors[name])
    return LoadReport(
        loaded=tuple(sorted(loaded)),
        new=tuple(sorted(wanted.keys() - loaded)),
        dropped=tuple(sorted(tensors.keys() - loaded)),
    )


def write_description(description: ModelDescription, folder: Path) -> None:
    """Write `model.json`."""
    write_text(folder / DESCRIPTION, json.dumps(asdict(description), indent=2) + "\n")


def read_description(folder: Path) -> ModelDescription:
    """Read `model.json`."""
    path = folder / DESCRIPTION
    return parse_description(path, lambda: read_json(path))


def parse_description(path: Path, read: Callable[[], dict[str, Any]]) -> ModelDescription:
    """Return the description that is read of a file."""
    try:
        return _description(with_new_names(read()))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.parent} holds no model: {path.name} is missing") from error
    except KeyError as error:
        raise CheckpointError(f"{path} is damaged: it has no {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except (ValueError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _description(content: dict[str, Any]) -> ModelDescription:
    for name in ("shape", "vocabulary", "objective", "labels", "tokenizer_hash"):
        content[name]  # a KeyError names it
    # These nodes are not built here: whoever reads a description may need none of their classes.
    nodes = {n: content.pop(n) for n in ("objective", "edits", "task") if n in content}
    return build(content, "model", ModelDescription, **nodes)


def _fits(wanted: Tensor, read: Tensor) -> bool:
    return wanted.shape == read.shape and wanted.is_floating_point() == read.is_floating_point()


def _head_name(name: str) -> str | None:
    return name.split(".")[1] if name.startswith("heads.") else None
