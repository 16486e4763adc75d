"""Computed states in a folder that runs share: one run computes them, the others read them.

An entry is a folder named by everything that decides its content. It appears under its name only
when it is complete; a lock lets one of several runs write it while the others wait. Entries are
mapped into memory, so that processes of one machine share their pages.

A failure here never ends a run: states that cannot be stored are computed.

Legend: R real tokens of all examples, K kept layers, D width.
"""

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

log = logging.getLogger(__name__)

MOST_BYTES = 8 * 2**30
"""Of all entries together; the least recently used ones are removed."""

# Part of every key. Raise it when the same key gives another entry.
_FORMAT = 1

_STATES = "states.bin"

HIT, STORED, LOCAL = "taken from the cache", "kept for further runs", "in this run's memory alone"


class SharedStates:
    """States of frozen backbones, on disk.

    Args:
        circumstances: What decides the states besides the key of a request.

    Attributes:
        outcomes: The outcome of each request so far: `HIT`, `STORED` or `LOCAL`.
    """

    def __init__(self, folder: Path, circumstances: Mapping[str, Any]) -> None:
        self._folder = folder
        self._circumstances = dict(circumstances)
        self._warned = False
        self.outcomes: list[str] = []

    def fetch(
        self, key: Mapping[str, Any], size: tuple[int, int, int], compute: Callable[[], Tensor]
    ) -> Tensor:
        """Return states `[R, K, D]`, float32: stored ones under this key, or else computed now."""
        whole = {**key, **self._circumstances, "size": size, "format": _FORMAT}
        entry = self._folder / cache.digest(whole)
        size_bytes = torch.Size(size).numel() * torch.float32.itemsize
        came = LOCAL

        def read(entry: Path) -> Tensor | None:
            nonlocal came
            states = _map_entry(entry, size)
            if states is not None:
                came = HIT
                with suppress(OSError):
                    os.utime(entry)  # used just now
            return states

        def write(states_RKD: Tensor) -> None:
            nonlocal came
            _make_room(self._folder, size_bytes)
            _write(entry, states_RKD)
            came = STORED

        if size_bytes > MOST_BYTES:
            states_RKD = compute()
        else:
            states_RKD = cache.load_or_make(entry, read, compute, write, self._warn)
        self.outcomes.append(came)
        if came == STORED and states_RKD.device.type == "cpu":
            mapped = _map_entry(entry, size)
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


def _map_entry(entry: Path, size: tuple[int, int, int]) -> Tensor | None:
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


def _write(entry: Path, states_RKD: Tensor) -> None:
    with cache.new_entry(entry) as unfinished:
        (unfinished / _STATES).write_bytes(states_RKD.cpu().contiguous().numpy().data.cast("B"))


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
