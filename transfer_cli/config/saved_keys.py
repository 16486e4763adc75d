"""Writes what was typed as a plain file of keys, which `config.key_files` reads as the same."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.types import Override

from transfer_cli.config import describe
from transfer_cli.config.commands import DECLARED_KEYS, TYPED_KEYS, Command
from transfer_cli.config.compose import compose, parsed_overrides
from transfer_cli.config.describe import with_comment
from transfer_cli.config.flags import ONE_OPTION, Request, refuse_lists
from transfer_cli.config.key_files import for_hydra
from transfer_cli.config.literal import text_of
from transfer_cli.config.plain import ChosenOptions, PlainKeys
from transfer_cli.config.plain_yaml import scalar
from transfer_cli.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z_./~](?:[\w./@+*-]|:(?=[\w./]))*", re.ASCII)
"""Texts that YAML reads as they are, if they are no word such as null."""

Levels = tuple[str, ...]

Tree = dict[str, Any]
"""Levels of a file, down to values as YAML has them."""


def key_file_text(name: str, command: Command, request: Request) -> str:
    """Return a file of keys that means what was typed after a command.

    Raises:
        ConfigError: The words are wrong, or a file of keys cannot say one of them.
    """
    refuse_lists(request.overrides, name)
    request = for_hydra(request, command)
    file = _File(PlainKeys(name, request.config_dir), command.text_key)
    for override in parsed_overrides(name, request, request.overrides):
        file.add(override)
    compose(name, request)  # which refuses what is wrong
    return "\n".join(file.lines(file.tree(), ()))


@dataclass
class _File:
    """What a file says: by plain key the options that are chosen, and values as YAML has them."""

    keys: PlainKeys
    text_key: str
    choices: dict[str, ChosenOptions] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    comments: dict[Levels, str] = field(default_factory=dict)

    def add(self, override: Override) -> None:
        """Take what was typed."""
        key, value, line = override.key_or_group, override.value(), str(override.input_line)
        key = TYPED_KEYS.get(key, key)
        group = key.replace(".", "/")
        place = override.package or group.replace("/", ".")
        at = f"{place}.objective" if place.startswith("losses.") else place
        is_choice = self.keys.is_group(group)
        if override.is_sweep_override() or (override.is_delete() and not is_choice):
            raise ConfigError(f"{line}: a file of keys cannot say this; type it beside the file")
        if not is_choice:
            self.values[key] = self._value(key, value, line.partition("=")[2])
        elif self.keys.group_at(at) != (group, place):
            raise ConfigError(f"{line}: a file of keys has no such place; type it beside the file")
        else:
            names = ["null"] if value is None else value if isinstance(value, list) else [value]
            self.choices[at] = ChosenOptions(group, [str(name) for name in names], place)

    def _value(self, key: str, value: Any, typed: str) -> str:
        if key == self.text_key and isinstance(value, list):
            value = text_of(value, key)
        # A number as it was typed, such as 1e-3.
        is_same = not isinstance(value, str) and scalar(typed) == value
        return typed if is_same and re.fullmatch(r"[\w.+-]+", typed) else _as_yaml(value)

    def levels(self, key: str) -> Levels:
        """Return the levels of the file at the end of which a key stands.

        The keys of an option stand below its name. A name that would be read as that of an option
        is written with its dots.
        """
        if key in DECLARED_KEYS:  # no key of the group or of a section
            return (key,)
        names = key.split(".")
        levels: Levels = ()
        for end in range(1, len(names)):
            levels = (*levels, names[end - 1])
            place, below = ".".join(names[:end]), names[end]
            group, _ = self.keys.group_at(place)
            choice = self.choices.get(place)
            if choice is not None and group in ONE_OPTION:
                levels = (*levels, choice.names[0])
                continue
            options = self.keys.options(group) if choice is None and group else {}
            if below in options or (choice is not None and below not in choice.names):
                return (*levels[:-1], ".".join(names[end - 1 :]))
        return (*levels, names[-1])

    def tree(self) -> Tree:
        """Return all that it says, and note the comments."""
        tree: Tree = {}
        places = {key: self.levels(key) for key in (*self.choices, *self.values)}
        for key, choice in self.choices.items():
            at, options = places[key], self.keys.options(choice.group)
            lines = {name: options[name].line if name in options else "" for name in choice.names}
            if any(places[below][: len(at)] == at for below in places if below != key):
                for name, line in lines.items():
                    _subtree(tree, (*at, name))
                    self.comments[*at, name] = line
            else:
                shown = [_as_yaml(name) if name != "null" else name for name in choice.names]
                is_one = choice.group in {*ONE_OPTION, "experiment", "sweep"}
                _subtree(tree, at[:-1])[at[-1]] = shown[0] if is_one else f"[{', '.join(shown)}]"
                self.comments[at] = "; ".join(filter(None, lines.values()))
        for key, value in self.values.items():
            at = places[key]
            _subtree(tree, at[:-1])[at[-1]] = value
            self.comments[at] = self._meaning(key)
        return tree

    def _meaning(self, key: str) -> str:
        """Return what a key means: where it is declared, or in the options that are chosen."""
        chosen = {(c.group, name) for c in self.choices.values() for name in c.names}
        options = describe.options(self.keys.config_dir)
        meanings = describe.key_help(self.keys.name)
        for option in sorted(options, key=lambda o: (o.group, o.name) not in chosen):
            for written in option.all_keys():
                if written.line:
                    meanings.setdefault(written.name, written.line)
        usual = re.sub(r"^losses\.\w+\.", "objective.", key)
        usual = re.sub(r"^(streams\.\w+|source|forgetting)\.data\.", "data.", usual)
        return meanings.get(key) or meanings.get(usual, "")

    def lines(self, tree: Tree, above: Levels) -> Iterator[str]:
        """Yield the lines of a level, each key with its comment."""
        for name, value in tree.items():
            indent = "  " * len(above)
            is_section = isinstance(value, Mapping)
            shown = ("" if value else " {}") if is_section else f" {value}"
            text = self.comments.get((*above, name), "")
            yield from with_comment(f"{indent}{name}:{shown}", text[:1].lower() + text[1:])
            if is_section:
                yield from self.lines(value, (*above, name))


def _subtree(tree: Tree, levels: Levels) -> Tree:
    for name in levels:
        tree = tree.setdefault(name, {})
    return tree


def _as_yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            f"{{{', '.join(f'{_as_yaml(str(key))}: {_as_yaml(v)}' for key, v in value.items())}}}"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(_as_yaml, value))}]"
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value) and scalar(value) == value
    if is_plain and value.lower() not in ("yes", "no", "on", "off", "y", "n"):
        return str(value)
    if isinstance(value, float):
        return re.sub("^(-?)(inf|nan)", r"\1.\2", repr(value))
    return json.dumps(value, ensure_ascii=False)
