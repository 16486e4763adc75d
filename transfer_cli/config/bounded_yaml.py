"""Measures a YAML file before any object is made of it.

A few lines of aliases of aliases can stand for billions of values, which OmegaConf writes out one
by one. The parser's events show that without building anything.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from transfer_cli.errors import ConfigError
from transfer_cli.safe_files import MAX_DEPTH, UnreadableError, read_bytes

MAX_CONFIG_BYTES = 2**20
"""Configs have some kilobytes; PyYAML reads some 100 kB a second."""

MAX_CONFIG_NODES = 100_000
"""Values in a config, with its aliases written out; each of them takes about a kilobyte."""

PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class _Node:
    """A mapping or list that has begun: its anchor, and how many values it holds so far."""

    anchor: str | None
    size: int = 1


def check_size(text: str) -> None:
    """Refuse YAML that is nested too deeply, or too large once its aliases are written out."""
    sizes: dict[str, int] = {}
    open_nodes = [_Node(None)]
    for event in yaml.parse(text, Loader=PARSER):
        if isinstance(event, yaml.AliasEvent):
            if any(node.anchor == event.anchor for node in open_nodes):
                raise error_at(event, f"*{event.anchor} stands inside of what it stands for")
            open_nodes[-1].size += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            open_nodes[-1].size += 1
            sizes[event.anchor or ""] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append(_Node(event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            done = open_nodes.pop()
            open_nodes[-1].size += done.size
            sizes[done.anchor or ""] = done.size
        if len(open_nodes) > MAX_DEPTH + 1:
            raise error_at(event, f"nested deeper than {MAX_DEPTH} levels")
        if open_nodes[-1].size > MAX_CONFIG_NODES:
            raise error_at(event, f"more than {MAX_CONFIG_NODES:,} values, its aliases written out")


def check_file_sizes(folder: Path) -> None:
    """Refuse a folder of configs in which a file is too large to be read.

    Anything else that is wrong with a file is reported when it is used.
    """
    for path in sorted(folder.rglob("*.yaml")):
        try:
            if path.is_file():
                check_size(read_bytes(path, MAX_CONFIG_BYTES).decode("utf-8", "replace"))
        except UnreadableError as error:
            raise ConfigError(
                f"--config-dir: {path} cannot be a config: {error}. Take it out of the folder"
            ) from error
        except (OSError, yaml.YAMLError):
            continue


def error_at(event: yaml.Event, problem: str) -> UnreadableError:
    """Return what is wrong with a file, with the line of an event."""
    return UnreadableError(f"line {event.start_mark.line + 1}: {problem}")
