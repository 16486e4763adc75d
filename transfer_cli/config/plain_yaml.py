"""Reads a stored config as plain values, from the parser's events alone.

It may come from a stranger, and a report reads hundreds of them. So no interpolation is resolved,
and what a run never writes (anchors, tags, a name twice) is refused.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from transfer_cli.config.bounded_yaml import MAX_CONFIG_BYTES, MAX_CONFIG_NODES, PARSER, error_at
from transfer_cli.earlier_runs import upgrade_config, with_new_names
from transfer_cli.safe_files import MAX_DEPTH, MAX_WHOLE_NUMBER, UnreadableError, read_text

_WORDS = {
    "": None, "~": None, "null": None, "true": True, "false": False,
    ".nan": math.nan, ".inf": math.inf, "-.inf": -math.inf,
}  # fmt: skip
_WHOLE = re.compile(r"[-+]?\d{1,19}")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def read_plain(path: Path) -> dict[str, Any]:
    """Return the stored config in a file, with the names of today; else see `read_mapping`."""
    return upgrade_config(with_new_names(read_mapping(path)))


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a file, if it is such as a run writes."""
    try:
        events = _events(read_text(path, MAX_CONFIG_BYTES))
        first = next(events, None)
        document = _value(first, events, 0) if first is not None else None
        if (second := next(events, None)) is not None:
            raise error_at(second, "a second document")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UnreadableError(f"{line}broken YAML: {reason}") from error
    if not isinstance(document, dict):
        raise UnreadableError("it is no mapping, such as seed: 1 in a line")
    return document


def scalar(text: str) -> Any:
    """Return the value of an unquoted word, as on the command line: 1e-4 is a number."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text) and abs(int(text)) <= MAX_WHOLE_NUMBER:
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _events(text: str) -> Iterator[Any]:
    for number, event in enumerate(yaml.parse(text, Loader=PARSER)):
        if number > MAX_CONFIG_NODES:
            raise error_at(event, f"more than {MAX_CONFIG_NODES:,} values")
        if getattr(event, "anchor", None) is not None:
            raise error_at(event, "an anchor or an alias; write the values out")
        if getattr(event, "tag", None) is not None:
            raise error_at(event, f"the tag {event.tag[:40]!r}, which no run writes")
        if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            yield event


def _value(event: Any, events: Iterator[Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise error_at(event, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(event, yaml.ScalarEvent):
        return scalar(event.value) if event.implicit[0] else event.value
    if isinstance(event, yaml.SequenceStartEvent):
        return [_value(child, events, depth + 1) for child in _until(yaml.SequenceEndEvent, events)]
    mapping: dict[str, Any] = {}
    for key in _until(yaml.MappingEndEvent, events):
        name = _value(key, events, depth + 1)
        if not isinstance(name, str):
            raise error_at(key, f"the name {name!r} is no text; put it in quotes")
        if name in mapping:
            raise error_at(key, f"broken YAML: found duplicate key {name[:40]}")
        mapping[name] = _value(next(events), events, depth + 1)
    return mapping


def _until(end: type, events: Iterator[Any]) -> Iterator[Any]:
    for event in events:
        if isinstance(event, end):
            return
        yield event
