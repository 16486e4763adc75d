"""The files of a published model, fetched at need; its weights are safetensors or a pickle."""

import hashlib
import json
import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transfer_cli.config.models import listed_models
from transfer_cli.data.hub_client import MODEL, client
from transfer_cli.errors import CheckpointError, raised_as
from transfer_cli.model.weights import LazyTensors, file_shapes, open_tensors, without_values
from transfer_cli.runs.checkpoint import check_uncompressed
from transfer_cli.runs.directory import HUB
from transfer_cli.safe_files import UnreadableError, check_no_lfs_pointer, read_json

WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"
"""The format before safetensors. It is read with `weights_only`, which builds no objects."""

_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""What the oldest files call a tensor, and what it is called today."""

MAX_ALIASES = 4
"""How often the numbers of a pickle may stand in its tensors, on average. A table that is also the
output layer has two names; with a stride of 0, a tensor of gigabytes is one number in the file."""

_FILES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json",
    "merges.txt", "spiece.model", "added_tokens.json", "special_tokens_map.json",
    "adapter_config.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json",
    "config_sentence_transformers.json",
    "model.safetensors", "model.safetensors.index.json", "model-*.safetensors",
    "chat_template.jinja",
)  # fmt: skip
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")


def fetch(name: str, key: str) -> Path:
    """Return the folder of `hf:owner/name` or `hf:owner/name@revision`, fetched at need."""
    repository, _, revision = name.removeprefix(HUB).partition("@")
    with client(MODEL, repository, key, f"has no revision {revision!r}") as library:
        get = partial(library.snapshot_download, repository, revision=revision or None)
        folder = Path(str(get(allow_patterns=[*_FILES])))
        weights = [f"{name}{end}" for name in (WEIGHTS, PICKLE) for end in ("", ".index.json")]
        if not any((folder / name).is_file() for name in weights):
            folder = Path(str(get(allow_patterns=[*_FILES, *_PICKLES])))
    for model in listed_models().values():
        if model.place == name and model.sha256 is not None:
            _check_hash(folder / WEIGHTS, model.sha256, key)
    return folder


def _check_hash(path: Path, sha256: str, key: str) -> None:
    if not path.is_file():
        raise CheckpointError(f"{key}: {path} is missing; with a network it is fetched")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise CheckpointError(
            f"{key}: {path} is not the file that is listed: its SHA-256 is {digest}, expected "
            f"{sha256}; delete it, and it is fetched again"
        )


def read_tensors(
    folder: Path, synonyms: Mapping[str, str], *, values: bool = True
) -> Mapping[str, Tensor]:
    """Return all tensors of a folder, numbers of half precision in float32.

    Those of safetensors files are read when they are asked for, so that a model of several files
    takes the memory of the tensors that are kept. Without values, they are on the meta device.
    `synonyms` are further parts of names that some files have, and what they stand for.
    """
    places = _find_tensors(folder, values=values)
    today = {_current_name(name, {**_OLD_NAMES, **synonyms}): name for name in places}
    shapes = {
        new: _to_float32(without_values(places[old])[old].to("meta")) for new, old in today.items()
    }
    if not values:
        return shapes
    return LazyTensors(shapes, lambda new: _to_float32(places[today[new]][today[new]]))


def _find_tensors(folder: Path, *, values: bool) -> Mapping[str, Mapping[str, Tensor]]:
    for name, read in ((WEIGHTS, open_tensors if values else file_shapes), (PICKLE, _load_pickle)):
        whole, index = folder / name, folder / f"{name}.index.json"
        if whole.is_file():
            inside: Mapping[str, Tensor] = read(whole)
            return dict.fromkeys(inside, inside)
        if index.is_file():
            return _open_index(index, read)
    raise CheckpointError(
        f"{folder} has a config.json and no weights: expected {WEIGHTS}, {WEIGHTS}.index.json with "
        f"its parts, or {PICKLE}"
    )


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _current_name(name: str, names: Mapping[str, str]) -> str:
    for part, new in names.items():
        name = name.replace(part, new)
    return name


def dump_json(path: Path, content: object) -> None:
    """Write a JSON file of a folder that nobody reads yet."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _open_index(
    index: Path, read: Callable[[Path], Mapping[str, Tensor]]
) -> dict[str, Mapping[str, Tensor]]:
    """Return the file of each tensor that an index names."""
    with raised_as(CheckpointError, f"{index} cannot be read: ", OSError, ValueError):
        places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
        raise CheckpointError(f"{index} has no `weight_map` that names the files")
    holders: dict[str, Mapping[str, Tensor]] = {}
    there = {path.name for path in index.parent.iterdir()}
    for file in sorted(set(places.values())):
        if Path(file).name != file:
            raise CheckpointError(f"{index} names {file!r}, which is not beside it")
        if file not in there:
            raise CheckpointError(f"{index} names {file}, which is missing; fetch it, too")
        inside = read(index.parent / file)
        lost = sorted(n for n, place in places.items() if place == file and n not in inside)
        if lost:
            raise CheckpointError(f"{index} says that {lost[0]} is in {file}, and it is not")
        holders |= {name: inside for name in inside if places.get(name) == file}
    return holders


def _claimed_bytes(content: Any) -> int | None:
    """Return what tensors would take, each in memory of its own; None: they are not plain."""
    if not isinstance(content, Mapping):
        return None
    total = 0
    for tensor in content.values():
        if not isinstance(tensor, Tensor) or tensor.is_quantized:
            return None
        if tensor.layout != torch.strided or not tensor.is_cpu:
            return None
        total += tensor.numel() * tensor.element_size()
    return total


def _load_pickle(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file:
            check_no_lfs_pointer(file.read(64))
        if zipfile.is_zipfile(path):
            check_uncompressed(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tensors that are refused below
            content = torch.load(path, weights_only=True, map_location="cpu")
        claimed = _claimed_bytes(content)
    except UnreadableError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except Exception as error:  # of many kinds; no object was built
        raise CheckpointError(
            f"{path} is a pickle that holds more than tensors, or it is damaged, and is not read; "
            f"take the model's {WEIGHTS}"
        ) from error
    if claimed is None:
        raise CheckpointError(f"{path} holds something else than plain tensors by name")
    size = path.stat().st_size
    if claimed > MAX_ALIASES * size:
        raise CheckpointError(
            f"{path} has {size:,} bytes, and its tensors would take {claimed:,}: they repeat the "
            f"same numbers; take the model's {WEIGHTS}"
        )
    return {str(name): tensor for name, tensor in content.items()}
