"""Locks of files, which hold on network disks, too.

On a disk of this machine the system locks (`flock`), and releases when the process dies. Network
disks may know no locks, or keep each machine's to itself. There a second file says who holds the
lock: it can be made by one only, and exists until the lock is released. What a killed process of
this machine left is void. One of another machine cannot be asked: its holder touches the file every
few seconds, and is taken for dead when it has not for a minute. (`filelock`'s lease asks for the
file's attributes, which such a disk may answer as they were a minute ago: its holder took it for
lost.)
"""

import errno
import fcntl
import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
"""How often the holder of a lock on a network disk says that it lives."""

PATIENCE_SECONDS = 60.0
"""After how long without a beat it is taken for dead. A disk may show its files so much later."""

MOUNTS = Path("/proc/self/mountinfo")
"""Where Linux says which disk is where; elsewhere, every disk counts as one of this machine."""

_LOOK_SECONDS = 1.0
_MOMENT = 0.01
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
_LOCAL = frozenset(
    {
        "apfs", "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs", "jfs", "ntfs3",
        "overlay", "ramfs", "reiserfs", "rootfs", "tmpfs", "ufs", "vfat", "xfs", "zfs",
    }
)  # fmt: skip
"""Kinds of disks that one machine alone writes to."""


class Lock:
    """The lock of a file, which is made; held until `release` or the end of the process.

    Attributes:
        handle: The open file. While a child process keeps it open, the system's lock is held.
    """

    def __init__(self, path: Path) -> None:
        self.handle = -1
        self._path = path
        self._holder = holder_of(path)
        self._own = ""
        self._by_system = False
        self._released = threading.Event()

    def take(self) -> bool:
        """Return whether it is free, and held from now on; OSError where it cannot be written."""
        self.handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            handle = self._take()
        except BaseException:
            self.release()
            raise
        if not handle:
            self.release()
        return handle

    def _take(self) -> bool:
        system = _flock(self.handle, fcntl.LOCK_EX)
        if system is False:
            return False
        there = self._path.exists() and os.path.samestat(os.fstat(self.handle), self._path.stat())
        if not there:
            return False  # it was removed, and perhaps made anew, in this moment
        self._by_system = bool(system)
        return (self._by_system and not is_shared(self._path)) or self._become_holder()

    def _become_holder(self) -> bool:
        self._own = f"{_machine()} {os.getpid()} {_start_time(os.getpid())} {secrets.randbits(64)}"
        while True:
            try:
                handle = os.open(self._holder, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                holder = _read(self._holder)
                if holder is None:
                    continue  # released in this moment
                if not self._is_dead(holder):
                    self._own = ""
                    return False
                self._remove_dead_holder(holder)
            else:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(self._own)
                self._released = threading.Event()  # an attempt before has set the last one
                beat = threading.Thread(target=self._beat, args=[self._released], daemon=True)
                beat.start()
                return True

    def _is_dead(self, holder: str) -> bool:
        """Return whether a holder has died; that of another machine is watched for a while."""
        if _is_of_this_machine(holder):
            # Here the system's lock would have been held by one that lives.
            return self._by_system or not _is_alive(holder)
        if holder:  # else its maker is about to write it
            log.warning(
                "%s is held by a process of another machine (%s); looking for %.0f s whether it "
                "lives",
                self._path, holder.partition(" ")[0], PATIENCE_SECONDS,
            )  # fmt: skip
        seen, until = _beat_of(self._holder), time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            time.sleep(min(_LOOK_SECONDS, PATIENCE_SECONDS / 4))
            if _read(self._holder) != holder or _beat_of(self._holder) != seen:
                return False
        return True

    def _remove_dead_holder(self, holder: str) -> None:
        """Remove the file of a dead holder, and never that of who was quicker to do the same.

        Whoever makes a folder of that holder's name may do it, so it stays the dead one's file
        between the look and the removal.
        """
        name = hashlib.blake2b(holder.encode(), digest_size=8).hexdigest()
        ours = self._holder.with_name(f"{self._holder.name}.{name}")
        try:
            ours.mkdir()
        except FileExistsError:
            with suppress(OSError):
                if time.time() - ours.stat().st_mtime > PATIENCE_SECONDS:
                    ours.rmdir()  # whoever made it was killed, too
            time.sleep(_MOMENT)
            return
        try:
            if _read(self._holder) == holder:
                self._holder.unlink(missing_ok=True)
        finally:
            ours.rmdir()

    def _beat(self, released: threading.Event) -> None:
        while not released.wait(BEAT_SECONDS):
            if _read(self._holder) not in (None, self._own):
                log.warning(
                    "%s is held by another process by now: this one did not move for a minute",
                    self._path,
                )
                return
            with suppress(OSError):
                os.utime(self._holder)

    def remove(self) -> None:
        """Remove the file, whose folder is to go; it is held still."""
        self._path.unlink(missing_ok=True)
        self._remove_own_holder()

    def release(self) -> None:
        """Let others take it."""
        self._released.set()
        self._remove_own_holder()
        self._own = ""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def _remove_own_holder(self) -> None:
        if self._own and _read(self._holder) == self._own:
            self._holder.unlink(missing_ok=True)


@contextmanager
def held_if_free(path: Path) -> Iterator[Lock | None]:
    """Hold the lock of a file during the block; yield None where somebody else has it."""
    lock = Lock(path)
    try:
        yield lock if lock.take() else None
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Return whether some process holds the lock of a file, as far as can be seen from here."""
    try:
        # Of a pipe in its place, nobody waits for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        system = _flock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)
    if system is False:
        return True
    holder = holder_of(path)
    text = _read(holder)
    if text is None or (system and _is_of_this_machine(text)):
        return False
    if _is_of_this_machine(text):
        return _is_alive(text)
    return time.time() - (_beat_of(holder) or 0) < PATIENCE_SECONDS


def holder_of(path: Path) -> Path:
    """Return the file that says on a network disk who holds a lock."""
    return path.with_name(f"{path.name}.holder")


def is_shared(path: Path) -> bool:
    """Return whether other machines may write to the disk that holds `path`."""
    best, kind = "", "ext4"
    with suppress(OSError):
        real = f"{path.resolve()}/"
        for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            place, _, rest = line.partition(" - ")
            at = place.split()[4].encode("latin-1", "backslashreplace").decode("unicode_escape")
            if real.startswith(f"{at.rstrip('/')}/") and len(at) >= len(best):
                best, kind = at, rest.split()[0]
    return kind not in _LOCAL


def _flock(handle: int, how: int) -> bool | None:
    """Return whether the system has given a lock; None on a disk that knows none."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _machine() -> str:
    """Return what tells this machine, since its start, from others; a container is one, too."""
    parts = [os.uname().nodename.replace(" ", "-")]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return "/".join(parts)


def _start_time(process: int) -> str:
    """Return when a process was started: its number may be another's by now."""
    with suppress(OSError, IndexError):
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return text.rpartition(")")[2].split()[19]
    return "-"


def _is_of_this_machine(holder: str) -> bool:
    return holder.partition(" ")[0] == _machine()


def _is_alive(holder: str) -> bool:
    try:
        _, process, started, _ = holder.split()
        os.kill(int(process), 0)
    except PermissionError:
        return True  # somebody else's
    except (ValueError, OSError, OverflowError):
        return False
    return started == _start_time(int(process))


def _read(holder: Path) -> str | None:
    # Opened anew each time: a network disk looks at the server then.
    with suppress(OSError):
        return holder.read_text(encoding="utf-8", errors="replace")
    return None


def _beat_of(holder: Path) -> float | None:
    with suppress(OSError), holder.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime
    return None
