"""Where data sets lie, and what is made of them."""

import os
import stat
from pathlib import Path


def data_folder(data_dir: str) -> Path:
    """Return `data_dir` with `~` filled in."""
    return Path(data_dir).expanduser()


def cache_folder(data_dir: str) -> Path:
    """Return the folder of tokenizers and encoded text.

    That is `TRANSFER_CACHE`, else `cache/` in `data_dir`, else (if that cannot be written, as on a
    shared read-only disk) a folder in the home.
    """
    folder = data_folder(data_dir)
    usable = not os.environ.get("TRANSFER_CACHE") and writable_folder(folder) == folder
    return folder / "cache" if usable else home_cache()


def writable_folder(data_dir: Path) -> Path:
    """Return the folder of files made for `data_dir`: itself, or the cache if it is read-only."""
    existing = data_dir
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    # The administrator may write anywhere, but a folder without any write bit should not change.
    marked_writable = bool(stat.S_IMODE(existing.stat().st_mode) & 0o222)
    if existing.is_dir() and marked_writable and os.access(existing, os.W_OK):
        return data_dir
    return home_cache()


def home_cache() -> Path:
    """Return the folder in the home that replaces a read-only `data_dir`."""
    named = os.environ.get("TRANSFER_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "transfer" / "cache"
