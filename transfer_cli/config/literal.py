"""Passes texts for a model, and values without a key, through Hydra's grammar unchanged.

Hydra reads `=`, `,`, brackets, quotes and `${` in a value, and OmegaConf `${` and `???` once more.
A text is put into quotes here, or split into parts where quotes do not help; `text_of` joins them.
"""

import re
import shlex
from collections.abc import Sequence
from os.path import expanduser, lexists
from pathlib import Path
from typing import Any

from transfer_cli.errors import ConfigError

_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/:-]*=")
_MISSING = "???"
_PLAIN = re.compile(r"[\w./-]+", re.ASCII)
"""Paths that neither a shell nor Hydra reads otherwise."""

_PATHS = frozenset({
    "run", "init_from", "base", "resume", "run.dir", "input", "output", "other", "data.train",
    "data.validation", "data.test",
})  # fmt: skip

_NOT_PLAIN = re.compile(r"""["'\[\]{}$\\]""")
"""What may mean something to Hydra within a list."""


def with_quoted_lists(words: Sequence[str], lists: Sequence[str]) -> tuple[str, ...]:
    """Return overrides in which each text of a plain list is in quotes, as `<a>` has to be.

    Args:
        words: What was typed.
        lists: Keys of several texts; `[a,b]` is such a list.
    """
    found = []
    for word in words:
        key, _, value = word.partition("=")
        inner = value[1:-1]
        is_list = value.startswith("[") and value.endswith("]") and inner.strip()
        if key.lstrip("+") in lists and is_list and not _NOT_PLAIN.search(inner):
            word = f"{key}=[{','.join(quoted(each.strip()) for each in inner.split(','))}]"
        found.append(word)
    return tuple(found)


def with_quoted_text(words: Sequence[str], start: str) -> tuple[str, ...]:
    """Return overrides in which a text, that is not in quotes yet, is.

    Args:
        words: What was typed. Values in quotes, such as several for a sweep, are left to Hydra.
        start: What begins the override of the text: its key, with the sign of equality.
    """
    return tuple(
        f"{start}{quoted(word[len(start) :])}"
        if word.startswith(start) and not word.startswith((f"{start}'", f'{start}"'))
        else word
        for word in words
    )


def with_quoted_paths(words: Sequence[str]) -> tuple[str, ...]:
    """Return overrides in which what is there under a name that Hydra would read is in quotes."""
    found = []
    for word in words:
        key, _, path = word.partition("=")
        home = expanduser(path)  # noqa: PTH111 - `Path`'s own refuses users that there are not
        if key in _PATHS and not _PLAIN.fullmatch(path) and lexists(home):
            word = f"{key}={quoted(path)}"
        found.append(word)
    return tuple(found)


def as_overrides(
    words: Sequence[str], places: Sequence[str], text: str = "", lists: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return a command's words as overrides, with the texts among them quoted for Hydra.

    Args:
        words: What was typed: `KEY=VALUE`, or a value alone, without a key.
        places: The keys of values that are typed alone, in their order; one that is given with its
            key has no place any more.
        text: The key of a text, which may hold any characters; "": the command takes none.
        lists: Keys of several texts. A single one is quoted; `[a,b]` and `null` are left to Hydra.
    """
    found, alone, texts = [], [], []
    for word in words:
        key, _, value = word.partition("=")
        if not (_KEY.match(word) or (not text and word.startswith(("+", "~")))):
            alone.append(word)
        elif key == text:
            texts.append(value)
        elif key in lists and value and value != "null" and not value.startswith("["):
            found.append(f"{key}=[{_literal(value)}]")
        else:
            found.append(word)
    given = {word.partition("=")[0] for word in found} | ({text} if texts else set())
    free = [key for key in places if key not in given]
    if len(alone) > len(free) and not text:
        shown = alone[len(free)]
        raise ConfigError(
            f"{shown}: expected KEY=VALUE or a flag; a value with a space is written in quotes, "
            "'KEY=two words'"
        )
    if len(alone) > len(free) or len(texts) > 1:
        first, second = [*alone, *texts][-2:]
        raise ConfigError(
            f"{text}: is given 2 times, as {first!r} and {second!r}; a text with spaces is written "
            "in quotes"
        )
    named = [*zip(free, alone, strict=False), *((text, each) for each in texts)]
    return (*found, *(f"{key}={_literal(value)}" for key, value in named))


def text_of(value: Any, key: str) -> str:
    """Return a text as it was typed, with characters that UTF-8 cannot encode replaced."""
    pieces = value if isinstance(value, list) else [value]
    if not all(isinstance(piece, str) for piece in pieces):
        raise ConfigError(f"{key}: must be a text, got {value!r}; put it in quotes")
    return "".join(pieces).encode("utf-8", "replace").decode()


def texts_of(value: Any, key: str) -> list[str]:
    """Return a list of texts: of one for a single text, empty for None."""
    if value is None:
        return []
    if not isinstance(value, list):
        return [text_of(value, key)]
    return [text_of(each, key) for each in value]


def _literal(text: str) -> str:
    """Return a text in Hydra's grammar: in quotes, or as a list of parts without a meaning."""
    if "${" not in text and text != _MISSING:
        return quoted(text)
    pieces = ["?", "??"] if text == _MISSING else re.split(r"(?<=\$)(?=\{)", text)
    return f"[{','.join(map(quoted, pieces))}]"


def as_typed(key: str, path: Path) -> str:
    """Return KEY=PATH as it is pasted into a shell."""
    text = str(path)
    return f"{key}={text}" if _PLAIN.fullmatch(text) else shlex.quote(f"{key}={quoted(text)}")


def quoted(text: str) -> str:
    """Return a text in quotes, as Hydra's grammar reads it; `${` is still an interpolation."""
    # Backslashes count where a quote follows, and nowhere else.
    escaped = re.sub(r"(\\*)'", lambda found: f"{found[1] * 2}\\'", text)
    escaped = re.sub(r"(\\+)\Z", lambda found: found[1] * 2, escaped)
    return f"'{escaped}'"
