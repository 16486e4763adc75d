"""Fetch a file once, complete and unaltered.

A file with its final name is always a checked one. A download is `NAME.part`, which a later start
continues, and which is renamed only when its size and SHA-256 are right.
"""

import hashlib
import http.client
import logging
import shutil
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, build_opener

from transfer_cli import __version__
from transfer_cli.errors import DataError
from transfer_cli.progress import progress
from transfer_cli.runs.atomic import flush, replaced_file
from transfer_cli.runs.cache import locked

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 30.0

_SCHEMES = ("http://", "https://")
_CHUNK_BYTES = 2**16
_TRIES_WITHOUT_PROGRESS = 3
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
    """The connection ended in the middle; a further request may continue."""


def fetch(remote: RemoteFile, folder: Path) -> Path:
    """Return `folder/NAME`, fetched if it is not there yet."""
    with _locked(remote, folder):
        return _fetch(remote, folder)


def fetch_member(remote: RemoteFile, member: str, folder: Path, local: Path | None = None) -> Path:
    """Return `folder/member`, unpacked from a zip file, which is fetched if need be.

    No other archive than the known one is opened: its size and SHA-256 are checked first.

    Args:
        local: A copy of the zip file, which is not moved; None: the one in `folder`.
    """
    target = folder / member
    with _locked(remote, folder):
        # Another run may have unpacked it while this one waited for the lock.
        if not target.is_file():
            archive = _checked(local, remote) if local else _fetch(remote, folder)
            log.info("Unpacking %s from %s", member, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            with (
                zipfile.ZipFile(archive) as zipped,
                zipped.open(member) as packed,
                replaced_file(target) as temporary,
                temporary.open("wb") as file,
            ):
                shutil.copyfileobj(packed, file, _CHUNK_BYTES)
    return target


@contextmanager
def _locked(remote: RemoteFile, folder: Path) -> Iterator[None]:
    """Hold the lock that keeps two runs from fetching the same file into the same folder."""
    try:
        with locked(folder / remote.name):
            yield
    except OSError as error:
        raise DataError(
            f"Cannot write {folder / remote.name} ({error.strerror or error}). "
            "Make room or set data_dir to a folder where you may write."
        ) from error


def _fault(path: Path, remote: RemoteFile) -> str:
    """Return the fault of the file's size or content, or "" if it is the right file."""
    size = path.stat().st_size
    if size != remote.size_bytes:
        return f"it has {size:,} bytes, expected {remote.size_bytes:,}"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if digest == remote.sha256 else f"its SHA-256 is {digest}, expected {remote.sha256}"


def _checked(path: Path, remote: RemoteFile) -> Path:
    wrong = _fault(path, remote)
    if wrong:
        raise DataError(f"{path} is not the file it should be: {wrong}. Delete it and retry.")
    return path


def _fetch(remote: RemoteFile, folder: Path) -> Path:
    target = folder / remote.name
    if target.exists():
        return _checked(target, remote)
    part = folder / f"{remote.name}.part"
    problems = []
    for address in remote.addresses:
        try:
            _fetch_from(address, remote, part)
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


def _fetch_from(address: str, remote: RemoteFile, part: Path) -> None:
    """Make `part` the complete, checked file, continuing an earlier download."""
    for _ in range(1 + part.exists()):
        _complete(address, remote, part)
        wrong = _fault(part, remote)
        if not wrong:
            return
        # Once more where the beginning came from an earlier start: it may be what was wrong.
        part.unlink()
    raise _AddressError(f"not the right file, {wrong}")


def _complete(address: str, remote: RemoteFile, part: Path) -> None:
    """Request until `part` has the full size, as long as a further request adds to it."""
    furthest, failures = _size(part), 0
    while _size(part) < remote.size_bytes:
        try:
            _receive(address, remote, part)
        except _BrokenOffError:
            failures = 0 if _size(part) > furthest else failures + 1
            if failures == _TRIES_WITHOUT_PROGRESS:
                raise
            furthest = max(furthest, _size(part))
            time.sleep(0.5)


def _receive(address: str, remote: RemoteFile, part: Path) -> None:
    """Make one request and append the response to `part`, up to a byte more than it may have."""
    start = _size(part)
    with _open(address, start) as response:
        if response.status != http.client.PARTIAL_CONTENT:
            start = 0
        left = remote.size_bytes - start
        if response.length not in (None, left):
            raise _AddressError(
                f"not the right file, it has {start + response.length:,} bytes, "
                f"expected {remote.size_bytes:,}"
            )
        log.info("Fetching %s (%s bytes)", response.url, f"{remote.size_bytes:,}")
        with (
            progress(remote.name, remote.size_bytes, "B") as more,
            part.open("ab" if start else "wb") as file,
        ):
            more(start)
            while left >= 0 and (chunk := _read(response)):
                file.write(chunk)
                left -= len(chunk)
                more(len(chunk))
    flush(part)
    if left > 0:
        end = remote.size_bytes - left
        raise _BrokenOffError(f"broken off after {end:,} of {remote.size_bytes:,} bytes")


class _ToHttpAlone(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https; urllib would follow one to ftp, too."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        if not newurl.startswith(_SCHEMES):
            raise _AddressError(f"it sends to {newurl[:200]}, which is no http or https address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(address: str, start: int) -> http.client.HTTPResponse:
    if not address.startswith(_SCHEMES):
        raise _AddressError("not an http or https address")
    headers = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = Request(address, headers=headers)  # noqa: S310 - checked above
    try:
        # What it returns has no declared type.
        opened: http.client.HTTPResponse = build_opener(_ToHttpAlone).open(
            request, timeout=TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _AddressError("not the right file, it is shorter than expected") from error
        # Of a loop of redirects, urllib has several lines to say.
        raise _AddressError(f"HTTP {error.code} {' '.join(str(error.reason).split())}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = str(getattr(error, "reason", error))
        raise _AddressError(reason or type(error).__name__) from error
    return opened


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(f"broken off ({error or type(error).__name__})") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
