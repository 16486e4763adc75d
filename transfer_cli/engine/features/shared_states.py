"""Computed states in a folder that runs share: one run computes them, the others read them.

An entry is a folder named by everything that decides its content. It appears under its name only
when it is complete; a lock lets one of several runs write it while the others wait. Entries are
mapped into memory, so that processes of one machine share their pages.

A failure here never ends a run: states that cannot be stored are computed.

Legend: R real tokens of all examples, K kept layers, D width.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transfer_cli.runs import cache
from transfer_cli.runs.atomic import flush, replaced_folder
from transfer_cli.safe_files import read_json

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 2**30
"""Of all entries together; the least recently used ones are removed."""

# Part of every key. Raise it when the same key gives another entry.
_FORMAT = 1

_new_digest = partial(hashlib.blake2b, digest_size=16)

_META, _STATES = "meta.json", "states.bin"
_PORTION = 2**24

TAKEN, KEPT, ALONE = "taken from the cache", "kept for further runs", "in this run's memory alone"


class SharedStates:
    """States of frozen backbones, on disk.

    Args:
        folder: Their folder; made when missing.
        circumstances: What decides the states besides the key of a request.

    Attributes:
        came: The outcome of each request so far: `TAKEN`, `KEPT` or `ALONE`.
    """

    def __init__(self, folder: Path, circumstances: Mapping[str, Any]) -> None:
        self._folder = folder
        self._circumstances = dict(circumstances)
        self._warned = False
        self.came: list[str] = []

    def fetch(
        self, key: Mapping[str, Any], size: tuple[int, int, int], compute: Callable[[], Tensor]
    ) -> Tensor:
        """Return states `[R, K, D]`, float32: stored ones under this key, or else computed now."""
        whole = {**key, **self._circumstances, "size": size, "format": _FORMAT}
        entry = self._folder / cache.digest(whole)
        size_bytes = torch.Size(size).numel() * torch.float32.itemsize
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
    """Return the states of an entry; None where it is missing or damaged."""
    try:
        meta = read_json(entry / _META)
        with (entry / _STATES).open("rb") as file:
            digest = hashlib.file_digest(file, _new_digest)
    except (OSError, ValueError):
        return None
    if meta.get("size") != list(size) or meta.get("hash") != digest.hexdigest():
        return None
    return _mapped(entry, size)


def _mapped(entry: Path, size: tuple[int, int, int]) -> Tensor | None:
    """Return an entry's states, whose pages all processes share until one of them writes."""
    path, count = entry / _STATES, torch.Size(size).numel()
    try:
        # `from_file` would lengthen a shorter file.
        if path.stat().st_size != count * torch.float32.itemsize:
            return None
        flat = torch.from_file(str(path), shared=False, size=count, dtype=torch.float32)
    except (OSError, RuntimeError):
        return None
    return flat.view(size)


def _write(entry: Path, states_RKD: Tensor, size: tuple[int, int, int]) -> None:
    """Make an entry, all of it or nothing."""
    with replaced_folder(entry) as unfinished:
        digest = _new_digest()
        content = states_RKD.cpu().contiguous().numpy().data.cast("B")
        with (unfinished / _STATES).open("wb") as file:
            for begin in range(0, len(content), _PORTION):
                portion = content[begin : begin + _PORTION]
                digest.update(portion)
                file.write(portion)
        flush(unfinished / _STATES)
        meta = {"size": size, "hash": digest.hexdigest()}
        (unfinished / _META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _make_room(folder: Path, size_bytes: int) -> None:
    """Remove entries until there is room for one more; a process that has mapped one keeps it."""
    used = []
    for path in folder.glob("[!.]*"):
        with suppress(OSError):  # another run may be removing it
            used.append((path.stat().st_mtime, (path / _STATES).stat().st_size, path))
    total = sum(size for _, size, _ in used)
    for _, size, path in sorted(used):
        if total + size_bytes <= MOST_BYTES:
            break
        shutil.rmtree(path, ignore_errors=True)
        total -= size
