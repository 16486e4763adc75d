"""The command line of a composing command: overrides, Hydra's flags and two of ours."""

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from transfer_cli.errors import ConfigError, nearest


@dataclass(frozen=True)
class Request:
    """What somebody typed after the name of a command.

    Args:
        overrides: `key=value` words, in order.
        hydra_flags: Hydra's own flags, as they are handed to Hydra.
        asks_help: Whether our help text is wanted.
        multirun: Whether each comma-separated value is a run of its own.
        looks_only: Whether Hydra prints something instead of running the command.
        config_dir: A folder with the user's own configs.
        config_name: The user's own primary config, in place of the command's.
        plugins: Packages whose classes configs may name.
        flags: Those that another process needs to compose and run the same.
    """

    overrides: tuple[str, ...] = ()
    hydra_flags: tuple[str, ...] = ()
    asks_help: bool = False
    multirun: bool = False
    looks_only: bool = False
    config_dir: Path | None = None
    config_name: str | None = None
    plugins: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    def value_of(self, key: str) -> str | None:
        """Return what the last override of `key` says, None where there is none."""
        values = [word[len(key) + 1 :] for word in self.overrides if word.startswith(f"{key}=")]
        return values[-1] if values else None


class FlagParser(argparse.ArgumentParser):
    """A parser that raises where argparse would print a usage and leave."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(message)


def parse(arguments: list[str]) -> Request:
    """Return what `arguments` ask for.

    Raises:
        ConfigError: A flag does not exist or lacks its value.
    """
    parser = _make_parser()
    found, words = parser.parse_known_args(arguments)
    known = [flag for action in parser._actions for flag in action.option_strings]
    for word in words:
        if word.startswith("-"):
            raise ConfigError(f"{word}: no such flag.{nearest(word, known)}")
    if found.config_path:
        raise ConfigError("--config-path: would hide our own configs; use --config-dir")
    hydra_flags = [f"--{name}" for name in ("resolve", "hydra-help") if _get(found, name)]
    for name in ("cfg", "info", "package", "config-dir", "config-name"):
        value = _get(found, name)
        if value is not None:
            hydra_flags += [f"--{name}", str(value)]
    looks_only = bool(found.cfg or found.info or found.hydra_help)
    multirun = found.multirun or (_chooses_sweep(words) and not found.job and not looks_only)
    if multirun:
        hydra_flags.append("--multirun")
    return Request(
        overrides=tuple(words),
        hydra_flags=tuple(hydra_flags),
        asks_help=found.help,
        multirun=multirun,
        looks_only=looks_only,
        config_dir=Path(found.config_dir) if found.config_dir else None,
        config_name=found.config_name,
        plugins=tuple(found.plugin),
        flags=tuple(_shared_flags(found)),
    )


def _chooses_sweep(words: list[str]) -> bool:
    """Return whether a preset of a sweep is chosen, which makes a sweep of the command."""
    chosen = [word.partition("=")[2] for word in words if word.startswith("sweep=")]
    return bool(chosen) and chosen[-1] not in ("", "null")


def _shared_flags(found: argparse.Namespace) -> list[str]:
    words = ["--debug"] if found.debug else []
    for name in ("config-dir", "config-name"):
        if _get(found, name) is not None:
            words += [f"--{name}", str(_get(found, name))]
    for package in found.plugin:
        words += ["--plugin", package]
    if found.job:
        words += ["--job", found.job]
    return words


def _get(found: argparse.Namespace, name: str) -> object:
    return getattr(found, name.replace("-", "_"))


def _make_parser() -> FlagParser:
    parser = FlagParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument(
        "--info",
        "-i",
        nargs="?",
        const="all",
        choices=["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"],
    )
    parser.add_argument("--run", "-r", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-path", "-cp")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("--plugin", action="append", default=[])
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--job")
    return parser


def check_plugins(packages: Iterable[str]) -> None:
    """Let packages of the folder we stand in be imported, and refuse those that cannot be.

    Raises:
        ConfigError: There is no such package.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    for package in packages:
        if not package.isidentifier() or find_spec(package) is None:
            raise ConfigError(
                f"--plugin {package}: no such package is installed or in {Path.cwd()}"
            )


def quoted(override: str) -> str:
    """Return `override` with its value in quotes, as it is typed in a shell."""
    key, _, value = override.partition("=")
    bare = re.sub(r"""^(['"])(.*)\1$""", r"\2", value)
    return f"""'{key}="{bare}"'"""
