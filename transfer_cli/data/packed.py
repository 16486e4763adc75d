"""The content of files packed by gzip, xz or zstd, in bounded memory for any file."""

import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zstandard

from transfer_cli.errors import DataError

MAX_UNPACKED_RATIO = 200
"""A packed file that grows more than this, beyond the first GiB, is no text: texts grow three to
ten times, logs and tables fifty times."""

UNPACKED_FREELY_BYTES = 2**30
"""Any packed file may unpack to this size: a small one may repeat a line on purpose."""

MAX_WINDOW_BYTES = 2**28
"""Memory that unpacking may take. Files of `xz -9` need 64 MiB, of `zstd --ultra -22` 128 MiB."""


PACKINGS: Mapping[str, tuple[Callable[[], Any], int]] = {
    # 1032 times as much comes out, at most.
    ".gz": (lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), 2**15),
    # About 7000 times.
    ".xz": (lambda: lzma.LZMADecompressor(memlimit=MAX_WINDOW_BYTES), 2**12),
    # A block of 4 bytes can unpack to 128 KiB.
    ".zst": (
        lambda: zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj(), 2**12
    ),
}  # fmt: skip
"""Suffix -> the unpacker of a piece, and how many bytes to give it: at most 128 MiB come out."""


class Unpacked(io.RawIOBase):
    """Unpacked content of a file of any number of packed pieces.

    The libraries' own readers use as much memory as the file demands, or take a file that was cut
    off for a complete one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin, self._read_bytes = PACKINGS[path.suffix]
        self._source = path.open("rb")
        self._piece: Any = None
        self._ready = memoryview(b"")
        self._num_packed = self._num_unpacked = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any buffer
        """Fill a buffer with unpacked bytes; return how many, 0 at the end."""
        while not self._ready:
            packed = self._source.read(self._read_bytes)
            if not packed:
                if self._piece is not None:
                    raise EOFError("the file ends too early")
                return 0
            self._ready = memoryview(self._unpack(packed))
            self._num_packed += len(packed)
            self._num_unpacked += len(self._ready)
            most = max(UNPACKED_FREELY_BYTES, MAX_UNPACKED_RATIO * self._num_packed)
            if self._num_unpacked > most:
                raise DataError(
                    f"{self._path}: unpacks to more than {MAX_UNPACKED_RATIO} times its size, "
                    "which no text does. If it is right, unpack it yourself and name the unpacked "
                    "file."
                )
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        """Close the packed file."""
        self._source.close()
        super().close()

    def _unpack(self, packed: bytes) -> bytes:
        unpacked = []
        while packed:
            if self._piece is None:
                packed = packed.lstrip(b"\0")  # pieces may be filled up with zeros
                if not packed:
                    break
                self._piece = self._begin()
            unpacked.append(self._piece.decompress(packed))
            packed = b""
            if self._piece.eof:
                packed = self._piece.unused_data
                self._piece = None
        return b"".join(unpacked)
