"""A run's whole state on disk: complete or absent, and never a pickle.

`checkpoints/step-00012000/` holds `weights.safetensors`, `train_state.pt` (tensors and plain values
only, read with `weights_only`) and `meta.json`. It is written under another name and renamed.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transfer_cli.errors import CheckpointError, RunError
from transfer_cli.runs.directory import writing

FORMAT = 1
META = "meta.json"
STATE = "train_state.pt"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int


def write(
    folder: Path, step: int, write_weights: Callable[[Path], None], state: Mapping[str, Any] | None
) -> None:
    """Write a checkpoint at `folder`, replacing one that is there.

    Args:
        folder: Where it will be when it is complete.
        step: Steps taken.
        write_weights: Writes the weights into the folder that it is given.
        state: Tensors and plain values for a resume; None for weights alone.

    Raises:
        RunError: It cannot be written; what was there is still there.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            write_weights(temporary)
            if state is not None:
                _write_state(state, temporary / STATE)
            meta = {"format": FORMAT, "step": step}
            (temporary / META).write_text(json.dumps(meta) + "\n", encoding="utf-8")
            for file in temporary.iterdir():
                _flush(file)
            _swap(temporary, folder)
            _flush(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def name(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step-{step:08d}"


def find_all(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints of a run, oldest first."""
    found = []
    for path in sorted(folder.glob("step-*")):
        if (path / META).is_file():
            found.append(Checkpoint(path, int(path.name.removeprefix("step-"))))
    return found


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints; 0 keeps all."""
    for old in find_all(folder)[:-keep] if keep else []:
        shutil.rmtree(old.path)


def read_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the training state.

    Raises:
        CheckpointError: It is missing, damaged, of a later format, or holds more than plain values.
    """
    path = checkpoint.path / STATE
    try:
        meta = json.loads((checkpoint.path / META).read_text(encoding="utf-8"))
        if meta["format"] > FORMAT:
            raise CheckpointError(
                f"{checkpoint.path} was written by a later version of this program"
            )
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (
        OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError,
    ) as error:  # fmt: skip
        reason = next(iter(str(error).splitlines()), "it ends too early")
        raise CheckpointError(
            f"{path} is damaged or holds more than plain values: {reason}"
        ) from error
    return state


def _write_state(state: Mapping[str, Any], path: Path) -> None:
    try:
        torch.save(dict(state), path)
    except RuntimeError as error:
        # All that torch says of a full disk is where its own code noticed.
        raise RunError(
            f"{path.parent.parent} cannot be written. Is the disk full? Free some space there"
        ) from error


def _swap(temporary: Path, folder: Path) -> None:
    if folder.exists():
        # A folder cannot be renamed over a full one; the moment without either is a rename long.
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        temporary.rename(folder)
        shutil.rmtree(old)
    else:
        temporary.rename(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
