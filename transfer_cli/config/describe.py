"""The catalogue of options and keys, read from `conf/` and the schema as text.

A config group is a folder, an option is a file, whose first line says what it is. A file whose name
begins with _ is part of those that include it. The meaning of a key is the comment beside or above
it there, or the text below its field in `config.schema`. No library reads them: this also answers
the tab key, beside help, errors and the reference of keys.
"""

import ast
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from transfer_cli.config.commands import ALL, CHOICES, TYPED_KEYS, Command
from transfer_cli.config.conf_folder import conf_dir

_WIDTH = 100

PACKAGED = "packaged"
OWN = "yours"

_DEFAULT = re.compile(
    r"\s*- (?:override )?(?:(?P<group>/?[\w/]+)(?:@(?P<place>[\w.]+))?: *)?(?P<names>[^#]*)"
)
_INCLUDING = re.compile(r"^defaults: \[(?:_\w+(?:, )?)+\].*\n", re.MULTILINE)
_KEY = re.compile(r"( *)([\w-]+):(?:\s+(.*))?$")

_NOT_TYPED = re.compile(r"(^|\.)(_\w+|defaults|hydra)(\.|$)")
"""Keys that are for Hydra and for `config.build`."""


@dataclass(frozen=True)
class Key:
    """A key, as it is typed in a config.

    Args:
        value: Its value as it is written, "" for a section.
        line: What it means; "" where nothing is said.
        kind: Its type as it is declared; "" for a key of an option.
    """

    name: str
    value: str
    line: str
    kind: str = ""

    @property
    def takes_one(self) -> bool:
        """Whether it is known to take one plain value, and no list."""
        return bool(self.kind) and not re.search(r"\b(Any|dict|list)\b", self.kind)

    def choices(self, command: str) -> list[str]:
        """Return the words that it takes in a command, as far as they are known."""
        if self.value.lower() in ("true", "false"):
            return ["true", "false"]
        typed_key = TYPED_KEYS.get(self.name, self.name)
        words = CHOICES.get(f"{command} {typed_key}", CHOICES.get(typed_key, ""))
        return words.removesuffix(" ...").split()


@dataclass(frozen=True)
class Option:
    """One file of a config group.

    Args:
        group: The folder, for example `adaptation/plan`.
        name: The part after `=`.
        origin: `packaged`, or `yours` for a file of --config-dir.
        shadowed: Whether a packaged option of the same name is used instead.
    """

    group: str
    name: str
    file: Path
    origin: str = PACKAGED
    shadowed: bool = False

    @cached_property
    def line(self) -> str:
        """What it is, as its first line says."""
        return description(self.file)

    @cached_property
    def text(self) -> str:
        """The file, with the keys of those that it includes in the place of their names."""
        return self._whole(self.file)

    def _whole(self, file: Path) -> str:
        text = file.read_text(encoding="utf-8", errors="replace")
        if (including := _INCLUDING.search(text)) is None:
            return text
        keys = ""
        for name in re.findall(r"_(?!self_)\w+", including[0]):
            folders = (file.parent, conf_dir() / self.group)
            beside = (folder / f"{name}.yaml" for folder in folders)
            if included := next(filter(Path.is_file, beside), None):
                keys += re.sub(r"\A#.*\n", "", self._whole(included))
        return text[: including.start()] + keys + text[including.end() :]

    @property
    def target(self) -> str:
        """The class that it builds, "" where it names none."""
        line = re.search(r"^_target_:\s*(\S+)", self.text, re.MULTILINE)
        return line[1] if line else ""

    @property
    def package(self) -> str:
        """Where its keys go, for example `adaptation.plan`; "" for the top."""
        line = re.search(r"^# @package ([\w.]+)", self.text, re.MULTILINE)
        named = line[1] if line else self.group.replace("/", ".")
        return "" if named == "_global_" else named

    def all_keys(self) -> Iterator[Key]:
        """Yield all keys in it, sections and `_target_` included."""
        prefix = f"{self.package}." if self.package else ""
        for key in keys_in(self.text):
            yield Key(prefix + key.name, key.value, key.line)

    def typed_keys(self) -> list[Key]:
        """Return the keys in it that have a value and can be typed."""
        sections = {section for key in self.all_keys() for section in parents(key.name)}
        return [
            key
            for key in self.all_keys()
            if key.name not in sections and not _NOT_TYPED.search(key.name)
        ]

    def choices(self) -> Iterator["Choice"]:
        """Yield the options that it is put together from."""
        for group, place, names in _choices_in(self.text):
            if names:
                below = group[1:] if group.startswith("/") else f"{self.group}/{group}"
                yield Choice(below.removesuffix("/"), place.removeprefix("_global_."), names)


class Choice(NamedTuple):
    """Options that a config is put together from: their group, a place of their own, names."""

    group: str
    place: str
    names: tuple[str, ...]


def _choices_in(text: str) -> Iterator[Choice]:
    """Yield each entry of a list of defaults as it stands there; "" where nothing does."""
    listed = re.search(r"^defaults:.*\n((?:[ \t#-].*\n|\n)*)", text, re.MULTILINE)
    for line in listed[1].splitlines() if listed else ():
        if entry := _DEFAULT.match(line):
            names = re.findall(r"[\w/.-]+", re.sub(r"@[\w.]+", "", entry["names"]))
            plain = tuple(name for name in names if name != "null" and name[0] != "_")
            if entry["group"] or not plain or not plain[0].startswith("schema/"):
                yield Choice(entry["group"] or "", entry["place"] or "", plain)


def description(file: Path) -> str:
    """Return the description in the first line of a config; "" if there is none."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.startswith("#"):
            return ""
        text = line.lstrip("# ").rstrip()
        if text and not text.startswith("@package"):
            return text
    return ""


def options(config_dir: Path | None = None) -> list[Option]:
    """Return every option of every group, those of `config_dir` after ours, sorted by group."""
    packaged = {(option.group, option.name) for option in _packaged()}
    own = _options_in(config_dir, OWN) if config_dir is not None else ()
    marked = (replace(option, shadowed=(option.group, option.name) in packaged) for option in own)
    return sorted((*_packaged(), *marked), key=lambda option: option.group)


@cache
def _packaged() -> tuple[Option, ...]:
    return tuple(_options_in(conf_dir(), PACKAGED))


def _options_in(folder: Path, origin: str) -> Iterator[Option]:
    for file in sorted(folder.rglob("*.yaml")):
        group, name = file.parent.relative_to(folder).as_posix(), file.stem
        if group.startswith("experiment/"):
            # Folders of experiments are for order alone: people type experiment=sample/pretrain.
            group, name = "experiment", f"{group.removeprefix('experiment/')}/{name}"
        if group != "." and not name.startswith("_"):
            yield Option(group, name, file, origin)


def options_for(
    name: str, command: Command, config_dir: Path | None = None, without: Iterable[str] = ()
) -> list[Option]:
    """Return the options that mean something to a command, in the order of its groups.

    Args:
        without: Beginnings of `GROUP/OPTION` that mean nothing now.
    """
    groups = list(groups_of(name))
    hidden = (*command.hidden, *without)
    possible = [
        option
        for option in options(config_dir)
        if option.group.partition("/")[0] in groups
        and not option.shadowed
        and not option.target.startswith(command.hidden)
        and not f"{option.group}/{option.name}".startswith(hidden)
    ]
    possible.sort(key=lambda option: groups.index(option.group.partition("/")[0]))
    known = {(option.group, option.name): option for option in possible}
    sections = {key.partition(".")[0] for key in declared_keys(name)} | {"defaults", "hydra"}
    return [o for o in possible if o.group != "experiment" or _is_possible(o, known, sections)]


def _is_possible(
    option: Option, known: Mapping[tuple[str, str], Option], sections: Set[str]
) -> bool:
    """Return whether an experiment chooses known options, and sets keys of known sections."""
    pairs = [
        (choice.group, pair)
        for choice in option.choices()
        if choice.place in ("", choice.group)
        for pair in choice.names
    ]
    return (
        all(pair in known for pair in pairs)
        and {key.name.partition(".")[0] for key in option.all_keys()} <= sections
        and all(
            _is_possible(known[pair], known, sections) for pair in pairs if pair[0] == "experiment"
        )
    )


def groups_of(name: str) -> dict[str, tuple[str, ...]]:
    """Return the groups that a command takes, and what is chosen of each by default."""
    choices = _choices_in((conf_dir() / f"{name}.yaml").read_text(encoding="utf-8"))
    return {choice.group: choice.names for choice in choices if choice.group and not choice.place}


# --- the meaning of keys -----------------------------------------------------------------------


def parents(name: str) -> Iterator[str]:
    """Yield the sections in which a key stands."""
    while name := name.rpartition(".")[0]:
        yield name


def keys_in(text: str) -> Iterator[Key]:
    """Yield the keys of a config with the comment beside or above each.

    Understands YAML as we write it, a key a line; what is written otherwise is passed over.
    """
    path: list[tuple[int, str]] = []
    comments: list[str] = []
    has_begun = False  # what stands above the first key is about the file
    for line in text.splitlines():
        match = _KEY.match(line)
        if line.lstrip().startswith("#"):
            comments.append(line.strip("# "))
        elif match is None:
            comments, has_begun = [], has_begun or bool(line.strip())
        else:
            indent, name = len(match[1]), match[2]
            path = [(column, part) for column, part in path if column < indent] + [(indent, name)]
            value, _, beside = f" {match[3] or ''}".partition(" #")
            meaning = beside or (" ".join(comments) if has_begun else "")
            yield Key(".".join(part for _, part in path), value.strip(), meaning.strip())
            comments, has_begun = [], True


def part_help(chosen: Iterable[Option]) -> dict[tuple[str, str], str]:
    """Return what keys of parts mean, by the class that is built and the argument's name.

    Where options differ, the last one counts. A key of no class stands under "", with its whole
    name.
    """
    texts: dict[tuple[str, str], str] = {}
    for option in chosen:
        keys = list(option.all_keys())
        targets = {
            key.name.rpartition(".")[0]: key.value for key in keys if key.name.endswith("_target_")
        }
        for key in keys:
            section, _, last = key.name.rpartition(".")
            if key.line:
                place = (targets[section], last) if section in targets else ("", key.name)
                texts[place] = key.line
    return texts


@cache
def declared_keys(command: str) -> Mapping[str, Key]:
    """Return the plain values of a command as `config.schema` declares them, by their keys."""
    classes, commands = _schema()
    return {key.name: key for key in _keys_of(commands[command], "", classes)}


def key_help(command: str) -> dict[str, str]:
    """Return the meaning of every plain value of a command, by its full key."""
    # The same key means the same everywhere, unless a command's own class says more of it.
    keys = [key for name in _schema()[1] for key in declared_keys(name).values()]
    return {key.name: key.line for key in (*keys, *declared_keys(command).values()) if key.line}


def keys_and_options(command: str, config_dir: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield the keys of a command, and with each the option that brings it; "": it is always there.

    Those of options that make no sense for the command are left out.
    """
    yield from ((key, "") for key in declared_keys(command))
    sections = {key.partition(".")[0] for key in declared_keys(command)}
    for option in options(config_dir):
        hidden = option.target.startswith(ALL[command].hidden)
        if option.package.partition(".")[0] in sections and not hidden:
            typed = f"{option.group}={option.name}"
            yield option.package, typed
            yield from ((key.name, typed) for key in option.typed_keys())


def _keys_of(kind: str, prefix: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[Key]:
    node = classes[kind]
    for base in node.bases:  # a class may say more of a key than the one it extends
        yield from _keys_of(ast.unparse(base), prefix, classes)
    for field, below in itertools.pairwise([*node.body, ast.Pass()]):
        if not isinstance(field, ast.AnnAssign):
            continue
        key, inner = f"{prefix}{ast.unparse(field.target)}", ast.unparse(field.annotation)
        if inner in classes:
            yield from _keys_of(inner, f"{key}.", classes)
            continue
        match below:
            case ast.Expr(value=ast.Constant(value=str(said))):
                line = " ".join(said.split())
            case _:
                line = ""
        yield Key(key, ast.unparse(field.value) if field.value else "", line, inner)


@cache
def _schema() -> tuple[dict[str, ast.ClassDef], dict[str, str]]:
    """Return the classes in `config.schema`, and which is whose, without an import of Hydra."""
    body = ast.parse(Path(__file__).with_name("schema.py").read_text(encoding="utf-8")).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for node in body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="COMMANDS"), value=ast.Dict(keys, values)):
                pairs = zip(keys, values, strict=True)
                return classes, {
                    ast.literal_eval(key): ast.unparse(kind) for key, kind in pairs if key
                }
    raise LookupError("COMMANDS")


# --- comments ----------------------------------------------------------------------------------


def with_comment(line: str, text: str) -> list[str]:
    """Return a line with a comment beside it, or above where there is no room."""
    text = text.rstrip(".")
    beside = f"{line:<32} # {text}"
    if not text:
        return [line]
    if len(beside) <= _WIDTH:
        return [beside]
    indent = " " * (len(line) - len(line.lstrip()))
    return [*(f"{indent}{part}" for part in comment_lines(text, _WIDTH - len(indent))), line]


def comment_lines(text: str, width: int = _WIDTH) -> list[str]:
    """Return a comment in lines."""
    return textwrap.wrap(
        text, width, initial_indent="# ", subsequent_indent="# ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
