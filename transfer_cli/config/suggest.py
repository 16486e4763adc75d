"""Which key is meant by a name that a command does not know.

People type the last part of a key, or what other libraries call it. Nothing is said rather than a
wrong guess.
"""

import difflib
from collections.abc import Set
from functools import cache
from pathlib import Path

from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.describe import groups_of, keys_and_options, options


@cache
def other_words(section: str) -> dict[str, tuple[str, ...]]:
    """Return a section of `conf/other_words.yaml`: what is meant, or to be said -> words for it."""
    from transfer_cli.config.bounded_yaml import PARSER  # which imports YAML: help needs none

    text = (conf_dir() / "other_words.yaml").read_text(encoding="utf-8")
    entries = PARSER(text).get_single_data()[section].items()
    pairs = entries if section == "keys" else ((line, words) for words, line in entries)
    return {meant: tuple(words.split()) for meant, words in pairs}


_SECTIONS = (
    "loop", "optimizer", "schedule", "data", "objective", "model", "run", "checkpoint",
    "adaptation",
)  # fmt: skip
"""Where a name is looked for, in this order: a part that all runs have comes first."""


def suggest_key(name: str, command: str, config_dir: Path | None = None) -> str:
    """Return " Did you mean 'optimizer.lr'?" for a name such as `lr`; "" where none is meant."""
    known = {key for key, _ in keys_and_options(command, config_dir)}
    section, _, last = name.rpartition(".")
    if advice := _advice(last, "absent"):
        return advice
    leaves = {key.rpartition(".")[2] for key in known if key.startswith(_SECTIONS)}
    close = [last] if section else difflib.get_close_matches(name, leaves, n=1, cutoff=0.85)
    key = next(filter(None, (_key_of(word, known) for word in (name, *close))), "")
    if not key:
        groups = groups_of(command)
        named = (o.group for o in options(config_dir) if o.name == name)
        group = min((g for g in named if g.partition("/")[0] in groups), key=len, default="")
        key = f"{group}={name}" if group else ""
    return f" Did you mean {key!r}?" if key else ""


def suggest_command(word: str) -> str:
    """Return what to type in place of a command that there is not; "" where that is not known."""
    return _advice(word, "commands") or _advice(word.replace("-", "_"), "absent")


def _advice(word: str, section: str) -> str:
    advice = next((line for line, words in other_words(section).items() if word in words), "")
    return f" {advice[:1].upper()}{advice[1:]}" if advice else ""


def options_with(key: str, command: str, config_dir: Path | None = None) -> list[str]:
    """Return the options that bring a key of a command, as they are typed."""
    return sorted(
        {option for known, option in keys_and_options(command, config_dir) if known == key} - {""}
    )


def _key_of(name: str, known: Set[str]) -> str:
    named = (key for key, others in other_words("keys").items() if name in others)
    for whole in (name, *named):
        if whole.partition("=")[0] in known:
            return whole
    for section in _SECTIONS:
        inside = [k for k in known if k.startswith(f"{section}.") and k.endswith(f".{name}")]
        if inside and (section != "adaptation" or len(inside) == 1):
            return min(inside, key=lambda key: (key.count("."), key))
    return ""
