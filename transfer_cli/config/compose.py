"""Composes the config of a command line.

Hydra puts files and overrides together, and does nothing else: it calls no class and no callback,
sets up no log and writes no file. The loop over jobs is ours (`sweep`), and so are the error
messages: Hydra's own take several lines, in its own terms and without a cure. Its loader is called
directly, since its compose API finds no primary config in a folder of one's own.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from os.path import lexists
from pathlib import Path

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.errors import MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import Container, DictConfig, OmegaConf, open_dict
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    GrammarParseError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    ValidationError,
)

from transfer_cli.config import describe, schema
from transfer_cli.config.budgets import with_budget
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.flags import Request, quoted_override, takes_one_value
from transfer_cli.config.own_presets import search_path
from transfer_cli.config.suggest import options_with, suggest_key
from transfer_cli.errors import ConfigError, TransferError, did_you_mean, list_names
from transfer_cli.safe_files import UnreadableError, read_text
from transfer_cli.terminal import Column, Line, Page, TextTable

VERSION_BASE = "1.3"

_HYDRA_KEYS = ("hydra.", "hydra/", "hydra=")
_ALLOWED = ("hydra/launcher=", "hydra.launcher.", "hydra.sweep.dir=", "hydra.mode=")
"""What may be typed of Hydra's own keys: who runs the jobs of a sweep, and where."""


@dataclass(frozen=True)
class Composition:
    """A config, and how it came about; in Hydra's own node a sweep finds its launcher."""

    config: DictConfig
    typed: CommandLine
    hydra: DictConfig


def compose(command: str, request: Request, words: Sequence[str] | None = None) -> Composition:
    """Return the config of a command line, or of a job of a sweep, whose overrides are `words`."""
    typed_words = request.overrides if words is None else tuple(words)
    with as_config_error(command, request):
        overrides = with_budget(command, typed_words)
        _check(request)
        whole = load_config(command, replace(request, overrides=overrides), keep_hydra=True)
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
    typed = CommandLine(
        tuple(without_hydra_keys(overrides)), presets, request.config_dir, request.plugins
    )
    return Composition(whole, typed, settings)


def parsed_overrides(command: str, request: Request, words: Iterable[str]) -> list[Override]:
    """Return overrides as Hydra's grammar reads them."""
    with as_config_error(command, request):
        _check(request)
        return OverridesParser.create().parse_overrides(list(words))


def config_page(command: str, request: Request) -> Page:
    """Return what `--cfg job` or `--info defaults` prints."""
    with as_config_error(command, request):
        _check(request)
        if request.shows == "defaults":
            return Page(_defaults(command, request))
        config = load_config(command, request)
        whole = request.package in (None, "_global_")
        part = config if whole else OmegaConf.select(config, str(request.package))
        if part is None:
            raise ConfigError(f"--package {request.package}: there is no such part in the config")
        if not OmegaConf.is_config(part):
            return Page(Line(str(part)))
        text = OmegaConf.to_yaml(part, resolve=request.resolve)
        head = () if whole else (Line(f"# @package {request.package}"),)
        return Page(*head, *map(Line, text.splitlines()))


def load_config(command: str, request: Request, *, keep_hydra: bool = False) -> DictConfig:
    """Return the config of `command` that `request` asks for; raises whatever Hydra raises."""
    name, overrides = request.config_name or command, list(request.overrides)
    config = _loader(request.config_dir).load_configuration(name, overrides, RunMode.RUN)
    for group, option in config.hydra.runtime.choices.items():
        if str(option).startswith("_"):  # a file that others include, and no option
            path = f"{group.partition('@')[0]}/{option}"
            raise MissingConfigException(f"Could not find '{path}'", path)
    if not keep_hydra:
        with open_dict(config):
            del config["hydra"]
    _name_by_text(config)
    return config


def _name_by_text(node: Container) -> None:
    """Name by a text what Hydra has named by a number, or by true: labels of data are such."""
    if not all(isinstance(name, str) for name in node):
        with open_dict(node):
            for name in [*node]:
                value = node._get_node(name)
                del node[name]
                node[str(name).lower() if isinstance(name, bool) else str(name)] = value
    for name in node:
        below = node._get_node(name)
        if isinstance(below, DictConfig) and isinstance(below._content, dict):
            _name_by_text(below)


def check_config_dir(request: Request) -> None:
    """Refuse a folder of own configs that does not exist."""
    if request.config_dir is not None and not request.config_dir.is_dir():
        raise ConfigError(f"--config-dir: there is no folder {request.config_dir}")


def without_hydra_keys(words: Iterable[str]) -> list[str]:
    """Return overrides but for those of Hydra's own keys."""
    return [word for word in words if not word.lstrip("+~").startswith(_HYDRA_KEYS)]


def _loader(config_dir: Path | None) -> ConfigLoaderImpl:
    """Return what finds our configs, and after them those of a folder of one's own."""
    version.setbase(VERSION_BASE)
    setup_globals()  # the resolvers that configs of one's own may use, such as `now`
    schema.register()
    path = create_config_search_path(str(conf_dir()))
    if config_dir is not None:
        path.prepend("command-line", search_path(config_dir), SearchPathQuery("schema"))
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
def as_config_error(command: str, request: Request) -> Iterator[None]:
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
    check_config_dir(request)
    for word in request.overrides:
        key, equals, value = word.partition("=")
        bare = word.lstrip("+~")
        if not key.strip("+~"):
            raise ConfigError(f"{word}: expected KEY=VALUE, with no space around =")
        if equals and not value:
            raise ConfigError(f"{key}: has no value. For none at all write {key}=null")
        if bare.startswith(_HYDRA_KEYS) and not bare.startswith(_ALLOWED):
            raise ConfigError(
                f"{key}: Hydra composes configs here and does nothing else; of its own keys, "
                "hydra/launcher and hydra.launcher.KEY can be typed"
            )


_TYPES = {
    "Integer": "a whole number",
    "Float": "a number",
    "Boolean": "true or false",
    "String": "text",
}

_HYDRA_MESSAGES = {
    r"Sweep parameters '(.+?)' requires": r"\1: several values need -m (one run for each)",
    r"Multiple values for ([^ ]+)\. To override": (
        r"+\1: is chosen already; drop the + to choose another"
    ),
    r"force-add of config groups is not supported: '\+\+(.+?)'": (
        r"++\1: drop the ++ to choose an option of a group"
    ),
    r"An item is already at '(.+?)'": r"+\1: exists already; drop the + to change it",
    r"Did you mean to override .+?\?\nTo append to your default list use \+(.+)": (
        r"\1: nothing is chosen there yet; write +\1"
    ),
    r"Could not override '(.+?)'\. No match in the defaults list": r"\1: {command} takes none",
    r"Could not delete '(.+?)'\. No match in the defaults list": r"~\1: nothing is chosen there",
    r"Could not delete from config\. '(.+?)' does not exist": r"~\1: no such key",
    r"Unsupported item value in defaults : bool": (
        "a defaults list names an option on, off, yes or no, which YAML reads as a boolean; put it "
        "in quotes"
    ),
}
"""What Hydra says, and what we say instead; the first that matches."""


def explain(error: Exception, command: str, request: Request) -> str:
    """Return one line on an error of Hydra: the key or file, what was found there, what to do."""
    inner = error.__cause__ or error.__context__
    cause = inner if isinstance(inner, OmegaConfBaseException) else error  # Hydra wraps some
    if isinstance(cause, yaml.YAMLError):
        return _broken_yaml(cause)
    if isinstance(cause, UnicodeDecodeError):
        return _not_utf8(request)
    if isinstance(error, OverrideParseException):
        return _broken_override(error.override, command, request)
    if isinstance(error, MissingConfigException):
        return _missing_config(error, command, request)
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return _unknown_key(cause, error, command, request)
    if isinstance(cause, OmegaConfBaseException):
        return _wrong_value(cause, error)
    return _composition(error, command, request)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _file_hint(error: Exception) -> str:
    """Return " (in FILE.yaml)" where Hydra says which file it was reading."""
    file = re.match(r"In '(.+?)':", str(error))
    return f" (in {file[1]}.yaml)" if file else ""


# --- files -------------------------------------------------------------------------------------


def _broken_yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return f"{getattr(error, 'name', 'a config')}: broken YAML: {_first_line(error)}"
    problem = str(error.problem or error.context).replace("\t", "a tab")
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: broken YAML: {problem}"


def _not_utf8(request: Request) -> str:
    for file in _own_files(request):
        try:
            with suppress(OSError):  # such as a link to nowhere, which nothing was read of
                read_text(file)
        except UnreadableError as error:
            return f"{file}: {error}"
    return "a config is not UTF-8"


def _own_files(request: Request) -> list[Path]:
    return sorted(request.config_dir.rglob("*.yaml")) if request.config_dir else []


def _where_named(option: str, request: Request) -> str:
    """Return " (in FILE)" of an option that was not typed: Hydra names the file that it changes."""
    typed = {part for word in request.overrides for part in re.split(r"[=,\[\]]", word)}
    for file in sorted(_own_files(request), key=lambda file: file.stem not in typed):
        with suppress(OSError, UnreadableError):
            if option not in typed and re.search(rf"\b{re.escape(option)}\b", read_text(file)):
                return f" (in {file})"
    return ""


def _missing_config(error: MissingConfigException, command: str, request: Request) -> str:
    text = str(error)
    missing = re.search(r"Could not (?:find|load) '(.+)'", text)
    if missing is None:
        if "primary config" not in text:
            return _first_line(error)
        name = error.missing_cfg_file or "?"
        return f"--config-name: there is no {name}.yaml in conf/ or in --config-dir"
    every = describe.options(request.config_dir)
    known = [option for option in every if missing[1].startswith(f"{option.group}/")]
    hydras = missing[1].rpartition("/")[0]
    group = max((option.group for option in known), key=len, default=hydras)
    name = missing[1].removeprefix(f"{group}/")
    options = dict.fromkeys(option.name for option in known if option.group == group)
    if not options:
        listed = text.partition("Available options in")[2].partition("Config search path")[0]
        options = dict.fromkeys(re.findall(r"^\t(.+)$", listed, re.MULTILINE))
    if not options:
        return f"{missing[1]}: there is no such config; see `transfer {command} --help`"
    if group == "data" and Path(name).is_file():
        return f"{group}={name}: this is a file; type {_data_words(name, command)}"
    where = _where_named(name, request)
    close = did_you_mean(name, options, 0.8 if group == "model" else 0.5)
    if group == "model" and not close and not where:
        close = f" For published weights type init_from=hf:{name}."
    return f"{group}={name}: no such option{where}.{close} There are {', '.join(options)}"


def _data_words(file: str, command: str) -> str:
    option = "text" if command in ("pretrain", "prepare") else "table"
    return f"data={option} data.train={file}"


# --- overrides ---------------------------------------------------------------------------------


def _broken_override(override: str, command: str, request: Request) -> str:
    if override.endswith(","):
        return f"{override}: several values have no space between them: KEY=A,B"
    if "=" not in override:
        if Path(override).is_file():
            return f"{override}: say what it is for, such as {_data_words(override, command)}"
        close = suggest_key(override, command, request.config_dir)
        if close == f" Did you mean {override!r}?":
            return f"{override}: has no value; type {override}=VALUE"
        if not close and Path(override).is_dir():
            close = f" Did you mean 'init_from={override}'?"
        rest = close.replace(" ", ". ", 1) or (
            "; a value with a space is written in quotes, 'KEY=two words'"
        )
        return f"{override}: expected KEY=VALUE or a flag{rest}"
    return (
        f"{override}: a value with special characters needs quotes inside quotes: "
        f"{quoted_override(override)}"
    )


def _unknown_key(
    cause: OmegaConfBaseException, error: Exception, command: str, request: Request
) -> str:
    typed = re.search(r"Could not override '(.+?)'", str(error))
    key, where = str(typed[1] if typed else cause.full_key), _file_hint(error)
    if "/" in str(cause.key):
        return _unknown_group(str(cause.key), request)
    parent = str(cause.full_key).rpartition(".")[0]
    known = map(str, cause.parent_node) if OmegaConf.is_dict(cause.parent_node) else ()
    choices = [name for name in known if not name.startswith("_") and name != "hydra"]
    inside = f" in {parent}" if parent else ""
    owners = options_with(key, command, request.config_dir) if parent and typed else []
    if owners and parent in ("model", "tokenizer") and request.value_of("init_from"):
        return f"{key}: init_from brings its own {parent}; leave {key}= out"
    if owners and not request.multirun:
        have = "has it" if len(owners) == 1 else "have it"
        return f"{key}: no such key with the options that are chosen; {list_names(owners)} {have}"
    if parent == "losses":
        close = _nearest_key(cause, choices, 0.5)
        return f"{key}: there is no such loss.{close} Add one by +objective@{cause.full_key}=OPTION"
    # A slip beside what is meant comes before what others call so.
    slips = [name for name in choices if parent or not name.startswith(key)]
    near = 0.85 if parent else 0.8
    close = _nearest_key(cause, slips, near) if parent or key == cause.full_key else ""
    if not close and not owners:
        close = suggest_key(key, command, None if where else request.config_dir)
    close = close or _nearest_key(cause, choices, 0.6 if parent else 0.75)
    if not close and request.multirun and "," in str(request.value_of(parent)):
        return f"{key}: no such key with every option that is swept; leave it out, or the option"
    if lexists(f"{key}={request.value_of(key)}"):
        close = f" For what is here under that name type ./{key}={request.value_of(key)}"
    if close or not parent or not choices:
        return f"{key}: no such key{inside}{where}.{close}"
    return (
        f"{key}: no such key{inside}{where}. There are {', '.join(choices)}; "
        f"an option that the preset leaves out is given as +{key}=VALUE"
    )


def _nearest_key(cause: OmegaConfBaseException, choices: Sequence[str], cutoff: float) -> str:
    """Return what to type in place of a key, whole, if one beside it is near."""
    parent = str(cause.full_key).rpartition(".")[0]
    close = did_you_mean(str(cause.key), choices, cutoff)
    return close.replace("mean '", f"mean '{parent}.", 1) if parent else close


def _wrong_value(cause: OmegaConfBaseException, error: Exception) -> str:
    where = _file_hint(error)
    key = f"{cause.full_key}: " if cause.full_key else ""
    problem = _first_line(cause)
    if isinstance(cause, ValidationError):
        pattern = r"Value '(.*)' of type '(.+)' could not be converted to (\w+)"
        converted = re.match(pattern, problem)
        if converted:
            value = repr(converted[1]) if converted[2] == "str" else converted[1]
            return f"{key}expected {_TYPES.get(converted[3], converted[3])}, got {value}{where}"
        if "is not Optional" in problem:
            return f"{key}needs a value, got null{where}"
        assigned = re.match(r"Invalid type assigned: .* value: (.*)", problem)
        if assigned:
            return f"{key}is a group of keys, got {assigned[1]}{where}; set {key[:-2]}.KEY=VALUE"
    if isinstance(cause, InterpolationResolutionError | GrammarParseError):
        return f"{key}cannot be filled in{where}: {problem}"
    if "does not support deletion" in problem:
        return f"~{cause.full_key}: cannot be left out"
    return f"{key}{problem}{where}"


def _composition(error: Exception, command: str, request: Request) -> str:
    text = str(error)
    if match := re.search(r"Ambiguous value for argument '(.+?)'", text):
        key = match[1].partition("=")[0].lstrip("+~")
        lists = "" if takes_one_value(key, command) else "; a list is written [a,b]"
        return f"{match[1]}: several values need -m (one run for each){lists}"
    for pattern, message in _HYDRA_MESSAGES.items():
        if match := re.search(pattern, text):
            return match.expand(message.format(command=command))
    if match := re.search(r"but config group '(.+?)' does not exist", text):
        return _unknown_group(match[1], request)
    if "Config group override must be a string or a list" in text:
        return _null_group(request)
    return _first_line(error)


def _unknown_group(group: str, request: Request) -> str:
    groups = dict.fromkeys(option.group for option in describe.options(request.config_dir))
    return f"{group}: no such group.{did_you_mean(group, groups)}"


def _null_group(request: Request) -> str:
    for override in OverridesParser.create().parse_overrides(list(request.overrides)):
        if not isinstance(override.value(), str | list) and "." not in override.key_or_group:
            group = override.key_or_group
            return (
                f"{override.input_line}: expected the name of an option; "
                f"to leave the group out write ~{group}"
            )
    return "a group needs the name of an option"
