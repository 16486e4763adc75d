"""Writes files and folders beside their place and renames them into it when they are complete.

While it is written, one is called `.NAME.NUMBER`. A kill leaves that behind, and the old one whole.
Nothing is written or removed where a link in a folder of ours leads: `check_inside` looks for them.
"""

import errno
import itertools
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from transfer_cli.errors import RunError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def as_run_error(path: Path) -> Iterator[None]:
    """Turn errors of the disk while `path` is written into one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        full = getattr(error, "errno", errno.ENOSPC) in _FULL
        cure = "Free some space there" if full else "Choose another place"
        raise RunError(f"{path} cannot be written: {reason}. {cure}") from error


def check_inside(folder: Path, places: Iterable[Path], key: str) -> None:
    """Refuse to write into a folder in which a link leads out, or what is no file could wait.

    Whoever writes, cuts or removes something in a run or a sweep that is there asks this first: a
    stranger may have made it. The folder itself may be reached by a link, which somebody typed.

    Args:
        places: What may be written in it, there or not; of a folder, all that is in it.
        key: The config key that named the folder; begins the message.
    """
    root = os.path.realpath(folder)
    for path in itertools.chain.from_iterable(map(_walk, places)):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            raise RunError(
                f"{key}: {path} is a link that leads out of {folder}, where nothing is written; "
                "remove it, or put a copy of what it leads to in its place"
            )
        with suppress(OSError):  # it is not there, or a link to itself
            kind = path.stat().st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise RunError(f"{key}: {path} is a device or a pipe; remove it")


def _walk(place: Path) -> Iterator[Path]:
    """Yield a path and all that is below it, but nothing behind a link."""
    yield place
    if place.is_symlink():
        return
    for base, folders, files in os.walk(place):
        yield from (Path(base, name) for name in (*folders, *files))


def remove(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a file, a link or a folder with all that is in it; what cannot go can be ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=ignore_errors)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield the path of a file to write, which replaces `path` at the end of the block.

    A device or a pipe cannot be replaced: then `path` itself is written.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    temporary = _temporary_path(path)
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill, which replaces `folder` at the end of the block.

    Its files are not flushed here.
    """
    if not folder.parent.is_dir():
        folder.parent.mkdir(parents=True)
        flush(folder.parent.parent)
    with _temporary_folder(_temporary_path(folder)) as temporary:
        yield temporary
        try:
            # Tried, not looked up: a network disk may not know yet what another machine has made.
            temporary.rename(folder)
            flush(folder.parent)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _swap(temporary, folder)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `folder`, new or empty, at the end of the block."""
    if folder.is_dir():
        # Filled from inside: it may be a disk of its own, or the working directory.
        with _temporary_folder(folder / _temporary_path(folder).name) as temporary:
            if len(list(folder.iterdir())) > 1:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
            yield temporary
            for child in sorted(temporary.iterdir()):
                child.rename(folder / child.name)
        return
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    with _temporary_folder(above / _temporary_path(folder).name) as temporary:
        yield temporary
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.rename(folder)


def make_dated_folder(root: Path, name: str) -> Path:
    """Make a folder below `root`, called by the time and `name`, and return its path."""
    stamp = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    first = f"{stamp}-{name}" if name else stamp
    path, attempts = root / first, itertools.count(2)
    while True:
        try:
            # Only one of two commands that start within a second makes it.
            path.mkdir(parents=True)
        except FileExistsError:
            path = root / f"{first}-{next(attempts)}"
        except OSError as error:
            raise RunError(f"run.root: {root} cannot be written: {error.strerror}") from error
        else:
            return path


def write_text(path: Path, text: str) -> None:
    """Write a file so that readers see the old one or the new one, never a part."""
    with as_run_error(path), replaced_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole."""
    write_text(path, as_json(content, indent=2, ensure_ascii=False) + "\n")


def append_json(path: Path, record: Mapping[str, Any]) -> None:
    """Append a JSON line."""
    with as_run_error(path), path.open("a", encoding="utf-8") as file:
        file.write(f"{as_json(record)}\n")


def as_json(content: Mapping[str, Any], **options: Any) -> str:
    """Return JSON, with null for a number that is not finite, which JSON cannot hold."""
    try:
        return json.dumps(content, allow_nan=False, **options)
    except ValueError:
        plain = json.loads(json.dumps(content), parse_constant=lambda _: None)
        return json.dumps(plain, **options)


def truncate_file(path: Path, size: int) -> None:
    """Shorten a file that grew by appending to the `size` bytes that it once had."""
    # Opened, not looked up: a network disk then asks how large another machine has left it.
    with as_run_error(path), suppress(FileNotFoundError), path.open("rb+") as file:
        if file.seek(0, os.SEEK_END) > size:
            file.truncate(size)


def flush(path: Path) -> None:
    """Make the system write a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot do it to folders; a device or a pipe has no disk.
        if error.errno != errno.EINVAL or path.is_file():
            raise
    finally:
        os.close(descriptor)


def _temporary_path(path: Path) -> Path:
    # Drawn: of two machines, or containers, processes may have the same number.
    return path.parent / f".{path.name}.{secrets.randbits(63)}"


@contextmanager
def _temporary_folder(temporary: Path) -> Iterator[Path]:
    """Make an empty folder, and remove it at the end if it is still there."""
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(temporary: Path, folder: Path) -> None:
    """Put a complete folder in the place of another, which is `.NAME.old` between two renames."""
    # A folder cannot be renamed over a full one; the moment without either is a rename long.
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    flush(folder.parent)
    # What somebody reads cannot be removed from a network disk; the next one removes it.
    shutil.rmtree(old, ignore_errors=True)
