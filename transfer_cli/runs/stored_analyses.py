"""What is read of analyses that were written beside a run; `runs.analyses` describes the files."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer_cli.runs.untrusted import error_reason
from transfer_cli.safe_files import UnreadableError, read_bytes, read_json

MOST_BYTES = 2**20
"""Of the JSON; hundreds of runs are read for one report."""

MOST_PICTURE_BYTES = 2 * 2**20
MOST_ANALYSES = 50
MOST_PICTURES = 20
"""Of one analysis."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_FILE = re.compile(rf"({NAME.pattern})\.json")
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class StoredAnalysis:
    """An analysis of one run, by the name of its file; pictures by what each shows."""

    name: str
    content: Mapping[str, Any]
    pictures: Mapping[str, Path]


def read_analyses(folder: Path, problems: list[str]) -> Iterator[StoredAnalysis]:
    """Yield the analyses in a folder by name; add why others cannot be read to `problems`."""
    try:
        names = sorted(
            match[1] for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))
        )
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"{folder}: {error.strerror}")
        return
    if len(names) > MOST_ANALYSES:
        problems.append(f"{folder}: {len(names) - MOST_ANALYSES} of {len(names)} are left out")
    for name in names[:MOST_ANALYSES]:
        path = folder / f"{name}.json"
        try:
            yield StoredAnalysis(name, read_json(path, MOST_BYTES), _pictures(folder, name))
        except (OSError, UnreadableError) as error:
            problems.append(f"{path}: {error_reason(error)}")


def read_picture(path: Path) -> bytes:
    """Return the bytes of a PNG."""
    picture = read_bytes(path, MOST_PICTURE_BYTES)
    check_picture(picture, path.name)
    return picture


def _pictures(folder: Path, name: str) -> dict[str, Path]:
    pattern = re.compile(rf"{name}-({NAME.pattern})\.png")
    matches = (
        (pattern.fullmatch(path.name), path) for path in sorted(folder.glob(f"{name}-*.png"))
    )
    return dict([(match[1], path) for match, path in matches if match][:MOST_PICTURES])


def check_picture(picture: bytes, shows: str) -> None:
    """Refuse what is no PNG, or too large a one."""
    if not picture.startswith(_PNG):
        raise UnreadableError(f"the picture {shows} is no PNG")
    if len(picture) > MOST_PICTURE_BYTES:
        raise UnreadableError(f"it is larger than {MOST_PICTURE_BYTES // 2**10:,} KiB")
