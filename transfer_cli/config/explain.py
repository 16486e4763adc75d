"""Says in one line what is wrong with a command line or a user's YAML file.

Hydra and OmegaConf know what went wrong, but say it over several lines, in terms of their own, and
leave out the cure.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    GrammarParseError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    ValidationError,
)

from transfer_cli.config import describe
from transfer_cli.config.flags import Request, quoted
from transfer_cli.config.locate import conf_dir
from transfer_cli.errors import nearest

Compose = Callable[[Request], DictConfig]

_TYPES = {
    "Integer": "a whole number",
    "Float": "a number",
    "Boolean": "true or false",
    "String": "text",
}


_OF_HYDRA = {
    r"Ambiguous value for argument '(.+?)'": (
        r"\1: several values need -m (one run for each); a list is written [a,b]"
    ),
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
    r"Could not delete '(.+?)'\. No match in the defaults list": r"~\1: nothing is chosen there",
    r"Could not delete from config\. '(.+?)' does not exist": r"~\1: no such key",
    r"Additional config directory '(.+?)' not found": r"--config-dir: there is no folder \1",
    r"Unsupported item value in defaults : bool": (
        "a defaults list names an option on, off, yes or no, which YAML reads as a boolean; put it "
        "in quotes"
    ),
}
"""What Hydra says, and what we say instead."""


def explain(error: Exception, command: str, request: Request, compose: Compose) -> str:
    """Return one line: the key or file, what was found there, what to do.

    Args:
        error: What Hydra raised.
        command: The command whose config was composed.
        request: What was typed.
        compose: Composes the command's config for another request, for comparison.
    """
    cause = _cause(error)
    if isinstance(cause, yaml.MarkedYAMLError):
        return _broken_yaml(cause)
    if isinstance(cause, yaml.reader.ReaderError):
        return f"{cause.name}: broken YAML: character #x{cause.character:04x} is not allowed"
    if isinstance(cause, UnicodeDecodeError):
        return _not_utf8(cause, request)
    if isinstance(error, OverrideParseException):
        return _broken_override(error)
    if isinstance(error, MissingConfigException):
        return _missing_config(error, command, request)
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return _unknown_key(cause, error, request, compose)
    if isinstance(cause, OmegaConfBaseException):
        return _wrong_value(cause, error)
    return _composition(error, command, request, compose)


def _cause(error: BaseException) -> BaseException:
    """Return the OmegaConf error behind a Hydra error, or the error itself."""
    inner = error.__cause__ or error.__context__
    return inner if isinstance(inner, OmegaConfBaseException) else error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _where(error: Exception) -> str:
    """Return " (in FILE.yaml)" where Hydra says which file it was reading."""
    found = re.match(r"In '(.+?)':", str(error))
    return f" (in {found[1]}.yaml)" if found else ""


# --- files -------------------------------------------------------------------------------------


def _broken_yaml(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    problem = str(error.problem or error.context).replace("\t", "a tab")
    if mark is None:
        return f"broken YAML: {problem}"
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: broken YAML: {problem}"


def _not_utf8(error: UnicodeDecodeError, request: Request) -> str:
    for file in sorted(request.config_dir.rglob("*.yaml")) if request.config_dir else []:
        raw = file.read_bytes()
        try:
            raw.decode()
        except UnicodeDecodeError as found:
            line = raw[: found.start].count(b"\n") + 1
            return f"{file}, line {line}: not UTF-8 (byte 0x{raw[found.start]:02x})"
    return f"a config is not UTF-8: {error.reason}"


def _missing_config(error: MissingConfigException, command: str, request: Request) -> str:
    text = str(error)
    option = re.search(r"Could not find '(.+)'", text)
    listed = text.partition("Available options in")[2].partition("Config search path")[0]
    options = re.findall(r"^\t(.+)$", listed, re.MULTILINE)
    group, _, name = option[1].rpartition("/") if option else ("", "", "")
    if option and option[1].startswith("experiment/"):
        # Experiments lie in folders, of which Hydra lists one at most.
        group, _, name = option[1].partition("/")
        options = _experiments(request)
    if loaded := re.search(r"Could not load '(.+)/([^/]+)'", text):
        group, name = loaded[1], loaded[2]
        found = describe.options(request.config_dir)
        options = [each.name for each in found if each.group == group]
    if options:
        close = nearest(name, options)
        typed = loaded or any(word.rpartition("=")[2] == name for word in request.overrides)
        where = "" if typed else _where(error)
        return f"{group}={name}: no such option{where}.{close} There are {', '.join(options)}"
    if "primary config" in text:
        name = error.missing_cfg_file or "?"
        return f"--config-name: there is no {name}.yaml in conf/ or in --config-dir"
    if option:
        return f"{option[1]}: there is no such config; see `transfer {command} --help`"
    return _first_line(error)


def _experiments(request: Request) -> list[str]:
    """Return the names of all experiments, as people type them."""
    roots = [conf_dir() / "experiment"]
    if request.config_dir is not None:
        roots.append(Path(request.config_dir) / "experiment")
    files = [(root, file) for root in roots for file in sorted(root.rglob("*.yaml"))]
    return [file.relative_to(root).with_suffix("").as_posix() for root, file in files]


# --- overrides ---------------------------------------------------------------------------------


def _broken_override(error: OverrideParseException) -> str:
    override = error.override
    if "=" not in override:
        return (
            f"{override}: expected KEY=VALUE or a flag; a value with a space is written in quotes, "
            "'KEY=two words'"
        )
    return (
        f"{override}: a value with special characters needs quotes inside quotes: "
        f"{quoted(override)}"
    )


def _unknown_key(
    cause: OmegaConfBaseException, error: Exception, request: Request, compose: Compose
) -> str:
    typed = re.search(r"Could not override '(.+?)'", str(error))
    key = typed[1] if typed else str(cause.full_key)
    config = _compose_without(key, request, compose)
    parent, name, choices = _first_unknown(key, config)
    where = _where(error)
    if not name:  # it is there with what the command has by default
        return f"{key}: no such key with every option that is swept; leave it out, or the option"
    inside = f" in {parent}" if parent else ""
    close = nearest(name, choices)
    if close or not parent or not choices:
        return f"{key}: no such key{inside}{where}.{close}"
    return (
        f"{key}: no such key{inside}{where}. There are {', '.join(choices)}; "
        f"an option that the preset leaves out is given as +{key}=VALUE"
    )


def _first_unknown(key: str, config: DictConfig) -> tuple[str, str, list[str]]:
    """Return the node that lacks the next part of `key`, that part, and what it has instead."""
    parent = ""
    node: Any = config
    for name in re.split(r"[./]", key.partition("@")[0]):
        if not OmegaConf.is_dict(node):
            return parent, name, []
        if name not in node:
            return parent, name, [str(each) for each in node if not str(each).startswith("_")]
        node = None if OmegaConf.is_missing(node, name) else node[name]
        parent = f"{parent}.{name}" if parent else name
    return parent, "", []


def _compose_without(key: str, request: Request, compose: Compose) -> DictConfig:
    """Compose without the overrides of `key`; with less where that fails too."""
    others = [word for word in request.overrides if word.lstrip("+~").split("=")[0] != key]
    groups = [word for word in others if "." not in word.split("=")[0]]
    for fewer in (
        replace(request, overrides=tuple(others)),
        replace(request, overrides=tuple(groups)),
        replace(request, overrides=()),
    ):
        try:
            return compose(fewer)
        except (HydraException, OmegaConfBaseException, ValueError, yaml.YAMLError):
            continue
    return compose(Request())


def _wrong_value(cause: OmegaConfBaseException, error: Exception) -> str:
    where = _where(error)
    key = f"{cause.full_key}: " if cause.full_key else ""
    found = _first_line(cause)
    if isinstance(cause, ValidationError):
        converted = re.match(r"Value '(.*)' of type '(.+)' could not be converted to (\w+)", found)
        if converted:
            value = repr(converted[1]) if converted[2] == "str" else converted[1]
            return f"{key}expected {_TYPES.get(converted[3], converted[3])}, got {value}{where}"
        if "is not Optional" in found:
            return f"{key}needs a value, got null{where}"
        assigned = re.match(r"Invalid type assigned: .* value: (.*)", found)
        if assigned:
            return f"{key}is a group of keys, got {assigned[1]}{where}; set {key[:-2]}.KEY=VALUE"
    if isinstance(cause, InterpolationResolutionError | GrammarParseError):
        return f"{key}cannot be filled in{where}: {found}"
    if "does not support deletion" in found:
        return f"~{cause.full_key}: cannot be left out"
    return f"{key}{found}{where}"


def _composition(error: Exception, command: str, request: Request, compose: Compose) -> str:
    text = str(error)
    for pattern, said in _OF_HYDRA.items():
        if found := re.search(pattern, text):
            return found.expand(said)
    if found := re.search(r"Could not override '(.+?)'\. No match in the defaults list", text):
        return f"{found[1]}: {command} takes none"
    if found := re.search(r"but config group '(.+?)' does not exist", text):
        return f"{found[1]}: no such group.{_close_group(found[1], compose)}"
    if "Config group override must be a string or a list" in text:
        return _null_group(request)
    return _first_line(error)


def _close_group(group: str, compose: Compose) -> str:
    return nearest(group, [str(name) for name in _compose_without("", Request(), compose)])


def _null_group(request: Request) -> str:
    for override in OverridesParser.create().parse_overrides(list(request.overrides)):
        if not isinstance(override.value(), str | list) and "." not in override.key_or_group:
            group = override.key_or_group
            return (
                f"{override.input_line}: expected the name of an option; "
                f"to leave the group out write ~{group}"
            )
    return "a group needs the name of an option"
