"""`transfer presets`: every config group and option, with one line on each."""

import json
from itertools import groupby
from pathlib import Path

from transfer_cli.config.bounded_yaml import check_folder
from transfer_cli.config.describe import PACKAGED, Option, options
from transfer_cli.config.flags import MANY, SWITCH, read
from transfer_cli.errors import ConfigError, nearest
from transfer_cli.terminal import BLANK, Entry, Line, Page, Piece, Renderable, Style, print_out


def presets(words: list[str]) -> None:
    """Print the options of the groups that `words` name, of all where they name none."""
    asked = read(words, {"groups": MANY, "--json": SWITCH, "--config-dir -cd": {}})
    folder = Path(asked.config_dir) if asked.config_dir else None
    if folder is not None:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir: there is no folder {folder}")
        check_folder(folder)
    found = _of_groups(options(folder), asked.groups)
    if asked.json:
        print(_as_json(found))
    else:
        print_out(_page(found))


def _of_groups(found: list[Option], groups: list[str]) -> list[Option]:
    """Return the options of `groups` and of the groups below them."""
    known = dict.fromkeys(option.group for option in found)
    for group in groups:
        if group not in known:
            hint = nearest(group, known) or f" There are {', '.join(known)}"
            raise ConfigError(f"there is no group {group!r}.{hint}")
    inside = tuple(f"{group}/" for group in groups or known)
    return [option for option in found if f"{option.group}/".startswith(inside)]


def _page(found: list[Option]) -> Page:
    column = 4 + max((len(option.name) for option in found), default=0)
    blocks: list[Renderable] = []
    for group, members in groupby(found, key=lambda option: option.group):
        blocks += [BLANK] if blocks else []
        blocks.append(Line(Piece(f"{group}=", "heading")))
        blocks += [_entry(option, column) for option in members]
    return Page(*blocks)


def _entry(option: Option, column: int) -> Entry:
    if option.origin == PACKAGED:
        return Entry(["  ", Piece(option.name, "name")], [option.line], column)
    why = ", not used: a packaged option has this name" if option.shadowed else ""
    note = Piece(f"({option.file}{why})", "note")
    style: Style = "note" if option.shadowed else "own"
    return Entry(["  ", Piece(option.name, style)], [f"{option.line}  ", note], column)


def _as_json(found: list[Option]) -> str:
    records = [
        {
            "group": option.group,
            "option": option.name,
            "description": option.line,
            "target": option.target or None,
            "origin": option.origin,
            "file": str(option.file),
            "used": not option.shadowed,
        }
        for option in found
    ]
    return json.dumps(records, indent=2)
