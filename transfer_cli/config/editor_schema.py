"""The JSON schema of files of keys, by which an editor completes, explains and checks them.

It is made from the catalogue (`describe`), and from the types of the classes that options name. A
key may stand nested or with dots, and the name of an option wherever a group stands, as
`config.plain` reads it. Each key has a definition of its own, by its name; `*` is a name of one's
own.
"""

import ast
import re
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from transfer_cli.config import describe
from transfer_cli.config.build import argument_types, is_container
from transfer_cli.config.commands import ALL, CHOICES, TYPED_KEYS
from transfer_cli.config.describe import Key, Option
from transfer_cli.config.plain_yaml import scalar
from transfer_cli.errors import ConfigError

Schema = dict[str, Any]

_KINDS: dict[object, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", Path: "string",
    types.NoneType: "null",
}  # fmt: skip

_DECLARED: dict[str, Schema] = {
    "bool": {"type": "boolean"}, "int": {"type": "integer"}, "float": {"type": "number"},
    "str": {"type": ["string", "number"]}, "None": {"type": "null"}, "list": {"type": "array"},
    "dict": {"type": "object"}, "Any": {},
}  # fmt: skip
"""By the first word of a declared type; a number is read as a text where one is wanted."""

_PLACES = {
    "losses.*": "objective", "losses.*.objective": "objective", "streams.*.data": "data",
    "source.data": "data", "forgetting.data": "data",
}  # fmt: skip
"""Where there is a group in a place of its own."""

_DOTTED = ("resume",)
"""A key whose name begins another, typed with a dot."""

_NAMED = re.compile(r"(losses|streams)\.\w+\.")


def editor_schema(config_dir: Path | None = None) -> Schema:
    """Return the schema, with the options of a folder of one's own as well."""
    options = [option for option in describe.options(config_dir) if not option.shadowed]
    groups: dict[str, list[Option]] = defaultdict(list)
    for option in options:
        groups[option.group].append(option)
    places = {group.replace("/", "."): group for group in groups} | _PLACES
    keys = _keys_of_options(options) | _declared_keys()
    for place, group in _PLACES.items():
        inside = () if place == "losses.*.objective" else f"{group}."
        for key in [key for key in keys if key.startswith(inside)]:
            there = key.replace(group, place, 1)
            keys[there] = _any_of([{"$ref": _reference(key)}, *filter(None, [keys.get(there)])])
    keys = {key: value for key, value in keys.items() if key not in places}
    sections = {above for key in (*keys, *places) for above in describe.parents(key)} | {""}
    names = [*dict.fromkeys((*keys, *places, *sorted(sections)))]
    definitions: dict[str, Schema] = {}
    for name in names:
        if name in places and name.endswith(".data"):
            definitions[name] = {"$ref": _reference("data")}
        elif name in places:
            definitions[name] = _group_schema(name, groups[places[name]], names)
            definitions[f"{name} keys"] = _section_schema(name, names)
        elif name in keys and name in sections and name not in _DOTTED:
            definitions[name] = _any_of([keys[name], _section_schema(name, names)])
        else:
            definitions[name] = keys[name] if name in keys else _section_schema(name, names)
    definitions["forgetting.data"] = {"anyOf": [{"$ref": _reference("data")}, {"type": "string"}]}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A file of keys of transfer",
        **definitions.pop(""),
        "definitions": definitions,
    }


def _reference(name: str) -> str:
    return f"#/definitions/{name}"


def _section_schema(name: str, names: Iterable[str], options: Sequence[Option] = ()) -> Schema:
    """Return a section: the keys below a name, nested or with dots, and nothing else."""
    properties: dict[str, Schema] = {}
    patterns: dict[str, Schema] = {}
    for option in options:
        properties[option.name] = _option_schema(option, name, names)
    prefix = f"{name}." if name else ""
    for key in names:
        if not key or not key.startswith(prefix):
            continue
        inside = key.removeprefix(prefix)
        if "." in inside or inside == "*":
            pattern = re.escape(inside).replace(r"\*", r"\w+")
            patterns[f"^{pattern}$"] = {"$ref": _reference(key)}
        elif inside in properties and properties[inside] != {"$ref": _reference(key)}:
            properties[inside] = {"anyOf": [properties[inside], {"$ref": _reference(key)}]}
        else:
            properties[inside] = {"$ref": _reference(key)}
    return {
        "type": "object",
        "properties": properties,
        "patternProperties": patterns,
        "additionalProperties": False,
    }


def _group_schema(place: str, options: Sequence[Option], names: Sequence[str]) -> Schema:
    """Return what stands at a group: the name of an option, or keys, or both."""
    chosen = {
        "enum": [option.name for option in options],
        "enumDescriptions": [option.line for option in options],
    }
    kinds: list[Schema] = [chosen, {"type": "null"}]
    if place == "adaptation.edits":
        kinds.append({"type": "array", "items": chosen})
    if place != "experiment":
        kinds.append(_section_schema(place, names, options))
    return {"anyOf": kinds}


def _option_schema(option: Option, place: str, names: Iterable[str]) -> Schema:
    """Return the keys below the name of an option: its own, or all at its place."""
    prefix = f"{place}."
    is_whole = option.package == option.group.replace("/", ".") and option.target
    if not is_whole or any(option.choices()):
        inside = f"{place}.{option.name}"
        is_section = any(name.startswith(f"{inside}.") for name in names)
        return {"$ref": _reference(inside if is_section else f"{place} keys")}
    if not option.target.startswith("transfer_cli."):
        return {"type": "object", "description": option.line}  # of a package, which may take more
    keys = {key.name.removeprefix(f"{option.package}.") for key in option.typed_keys()}
    known = [f"{prefix}{key}" for key in sorted(keys)]
    above = {section for key in known for section in describe.parents(key) if section != place}
    key_names = [name for name in (*known, *sorted(above)) if name.startswith(prefix)]
    return {**_section_schema(place, key_names), "description": option.line}


# --- keys --------------------------------------------------------------------------------------


def _declared_keys() -> dict[str, Schema]:
    """Return the keys that commands declare; one of several commands takes what each of them does.

    `losses` and `streams` hold names of one's own, with known keys below.
    """
    declared: dict[str, list[tuple[str, Key]]] = defaultdict(list)
    for command in (name for name, command in ALL.items() if command.composes):
        for name, key in describe.declared_keys(command).items():
            if name not in ("losses", "streams"):
                declared[TYPED_KEYS.get(name, name)].append((command, key))
    keys: dict[str, Schema] = {}
    for name, several in declared.items():
        kind = _any_of([_declared(command, name, key) for command, key in several])
        line = next((key.line for _, key in several if key.line), "")
        keys[name] = {
            **kind,
            **_default(several[0][1].value),
            **({"description": line} if line else {}),
        }
    return keys


def _declared(command: str, name: str, key: Key) -> Schema:
    """Return what a key takes in a command."""
    words = CHOICES.get(f"{command} {name}", CHOICES.get(name, "..."))
    said = key.kind.split(" | ")
    kinds = [_DECLARED[re.split(r"\W", part)[0]] for part in said]
    if words.endswith("..."):
        return _any_of(kinds)
    values = [{"true": True, "false": False}.get(word, word) for word in words.split()]
    one: Schema = {"enum": [*values, None] if {"None", "Any"} & {*said} else values}
    return _any_of([one, {"type": "array", "items": one}]) if key.kind == "Any" else one


def _default(text: str) -> Schema:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {}
    return {} if value is None else {"default": value}


def _keys_of_options(options: Iterable[Option]) -> dict[str, Schema]:
    """Return the keys of all options: of the types of their classes, and of what is written."""
    kinds: dict[str, list[Schema]] = defaultdict(list)
    lines: dict[str, str] = {}
    for option in options:
        typed = _argument_schemas(option)
        for key in option.typed_keys():
            name = _NAMED.sub(r"\1.*.", key.name)
            kinds[name] += [*typed.get(key.name, ()), *_value_schemas(key.value)]
            lines[name] = lines.get(name) or key.line
            if not typed and not key.value:
                kinds[name].append({})
    return {
        name: {**_any_of(several), **({"description": lines[name]} if lines[name] else {})}
        for name, several in kinds.items()
    }


def _argument_schemas(option: Option) -> dict[str, list[Schema]]:
    """Return what the classes that an option names take, by key."""
    typed: dict[str, list[Schema]] = {}
    for target in option.all_keys():
        section, _, last = target.name.rpartition(".")
        if last == "_target_":
            try:
                hints = argument_types(target.value, section)
            except ConfigError:  # of a package that was not named
                continue
            typed |= {f"{section}.{name}": [_hint_schema(hint)] for name, hint in hints.items()}
    return typed


def _value_schemas(text: str) -> Iterator[Schema]:
    """Yield the kind of a value as it is written in a config."""
    if text.startswith(("[", "{")):
        yield {"type": "array" if text[0] == "[" else "object"}
    elif text not in ("", "???"):
        value = scalar(text.strip("\"'")) if text[0] not in "\"'" else text
        yield {"type": _KINDS[type(value)]}


def _hint_schema(hint: Any) -> Schema:
    """Return what a parameter of a class takes; what is no plain value is open."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        # A node that builds an object is nothing that a plain file writes.
        return _any_of(map(_hint_schema, [part for part in parts if not _is_object(part)] or parts))
    if origin is Literal:
        return {"enum": [*parts]}
    if hint in _KINDS:
        return {"type": _KINDS[hint]}
    container = origin or hint
    if not is_container(container):
        return {}
    return {"type": "object" if issubclass(container, Mapping) else "array"}


def _is_object(hint: Any) -> bool:
    return isinstance(hint, type) and hint not in _KINDS and hint.__module__ != "builtins"


def _any_of(several: Iterable[Schema]) -> Schema:
    """Return what takes whatever one of several takes."""
    kinds: list[str] = []
    others: list[Schema] = []
    for schema in several:
        for kind in schema.get("anyOf", [schema]):
            if not kind:
                return {}
            named = kind["type"] if "type" in kind and len(kind) == 1 else []
            kinds += [named] if isinstance(named, str) else named
            others += [kind] if not named and kind not in others else []
    kinds = [*dict.fromkeys(kinds)]
    schemas = [*others, *([{"type": kinds if len(kinds) > 1 else kinds[0]}] if kinds else [])]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else {}
