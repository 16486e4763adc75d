"""Computed states in a folder that runs share: the first one computes, the others look them up.

An entry is a folder named by everything that decides its content. It appears under its name only
when it is complete, and a lock lets one of several runs fill it while the others wait. It is mapped
into memory, so that jobs side by side hold it once between them.

Nothing here can end a run: what cannot be kept is computed, as if there was no such folder.

Legend: R real tokens of all examples, K kept layers, D width.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transfer_cli.runs import cache
from transfer_cli.runs.atomic import replaced_folder
from transfer_cli.safe_files import read_json

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 2**30
"""All entries together; those that were used longest ago go first."""

# Part of every key. Raise it when the same key gives another entry.
_FORMAT = 1

_META, _STATES = "meta.json", "states.bin"
_PORTION = 2**24

TAKEN, KEPT, ALONE = "taken from the cache", "kept for further runs", "in this run's memory alone"


class SharedStates:
    """States of frozen backbones, on disk.

    Args:
        folder: Where they lie; made when missing.
        circumstances: What decides the states beyond what whoever asks says of them.

    Attributes:
        came: What became of each request so far: `TAKEN`, `KEPT` or `ALONE`.
    """

    def __init__(self, folder: Path, circumstances: Mapping[str, Any]) -> None:
        self._folder = folder
        self._circumstances = dict(circumstances)
        self._warned = False
        self.came: list[str] = []

    def fetch(
        self, key: Mapping[str, Any], size: tuple[int, int, int], compute: Callable[[], Tensor]
    ) -> Tensor:
        """Return states `[R, K, D]`, float32: those that are kept, or else computed now.

        Args:
            key: What decides them; plain values.
            size: R, K and D.
            compute: Makes them, on any device.
        """
        whole = {**key, **self._circumstances, "size": size, "format": _FORMAT}
        entry = self._folder / cache.digest(whole)
        size_bytes = torch.Size(size).numel() * torch.finfo(torch.float32).bits // 8
        came = ALONE

        def read(entry: Path) -> Tensor | None:
            nonlocal came
            found = _opened(entry, size)
            if found is not None:
                came = TAKEN
                with suppress(OSError):
                    os.utime(entry)  # used just now
            return found

        def write(states_RKD: Tensor) -> None:
            nonlocal came
            _make_room(self._folder, size_bytes)
            _write(entry, states_RKD, size)
            came = KEPT

        if size_bytes > MOST_BYTES:
            states_RKD = compute()
        else:
            states_RKD = cache.kept(entry, read, compute, write, self._warn)
        self.came.append(came)
        if came == KEPT and states_RKD.device.type == "cpu":
            mapped = _mapped(entry, size)
            return states_RKD if mapped is None else mapped
        return states_RKD

    def _warn(self, error: BaseException) -> None:
        if not self._warned:
            reason = getattr(error, "strerror", None) or error
            log.warning(
                "The features cannot be kept in %s: %s. This run goes on with those in its memory",
                self._folder,
                reason,
            )
        self._warned = True


def _opened(entry: Path, size: tuple[int, int, int]) -> Tensor | None:
    """Return what an entry holds; None where it is not there, or not what was written."""
    try:
        meta = read_json(entry / _META)
        digest = hashlib.blake2b(digest_size=16)
        with (entry / _STATES).open("rb") as file:
            while portion := file.read(_PORTION):
                digest.update(portion)
    except (OSError, ValueError):
        return None
    if meta.get("size") != list(size) or meta.get("hash") != digest.hexdigest():
        return None
    return _mapped(entry, size)


def _mapped(entry: Path, size: tuple[int, int, int]) -> Tensor | None:
    """Return an entry's states, whose pages all processes share until one of them writes."""
    path, count = entry / _STATES, torch.Size(size).numel()
    try:
        # Of a shorter file the library would make a longer one.
        if path.stat().st_size != count * torch.finfo(torch.float32).bits // 8:
            return None
        flat = torch.from_file(str(path), shared=False, size=count, dtype=torch.float32)
    except (OSError, RuntimeError):
        return None
    return flat.view(size)


def _write(entry: Path, states_RKD: Tensor, size: tuple[int, int, int]) -> None:
    """Make an entry, all of it or nothing."""
    with replaced_folder(entry) as partial:
        digest = hashlib.blake2b(digest_size=16)
        content = states_RKD.cpu().contiguous().numpy().data.cast("B")
        with (partial / _STATES).open("wb") as file:
            for begin in range(0, len(content), _PORTION):
                portion = content[begin : begin + _PORTION]
                digest.update(portion)
                file.write(portion)
            file.flush()
            os.fsync(file.fileno())
        meta = {"size": size, "hash": digest.hexdigest()}
        (partial / _META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _make_room(folder: Path, size_bytes: int) -> None:
    """Remove entries until there is room for one more; who has mapped one keeps it."""
    used = [(path, _last_use(path), _bytes(path)) for path in folder.glob("[!.]*")]
    total = sum(size for _, _, size in used)
    for path, _, size in sorted(used, key=lambda entry: entry[1]):
        if total + size_bytes <= MOST_BYTES:
            break
        shutil.rmtree(path, ignore_errors=True)
        total -= size


def _last_use(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _bytes(entry: Path) -> int:
    try:
        return (entry / _STATES).stat().st_size
    except OSError:
        return 0
