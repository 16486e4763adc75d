"""How files are made hostile: by damage to their bytes, or to the values that they hold.

The fuzz tests (`pytest -k fuzz`) try the same few cases each time, so that they are quick and tell
the same twice. `FUZZ_EXAMPLES=20000 pytest -k fuzz` tries so many, and others each time.
"""

import copy
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transfer_cli.errors import TransferError

_ASKED = int(os.environ.get("FUZZ_EXAMPLES", "0"))

ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**32 - 1, 2**63, 10**30, 1.5, float("nan"), float("inf"), "", "a",
    "???", "${oc.env:HOME}", "${", "\x1b[2J", "\ud800", "x" * 3000, [], [[]], ["a"], {}, {"a": 1},
    {"_target_": "os.system", "command": "true"},
    {"_target_": "transfer_cli.runs.sweep.SweepDirectory", "path": "a"},
    {"_target_": "transfer_cli.optim.schedules.Cosine"},
)  # fmt: skip


def tried(read: Callable[[], object], error: type[TransferError] = TransferError) -> None:
    """Call what reads a file; an error of this type, in one line, is as good as success."""
    said = ""
    try:
        read()
    except error as refusal:
        said = str(refusal)
    assert "\n" not in said


def fuzz(examples: int) -> settings:
    """Return the settings of a fuzz test that tries so many examples in a normal run."""
    return settings(
        max_examples=_ASKED or examples,
        derandomize=not _ASKED,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw bytes that differ from `whole` in a few places, most of them near its beginning."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, min(len(content), 400)) | st.integers(0, len(content)))
        kind = draw(st.sampled_from(["flip", "set", "cut", "insert", "repeat", "end"]))
        if kind == "flip" and place < len(content):
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set":
            content[place : place + 8] = draw(st.sampled_from([b"\xff" * 8, b"\0" * 8, b"9" * 8]))
        elif kind == "cut":
            del content[place : place + draw(st.integers(1, 40))]
        elif kind == "insert":
            content[place:place] = draw(st.binary(min_size=1, max_size=20))
        elif kind == "repeat":
            content[place:place] = content[place : place + 20] * draw(st.integers(1, 50))
        else:
            del content[place:]
    return bytes(content)


@st.composite
def altered(draw: st.DrawFn, whole: Any) -> Any:
    """Draw plain values that differ from `whole` in a few places: gone, odd, or moved."""
    whole = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in _places(whole) if place]
        if not places:
            return whole
        place = draw(st.sampled_from(places))
        parent = _at(whole, place[:-1])
        kind = draw(st.sampled_from(["odd", "odd", "gone", "moved", "added"]))
        if kind == "gone":
            del parent[place[-1]]
        elif kind == "moved":
            parent[place[-1]] = copy.deepcopy(_at(whole, draw(st.sampled_from(places))))
        elif kind == "added" and isinstance(parent, dict):
            name = draw(st.sampled_from(["_target_", "_args_", "_partial_", "x", ""]))
            parent[name] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
        else:
            parent[place[-1]] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
    return whole


def read_with_odd_values(folder: Path, read: Callable[[], object], examples: int) -> None:
    """Read a folder again and again, each time with odd values in one of its JSON and YAML files.

    Args:
        folder: The folder, which is as before in the end.
        read: Reads it; it may raise a `TransferError`, and nothing else.
        examples: How often.
    """
    kinds = {".json": (json.loads, json.dumps), ".yaml": (yaml.safe_load, yaml.safe_dump)}
    files = sorted(path for path in folder.rglob("*") if path.suffix in kinds)

    @fuzz(examples)
    @given(data=st.data())
    def attempt(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(files))
        whole = path.read_bytes()
        load, dump = kinds[path.suffix]
        path.write_text(dump(data.draw(altered(load(whole)))), encoding="utf-8")
        try:
            with suppress(TransferError):
                read()
        finally:
            path.write_bytes(whole)

    attempt()


@contextmanager
def memory_up_to(size_bytes: int) -> Iterator[None]:
    """Fail where Python's own memory grows by more than `size_bytes` at any time."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before <= size_bytes, f"{(peak - before) / 2**20:.0f} MiB"


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, dict):
        for name, child in islice(value.items(), 60):
            yield from _places(child, (*place, name))
    elif isinstance(value, list):
        for number, child in enumerate(value[:5]):
            yield from _places(child, (*place, number))


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        value = value[step]
    return value
