"""Keeps what is computed once for further runs: a folder of entries, each a folder.

An entry is named by everything that decides its content. It gets its name when it is complete, and
a lock lets one of several runs make it while the others wait. Its seal holds a checksum of each of
its files, which is compared whenever it is opened: a damaged one is made again.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from transfer_cli.runs.atomic import flush, remove, replaced_folder
from transfer_cli.runs.locks import Lock, held_if_free
from transfer_cli.safe_files import read_json

log = logging.getLogger(__name__)

T = TypeVar("T")

SECONDS_BETWEEN_TRIES = 0.05

_SEAL = "seal.json"

_LEFTOVER = re.compile(r"\.(.+)[.-]\d+")
"""What an entry is called while it is made: see `runs.atomic`."""


def digest(key: Mapping[str, Any]) -> str:
    """Return the name of an entry, from the plain values that decide its content."""
    text = json.dumps(key, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _raise(error: BaseException) -> None:
    raise error


def load_or_make(
    entry: Path,
    read: Callable[[Path], T | None],
    make: Callable[[], T],
    write: Callable[[T], object] = lambda content: None,
    refused: Callable[[BaseException], None] = _raise,
) -> T:
    """Return the content of an entry, which is made now if it is missing or damaged.

    Args:
        read: Returns the content, from the files as they were written; None if one is gone.
        make: Returns the content, newly computed; it may write the entry itself.
        write: Writes what was made, with `new_entry`.
        refused: Called with an error of the disk in locking, clearing or `write`. If it does not
            raise the error, the content is made and not kept.

    Raises:
        OSError: The folder cannot be written; see `refused`.
    """
    stored = read_if_sound(entry, read)
    if stored is not None:
        return stored
    with ExitStack() as held:
        try:
            held.enter_context(locked(entry))
            stored = read_if_sound(entry, read)  # another run may have been faster
            if stored is not None:
                return stored
            if entry.exists():
                log.warning("%s in the cache is damaged and is made again", entry)
                remove(entry)
            clear_leftovers(entry.parent, held=entry.name)
        except OSError as error:
            refused(error)
            return make()
        value = make()
        try:
            write(value)
        except OSError as error:
            refused(error)
        return value


@contextmanager
def new_entry(entry: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes the entry at the end of the block, sealed."""
    with replaced_folder(entry) as unfinished:
        yield unfinished
        # Not `write_json`, which has an error of its own for a full disk.
        (unfinished / _SEAL).write_text(json.dumps(_checksums(unfinished)), encoding="utf-8")
        for path in unfinished.iterdir():
            flush(path)


def make_unless_held(entry: Path, make: Callable[[], object]) -> None:
    """Make an entry that is missing, with `new_entry`, unless another process is making it now.

    One that is there is not looked into.
    """
    if is_complete(entry):
        return
    entry.parent.mkdir(parents=True, exist_ok=True)
    with held_if_free(_lock_of(entry)) as lock:
        if lock is not None and not is_complete(entry):
            make()


def is_complete(entry: Path) -> bool:
    """Return whether an entry is complete; it may be damaged."""
    return (entry / _SEAL).exists()


def read_if_sound(entry: Path, read: Callable[[Path], T | None]) -> T | None:
    """Return the content of an entry, None if it is missing or damaged; see `load_or_make`."""
    with suppress(OSError, ValueError):  # it is not there, or damaged, or another run removes it
        if read_json(entry / _SEAL) == _checksums(entry):
            return read(entry)
    return None


def _checksums(folder: Path) -> dict[str, str]:
    return {path.name: _checksum(path) for path in folder.iterdir() if path.name != _SEAL}


def _checksum(path: Path) -> str:
    """Return a checksum of a file, at the speed of memory, since nobody attacks one's own cache.

    It consists of sums of 64-bit words, of each 4 KiB and of the columns of 128 such rows. So it
    finds damage to up to three bits, to one word, and the loss or exchange of parts; what is left
    would have to cancel out in all sums at once.
    """
    words = np.zeros((128, 512), np.uint64)
    raw, size = words.data.cast("B"), 0
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while num_bytes := file.readinto(raw):
            raw[num_bytes:] = bytes(len(raw) - num_bytes)
            size += num_bytes
            digest.update(words.sum(1).tobytes())
            digest.update(words.sum(0).tobytes())
    digest.update(str(size).encode())
    return digest.hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a path, whose folder is made; wait while another command has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = Lock(_lock_of(path))
    if not lock.take():
        log.info("Waiting for another run that is making %s", path)
        while not lock.take():
            time.sleep(SECONDS_BETWEEN_TRIES)
    try:
        yield
    finally:
        lock.release()


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def clear_leftovers(folder: Path, held: str = "") -> None:
    """Remove what killed runs left in a folder of entries; of one the lock may be held here."""
    for leftover in folder.glob(".*"):
        match = _LEFTOVER.fullmatch(leftover.name)
        if match is not None and match[1] == held:
            remove(leftover)
        elif match is not None:
            with held_if_free(_lock_of(folder / match[1])) as lock:
                if lock is not None:
                    remove(leftover)
