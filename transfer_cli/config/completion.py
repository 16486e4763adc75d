"""What the tab key offers: commands, keys, options, values, flags, files and runs.

It runs at each press of the key, so no library is imported: `config.describe` reads `conf/` and the
schema as text. What it cannot know it leaves out; the command itself says what is wrong.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path

from transfer_cli.config import commands
from transfer_cli.config.commands import Command
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.describe import (
    Key,
    Option,
    declared_keys,
    groups_of,
    keys_in,
    options,
    options_for,
    parents,
)

Words = dict[str, str]
"""Whole words -> what they mean. After one that ends in `=`, `.`, `/` or `,` more is typed."""

_RUNS = ("run", "init_from", "resume", "base")
_FILES = ("input", "output", "forgetting.data", "to", "run.dir", "run.root", "data_dir")
_FLAG_VALUES = {"--cfg": "job", "--info": "defaults"}
_MOST_ENTRIES = 2000
"""Entries of a folder that are looked at."""

_SAFE_WORD = re.compile(r"[\w.+@%:,=/~\[\]-]+")
"""Words that mean nothing to a shell or a terminal; others, such as files of any name, are not put
into a command line."""


def completions(line: str) -> Words:
    """Return what the last word of a command line, up to the cursor, can become."""
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # an open quote
        return {}
    last = words.pop() if words and not line[-1].isspace() else ""
    return {
        word: text
        for word, text in _candidates(words, last).items()
        if word.startswith(last) and _SAFE_WORD.fullmatch(word)
    }


def _candidates(words: list[str], last: str) -> Words:
    summaries = {name: command.summary for name, command in commands.ALL.items()}
    if not words:
        return {**summaries, "--help": "the commands", "--version": "the version"}
    first, *rest = words
    if first in commands.SUBCOMMANDS and rest:
        kind, *rest = rest
        about = commands.SUBCOMMANDS[first].get(kind)
        return _complete_override(kind, about, rest, last) if about else {}
    if first in commands.ALL and commands.ALL[first].composes:
        return _complete_override(first, commands.ALL[first], rest, last)
    if first in commands.ALL:
        return _complete_usage(commands.ALL[first].usage, rest, last)
    return summaries if first in ("help", "--help", "-h") and not rest else {}


# --- commands that take no overrides -----------------------------------------------------------


def _complete_usage(usage: str, words: list[str], last: str) -> Words:
    """Return what a usage such as `PATH ... [--csv FILE]` allows."""
    flags = dict(re.findall(r"[\[|](--[\w-]+)(?: ([\w=]+))?", usage))
    before = [flag for flag in words if flag in flags][-1:]
    if words and flags.get(words[-1]):
        return _complete_kind(flags[words[-1]], last)
    if before and flags[before[0]] == "GROUP=OPTION":  # can be repeated
        return _complete_kind("GROUP=OPTION", last)
    places = re.sub(r"\[--[^\]]*\]", "", usage).replace("[GROUP", "GROUP").split()
    arguments = [word for word in words if not word.startswith("-")]
    reached = places[: len(arguments) + 1]
    kind = reached[-1] if len(reached) > len(arguments) or "..." in usage else ""
    kind = places[0] if kind.startswith("...") else kind
    flag_words = dict.fromkeys([*flags, "--help"], "")
    return flag_words if last.startswith("-") else _complete_kind(kind, last)


def _complete_kind(kind: str, last: str) -> Words:
    """Return what can stand where a usage says RUN, FILE, GROUP, a|b, ..."""
    if "|" in kind:
        return dict.fromkeys(kind.split("|"), "")
    if kind.startswith("GROUP"):
        mark = "=" if kind.endswith("OPTION") else ""
        group, equals, _ = last.partition("=")
        if mark and equals:
            return {f"{group}={o.name}": o.line for o in options() if o.group == group}
        return {f"{option.group}{mark}": "" for option in options()}
    if kind.startswith(("RUN", "PATH")):
        return _paths(last, _is_run)
    if kind.startswith(("DIR", "FOLDER")):
        return _paths(last, lambda entry: False)
    return _paths(last, os.DirEntry.is_file) if kind.startswith("FILE") else {}


# --- commands that take overrides --------------------------------------------------------------


def _complete_override(name: str, command: Command, words: list[str], last: str) -> Words:
    before = words[-1] if words else ""
    if before in _FLAG_VALUES:
        return dict.fromkeys(_FLAG_VALUES[before].split(), "")
    if before in ("--config-dir", "-cd"):
        return _complete_kind("DIR", last)
    if last.startswith("-"):
        return {flag.split()[0]: text for flag, text in commands.FLAGS}
    typed = _Overrides(name, command, words)
    key, equals, value = last.partition("=")
    if equals:
        head = key + equals + value[: 1 + max(value.rfind(mark) for mark in ",[")]
        values = typed.values(key.lstrip("+~"), last[len(head) :])
        return {f"{head}{word}": text for word, text in values.items()}
    sign = last[: len(last) - len(last.lstrip("+~"))]
    keys = {f"{sign}{key}": text for key, text in _next_parts(typed.keys(), last[len(sign) :])}
    alone = [word for word in words if "=" not in word and word[:1] != "-"]
    free = command.positionals[len(alone) :] or command.positionals[-1:] * bool(command.files)
    return {**keys, **(_complete_kind(free[0][1], last) if free and not sign else {})}


def _next_parts(known: Words, start: str) -> Iterator[tuple[str, str]]:
    """Yield the keys that begin so, up to the next dot: a section at a time."""
    for key, text in known.items():
        if key.startswith(start):
            section, dot, _ = key[len(start) :].partition(".")
            yield (f"{start}{section}.", "") if dot else (key, text)


class _Overrides:
    """What can be overridden after the words that stand there already."""

    def __init__(self, name: str, command: Command, words: list[str]) -> None:
        self.name, self.command, self.words = name, command, words
        flag_values = dict(pairwise(words))
        folder = Path(flag_values.get("--config-dir") or flag_values.get("-cd") or "/dev/null")
        # Another folder than one of configs, such as that of all files, could take minutes to read.
        is_ours = any((folder / group).is_dir() for group in groups_of(name))
        self.folder = folder if is_ours else None

    @cached_property
    def _options(self) -> list[Option]:
        return options(self.folder)

    def values(self, key: str, start: str) -> Words:
        """Return what can stand behind `key=`, or behind a comma there."""
        group, placed, _ = key.partition("@")
        # A further loss or stream may be of another kind than the main one.
        possible = self._options if placed else options_for(self.name, self.command, self.folder)
        if of_group := {option.name: option.line for option in possible if option.group == group}:
            return of_group
        words = dict.fromkeys(self._keys().get(key, Key(key, "", "")).choices(self.name), "")
        if "true" in words:
            return words
        if key in _RUNS:
            models = _models() if key == "init_from" else {}
            return {**words, **models, **_paths(start, _is_run)}
        if key in _FILES or key.rpartition(".")[2] in ("train", "validation", "test", "path"):
            return {**words, **_paths(start, os.DirEntry.is_file)}
        return words

    def keys(self) -> Words:
        """Return the groups and the keys, each with `=` behind it."""
        names = groups_of(self.name)
        groups = {f"{o.group}=": "" for o in self._options if o.group.split("/")[0] in names}
        keys = {
            f"{commands.TYPED_KEYS.get(key, key)}=": text.line
            for key, text in self._keys().items()
            if not key.startswith(self.command.ignores)
        }
        return {**keys, **groups}

    def _keys(self) -> dict[str, Key]:
        """Return the keys of the command itself and of the parts that are chosen."""
        keys = {}
        for place, option in self._parts():
            for key in option.typed_keys():
                below = key.name.removeprefix(option.package)
                keys[f"{place}{below}" if place else key.name] = key
        for section in {section for name in keys for section in parents(name)}:
            keys.pop(section, None)
        return {**keys, **declared_keys(self.name)}

    def _parts(self) -> Iterator[tuple[str, Option]]:
        """Yield the options that are chosen, by default or by words, and places of their own."""
        known = {(option.group, option.name): option for option in self._options}
        chosen: dict[tuple[str, str], list[Option]] = {}

        def take(group: str, place: str, names: Sequence[str]) -> list[Option]:
            parts = []
            for option in (known[group, name] for name in names if (group, name) in known):
                for choice in option.choices():
                    if choice.group == group:  # what it is based on
                        parts += take(group, place, choice.names)
                    else:
                        below = "" if choice.place == choice.group else choice.place
                        take(choice.group, below, choice.names)
                parts.append(option)
            chosen[group, place] = parts
            return parts

        for group, names in groups_of(self.name).items():
            take(group, "", names)
        for word in self.words:
            key, _, value = word.lstrip("+").partition("=")
            group, _, place = key.partition("@")
            take(group, place, value.strip("[]").split(","))
        yield from ((place, option) for (_, place), parts in chosen.items() for option in parts)


def _models() -> Words:
    """Return the short names of published models."""
    listed = keys_in((conf_dir() / "models.yaml").read_text(encoding="utf-8"))
    return {key.name: "a published model" for key in listed if not key.value}


# --- files -------------------------------------------------------------------------------------


def _paths(start: str, wanted: Callable[["os.DirEntry[str]"], bool]) -> Words:
    """Return the folders and the wanted entries whose path begins so; runs too without a start."""
    folder, slash, name = start.rpartition("/")
    base = Path(folder + slash).expanduser() if slash else Path()
    paths = {}
    for entry in _entries(base):
        if entry.name.startswith(name) if name else not entry.name.startswith("."):
            if wanted(entry):
                paths[f"{folder}{slash}{entry.name}"] = ""
            elif entry.is_dir():
                paths[f"{folder}{slash}{entry.name}/"] = ""
    if not start and wanted is _is_run:
        paths.update(dict.fromkeys(_runs(Path("runs"), 3), "a run"))
    return paths


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return sorted(islice(entries, _MOST_ENTRIES), key=lambda entry: entry.name)
    except OSError:
        return []


def _is_run(entry: "os.DirEntry[str]") -> bool:
    return Path(entry, "status.json").is_file() and Path(entry, "config.yaml").is_file()


def _runs(folder: Path, depth: int) -> Iterator[str]:
    for entry in _entries(folder) if depth else ():
        if entry.is_dir():
            if _is_run(entry):
                yield entry.path
            else:
                yield from _runs(Path(entry.path), depth - 1)


# --- scripts -----------------------------------------------------------------------------------

SCRIPTS = {
    "bash": """\
_transfer_complete() {
    local line=${COMP_LINE:0:COMP_POINT} each
    local word=${line##*[[:space:]]}
    # Bash completes what stands behind the last of its word breaks, such as = and :
    local kept=${word%"${word##*[$COMP_WORDBREAKS]}"}
    COMPREPLY=()
    while IFS= read -r each; do
        COMPREPLY+=("${each#"$kept"}")
    done < <(COMP_LINE=$line "$1" -sc query=bash 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=./,] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -F _transfer_complete transfer
""",
    "zsh": """\
_transfer_complete() {
    local each word
    local -a open closed open_texts closed_texts
    for each in "${(@f)$(COMP_LINE="${(j: :)words[1,CURRENT-1]} $PREFIX" \\
            $words[1] -sc query=zsh 2>/dev/null)}"; do
        word=${each%%$'\\t'*}
        [[ -z $word ]] && continue
        if [[ $word == *[=./,] ]]; then
            open+=("$word") open_texts+=("${each/$'\\t'/  -- }")
        else
            closed+=("$word") closed_texts+=("${each/$'\\t'/  -- }")
        fi
    done
    (( $#open )) && compadd -S '' -l -d open_texts -a open
    (( $#closed )) && compadd -l -d closed_texts -a closed
    (( $#open + $#closed )) || _files
}
if (( ! $+functions[compdef] )); then
    autoload -Uz compinit && compinit
fi
compdef _transfer_complete transfer
""",
    "fish": """\
function __transfer_complete
    set -lx COMP_LINE (commandline -cp)
    set -l words (commandline -opc)
    $words[1] -sc query=fish 2>/dev/null
end
complete -c transfer -f -a '(__transfer_complete)'
""",
}
"""What each shell evaluates."""
