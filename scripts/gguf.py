"""Read a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): values and tensors.

Only what `published_weights.py` needs: little-endian files of version 3, numbers of type F32, F16,
Q8_0 and Q4_1.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
BLOCK = 32
"""How many numbers share a scale."""


@dataclass(frozen=True)
class Contents:
    """A file's values by key, and its tensors by name."""

    values: dict[str, Any]
    tensors: dict[str, Floats]


def read(content: bytes) -> Contents:
    """Return what is in a file.

    Raises:
        SystemExit: It is of another kind.
    """
    file = BytesIO(content)
    magic, version, num_tensors, num_values = struct.unpack("<4sIQQ", file.read(24))
    if (magic, version) != (b"GGUF", 3):
        raise SystemExit(f"no GGUF file of version 3: it begins with {magic!r}, {version}")
    values = {}
    for _ in range(num_values):
        key = _string(file)
        values[key] = _value(file, _number(file, "I"))
    places = []
    for _ in range(num_tensors):
        name = _string(file)
        sizes = [_number(file, "Q") for _ in range(_number(file, "I"))]
        places.append((name, sizes[::-1], _number(file, "I"), _number(file, "Q")))
    alignment = values.get("general.alignment", 32)
    start = -(-file.tell() // alignment) * alignment
    return Contents(
        values,
        {
            name: _numbers(content, start + offset, prod(sizes), kind).reshape(sizes)
            for name, sizes, kind, offset in places
        },
    )


def _number(file: BytesIO, kind: str) -> Any:
    return struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0]


def _string(file: BytesIO) -> str:
    return file.read(_number(file, "Q")).decode("utf-8")


def _value(file: BytesIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        kind, count = _number(file, "I"), _number(file, "Q")
        return [_value(file, kind) for _ in range(count)]
    return _number(file, _SCALARS[kind])


def _plain(dtype: str) -> Callable[[npt.NDArray[np.uint8]], Floats]:
    return lambda raw: raw.view(dtype).astype(np.float32)


def _q8_0(raw: npt.NDArray[np.uint8]) -> Floats:
    """Blocks of a scale and 32 whole numbers."""
    scale = raw[:, :2].view("<f2").astype(np.float32)
    return scale * raw[:, 2:].view(np.int8)


def _q4_1(raw: npt.NDArray[np.uint8]) -> Floats:
    """Blocks of a scale, the smallest number, and 32 halves of bytes: first the lower ones."""
    scale, least = (raw[:, at : at + 2].view("<f2").astype(np.float32) for at in (0, 2))
    halves = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1)
    return scale * halves + least


_KINDS: dict[int, tuple[int, int, Callable[[npt.NDArray[np.uint8]], Floats]]] = {
    0: (1, 4, _plain("<f4")), 1: (1, 2, _plain("<f2")),
    3: (BLOCK, 20, _q4_1), 8: (BLOCK, 34, _q8_0),
}  # fmt: skip
"""Of each type: numbers in a block, bytes of a block, what makes numbers of blocks."""


def _numbers(content: bytes, start: int, count: int, kind: int) -> Floats:
    if kind not in _KINDS:
        raise SystemExit(f"it holds numbers of type {kind}, which are not read")
    numbers, size, convert = _KINDS[kind]
    raw = np.frombuffer(content, np.uint8, count // numbers * size, start)
    return convert(raw.reshape(-1, size))
