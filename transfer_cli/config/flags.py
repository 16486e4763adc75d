"""The command line of a composing command: overrides and flags, most of them named as Hydra's."""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from os.path import lexists
from pathlib import Path
from typing import Any, NoReturn

from transfer_cli.config.commands import DECLARED_KEYS
from transfer_cli.config.describe import declared_keys
from transfer_cli.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Request:
    """The parsed command line of a command.

    Args:
        overrides: `key=value` words, in order.
        asks_all: Whether it was `--help all`.
        multirun: Whether each comma-separated value is a run of its own.
        shows: What is printed instead of running the command: "config", "defaults" or nothing.
        resolve: Whether interpolations are filled in where the config is printed.
        config_name: The user's own primary config, in place of the command's.
        files: Files of keys that were named with `--config`.
        flags: Those that another process needs to compose and run the same.
    """

    overrides: tuple[str, ...] = ()
    asks_help: bool = False
    asks_all: bool = False
    multirun: bool = False
    shows: str = ""
    package: str | None = None
    resolve: bool = False
    config_dir: Path | None = None
    config_name: str | None = None
    plugins: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    def value_of(self, key: str) -> str | None:
        """Return the value of the last override of `key`, None if there is none."""
        values = [word[len(key) + 1 :] for word in self.overrides if word.startswith(f"{key}=")]
        return values[-1] if values else None


class _FlagParser(argparse.ArgumentParser):
    """A parser that raises where argparse would print a usage and leave."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(message)


Flags = Mapping[str, Mapping[str, Any]]
"""Names of flags or words -> the arguments of `add_argument`."""

SWITCH = {"action": "store_true"}
MANY = {"nargs": "*"}
REPEATED = {"action": "append", "default": []}

_KEYS_AS_FLAGS = ("html", "nearest")
"""Keys that are typed as flags, too."""

_FLAGS: Flags = {
    "--help -h": SWITCH,
    "--cfg -c": {"choices": ["job"]},
    "--resolve": SWITCH,
    "--package -p": {},
    "--info -i": {"nargs": "?", "const": "defaults", "choices": ["defaults"]},
    "--run -r": SWITCH,
    "--multirun -m": SWITCH,
    "--config-path -cp": {},
    "--config-dir -cd": {},
    "--config-name -cn": {},
    "--plugin": REPEATED,
    "--config": REPEATED,
    "--job": {},
    "--dry --dry-run": SWITCH,
    **{f"--{key}": {} for key in _KEYS_AS_FLAGS},
}

_SPELLINGS = {"--help=all": ("--help", "all")}
"""Flags as people type them too -> as they are read."""

ONE_OPTION = {
    "data", "model", "tokenizer", "objective", "optimizer", "schedule", "adaptation",
    "adaptation/plan", "adaptation/layer_scale", "adaptation/penalty",
}  # fmt: skip
"""Groups that take one option; Hydra would merge two into a mixture."""


def read_flags(words: list[str], known: Flags) -> argparse.Namespace:
    """Return what was typed after a command that composes no config; all have `--debug`."""
    given, others = _read(words, known, "")
    if others:
        raise ConfigError(f"unrecognized arguments: {' '.join(others)}")
    return given


def _read(words: list[str], known: Flags, command: str) -> tuple[argparse.Namespace, list[str]]:
    """Return what was typed for the known flags, and the words that belong to none of them."""
    parser = _FlagParser(add_help=False, allow_abbrev=False)
    flags = {**known, "--debug": SWITCH}
    for names, options in flags.items():
        parser.add_argument(*names.split(), **options)
    given, others = parser.parse_known_intermixed_args(words)
    for word in others:
        if word.startswith("-") and word != "-":  # which is standard input
            name = word.partition("=")[0]
            close = did_you_mean(name, " ".join(flags).split(), 0.7)
            if lexists(word):
                close = f" For what is here under that name type ./{word}"
            raise ConfigError(f"{name}: no such flag.{_key_hint(command, name) or close}")
    return given, others


def _key_hint(command: str, name: str) -> str:
    """Return what to type where a flag was typed that is a key of a command; "": it has none."""
    if not command:
        return ""
    from transfer_cli.config.suggest import suggest_key  # which reads all configs

    hint = suggest_key(name.lstrip("-").replace("-", "_"), command)
    return f" Keys are typed KEY=VALUE, without dashes.{hint}" if hint else ""


def parse_request(arguments: list[str], command: str = "") -> Request:
    """Parse the words after the name of a command, whose keys a mistake may mean."""
    parts = [part for word in arguments for part in _SPELLINGS.get(word, (word,))]
    typed, words = _read(parts, _FLAGS, command)
    asks_all = typed.help and "all" in words
    if asks_all:
        words.remove("all")
    if typed.config_path:
        raise ConfigError("--config-path: would hide our own configs; use --config-dir")
    shows = "config" if typed.cfg else typed.info or ""
    if shows and typed.multirun:
        raise ConfigError("-m: what is shown is the config of one run; leave -m out")
    return Request(
        overrides=tuple(map(_declared, [*words, *_keys_of(typed)])),
        asks_help=typed.help,
        asks_all=asks_all,
        multirun=typed.multirun or (chooses_sweep(words) and not typed.job and not shows),
        shows=shows,
        package=typed.package,
        resolve=typed.resolve,
        config_dir=Path(typed.config_dir) if typed.config_dir else None,
        config_name=typed.config_name,
        plugins=tuple(typed.plugin),
        files=tuple(typed.config),
        flags=tuple(_passed_flags(typed)),
    )


def _keys_of(typed: argparse.Namespace) -> Iterator[str]:
    for key in _KEYS_AS_FLAGS:
        if (value := getattr(typed, key)) is not None:
            yield f"{key}={value}"
    if typed.dry:
        yield "dry=true"


def _declared(word: str) -> str:
    key, equals, value = word.partition("=")
    if key.startswith("resume.") and key not in DECLARED_KEYS:
        raise ConfigError(f"{key}: no such key.{did_you_mean(key, DECLARED_KEYS)}")
    return f"{DECLARED_KEYS.get(key, key)}{equals}{value}"


def chooses_sweep(words: Sequence[str]) -> bool:
    """Return whether a preset, what is swept, or Hydra's mode makes a sweep of the command."""
    makes = r"(?s)\+*(hydra\.mode=['\"]?(RunMode\.)?MULTIRUN['\"]?|sweep\.over=.*)"
    if any(re.fullmatch(makes, word) for word in words):
        return True
    chosen = [word.partition("=")[2] for word in words if word.startswith("sweep=")]
    return bool(chosen) and chosen[-1] not in ("", "null")


def _passed_flags(typed: argparse.Namespace) -> Iterator[str]:
    for name in ("debug", "config_dir", "config_name", "plugin", "job"):
        setting = getattr(typed, name)
        for value in setting if isinstance(setting, list) else [setting]:
            if value is not None and value is not False:
                yield f"--{name.replace('_', '-')}"
                if value is not True:
                    yield value


def refuse_lists(overrides: Iterable[str], command: str) -> None:
    """Refuse `KEY=[A,B]` for a key that has one value."""
    for word in overrides:
        key, _, value = word.partition("=")
        bare = key.lstrip("+~")
        if value.startswith("[") and value.endswith("]") and takes_one_value(bare, command):
            inside = value[1:-1]
            cure = f"write {bare}={inside or 'VALUE'}"
            if "," in inside:
                cure = f"for one after the other type -m {bare}={inside}"
            if bare == "devices":
                cure = "write how many, or auto; which ones says CUDA_VISIBLE_DEVICES"
            raise ConfigError(f"{word}: expected one value, not a list; {cure}")


def takes_one_value(key: str, command: str) -> bool:
    """Return whether a key of a command has one value, as far as its declaration says."""
    declaration = declared_keys(command).get(key)
    return key in ONE_OPTION or (declaration is not None and declaration.takes_one)


def check_plugins(packages: Iterable[str]) -> None:
    """Make packages of the working directory importable, and refuse those that do not exist."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    for package in packages:
        if not package.isidentifier() or find_spec(package) is None:
            raise ConfigError(
                f"--plugin {package}: no such package is installed or in {Path.cwd()}"
            )


def quoted_override(override: str) -> str:
    """Return `override` with its value in quotes, as it is typed in a shell."""
    key, _, value = override.partition("=")
    bare = re.sub(r"""^(['"])(.*)\1$""", r"\2", value)
    return f"""'{key}="{bare}"'"""
