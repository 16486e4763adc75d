"""Turns of dialogs, and their files: PersonaChat's, or JSON lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transfer_cli.data import readers
from transfer_cli.data.columns import other_data
from transfer_cli.data.json_tables import json_rows
from transfer_cli.data.records import Record, text_of
from transfer_cli.errors import DataError
from transfer_cli.safe_files import STRICT_JSON

_SPLITS = {"train": "train", "validation": "valid"}
"""What PersonaChat's file calls our splits."""


@dataclass(frozen=True, slots=True)  # there may be millions
class DialogExample:
    """A turn: what the speaker is like, what was said so far, what may follow, and what did.

    The last utterance of the history is the other speaker's; the number of the right candidate
    counts from 0.
    """

    persona: Sequence[str]
    history: Sequence[str]
    choices: Sequence[str]
    label: int | None = None


def read_turns(path: Path) -> dict[str, list[DialogExample]]:
    """Return the turns of each split of a file, by our names; JSON lines are `train` alone."""
    readers.check_readable(path)
    if path.suffix == ".json":
        try:
            whole = STRICT_JSON.decode(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            whole = None  # perhaps lines
        if isinstance(whole, dict) and "train" in whole:
            return {
                name: list(_turns(whole[theirs], f"{path}, {theirs}"))
                for name, theirs in _SPLITS.items()
                if theirs in whole
            }
    turns = [_answered(record.fields, f"{path}, line {record.line}") for record in json_rows(path)]
    if not turns:
        raise DataError(f"{path} has no turns.")
    return {"train": turns}


def turn_of(fields: Mapping[str, object], where: str) -> DialogExample:
    """Return a turn without its answer."""
    persona = _texts(fields, "personality" if "personality" in fields else "persona", where, 0)
    history = _texts(fields, "history", where, 1)
    return DialogExample(persona, history, _texts(fields, "candidates", where, 1))


def _answered(fields: Mapping[str, object], where: str) -> DialogExample:
    found = turn_of(fields, where)
    if len(found.choices) < 2:
        raise DataError(f"{where}: 'candidates' has 1, expected at least 2, the right one last.")
    return replace(found, label=len(found.choices) - 1)


def _turns(dialogs: object, where: str) -> Iterator[DialogExample]:
    """Yield the turns of the dialogs of a split of PersonaChat's file."""
    for number, dialog in enumerate(_list(dialogs, where), 1):
        place = f"{where}, dialog {number}"
        fields = dialog if isinstance(dialog, dict) else {}
        persona = _texts(fields, "personality", place, 0)
        for turn, each in enumerate(_list(fields.get("utterances"), f"{place}: 'utterances'"), 1):
            said = each if isinstance(each, dict) else {}
            yield _answered({**said, "personality": persona}, f"{place}, turn {turn}")


def _texts(fields: Mapping[str, object], name: str, where: str, least: int) -> list[str]:
    found = fields.get(name, [] if least == 0 else None)
    if not isinstance(found, list) or len(found) < least:
        few = f"has {len(found)}" if isinstance(found, list) else "is no list of texts"
        cure = other_data(fields) if name == "history" else ""
        raise DataError(f"{where}: {name!r} {few}, expected at least {least}.{cure}")
    wrong = next((each for each in found if not isinstance(each, str)), None)
    if wrong is not None:
        raise DataError(f"{where}: {name!r} holds {wrong!r:.40}, expected texts.")
    return [text_of(Record(0, {name: each}), name, where) for each in found]


def _list(found: object, where: str) -> list[Any]:
    if not isinstance(found, list) or not found:
        raise DataError(f"{where} is no list with something in it.")
    return found
