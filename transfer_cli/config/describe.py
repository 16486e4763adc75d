"""Shows what can be chosen and what it means, read from `conf/` itself.

A config group is a folder, an option is a file, whose first line says what it is. The meaning of a
plain value is the text below its field in `config.schema`.
"""

import ast
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from transfer_cli.config import schema
from transfer_cli.config.commands import Command
from transfer_cli.config.flags import Request
from transfer_cli.config.locate import conf_dir
from transfer_cli.terminal import BLANK, Entry, Line, Page, Piece, Pieces, Prose, Renderable, Style

WIDTH = 100
"""Maximum width of the help text, in a pipe too."""

COLUMN = 34
"""The column in which descriptions begin."""

PACKAGED = "packaged"
OWN = "yours"

_PART_HELP = {
    "optimizer.lr": "The peak learning rate.",
    "tokenizer.size": "Number of tokens in the vocabulary.",
}
"""Keys of parts that are built from constructors, which have no field in `config.schema`."""


@dataclass(frozen=True)
class Option:
    """One file of a config group.

    Args:
        group: The folder, for example `adaptation/plan`.
        name: The part after `=`.
        line: Its description.
        file: Its path.
        origin: `packaged`, or `yours` for a file of --config-dir.
        shadowed: Whether a packaged option of the same name is used instead.
    """

    group: str
    name: str
    line: str
    file: Path
    origin: str = PACKAGED
    shadowed: bool = False

    @property
    def target(self) -> str:
        """The class that it builds, "" where it names none."""
        found = re.search(r"^_target_:\s*(\S+)", self.file.read_text(), re.MULTILINE)
        return found[1] if found else ""


def description(file: Path) -> str:
    """Return the description in the first line of a config; "" if there is none."""
    for line in file.read_text().splitlines():
        if not line.startswith("#"):
            return ""
        text = line.lstrip("# ").rstrip()
        if text and not text.startswith("@package"):
            return text
    return ""


def options(config_dir: Path | None = None) -> list[Option]:
    """Return every option of every group, those of `config_dir` after ours, sorted by group."""
    found = list(_options_in(conf_dir(), PACKAGED))
    packaged = {(option.group, option.name) for option in found}
    for own in _options_in(config_dir, OWN) if config_dir is not None else ():
        shadowed = (own.group, own.name) in packaged
        found.append(Option(own.group, own.name, own.line, own.file, OWN, shadowed))
    return sorted(found, key=lambda option: option.group)


def _options_in(folder: Path, origin: str) -> Iterator[Option]:
    for file in sorted(folder.rglob("*.yaml")):
        group, name = file.parent.relative_to(folder).as_posix(), file.stem
        if group.startswith("experiment/"):
            # Folders of experiments are for order alone: people type experiment=sample/pretrain.
            group, name = "experiment", f"{group.removeprefix('experiment/')}/{name}"
        if group != ".":
            yield Option(group, name, description(file), file, origin)


# --- the help text of a command ----------------------------------------------------------------


def command_help(name: str, command: Command, request: Request) -> Page:
    """Return what `transfer NAME --help` shows."""
    from transfer_cli.config import launch  # which looks up options here when it explains an error

    compose = partial(launch.compose, name, return_hydra_config=True)
    try:
        config = compose(request)
    except Exception:  # the keys are shown as they are by default where an override is wrong
        config = compose(Request())
    chosen = (compose(Request()) if request.overrides else config).hydra.runtime.choices
    places = "".join(f"{shown} " for _, shown in command.places)
    usage = f" transfer {name} {places}[GROUP=OPTION ...] [KEY=VALUE ...] [FLAGS]"
    parts: list[list[Renderable]] = [
        [Line(Piece(f"transfer {name}", "heading"), f": {command.summary}")],
        [Prose(command.text)],
        [Line(Piece("usage:", "heading"), usage)],
        _groups(chosen, command, request),
        _keys(name, command, config),
        _examples(command),
        _flags(name),
        [Line(Piece("Every key: ", "heading"), Piece(f"transfer {name} --cfg job", "name"))],
    ]
    blocks: list[Renderable] = []
    for part in filter(None, parts):
        blocks += [BLANK, *part] if blocks else part
    return Page(*blocks)


def _groups(
    chosen: Mapping[str, str | None], command: Command, request: Request
) -> list[Renderable]:
    """Return the groups in the order of the defaults, each with those below it."""
    # Hydra lists them from last to first, with further choices of a group for other places.
    own = [group for group in reversed(list(chosen)) if "@" not in group]
    places = {group: place for place, group in enumerate(own)}
    found = [
        option
        for option in options(request.config_dir)
        if option.group.partition("/")[0] in places
        and not option.shadowed
        and not option.target.startswith(command.hidden)
    ]
    found.sort(key=lambda option: places[option.group.partition("/")[0]])
    blocks: list[Renderable] = []
    for group, listed in itertools.groupby(found, lambda option: option.group):
        nothing = "" if chosen.get(group) else "(nothing by default)"
        title = f"  {group}=   "
        blocks.append(Entry([Piece(title, "heading")], [Piece(nothing, "note")], len(title)))
        for option in listed:
            mark = "*" if chosen.get(group) == option.name else " "
            style: Style = "name" if option.origin == PACKAGED else "own"
            head: Pieces = ["  ", Piece(mark, "mark"), " ", Piece(option.name, style)]
            blocks.append(_entry(head, option.line))
    return [_title("What can be chosen (* is the default):"), *blocks] if blocks else []


def _keys(name: str, command: Command, config: DictConfig) -> list[Renderable]:
    meanings = key_help(name)
    entries = [
        _entry(["  ", Piece(key, "name"), f"={_value_text(config, key)}"], meanings.get(key, ""))
        for key in command.keys
    ]
    return [_title("What is changed most (with the value it has now):"), *entries]


def _value_text(config: DictConfig, key: str) -> str:
    try:
        value = OmegaConf.select(config, key, throw_on_missing=True)
    except MissingMandatoryValue:
        return "(needed)"
    return "null" if value is None else str(value)


def _title(text: str) -> Entry:
    return Entry([], [Piece(text, "heading")], 0)


def _entry(head: Pieces, text: str) -> Entry:
    """Return `head` and `text` in two columns."""
    return Entry(head, [text], COLUMN, WIDTH)


def _examples(command: Command) -> list[Renderable]:
    blocks: list[Renderable] = [_title("Examples:")]
    for line, purpose in command.examples:
        blocks += [Line("  ", Piece(f"# {purpose}", "note")), Line(f"  {line}")]
    return blocks


def _flags(name: str) -> list[Renderable]:
    entries = (
        ("--cfg job", "Print the whole config instead of running (with --resolve: filled in)."),
        ("--info defaults", "Print which files it was put together from."),
        ("--config-dir DIR", "Also search DIR for options of your own."),
        ("--config-name NAME", f"Start from DIR/NAME.yaml, whose defaults begin with {name}."),
        ("--plugin PACKAGE", "Let configs name classes of a package of your own."),
        ("-m", "One run for each value of a,b,c or range(1,4)."),
        ("--debug", "Show the traceback of every error."),
        ("--hydra-help", "Hydra's own flags."),
    )
    flags = [_entry(["  ", Piece(flag, "name")], text) for flag, text in entries]
    return [_title("Flags:"), *flags]


# --- the meaning of keys -----------------------------------------------------------------------


def key_help(command: str) -> dict[str, str]:
    """Return the meaning of every plain value of a command, by its full key."""
    texts = _field_texts()
    meanings = dict(_PART_HELP)
    # The same key means the same everywhere, unless a command's own class says more of it.
    for kind in (*schema.COMMANDS.values(), schema.COMMANDS[command]):
        meanings.update(_key_texts(kind, "", texts))
    return meanings


def _key_texts(
    kind: type, prefix: str, texts: dict[tuple[str, str], str]
) -> Iterator[tuple[str, str]]:
    for owner in reversed(kind.__mro__):  # a class may say more of a key than the one it extends
        for name, annotation in inspect.get_annotations(owner).items():
            key = f"{prefix}{name}"
            if (owner.__name__, name) in texts:
                yield key, texts[owner.__name__, name]
            if isinstance(annotation, type) and annotation.__module__ == schema.__name__:
                yield from _key_texts(annotation, f"{key}.", texts)


@cache
def _field_texts() -> dict[tuple[str, str], str]:
    """Return the text below each field of each class in `config.schema`."""
    texts = {}
    classes = [
        node for node in ast.parse(inspect.getsource(schema)).body if isinstance(node, ast.ClassDef)
    ]
    for node in classes:
        for pair in itertools.pairwise(node.body):
            match pair:
                case (
                    ast.AnnAssign(target=ast.Name(id=field)),
                    ast.Expr(value=ast.Constant(value=text)),
                ):
                    texts[node.name, field] = " ".join(str(text).split())
    return texts
