"""Texts on a command line that mean what is typed, whatever characters they hold.

Hydra reads `=`, `,`, brackets, quotes and `${` in a value, and OmegaConf `${` and `???` once more.
A text for a model is in nobody's grammar: it is put into quotes here, and taken apart where that
does not help (`text_of` puts it together).
"""

import re
from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from transfer_cli.errors import ConfigError

_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/:-]*=")
_MISSING = "???"


def as_overrides(words: Sequence[str], text: str, lists: Sequence[str] = ()) -> tuple[str, ...]:
    """Return a command's words as overrides that Hydra reads as they were meant.

    Args:
        words: What was typed: `KEY=VALUE`, or the text alone, which no key stands in front of.
        text: The key of the text.
        lists: Keys of several texts. One is typed as it is; `[a,b]` and `null` are Hydra's.

    Raises:
        ConfigError: The text is given twice.
    """
    found, texts = [], []
    for word in words:
        key, _, value = word.partition("=")
        if not _KEY.match(word):
            texts.append(word)
        elif key == text:
            texts.append(value)
        elif key in lists and value and value != "null" and not value.startswith("["):
            found.append(f"{key}=[{_literal(value)}]")
        else:
            found.append(word)
    if len(texts) > 1:
        raise ConfigError(
            f"{text}: is given {len(texts)} times, as {texts[0]!r} and {texts[1]!r}; a text with "
            "spaces is written in quotes"
        )
    return (*found, *(f"{text}={_literal(each)}" for each in texts))


def text_of(value: Any, key: str) -> str:
    """Return a text as it was typed, fit to be written as UTF-8.

    Raises:
        ConfigError: It is no text.
    """
    pieces = list(value) if OmegaConf.is_list(value) else [value]
    if not all(isinstance(piece, str) for piece in pieces):
        raise ConfigError(f"{key}: must be a text, got {value!r}; put it in quotes")
    return "".join(pieces).encode("utf-8", "replace").decode()


def texts_of(value: Any, key: str) -> list[str]:
    """Return a list of texts; a text alone is a list of one, and none is an empty list.

    Raises:
        ConfigError: One of them is no text.
    """
    if value is None:
        return []
    if not OmegaConf.is_list(value):
        return [text_of(value, key)]
    return [text_of(each, key) for each in value]


def _literal(text: str) -> str:
    """Return a text as Hydra's grammar writes it: in quotes, or in parts that each mean nothing."""
    if "${" not in text and text != _MISSING:
        return quoted(text)
    pieces = ["?", "??"] if text == _MISSING else re.split(r"(?<=\$)(?=\{)", text)
    return f"[{','.join(map(quoted, pieces))}]"


def quoted(text: str) -> str:
    """Return a text in quotes, as Hydra's grammar reads it; `${` is still an interpolation."""
    # Backslashes count where a quote follows, and nowhere else.
    escaped = re.sub(r"(\\*)'", lambda found: f"{found[1] * 2}\\'", text)
    escaped = re.sub(r"(\\+)\Z", lambda found: found[1] * 2, escaped)
    return f"'{escaped}'"
