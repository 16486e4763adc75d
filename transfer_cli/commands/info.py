"""`transfer info`: versions, devices, caches."""

import json
import os
from pathlib import Path
from typing import Any

from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.flags import SWITCH, read_flags
from transfer_cli.data.folders import cache_folder, data_folder
from transfer_cli.reports import formats
from transfer_cli.runs.environment import environment
from transfer_cli.terminal import BLANK, Entry, Line, Page, Piece, Renderable, print_out


def info(words: list[str]) -> None:
    """Print what the toolkit runs on and where it keeps things, for people or as JSON."""
    flags = read_flags(words, {"--json": SWITCH})
    facts = {**environment(), "folders": _folders()}
    if flags.json:
        print(json.dumps(facts, indent=2))
    else:
        print_out(_page(facts))


def _folders() -> list[dict[str, Any]]:
    data_dir = os.environ.get("TRANSFER_DATA") or "~/.cache/transfer"
    data = data_folder(data_dir)
    places = {
        "data": (data, "set by TRANSFER_DATA or data_dir="),
        "cache": (cache_folder(data_dir), "tokenizers and encoded text; may be deleted"),
        "configs": (conf_dir(), "transfer presets lists them"),
    }
    return [
        {"name": name, "path": str(path), "size_bytes": _size_bytes(path), "note": note}
        for name, (path, note) in places.items()
    ]


def _size_bytes(folder: Path) -> int | None:
    """Return the size of the files under `folder`, None where there is no such folder."""
    if not folder.is_dir():
        return None
    files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    # A running command may remove its temporary files while we look.
    return sum(file.lstat().st_size for file in files if file.is_file())


def _page(facts: dict[str, Any]) -> Page:
    blocks: list[Renderable] = [_title("versions")]
    blocks += [_entry(name, version) for name, version in facts["versions"].items()]
    blocks += [BLANK, _title("devices"), _entry("cpu", f"{facts['threads']} threads")]
    blocks += [_entry(f"cuda:{number}", name) for number, name in enumerate(facts["gpus"])]
    if not facts["gpus"]:
        blocks.append(_entry("cuda", "none: device=auto means cpu"))
    blocks += [BLANK, _title("folders")]
    for folder in facts["folders"]:
        size = (
            "not there yet" if folder["size_bytes"] is None else formats.size(folder["size_bytes"])
        )
        blocks.append(_entry(folder["name"], f"{folder['path']}  ", f"({size}; {folder['note']})"))
    return Page(*blocks)


def _title(text: str) -> Line:
    return Line(Piece(text, "heading"))


def _entry(name: str, text: str, note: str = "") -> Entry:
    return Entry(["  ", Piece(f"{name:<16}", "name"), " "], [text, Piece(note, "note")], 19)
