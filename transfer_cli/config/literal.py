"""Passes what was typed through Hydra's grammar unchanged: texts, paths, values without a key.

Hydra reads `=`, `,`, brackets, quotes and `${` in a value, and OmegaConf `${` and `???` once more.
A text is put into quotes here, or split into parts where quotes do not help; `text_of` joins them.
"""

import re
import shlex
from collections.abc import Sequence
from os.path import expanduser, lexists
from pathlib import Path
from typing import Any

from transfer_cli.config.commands import Command
from transfer_cli.errors import ConfigError

_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/:-]*=")
_MISSING = "???"
_PLAIN = re.compile(r"[\w./-]+", re.ASCII)
"""Paths that neither a shell nor Hydra reads otherwise."""

_PATHS = frozenset({
    "run", "init_from", "base", "resume", "run.dir", "input", "output", "other", "data.train",
    "data.validation", "data.test", "model.embeddings",
})  # fmt: skip

_NOT_PLAIN = re.compile(r"""["'\[\]{}$\\]""")
"""What may mean something to Hydra within a list."""


def with_quotes(words: Sequence[str], lists: Sequence[str]) -> tuple[str, ...]:
    """Return overrides with quotes where Hydra would read a value otherwise than it was typed.

    These are a text with braces, a path that is there under this name, and each text of a plain
    list, as `<a>` has to be. Values in quotes are left as they are, such as several for a sweep.

    Args:
        lists: Keys of several texts; `[a,b]` is such a list.
    """
    return tuple(_with_quotes(word, lists) for word in words)


def _with_quotes(word: str, lists: Sequence[str]) -> str:
    key, equals, value = word.partition("=")
    inner = value[1:-1]
    is_list = value.startswith("[") and value.endswith("]") and inner.strip()
    if key.lstrip("+") in lists and is_list and not _NOT_PLAIN.search(inner):
        return f"{key}=[{','.join(quoted(text.strip()) for text in inner.split(','))}]"
    home = expanduser(value)  # noqa: PTH111 - `Path`'s own refuses users that there are not
    is_there = key in _PATHS and not _PLAIN.fullmatch(value) and lexists(home)
    # The text with braces that any command may take that composes a run.
    is_text = key == "objective.pattern" and equals and not value.startswith(("'", '"'))
    return f"{key}={quoted(value)}" if is_there or is_text else word


def as_overrides(words: Sequence[str], command: Command) -> tuple[str, ...]:
    """Return a command's words as overrides, with the texts among them quoted for Hydra.

    A word is `KEY=VALUE`, or a value alone: a positional that is given with its key has no place
    any more. Of a key of several texts, `[a,b]` and `null` are left to Hydra.
    """
    text, files = command.text_key, command.files
    overrides, alone, texts = [], [], []
    for word in words:
        key, _, value = word.partition("=")
        if not (_KEY.match(word) or (not text and word.startswith(("+", "~")))):
            alone.append(word)
        elif key == text:
            texts.append(value)
        elif key in command.list_keys and value != "null" and value[:1] not in ("", "["):
            overrides.append(f"{key}=[{_literal(value)}]")
        else:
            overrides.append(word)
    named_keys = {word.partition("=")[0] for word in overrides} | ({text} if texts else set())
    free = [key for key, _ in command.positionals if key not in named_keys]
    several = alone[len(free) - 1 :] if free and free[-1] == files else []
    if len(several) > 1:
        overrides.append(f"{files}=[{','.join(map(_literal, several))}]")
        del alone[len(free) - 1 :], free[-1]
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
    named = [*zip(free, alone, strict=False), *((text, value) for value in texts)]
    return (*overrides, *(f"{key}={_literal(value)}" for key, value in named))


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


def _literal(text: str) -> str:
    """Return a text in Hydra's grammar: in quotes, or as a list of parts without a meaning."""
    if "${" not in text and text != _MISSING:
        return quoted(text)
    pieces = ["?", "??"] if text == _MISSING else re.split(r"(?<=\$)(?=\{)", text)
    return f"[{','.join(map(quoted, pieces))}]"


def path_override(key: str, path: Path) -> str:
    """Return KEY=PATH as it is pasted into a shell."""
    text = str(path)
    return f"{key}={text}" if _PLAIN.fullmatch(text) else shlex.quote(f"{key}={quoted(text)}")


def quoted(text: str) -> str:
    """Return a text in quotes, as Hydra's grammar reads it; `${` is still an interpolation."""
    # Backslashes count where a quote follows, and nowhere else.
    escaped = re.sub(r"(\\*)'", lambda match: f"{match[1] * 2}\\'", text)
    escaped = re.sub(r"(\\+)\Z", lambda match: match[1] * 2, escaped)
    return f"'{escaped}'"
