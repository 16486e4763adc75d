"""`transfer info`: versions, devices, caches."""

import json
import os
from pathlib import Path
from typing import Any

from transfer_cli.commands.datasets import cache_folder, data_folder
from transfer_cli.commands.environment import environment
from transfer_cli.config.locate import conf_dir
from transfer_cli.errors import ConfigError, nearest

FLAGS = ("--json", "--debug")
DEFAULT_DATA_DIR = "~/.cache/transfer"

KIBI = 1024


def info(words: list[str]) -> None:
    """Print what the toolkit runs on and where it keeps things, for people or as JSON.

    Raises:
        ConfigError: There is no such flag.
    """
    for word in words:
        if word not in FLAGS:
            raise ConfigError(f"{word}: no such flag.{nearest(word, FLAGS)}")
    facts = {**environment(), "folders": _folders()}
    print(json.dumps(facts, indent=2) if "--json" in words else _as_text(facts))


def _folders() -> list[dict[str, Any]]:
    data_dir = os.environ.get("TRANSFER_DATA") or DEFAULT_DATA_DIR
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
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            file = Path(parent, name)
            # A running command may remove its temporary files while we look.
            total += file.lstat().st_size if file.is_file() else 0
    return total


def _as_text(facts: dict[str, Any]) -> str:
    lines = ["versions"]
    lines += [f"  {name:<16} {version}" for name, version in facts["versions"].items()]
    lines += ["", "devices", f"  {'cpu':<16} {facts['threads']} threads"]
    lines += [f"  {f'cuda:{number}':<16} {name}" for number, name in enumerate(facts["gpus"])]
    if not facts["gpus"]:
        lines.append(f"  {'cuda':<16} none: device=auto means cpu")
    lines += ["", "folders"]
    for folder in facts["folders"]:
        size = "not there yet" if folder["size_bytes"] is None else _shown(folder["size_bytes"])
        lines.append(f"  {folder['name']:<16} {folder['path']}  ({size}; {folder['note']})")
    return "\n".join(lines)


def _shown(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < KIBI:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= KIBI
    return f"{size_bytes:.1f} GiB"
