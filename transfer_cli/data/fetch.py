"""Fetch a file once, whole and unaltered, and unpack it.

A name in its final place always stands for a checked file: what is under way lies beside it as
`NAME.part`, which a later start goes on with, and which is renamed only when its size and SHA-256
are right.
"""

import hashlib
import http.client
import logging
import lzma
import os
import shutil
import stat
import struct
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from transfer_cli import __version__
from transfer_cli.errors import DataError
from transfer_cli.runs.atomic import flush
from transfer_cli.runs.cache import locked

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 30.0

MAX_MEMBERS = 10_000
"""Files in an archive. Data sets come in some dozen."""

MAX_UNPACKED_RATIO = 100
"""How many times its own size an archive may unpack to; texts unpack to three or four times."""

UNPACKED_FREELY_BYTES = 2**24
"""What any archive may unpack to, however small it is."""

_CHUNK_BYTES = 2**16
_TRIES_WITHOUT_PROGRESS = 3
_MOST_DIGITS = 20  # Python refuses to read a number of thousands
_DAMAGED = (
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    RuntimeError,  # encrypted, or (NotImplementedError) packed in a way zipfile does not know
    # What these modules raise at numbers that cannot be.
    ValueError,
    LookupError,
    ArithmeticError,
    struct.error,
    MemoryError,  # packed so that unpacking takes gigabytes
)
_USER_AGENT = f"transfer-cli/{__version__} (Python urllib)"


@dataclass(frozen=True)
class RemoteFile:
    """A file that is known before it is fetched, and its addresses (http or https), best first."""

    name: str
    size_bytes: int
    sha256: str
    addresses: tuple[str, ...]


class _AddressError(Exception):
    """One address does not give the file; the next one may."""


class _BrokenOffError(_AddressError):
    """The connection ended in the middle; asking again may go on from there."""


def fetch(remote: RemoteFile, folder: Path, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Path:
    """Return `folder/NAME`, fetched if it is not there yet.

    Raises:
        DataError: No address gives the right file, the file that lies there is a wrong one, or the
            folder cannot be written.
    """
    with _locked(remote, folder):
        return _fetch(remote, folder, timeout_seconds)


def fetch_archive(
    remote: RemoteFile, folder: Path, wanted: Sequence[str], *, local: Path | None = None
) -> None:
    """Fetch and unpack an archive so that the members `wanted` lie in `folder`.

    Files that lie there already stay as they are. `local` is a copy of the archive, which makes
    fetching unnecessary.

    Raises:
        DataError: As `fetch` and `unpack`, or a wanted member is not in the archive.
    """
    with _locked(remote, folder):
        # Another run may have done it while this one waited for the lock.
        if all((folder / name).is_file() for name in wanted):
            return
        archive = _checked(local, remote) if local else _fetch(remote, folder, TIMEOUT_SECONDS)
        unpack(archive, folder)
    for name in wanted:
        if not (folder / name).is_file():
            raise DataError(f"{archive} holds no {name}. Is it another version of the data set?")


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack a zip file into `folder` and return the files, in the archive's order.

    Nothing appears in `folder` before everything is unpacked; files that lie there already stay.

    Raises:
        DataError: The archive is damaged, or has a member that is a link or special file or whose
            path leads out of `folder`.
    """
    log.info("Unpacking %s", archive)
    try:
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder) as temporary:
            names = _extract(archive, Path(temporary))
            return [_place(Path(temporary) / name, folder / name) for name in names]
    except OSError as error:
        raise _cannot_write(folder, error) from error


@contextmanager
def _locked(remote: RemoteFile, folder: Path) -> Iterator[None]:
    """Hold the lock that keeps two runs from fetching the same file into the same folder."""
    try:
        with locked(folder / remote.name):
            yield
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _fault(path: Path, remote: RemoteFile) -> str:
    """Return what is wrong with the file's size or content, or "" when it is the right file."""
    size = path.stat().st_size
    if size != remote.size_bytes:
        return f"it has {size:,} bytes, expected {remote.size_bytes:,}"
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if found == remote.sha256 else f"its SHA-256 is {found}, expected {remote.sha256}"


def _checked(path: Path, remote: RemoteFile) -> Path:
    wrong = _fault(path, remote)
    if wrong:
        raise DataError(f"{path} is not the file it should be: {wrong}. Delete it and retry.")
    return path


def _fetch(remote: RemoteFile, folder: Path, timeout_seconds: float) -> Path:
    target = folder / remote.name
    if target.exists():
        return _checked(target, remote)
    part = folder / f"{remote.name}.part"
    problems = []
    for address in remote.addresses:
        try:
            _fetch_from(address, remote, part, timeout_seconds)
        except _AddressError as error:
            problems.append(f"{address}: {error}")
            log.warning("Could not fetch %s: %s", address, error)
            continue
        part.replace(target)
        return target
    raise DataError(
        f"Cannot fetch {remote.name} ({'; '.join(problems)}). By hand: get this file of "
        f"{remote.size_bytes:,} bytes with SHA-256 {remote.sha256}, put it at {target}, and retry."
    )


def _fetch_from(address: str, remote: RemoteFile, part: Path, timeout_seconds: float) -> None:
    """Make `part` the complete, checked file, going on with what is there."""
    resumed = part.exists()
    _complete(address, remote, part, timeout_seconds)
    wrong = _fault(part, remote)
    if wrong and resumed:
        # The beginning came from an earlier start, and may be what was wrong.
        part.unlink()
        _complete(address, remote, part, timeout_seconds)
        wrong = _fault(part, remote)
    if wrong:
        part.unlink()
        raise _AddressError(f"not the right file, {wrong}")


def _complete(address: str, remote: RemoteFile, part: Path, timeout_seconds: float) -> None:
    """Receive until `part` has the full size, as long as asking again gets further."""
    furthest = _size(part)
    tries_left = _TRIES_WITHOUT_PROGRESS
    while _size(part) != remote.size_bytes:
        try:
            _receive(address, remote, part, timeout_seconds)
        except _BrokenOffError:
            if _size(part) > furthest:
                furthest, tries_left = _size(part), _TRIES_WITHOUT_PROGRESS
                continue
            tries_left -= 1
            if not tries_left:
                raise
            time.sleep(0.5)


def _receive(address: str, remote: RemoteFile, part: Path, timeout_seconds: float) -> None:
    """Ask once and append what comes to `part`."""
    start = _size(part)
    if start > remote.size_bytes:
        part.unlink()
        start = 0
    response = _open(address, start, timeout_seconds)
    with response:
        if response.status != http.client.PARTIAL_CONTENT:
            start = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            part.unlink()
            raise _BrokenOffError("the server sent another part than the one asked for")
        announced = response.headers.get("Content-Length", "")[:_MOST_DIGITS]
        expected = remote.size_bytes - start
        if announced.isdecimal() and int(announced) != expected:
            raise _AddressError(
                f"not the right file, it has {start + int(announced):,} bytes, "
                f"expected {remote.size_bytes:,}"
            )
        end = _write(response, remote, part, start)
    if end > remote.size_bytes:
        part.unlink()
        raise _AddressError(f"not the right file, longer than {remote.size_bytes:,} bytes")
    if end < remote.size_bytes:
        raise _BrokenOffError(f"broken off after {end:,} of {remote.size_bytes:,} bytes")


def _open(address: str, start: int, timeout_seconds: float) -> http.client.HTTPResponse:
    if not address.startswith(("http://", "https://")):
        raise _AddressError("not an http or https address")
    headers = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - checked above
    try:
        response = urllib.request.urlopen(request, timeout=timeout_seconds)  # noqa: S310 - as above
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _AddressError("not the right file, it is shorter than expected") from error
        raise _AddressError(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = str(getattr(error, "reason", error))
        raise _AddressError(reason or type(error).__name__) from error
    return response  # type: ignore[no-any-return]


def _write(response: http.client.HTTPResponse, remote: RemoteFile, part: Path, start: int) -> int:
    """Append the response to the first `start` bytes of `part`; return the size it then has."""
    bar = tqdm(
        desc=remote.name,
        total=remote.size_bytes,
        initial=start,
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        disable=None,  # no bar when standard error is no terminal
    )
    if bar.disable:
        log.info("Fetching %s (%s bytes)", response.url, f"{remote.size_bytes:,}")
    try:
        with bar, part.open("ab" if start else "wb") as file:
            while start <= remote.size_bytes and (chunk := _read(response)):
                file.write(chunk)
                start += len(chunk)
                bar.update(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _cannot_write(part, error) from error
    return start


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(f"broken off ({error or type(error).__name__})") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _cannot_write(path: Path, error: OSError) -> DataError:
    return DataError(
        f"Cannot write {path} ({error.strerror or error}). "
        "Make room or set data_dir to a folder where you may write."
    )


def _extract(archive: Path, folder: Path) -> list[PurePosixPath]:
    try:
        with zipfile.ZipFile(archive) as zipped:
            members = zipped.infolist()
            paths = [_safe_path(member, archive) for member in members]
            _check_size(archive, members)
            files = [pair for pair in zip(paths, members, strict=True) if not pair[1].is_dir()]
            for path, member in files:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                with zipped.open(member) as source, (folder / path).open("xb") as target:
                    shutil.copyfileobj(source, target, _CHUNK_BYTES)
                flush(folder / path)
            return [path for path, _ in files]
    except _DAMAGED as error:
        raise DataError(f"{archive} cannot be unpacked ({error}). Delete it and retry.") from error


def _check_size(archive: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse a large archive by its list of members, beyond which `zipfile` reads nothing."""
    if len(members) > MAX_MEMBERS:
        raise DataError(f"{archive} holds more than {MAX_MEMBERS:,} files; refused.")
    most = max(UNPACKED_FREELY_BYTES, MAX_UNPACKED_RATIO * archive.stat().st_size)
    if sum(member.file_size for member in members) > most:
        raise DataError(
            f"{archive} unpacks to more than {MAX_UNPACKED_RATIO} times its size; refused."
        )


def _safe_path(member: zipfile.ZipInfo, archive: Path) -> PurePosixPath:
    name, path = member.filename, PurePosixPath(member.filename)
    # A colon or backslash would mean something on Windows.
    if path.is_absolute() or ".." in path.parts or set(name) & set("\\:\0"):
        raise DataError(f"{archive} holds a path that leads outside ({name!r}); refused.")
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise DataError(f"{archive} holds a link or special file ({name}); refused.")
    return path


def _place(source: Path, target: Path) -> Path:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
    return target
