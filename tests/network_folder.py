"""A folder as on a network disk, in a process of its own: what Python's `os` does there is changed.

- There are no locks, or each machine has its own (`Disk.locks`), and no hard links.
- What others make, replace or remove in a folder is not seen for a while, in lists and look-ups,
  unless this process changes something in the same folder; nor is the new size of a file before it
  is opened.
- A file that another process has replaced since it was last looked at is stale once.
- A file that is open stays in its folder under another name when it is removed.

Libraries that do not go through Python see the disk as it is. What they write has a name that was
drawn, which no other process looks for, so such names are taken as they are.
"""

# Path calls what is replaced here.
# ruff: noqa: PTH109, PTH115, PTH118, PTH120, PTH208

import builtins
import contextlib
import dataclasses
import errno
import fcntl
import io
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CREATES = os.O_CREAT | os.O_TRUNC
DRAWN = re.compile(r".*/\.[^/]+\.\d{6,}(/.*)?")


@dataclasses.dataclass(frozen=True)
class Disk:
    """A network disk as a machine sees it.

    Args:
        root: Where it is mounted.
        machine: The name of the machine.
        locks: none, or own: of each machine.
        seconds: How long it takes until it shows what other machines do.
        remembered: What the machine has seen before, as `seen_now` returns it.
    """

    root: Path
    machine: str = "one"
    locks: str = "none"
    seconds: float = 1.0
    remembered: tuple[tuple[str, frozenset[str]], ...] = ()

    def seen_now(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """Return all folders with the names in them."""
        return tuple(
            (folder, frozenset(folders + files)) for folder, folders, files in os.walk(self.root)
        )

    def mount(self) -> None:
        """Change `os` in this process, once and for all."""
        _Mounted(self).replace_functions()


class _Mounted:
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.root = f"{os.path.realpath(disk.root)}/"
        now = time.monotonic()
        self.lists = {folder: (now, names) for folder, names in disk.remembered}
        self.seen: dict[str, tuple[float, os.stat_result]] = {}
        self.silly: set[str] = set()
        self.mine: set[str] = set()
        self.mirrors: dict[int, int] = {}
        self.real: dict[str, Callable[..., Any]] = {}

    def replace_functions(self) -> None:
        for name in ("stat", "lstat", "listdir", "scandir", "open", "close", "rename", "replace",
                     "unlink", "remove", "mkdir", "rmdir", "link", "uname"):  # fmt: skip
            self.real[name] = getattr(os, name)
        self.real |= {"file": io.open, "flock": fcntl.flock}
        os.stat, os.lstat, os.open = self.stat, self.lstat, self.open
        os.listdir, os.scandir = self.listdir, self.scandir
        for name in ("rename", "replace"):
            setattr(os, name, self.moving(self.real[name]))
        for name in ("mkdir", "rmdir"):
            setattr(os, name, self.changing(self.real[name]))
        os.unlink = os.remove = self.unlink
        os.link, os.close = self.link, self.close
        io.open = builtins.open = self.file
        fcntl.flock = self.flock
        os.uname = lambda: os.uname_result(
            (self.real["uname"]()[0], self.disk.machine, *self.real["uname"]()[2:])
        )
        from transfer_cli.runs import locks

        locks.BEAT_SECONDS, locks.PATIENCE_SECONDS = 0.2, 3.0

    # --- what is seen ----------------------------------------------------------------------------

    def path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return an absolute path below the root; None for any other."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if dir_fd is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        text = os.path.normpath(os.path.join(os.getcwd(), text))
        return text if text.startswith(self.root) else None

    def names(self, folder: str) -> frozenset[str]:
        """Return what this machine believes is in a folder."""
        self.forget_closed()
        when, names = self.lists.get(folder, (0.0, frozenset()))
        if time.monotonic() - when > self.disk.seconds:
            names = frozenset(self.real["listdir"](folder))
            self.lists[folder] = time.monotonic(), names
        return names

    def changed(self, path: str) -> None:
        """Forget what was believed of the folder of a path: a change of ours asks the server."""
        self.lists.pop(os.path.dirname(path), None)
        self.seen.pop(path, None)

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        mounted = self.path(path, dir_fd)
        if mounted is None:
            return self.real["stat"](path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        self.check(mounted)
        if DRAWN.fullmatch(mounted):
            return self.real["stat"](mounted, follow_symlinks=follow_symlinks)
        when, known = self.seen.get(mounted, (0.0, None))
        if known is None or time.monotonic() - when > self.disk.seconds:
            known = self.real["stat"](mounted, follow_symlinks=follow_symlinks)
            if mounted not in self.mine:  # what it writes itself, it knows
                self.seen[mounted] = time.monotonic(), known
        return known

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> Any:
        return self.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def check(self, path: str) -> None:
        """Raise FileNotFoundError where this machine does not know of a path."""
        if DRAWN.fullmatch(path):
            return
        at = self.root.rstrip("/")
        for name in path[len(self.root) :].split("/"):
            if name not in self.names(at):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            at = f"{at}/{name}"

    def listdir(self, path: Any = ".") -> list[str]:
        mounted = self.path(path)
        if mounted is None:
            return self.real["listdir"](path)
        self.check(mounted)
        return (
            self.real["listdir"](path) if DRAWN.fullmatch(mounted) else sorted(self.names(mounted))
        )

    def scandir(self, path: Any = ".") -> Any:
        mounted = self.path(path)
        if mounted is None:
            return self.real["scandir"](path)
        self.check(mounted)
        known = frozenset(self.listdir(path))
        with self.real["scandir"](path) as entries:
            return _Entries([entry for entry in entries if entry.name in known])

    # --- what is changed -------------------------------------------------------------------------

    def parent_of(self, path: str) -> None:
        folder = os.path.dirname(path)
        if folder.startswith(self.root):
            self.check(folder)

    def changing(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def changed(path: Any, *given: Any, dir_fd: int | None = None) -> None:
            mounted = self.path(path, dir_fd)
            try:
                if mounted is not None:
                    self.forget_closed()
                    self.parent_of(mounted)
                do(path, *given, dir_fd=dir_fd)
            finally:
                if mounted is not None:
                    self.changed(mounted)

        return changed

    def moving(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def moved(source: Any, target: Any) -> None:
            paths = [mounted for end in (source, target) if (mounted := self.path(end))]
            try:
                do(source, target)
            finally:
                for path in paths:
                    self.changed(path)
                    for known in [name for name in self.seen if name.startswith(f"{path}/")]:
                        del self.seen[known]
                    for known in [name for name in self.lists if f"{name}/".startswith(f"{path}/")]:
                        del self.lists[known]

        return moved

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        mounted = self.path(path, dir_fd)
        if mounted is not None and _is_open(mounted):
            silly = f"{os.path.dirname(mounted)}/.nfs{self.real['stat'](mounted).st_ino:016x}"
            self.real["rename"](mounted, silly)
            self.silly.add(silly)
        else:
            self.real["unlink"](path, dir_fd=dir_fd)
        if mounted is not None:
            self.changed(mounted)

    def forget_closed(self) -> None:
        for path in [path for path in self.silly if not _is_open(path)]:
            self.silly.remove(path)
            with contextlib.suppress(OSError):
                self.real["unlink"](path)

    def link(self, source: Any, target: Any, **named: Any) -> None:
        if self.path(target) is not None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        self.real["link"](source, target, **named)

    # --- what is opened --------------------------------------------------------------------------

    def opens(self, path: str, *, creates: bool) -> None:
        """Ask the server, as each opening does; a file that is another one by now is stale once."""
        if creates:
            self.parent_of(path)
            self.changed(path)
            return
        self.check(path)
        _, known = self.seen.pop(path, (0.0, None))
        if known is not None and self.real["stat"](path).st_ino != known.st_ino:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        mounted = self.path(path, dir_fd)
        if mounted is not None:
            self.opens(mounted, creates=bool(flags & CREATES))
        handle = self.real["open"](path, flags, mode, dir_fd=dir_fd)
        if mounted is not None and flags & CREATES:
            self.changed(mounted)
        return handle

    def file(self, path: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        if path in ("/proc/self/mountinfo", Path("/proc/self/mountinfo")):
            with self.real["file"](path) as mounts:
                return io.StringIO(
                    f"{mounts.read()}9 1 0:9 / {self.root[:-1]} rw - nfs4 disk:/ rw\n"
                )
        mounted = self.path(path)
        writes = bool(set(mode) & set("wax"))
        if mounted is not None:
            self.opens(mounted, creates=writes)
        opened = self.real["file"](path, mode, *given, **named)
        if mounted is not None and writes:
            self.changed(mounted)
            self.mine.add(mounted)
        return opened

    def flock(self, file: Any, how: int) -> None:
        handle = file if isinstance(file, int) else file.fileno()
        if not os.readlink(f"/proc/self/fd/{handle}").startswith(self.root):
            self.real["flock"](handle, how)
            return
        if self.disk.locks == "none":
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        name = f"{self.root[:-1]}.{self.disk.machine}.{os.fstat(handle).st_ino}"
        mirror = self.real["open"](name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self.real["flock"](mirror, how)
        except BlockingIOError:
            self.real["close"](mirror)
            raise
        self.mirrors[handle] = mirror

    def close(self, handle: int) -> None:
        if handle in self.mirrors:
            self.real["close"](self.mirrors.pop(handle))
        self.real["close"](handle)


class _Entries:
    """What `os.scandir` returns."""

    def __init__(self, entries: list[Any]) -> None:
        self._left = iter(entries)

    def __iter__(self) -> "_Entries":
        return self

    def __next__(self) -> Any:
        return next(self._left)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        pass


def _is_open(path: str) -> bool:
    """Return whether this process has a file open, or mapped into its memory."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return path in _handles() or any(line.endswith(f" {path}") for line in maps)


def _handles() -> set[str]:
    paths = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            paths.add(os.readlink(f"/proc/self/fd/{name}"))
    return paths
