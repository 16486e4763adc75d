"""Writes the config of a run directory, resolved, and reads it back as plain values.

A run directory may come from a stranger. Nothing in its config is resolved again: `${oc.env:HOME}`
is just these characters, so that it can neither read an environment variable nor call a resolver.
Its last line holds a hash of the others; older configs have none. The objects that it describes are
checked by `config.build`, like all others.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf._utils import get_omega_conf_dumper
from omegaconf.errors import OmegaConfBaseException

from transfer_cli.config.bounded_yaml import MAX_CONFIG_BYTES
from transfer_cli.config.plain_yaml import read_plain
from transfer_cli.config.schema import COMMANDS
from transfer_cli.errors import CheckpointError
from transfer_cli.safe_files import UnreadableError, read_text

_OTHER_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
_HASH = re.compile(r"# hash ([0-9a-f]{16})\n\Z")
_PARTS = ("data", "objective", "optimizer", "schedule", "adaptation")
_OPTIONAL_PARTS = ("model", "tokenizer", "source.data", "adaptation.edits", "adaptation.penalty")
_NAMED_PARTS = ("losses", "streams", "adaptation.edits")


def read_stored(path: Path, command: str, key: str) -> DictConfig:
    """Return the config of a run, its plain values checked against the schema of its command.

    Args:
        command: The command that made the run; if unknown, the schema with all keys is taken.

    Raises:
        CheckpointError: The file is missing, damaged, hostile or the config of something else.
    """
    schema = COMMANDS[command if command in ("pretrain", "finetune") else "finetune"]
    merged: Any = None
    try:
        _check_hash(read_text(path, MAX_CONFIG_BYTES))
        declared = _declared(schema)
        merged = OmegaConf.merge(declared, _literal(read_plain(path)))
        # Texts with an escaped `${` were let through whatever kind is declared; this looks at all.
        OmegaConf.to_container(merged, resolve=True)
        problem = next(_problems(merged, declared), None)
    except OSError as error:
        problem = error.strerror or str(error)
    except (UnreadableError, OmegaConfBaseException) as error:
        problem = str(error).partition("\n")[0]
    if problem is not None:
        raise CheckpointError(f"{key}: {path} is no config of {command}: {problem}")
    config: DictConfig = merged
    return config


def plain_values(config: Any) -> dict[str, Any]:
    """Return a config, composed or as `config.schema` declares it, as plain values, resolved."""
    is_composed = OmegaConf.is_config(config)
    plain: Any = OmegaConf.to_container(config, resolve=True) if is_composed else config
    values: dict[str, Any] = plain if is_composed else dataclasses.asdict(plain)
    return values


def as_yaml(config: Any) -> str:
    """Return a config, resolved or as `config.schema` declares it, as `read_stored` reads it."""
    # Through JSON, since YAML would write an enum or a path with a tag.
    text = json.dumps(plain_values(config), ensure_ascii=False)
    # As OmegaConf itself writes, but for the other line ends of Unicode, which YAML would merge.
    written: str = yaml.dump(
        json.loads(text),
        Dumper=get_omega_conf_dumper(),
        default_flow_style=False,
        allow_unicode=not _OTHER_LINE_ENDS.search(text),
        sort_keys=False,
    )
    return f"{written}# hash {_hash(written)}\n"


@cache
def _declared(schema: type) -> Any:
    return OmegaConf.structured(schema)


def _check_hash(text: str) -> None:
    line = _HASH.search(text)
    if line is not None and line[1] != _hash(text[: line.start()]):
        raise UnreadableError(
            "it is not what was written; if you have changed it on purpose, remove its last line"
        )


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _literal(value: Any) -> Any:
    """Return plain values in which OmegaConf finds no interpolation."""
    if isinstance(value, Mapping):
        return {name: _literal(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    if value == MISSING:
        raise UnreadableError(f"a value is {MISSING}, which stands for none")
    return _escaped(value) if isinstance(value, str) else value


def _escaped(text: str) -> str:
    return re.sub(r"(\\*)\$\{", lambda match: f"{match[1] * 2}\\${{", text)


def _problems(config: Any, declared: Any) -> Iterator[str]:
    """Yield what is missing from a config, or of another kind than its command expects."""
    for name in sorted(OmegaConf.missing_keys(config)):
        yield f"{name} has no value"
    groups = [name for name in declared if OmegaConf.is_dict(declared._get_node(name))]
    for name in (*_PARTS, *groups):
        if not OmegaConf.is_dict(config[name]):
            yield f"{name} is no mapping"
    for name in _OPTIONAL_PARTS:
        part = OmegaConf.select(config, name)
        if part is not None and not OmegaConf.is_dict(part):
            yield f"{name} is no mapping"
    for name in _NAMED_PARTS:
        for member, part in (OmegaConf.select(config, name) or {}).items():
            if part is not None and not OmegaConf.is_dict(part):
                yield f"{name}.{member} is no mapping"
