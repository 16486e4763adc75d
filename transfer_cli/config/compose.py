"""Composes the config of a command line.

Hydra puts files and overrides together, and does nothing else: it calls no class and no callback,
sets up no log and writes no file. The loop over jobs is ours (`sweep`), and so are the error
messages (`config.explain`). Its loader is called directly, since its compose API finds no primary
config in a folder of one's own.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from transfer_cli.config import schema
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.explain import explain
from transfer_cli.config.flags import Request
from transfer_cli.config.locate import conf_dir
from transfer_cli.errors import ConfigError, TransferError
from transfer_cli.terminal import Column, Line, Page, TextTable

VERSION_BASE = "1.3"

_HYDRAS = ("hydra.", "hydra/")
_TAKEN = ("hydra/launcher=", "hydra.launcher.", "hydra.sweep.dir=", "hydra.mode=")
"""What may be typed of Hydra's own keys: who runs the jobs of a sweep, and where."""


@dataclass(frozen=True)
class Composed:
    """A config, and how it came about.

    Args:
        config: The config of the command.
        typed: What was typed and chosen.
        hydra: Hydra's own node, in which a sweep finds its launcher.
    """

    config: DictConfig
    typed: CommandLine
    hydra: DictConfig


def composed(command: str, request: Request, words: Sequence[str] | None = None) -> Composed:
    """Return the config of a command line, or of a job of a sweep.

    Args:
        command: The name of the command.
        request: What was typed.
        words: The overrides of the job; None: those that were typed.
    """
    overrides = request.overrides if words is None else tuple(words)
    with _explained(command, request):
        _check(request)
        whole = compose(command, replace(request, overrides=overrides), return_hydra_config=True)
        settings = whole.hydra
        with open_dict(whole):
            del whole["hydra"]
        for key in ("callbacks", "job.env_set"):
            if OmegaConf.select(settings, key):
                raise ConfigError(
                    f"hydra.{key}: a config calls nothing and sets no environment variables; "
                    "leave it out"
                )
    presets = {
        str(group): str(option)
        for group, option in sorted(settings.runtime.choices.items())
        if option is not None and not str(group).startswith(("hydra/", "schema"))
    }
    typed = CommandLine(tuple(without_hydras(overrides)), presets, request.config_dir)
    return Composed(whole, typed, settings)


def parsed(command: str, request: Request, words: Iterable[str]) -> list[Override]:
    """Return overrides as Hydra's grammar reads them."""
    with _explained(command, request):
        _check(request)
        return OverridesParser.create().parse_overrides(list(words))


def shown(command: str, request: Request) -> Page:
    """Return what `--cfg job` or `--info defaults` prints."""
    with _explained(command, request):
        _check(request)
        if request.shows == "defaults":
            return Page(_defaults(command, request))
        config = compose(command, request)
        whole = request.package in (None, "_global_")
        part = config if whole else OmegaConf.select(config, str(request.package))
        if part is None:
            raise ConfigError(f"--package {request.package}: there is no such part in the config")
        if not OmegaConf.is_config(part):
            return Page(Line(str(part)))
        text = OmegaConf.to_yaml(part, resolve=request.resolve)
        head = () if whole else (Line(f"# @package {request.package}"),)
        return Page(*head, *map(Line, text.splitlines()))


def compose(command: str, request: Request, *, return_hydra_config: bool = False) -> DictConfig:
    """Return the config of `command` that `request` asks for; raises whatever Hydra raises."""
    name, overrides = request.config_name or command, list(request.overrides)
    config = _loader(request.config_dir).load_configuration(name, overrides, RunMode.RUN)
    if not return_hydra_config:
        with open_dict(config):
            del config["hydra"]
    return config


def check_folder(request: Request) -> None:
    """Refuse a folder of own configs that does not exist."""
    if request.config_dir is not None and not request.config_dir.is_dir():
        raise ConfigError(f"--config-dir: there is no folder {request.config_dir}")


def without_hydras(words: Iterable[str]) -> list[str]:
    """Return overrides but for those of Hydra's own keys."""
    return [word for word in words if not word.lstrip("+~").startswith(_HYDRAS)]


def _loader(config_dir: Path | None) -> ConfigLoaderImpl:
    """Return what finds our configs, and after them those of a folder of one's own."""
    version.setbase(VERSION_BASE)
    setup_globals()  # the resolvers that configs of one's own may use, such as `now`
    schema.register()
    path = create_config_search_path(str(conf_dir()))
    if config_dir is not None:
        path.prepend("command-line", f"file://{config_dir.resolve()}", SearchPathQuery("schema"))
    return ConfigLoaderImpl(path)


def _defaults(command: str, request: Request) -> TextTable:
    name, overrides = request.config_name or command, list(request.overrides)
    loader = _loader(request.config_dir)
    listed = loader.compute_defaults_list(name, overrides, RunMode.RUN).defaults
    rows = [
        [entry.config_path or "", entry.package or "", str(bool(entry.is_self)), entry.parent or ""]
        for entry in listed
        if not str(entry.config_path).startswith("hydra/")
    ]
    return TextTable([Column(t) for t in ("Config path", "Package", "_self_", "Parent")], rows)


@contextmanager
def _explained(command: str, request: Request) -> Iterator[None]:
    """Turn whatever goes wrong while composing into one line."""
    try:
        yield
    except TransferError:
        raise  # said already
    except Exception as error:
        raise ConfigError(explain(error, command, request)) from error


def _check(request: Request) -> None:
    """Refuse overrides without a key or value, and keys of Hydra's that do nothing here.

    The former come of empty shell variables, mostly.
    """
    check_folder(request)
    for word in request.overrides:
        key, equals, value = word.partition("=")
        bare = word.lstrip("+~")
        if not key.strip("+~"):
            raise ConfigError(f"{word}: expected KEY=VALUE, with no space around =")
        if equals and not value:
            raise ConfigError(f"{key}: has no value. For none at all write {key}=null")
        if bare.startswith(_HYDRAS) and not bare.startswith(_TAKEN):
            raise ConfigError(
                f"{key}: Hydra composes configs here and does nothing else; of its own keys, "
                "hydra/launcher and hydra.launcher.KEY can be typed"
            )
