"""What `transfer COMMAND --help` shows of a command that takes overrides.

The short text fits a screen or two: what is changed most, examples, the groups with a line each,
and the keys of what has been chosen. `--help all` adds what each option is, and every key.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from transfer_cli.config import compose
from transfer_cli.config.commands import FLAGS, Command, examples, guide_of, heading
from transfer_cli.config.describe import PACKAGED, Option, key_help, options, options_for, part_help
from transfer_cli.config.flags import Request
from transfer_cli.terminal import BLANK, Entry, Line, Page, Piece, Pieces, Prose, Renderable, Style

WIDTH = 100
"""Maximum width of the help text, in a pipe too."""

MOST_LINES = 80
"""Of the short text."""

COLUMN = 34
"""The column in which descriptions begin."""

_WIDEST = 60
"""Characters of a value that are shown."""

_NAMES = 26
"""The column in which the options of a group begin."""

_USUAL = ("frozen", "lora", "adapters", "gradual_unfreezing", "ulmfit", "discriminative")
"""Options that stand first in a line that does not hold all of its group."""


def command_help(name: str, command: Command, request: Request) -> Page:
    """Return what `transfer NAME --help` shows, or `--help all`."""
    compose.check_config_dir(request)
    chosen = _chosen(request)
    config = _try_compose(name, request, chosen)
    plain = _try_compose(name, replace(request, overrides=()), {}) if request.overrides else config
    defaults, keys = plain.hydra.runtime.choices, _Keys(name, request, config)
    unmet = [pair for pair in command.needs if not keys.holds(pair[1])]
    offers = options_for(name, command, request.config_dir, [start for start, _ in unmet])
    words = [f"{group}={option}" for group, option in chosen.items()]
    typed, places = command.typed_as or name, tuple(_places(chosen))
    guide = typed.split()[0]  # of `plan finetune`, that of `plan`
    start = [
        *heading(typed, command, _usage(command, offers)),
        *_titled("What is changed most (with the value it has now):", keys.entries(command.keys)),
        BLANK,
        *examples(guide),
    ]
    chosen_keys = _titled(
        f"Keys of {' '.join(words)}:",
        keys.entries(key for key in keys.all() if key.startswith(places)),
    )
    further = _further_choices(unmet, losses="losses" in config)
    about: list[Renderable] = [BLANK, Prose(guide_of(guide).text)]
    if request.asks_all:
        names = (key for key in keys.all() if not key.startswith(command.ignores))
        return Page(
            *start,
            *chosen_keys,
            *_titled("What can be chosen (* is the default):", _options(offers, defaults)),
            *further,
            *_titled("Every key (with the value it has now):", keys.entries(names)),
            *_titled("Flags:", [_entry(["  ", Piece(flag, "name")], text) for flag, text in FLAGS]),
            *about,
        )
    flags = ", ".join(flag for flag, _ in FLAGS[1:])
    more = " ".join(["transfer", typed, *words, "--help all"])
    end: list[Renderable] = [
        *_titled(
            "What can be chosen (* is the default; transfer presets GROUP says what each is):",
            _groups(offers, defaults),
        ),
        *further,
        *about,
        BLANK,
        Entry([Piece("Flags: ", "heading")], [flags], len("Flags:  "), WIDTH),
        Line(Piece("Every option and key: ", "heading"), Piece(more, "name")),
    ]
    room = MOST_LINES - sum(map(_height, (*start, *end)))
    return Page(*start, *_cut_blocks(chosen_keys, room), *end)


def _chosen(request: Request) -> dict[str, str]:
    """Return the options that are chosen, by their groups as typed; of several, the first."""
    known = {(option.group, option.name) for option in options(request.config_dir)}
    pairs = [word.partition("=")[::2] for word in request.overrides]
    firsts = {key: value.strip("[]").partition(",")[0] for key, value in pairs}
    return {
        key: first
        for key, first in firsts.items()
        if (key.lstrip("+").partition("@")[0], first) in known
    }


def _try_compose(name: str, request: Request, chosen: Mapping[str, str]) -> DictConfig:
    """Return the config that is asked for; with the options alone, or none, where it is wrong."""
    options = tuple(f"{group}={option}" for group, option in chosen.items())
    for overrides in (request.overrides, options):
        try:
            attempt = replace(request, overrides=overrides)
            return compose.load_config(name, attempt, keep_hydra=True)
        except Exception:  # noqa: S112 - help is given in spite of it
            continue
    return compose.load_config(name, Request(), keep_hydra=True)


def _usage(command: Command, choices: list[Option]) -> str:
    places = [shown for _, shown in command.positionals]
    groups = ["[GROUP=OPTION ...]"] if choices else []
    return " ".join([*places, *groups, "[KEY=VALUE ...] [FLAGS]"])


def _entry(head: Pieces, text: str) -> Entry:
    return Entry(head, [text], COLUMN, WIDTH)


def _titled(title: str, blocks: Iterable[Renderable]) -> list[Renderable]:
    """Return blocks below an empty line and their title; nothing where there are none."""
    below = list(blocks)
    return [BLANK, Entry([], [Piece(title, "heading")], 0), *below] if below else []


def _height(block: Renderable) -> int:
    return str(block).count("\n") + 1


def _cut_blocks(blocks: list[Renderable], room: int) -> list[Renderable]:
    """Return as many blocks as there is room for, and a line about the others."""
    heights = list(itertools.accumulate(map(_height, blocks)))
    if not heights or heights[-1] <= room:
        return blocks
    fit = sum(height < room for height in heights)
    return [*blocks[:fit], Line(f"  ... {len(blocks) - fit} more: --help all")]


# --- what can be chosen ------------------------------------------------------------------------


def _groups(choices: list[Option], chosen: Mapping[str, str | None]) -> Iterator[Renderable]:
    """Yield a line for each group, with the default first, then one's own options."""
    for group, members in itertools.groupby(choices, lambda option: option.group):
        usual = {name: place for place, name in enumerate(_USUAL)}
        listed = sorted(
            members,
            key=lambda option: (
                option.name != chosen.get(group),
                option.origin == PACKAGED,
                usual.get(option.name, len(usual)),
            ),
        )
        yield _group(group, listed, chosen.get(group))


def _group(group: str, listed: list[Option], default: str | None) -> Entry:
    names = [f"{'*' * (option.name == default)}{option.name}" for option in listed]
    ends = list(itertools.accumulate(len(f"{name}, ") for name in names))
    fit = len(listed)
    if ends[-1] - len(", ") > WIDTH - _NAMES:
        fit = sum(end <= WIDTH - _NAMES - len("... 99 more") for end in ends)
    pieces: list[Piece | str] = []
    for option in listed[:fit]:
        mark = [Piece("*", "mark")] if option.name == default else []
        pieces += [", "] * bool(pieces) + [*mark, Piece(option.name, _style(option))]
    if fit < len(listed):
        pieces.append(f", ... {len(listed) - fit} more")
    return Entry(["  ", Piece(f"{group}=", "name")], pieces, _NAMES, WIDTH)


def _options(choices: list[Option], chosen: Mapping[str, str | None]) -> Iterator[Renderable]:
    """Yield every option, below its group, with what it is."""
    for group, listed in itertools.groupby(choices, lambda option: option.group):
        nothing = "" if chosen.get(group) else "(nothing by default)"
        title = f"  {group}=   "
        yield Entry([Piece(title, "heading")], [Piece(nothing, "note")], len(title))
        for option in listed:
            mark = "*" if chosen.get(group) == option.name else " "
            head: Pieces = ["  ", Piece(mark, "mark"), " ", Piece(option.name, _style(option))]
            yield _entry(head, option.line)


def _style(option: Option) -> Style:
    return "name" if option.origin == PACKAGED else "own"


def _further_choices(unmet: list[tuple[str, str]], *, losses: bool) -> list[Renderable]:
    """Return what can be chosen besides, and what could be under which conditions."""
    conditions: dict[str, list[str]] = {}
    for start, condition in unmet:
        group, _, option = start.partition("/")
        conditions.setdefault(condition, []).append(f"{group}={option}")
    lines = {
        re.sub(r"^with (.*)=null$", r"without \1", f"with {condition}"): ", ".join(starts)
        for condition, starts in conditions.items()
    }
    if losses:
        lines["for a further loss"] = "+objective@losses.NAME=clm, mlm, ..."
        lines["for further data"] = "+data@streams.NAME.data=OPTION"
    return [Entry([f"  {head}"], [text], _NAMES, WIDTH) for head, text in lines.items()]


# --- keys --------------------------------------------------------------------------------------


def _places(chosen: Mapping[str, str]) -> Iterator[str]:
    """Yield the beginnings of the keys that typed choices of options bring."""
    for typed in chosen:
        group, _, place = typed.lstrip("+").partition("@")
        yield f"{place or group.replace('/', '.')}."


class _Keys:
    """The keys of a composed config: their values, and what they mean to a command."""

    def __init__(self, name: str, request: Request, config: DictConfig) -> None:
        self._config = config
        self._choices = config.hydra.runtime.choices
        self._groups = {option.group for option in options(request.config_dir)}
        chosen = {*self._choices.items()}
        by_use = sorted(options(request.config_dir), key=lambda o: (o.group, o.name) in chosen)
        self._plain, self._parts = key_help(name), part_help(by_use)

    def holds(self, condition: str) -> bool:
        """Return whether a key has the value that a condition says."""
        key, _, expected = condition.partition("=")
        value = self._value(key)
        return value != "null" if expected == "RUN" else value == expected

    def all(self) -> Iterator[str]:
        """Yield the keys of all plain values; lists are values, and so is a group without one."""
        for name in map(str, self._config):
            if name == "hydra":
                continue
            if isinstance(node := _resolved_value(self._config, name), DictConfig):
                yield from _leaf_keys(node, f"{name}.")
            elif name not in self._choices and name not in self._groups:
                yield name

    def entries(self, keys: Iterable[str]) -> list[Renderable]:
        """Return a line for each key, with its value and what it means."""
        return [
            _entry(["  ", Piece(key, "name"), f"={self._value(key)}"], self._meaning(key))
            for key in keys
        ]

    def _value(self, key: str) -> str:
        try:
            value = OmegaConf.select(self._config, key, throw_on_missing=True)
        except OmegaConfBaseException:  # ???, or an interpolation of what is
            return "(needed)"
        if isinstance(value, bool):
            return str(value).lower()
        text = "null" if value is None else str(value)
        return text if len(text) <= _WIDEST else f"{text[:_WIDEST]} ..."

    def _meaning(self, key: str) -> str:
        above, _, name = key.rpartition(".")
        node = OmegaConf.select(self._config, above) if above else None
        target = node.get("_target_", "") if isinstance(node, DictConfig) else ""
        parts = self._parts
        return self._plain.get(key) or parts.get((target, name)) or parts.get(("", key)) or ""


def _leaf_keys(node: Mapping[Any, Any], prefix: str) -> Iterator[str]:
    for name in map(str, node):
        if isinstance(inner := _resolved_value(node, name), DictConfig):
            yield from _leaf_keys(inner, f"{prefix}{name}.")
        elif not name.startswith("_"):
            yield f"{prefix}{name}"


def _resolved_value(config: Any, name: str) -> Any:
    """Return a value as far as it can be filled in, else None."""
    is_open = OmegaConf.is_missing(config, name) or OmegaConf.is_interpolation(config, name)
    return None if is_open else config[name]
