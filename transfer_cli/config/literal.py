"""Texts and paths as Hydra's grammar has them, and as they were typed.

Hydra reads `=`, `,`, brackets, quotes and `${` in a value, and OmegaConf `${` and `???` once more.
A text is put into quotes here, or split into parts where quotes do not help; `text_of` joins them.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transfer_cli.errors import ConfigError

_MISSING = "???"
PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)
"""Paths that neither a shell nor Hydra reads otherwise."""


def text_of(value: Any, key: str) -> str:
    """Return a text as it was typed, with characters that UTF-8 cannot encode replaced."""
    pieces = list(value) if _is_list(value) else [value]
    if not all(isinstance(piece, str) for piece in pieces):
        raise ConfigError(f"{key}: must be a text, got {value!r}; put it in quotes")
    return "".join(pieces).encode("utf-8", "replace").decode()


def texts_of(value: Any, key: str) -> list[str]:
    """Return a list of texts: of one for a single text, empty for None."""
    texts = value if _is_list(value) else [value]
    return [] if value is None else [text_of(text, key) for text in texts]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def as_literal(text: str) -> str:
    """Return a text in Hydra's grammar: in quotes, or as a list of parts without a meaning."""
    if "${" not in text and text != _MISSING:
        return quoted(text)
    pieces = ["?", "??"] if text == _MISSING else re.split(r"(?<=\$)(?=\{)", text)
    return f"[{','.join(map(quoted, pieces))}]"


def path_override(key: str, path: Path) -> str:
    """Return KEY=PATH as it is pasted into a shell."""
    text = str(path)
    return f"{key}={text}" if PLAIN_PATH.fullmatch(text) else shlex.quote(f"{key}={quoted(text)}")


def quoted(text: str) -> str:
    """Return a text in quotes, as Hydra's grammar reads it; `${` is still an interpolation."""
    # Backslashes count where a quote follows, and nowhere else.
    escaped = re.sub(r"(\\*)'", lambda match: f"{match[1] * 2}\\'", text)
    escaped = re.sub(r"(\\+)\Z", lambda match: match[1] * 2, escaped)
    return f"'{escaped}'"
