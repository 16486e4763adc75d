"""What was found out about large files, kept so that a later start need not read them again.

A record is trusted as long as size, times and place of the file on the disk are those that it had.
"""

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from transfer_cli.errors import RunError
from transfer_cli.runs.atomic import write_json
from transfer_cli.safe_files import MAX_FILE_BYTES, read_json

T = TypeVar("T", str, int)

LEAST_BYTES = 2**20
"""Smaller files are read as fast as they are looked up."""

_MOMENT_SECONDS = 2.0
"""A file that was written so shortly ago may be written again within the same tick of its clock."""

_MOST_BYTES = 16 * MAX_FILE_BYTES


class KnownFiles:
    """Facts about files by folder, kept if there is a `cache`; written as a `with` block ends."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._folders: dict[Path, dict[str, Any]] = {}
        self._changed: set[Path] = set()

    def __enter__(self) -> "KnownFiles":
        return self

    def __exit__(self, *_: object) -> None:
        """Write what was found out, if the cache can be written."""
        for folder in self._changed:
            path = self._record_path(folder)
            with suppress(OSError, RunError):  # it is read again next time
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, self._folders[folder])

    def fact(self, path: Path, what: str, find: Callable[[], T]) -> T:
        """Return a fact about a file, which `find` returns where it is not known.

        Args:
            what: The name of the fact, and all but the file that decides it.

        Raises:
            OSError: There is no such file.
        """
        status = path.stat()
        if self._cache is None or status.st_size < LEAST_BYTES:
            return find()
        path = path.absolute()
        now = _identity(status)
        facts = self._facts(path.parent)
        known = facts.get(path.name)
        if not isinstance(known, dict) or known.get("status") != now:
            known = {"status": now}
        if isinstance(known.get(what), str | int):
            fact: T = known[what]
            return fact
        fact = find()
        is_settled = time.time() - max(status.st_mtime, status.st_ctime) > _MOMENT_SECONDS
        if is_settled and _identity(path.stat()) == now:
            facts[path.name] = known | {what: fact}
            self._changed.add(path.parent)
        return fact

    def _facts(self, folder: Path) -> dict[str, Any]:
        if folder not in self._folders:
            self._folders[folder] = {}
            with suppress(OSError, ValueError):  # there is none, or it is damaged
                self._folders[folder] = read_json(self._record_path(folder), _MOST_BYTES)
        return self._folders[folder]

    def _record_path(self, folder: Path) -> Path:
        name = hashlib.blake2b(str(folder).encode("utf-8", "replace"), digest_size=16).hexdigest()
        return (self._cache or Path()) / f"{name}.json"


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
