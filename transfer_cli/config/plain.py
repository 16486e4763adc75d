"""Plain configs: keys as they are typed, and the name of an option wherever a group stands.

`adaptation: {edits: [lora], plan: gradual_unfreezing}`, without Hydra's packages and overrides.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transfer_cli.config import describe
from transfer_cli.config.commands import DECLARED_KEYS
from transfer_cli.config.flags import ONE_OPTION
from transfer_cli.config.literal import quoted
from transfer_cli.errors import ConfigError

_TEXTS = {"source.data", "forgetting.data"}
"""Places of data that every run has."""

_PLACES = {
    re.compile(r"(losses\.\w+)(?:\.objective)?"): "objective",
    re.compile(r"(streams\.\w+\.data|source\.data|forgetting\.data)"): "data",
}
"""Keys at which there is a group in a place of its own -> the group."""

_OF_GRAMMAR = re.compile(r"[\\()\[\]{}:=, \t]")
"""What Hydra reads otherwise in the name of a value of a mapping."""


@dataclass(frozen=True)
class ChosenOptions:
    """The options that are chosen of a group, and where they are put."""

    group: str
    names: Sequence[str]
    place: str

    @property
    def typed(self) -> str:
        """The group, as it is typed."""
        is_elsewhere = self.place != self.group.replace("/", ".")
        return f"{self.group}@{self.place}" if is_elsewhere else self.group

    def typed_beside(self, known: Set[str]) -> str:
        """Return the same with the sign that a place of its own needs, if it is none of `known`."""
        return f"+{self.typed}" if "@" in self.typed and self.place not in known else self.typed


Part = ChosenOptions | tuple[str, Any] | str
"""What a file says: options of a group, a key and its value, or a word as it was typed."""


@dataclass(frozen=True)
class PlainKeys:
    """Tells groups, with their options, from keys, with their values.

    Args:
        name: The name of the command that the keys are for.
        config_dir: A folder with the user's own configs.
        named: Keys below which there are names of one's own.
    """

    name: str
    config_dir: Path | None = None
    named: tuple[str, ...] = ("losses", "streams")

    @cached_property
    def _options(self) -> Mapping[str, Mapping[str, describe.Option]]:
        by_group = defaultdict[str, dict[str, describe.Option]](dict)
        for option in describe.options(self.config_dir):
            by_group[option.group].setdefault(option.name, option)
        return by_group

    @cached_property
    def _keys(self) -> Set[str]:
        return {key for key, _ in describe.keys_and_options(self.name, self.config_dir)}

    def is_group(self, group: str) -> bool:
        """Return whether there is a group of this name."""
        return group in self._options

    def options(self, group: str) -> Mapping[str, describe.Option]:
        """Return the options of a group by name; those of ours come first."""
        return self._options.get(group, {})

    def choice(self, word: str) -> ChosenOptions | None:
        """Return what a typed word chooses, also with a dot for the slash of a group, or None."""
        key, equals, value = word.partition("=")
        if not equals:  # a path, such as a single dot
            return None
        group, place = self.group_at(key.replace("/", "."))
        if not group and "." not in key and key not in describe.declared_keys(self.name):
            below = [group for group in self._options if group.partition("/")[2] == key]
            group = below[0] if len(below) == 1 and key else ""
            place = group.replace("/", ".")
        if not group:  # and no folder is looked through
            return None
        names = value.removeprefix("[").removesuffix("]").split(",")
        is_meant = group.endswith(f"/{key}") or set(names) <= self.options(group).keys()
        return ChosenOptions(group, names, place) if is_meant else None

    def places(self, choices: Sequence[ChosenOptions]) -> Set[str]:
        """Return where options that are chosen put others."""
        places, left = set(_TEXTS), list(choices)
        while left:
            for choice in self.chosen_by(left.pop()):
                places.add(choice.place)
                left += [] if "@" in choice.typed else [choice]
        return places

    def chosen_by(self, choice: ChosenOptions) -> Iterator[ChosenOptions]:
        """Yield the options that options are put together from."""
        options = self.options(choice.group)
        for name in filter(options.__contains__, choice.names):
            for group, place, names in options[name].choices():
                yield ChosenOptions(group, names, place or group.replace("/", "."))

    def as_word(self, part: Part, known: Set[str], raw: Set[str]) -> str:
        """Return a part of a file as it is typed.

        Args:
            known: Places that have an option.
            raw: Keys whose texts are typed as they are.
        """
        if isinstance(part, str):
            return part
        if isinstance(part, tuple):
            key, value = DECLARED_KEYS.get(part[0], part[0]), part[1]
            shown = value if key in raw and isinstance(value, str) else _literal(value, key)
            is_open = isinstance(value, Mapping) and key in describe.declared_keys(self.name)
            is_named = key.startswith(tuple(f"{name}." for name in self.named))
            added = "++" if is_named or is_open else ""
            return f"{added}{key}={shown}"
        needed = ("adaptation", "objective", "optimizer", "schedule")
        if part.names == ["null"] and part.typed not in needed:
            return f"~{part.typed}"
        if part.names == ["null"] or (not part.names and part.group in {*ONE_OPTION, "sweep"}):
            raise ConfigError(f"{part.place}: holds nothing; name an option, or leave it out")
        shown = part.names[0] if len(part.names) == 1 else f"[{','.join(part.names)}]"
        return f"{part.typed_beside(known)}={shown}"

    def parts(
        self, values: Mapping[str, Any], above: str = ""
    ) -> Iterator[ChosenOptions | tuple[str, Any]]:
        """Yield what a mapping chooses, and the keys that it sets, in order."""
        for name, value in values.items():
            key = f"{above}{name}"
            group, place = self.group_at(key)
            is_key = key in self._keys and key not in self.named
            is_section = not is_key and any(known.startswith(f"{key}.") for known in self._keys)
            if group:
                yield from self._group_parts(group, place, key, value)
            elif value is None and is_section:
                raise ConfigError(f"{key}: holds nothing; name a key in it, or leave it out")
            elif isinstance(value, Mapping) and not is_key and (value or is_section):
                yield from self.parts(value, f"{key}.")
            else:
                yield key, value

    def _group_parts(
        self, group: str, place: str, key: str, value: Any
    ) -> Iterator[ChosenOptions | tuple[str, Any]]:
        options = self.options(group).keys()
        if not isinstance(value, Mapping):
            values = value if isinstance(value, list | tuple) else [value]
            names = ["null"] if value is None else [str(name) for name in values]
            # Some texts may also be named by a path, or a word.
            is_path = key == "forgetting.data" and not set(names) <= options
            yield (key, value) if is_path else ChosenOptions(group, names, place)
        elif value.keys() <= options and all(isinstance(v, Mapping) for v in value.values()):
            # `edits: {lora: {rank: 4}}`, `data: {table: {train: a.csv}}`
            yield ChosenOptions(group, [*value], place)
            for name, below in value.items():
                inside = place if group in ONE_OPTION else f"{place}.{name}"
                yield from self.parts(below, f"{inside}.")
        else:
            yield from self.parts(value, f"{key}.")

    def group_at(self, key: str) -> tuple[str, str]:
        """Return the group that a key stands for, and the place of its options; "": none."""
        if key and self.is_group(group := key.replace(".", "/")):
            return group, key
        for pattern, group in _PLACES.items():
            if match := pattern.fullmatch(key):
                return group, match[1]
        return "", ""


def _literal(value: Any, key: str) -> str:
    """Return a value as Hydra's grammar reads it; one of numpy or torch is taken as Python's."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        names = [_OF_GRAMMAR.sub(r"\\\g<0>", str(name)) for name in value]
        inside = (_literal(below, key) for below in value.values())
        return f"{{{','.join(map(':'.join, zip(names, inside, strict=True)))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_literal(item, key) for item in value)}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if not isinstance(value, str | Path | int | float):
        raise ConfigError(f"{key}: expected plain values, got {type(value).__name__}")
    return repr(value) if isinstance(value, int | float) else quoted(str(value))
