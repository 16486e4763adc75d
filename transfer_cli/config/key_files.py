"""A file of keys as an argument: `transfer finetune my.yaml key=value`.

The `config.yaml` of a run repeats that run. What is typed wins over what a file says, and both get
the quotes and signs that Hydra's grammar needs (`for_hydra`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os.path import lexists
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transfer_cli.config.commands import Command
from transfer_cli.config.flags import Request, chooses_sweep
from transfer_cli.config.flat import flat_items
from transfer_cli.config.literal import PLAIN_PATH, as_literal, quoted
from transfer_cli.config.plain import ChosenOptions, Part, PlainKeys
from transfer_cli.config.plain_yaml import read_mapping, read_plain
from transfer_cli.config.roles import Role, role_of
from transfer_cli.errors import ConfigError, raised_as
from transfer_cli.safe_files import UnreadableError, read_text

ENDINGS = (".yaml", ".yml")

_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/:-]*=")

_PATHS = frozenset({
    "run", "init_from", "base", "resume", "run.dir", "input", "output", "other", "data.train",
    "data.validation", "data.test", "model.embeddings",
})  # fmt: skip

_NOT_PLAIN = re.compile(r"""["'\[\]{}$\\]""")
"""What may mean something to Hydra within a list."""


def with_key_files(
    name: str, command: Command, request: Request, values: Mapping[str, Any] = MappingProxyType({})
) -> Request:
    """Return what was typed, with the words of its files of keys before all others.

    Args:
        values: Plain keys that were given from Python.
    """
    files = [word for word in request.overrides if word.endswith(ENDINGS) and "=" not in word]
    beside = [] if command.text_key else files
    keys = PlainKeys(name, request.config_dir, (*PlainKeys.named, *command.open_sections))
    typed = {word: keys.choice(word) for word in request.overrides if word not in beside}
    parts = [part for file in (*request.files, *beside) for part in _parts_of(Path(file), keys)]
    parts += keys.parts(values)
    choices = [part for part in (*typed.values(), *parts) if isinstance(part, ChosenOptions)]
    known = keys.places(choices)
    words = [keys.as_word(part, known, {command.text_key, *command.list_keys}) for part in parts]
    words = _unless_typed(words, typed)
    if not any(_key(word) == "data" for word in (*words, *typed)) and any(
        _key(word) == "data.train" for word in words
    ):
        words.insert(0, f"data={'text' if name in ('pretrain', 'prepare') else 'table'}")
    overrides = [
        word if (choice := typed[word]) is None else f"{choice.typed_beside(known)}={_value(word)}"
        for word in request.overrides  # the same may be typed twice, around another
        if word in typed
    ]
    sweeps = chooses_sweep(words) and "--job" not in request.flags
    return replace(request, overrides=(*words, *overrides), multirun=request.multirun or sweeps)


def for_hydra(request: Request, command: Command) -> Request:
    """Return what was typed with quotes and signs that Hydra's grammar needs."""
    typed = with_quotes(request.overrides, command.list_keys)
    if command.positionals:
        typed = as_overrides(typed, command)
    free = ("sweep.over=", *(f"{key}." for key in command.open_sections))
    typed = tuple(f"++{word}" if word.startswith(free) else word for word in typed)
    return replace(request, overrides=typed)


def with_quotes(words: Sequence[str], lists: Sequence[str]) -> tuple[str, ...]:
    """Return overrides with quotes where Hydra would read a value otherwise than it was typed.

    These are a text with braces, a path that is there under this name, and each text of a plain
    list, as `<a>` has to be. Values in quotes are left as they are, such as several for a sweep.

    Args:
        lists: Keys of several texts; `[a,b]` is such a list.
    """
    return tuple(_with_quotes(word, lists) for word in words)


def _with_quotes(word: str, lists: Sequence[str]) -> str:
    key, equals, value = word.partition("=")
    inner = value[1:-1]
    is_list = value.startswith("[") and value.endswith("]") and inner.strip()
    if key.lstrip("+") in lists and is_list and not _NOT_PLAIN.search(inner):
        return f"{key}=[{','.join(quoted(text.strip()) for text in inner.split(','))}]"
    place = Path(value)
    with suppress(RuntimeError):  # as `~name`, of a user that there is not
        place = place.expanduser()
    is_there = key in _PATHS and value and not PLAIN_PATH.fullmatch(value) and lexists(place)
    # The text with braces that any command may take that composes a run.
    is_text = key == "objective.pattern" and equals and not value.startswith(("'", '"'))
    return f"{key}={quoted(value)}" if is_there or is_text else word


def as_overrides(words: Sequence[str], command: Command) -> tuple[str, ...]:
    """Return a command's words as overrides, with the texts among them quoted for Hydra.

    A word is `KEY=VALUE`, or a value alone: a positional that is given with its key has no place
    any more. Of a key of several texts, `[a,b]` and `null` are left to Hydra.
    """
    text, files = command.text_key, command.files
    overrides, alone, texts = [], [], []
    for word in words:
        key, _, value = word.partition("=")
        if not (_KEY.match(word) or (not text and word.startswith(("+", "~")))):
            alone.append(word)
        elif key == text:
            texts.append(value)
        elif key in command.list_keys and value != "null" and value[:1] not in ("", "["):
            overrides.append(f"{key}=[{as_literal(value)}]")
        else:
            overrides.append(word)
    named_keys = {word.partition("=")[0] for word in overrides} | ({text} if texts else set())
    free = [key for key, _ in command.positionals if key not in named_keys]
    several = alone[len(free) - 1 :] if free and free[-1] == files else []
    if len(several) > 1:
        overrides.append(f"{files}=[{','.join(map(as_literal, several))}]")
        del alone[len(free) - 1 :], free[-1]
    if len(alone) > len(free) and not text:
        shown = alone[len(free)]
        raise ConfigError(
            f"{shown}: expected KEY=VALUE or a flag; a value with a space is written in quotes, "
            "'KEY=two words'"
        )
    if len(alone) > len(free) or len(texts) > 1:
        first, second = [*alone, *texts][-2:]
        raise ConfigError(
            f"{text}: is given 2 times, as {first!r} and {second!r}; a text with spaces is written "
            "in quotes"
        )
    named = [*zip(free, alone, strict=False), *((text, value) for value in texts)]
    return (*overrides, *(f"{key}={as_literal(value)}" for key, value in named))


def swept_words(name: str, over: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the words that sweep keys of a command over plain values that were given."""
    keys, words = PlainKeys(name), []
    for key, values in over.items():
        values = values.tolist() if hasattr(values, "tolist") else values
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"over: {key}: expected a list of values, got {values!r:.60}")
        if any(isinstance(value, Mapping) for value in values):
            raise ConfigError(f"over: {key}: a value is a mapping; give the keys in it, with dots")
        parts = [part for value in values for part in keys.parts({key: value})]
        if any(isinstance(part, ChosenOptions) and part.names == ["null"] for part in parts):
            raise ConfigError(f"over: {key}: null leaves an option out, which no sweep can")
        typed = [keys.as_word(part, known=set(), raw=set()) for part in parts]
        words.append(f"{typed[0].partition('=')[0]}={','.join(map(_value, typed))}")
    return words


def _unless_typed(words: Sequence[str], typed: Mapping[str, ChosenOptions | None]) -> list[str]:
    """Return words of files, but for what was typed, and options and keys of other options."""
    values_by_key = {_key(word): _value(word) for word in words}
    gone = {_key(word) for word in typed} | {c.typed for c in typed.values() if c is not None}
    others: list[str] = []
    for word, choice in typed.items():
        if choice is None or values_by_key.get(choice.typed) == _value(word):
            continue
        chosen = [key for key in values_by_key if f"{key}/".startswith(f"{choice.typed}/")]
        gone |= {*chosen}
        others += [f"{key.rpartition('@')[2].replace('/', '.')}." for key in chosen]
    return [w for w in words if _key(w) not in gone and not _key(w).startswith(tuple(others))]


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _value(word: str) -> str:
    return word.partition("=")[2]


def _parts_of(file: Path, keys: PlainKeys) -> list[Part]:
    """Return what a file says."""
    file = file.expanduser()
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file of keys")
    with raised_as(ConfigError, f"{file}: ", UnreadableError, OSError):
        if file.name == "config.yaml" and file.with_name("overrides.txt").is_file():
            return [*_parts_of_run(file, keys)]
        values = read_mapping(file)
    if not values:
        raise ConfigError(f"{file}: holds no keys; write them as they are typed, as seed: 1")
    if any(key.endswith("_target_") for key, _ in flat_items(values)):
        raise ConfigError(
            f"{file}: is the config of a run, which is repeated from its own folder: type "
            "RUN/config.yaml"
        )
    return [*keys.parts(values)]


def _parts_of_run(file: Path, keys: PlainKeys) -> Iterator[Part]:
    """Yield what was typed for a run, and what its config says otherwise than that does now."""
    from transfer_cli.config import compose, stored  # which import Hydra

    lines = read_text(file.with_name("overrides.txt")).splitlines()
    words = compose.without_hydra_keys(lines)
    # The preset of a sweep goes, and what it chooses stays.
    sweeps = [choice for word in words if _key(word) == "sweep" and (choice := keys.choice(word))]
    typed = [keys.as_word(part, set(), set()) for s in sweeps for part in keys.chosen_by(s)]
    typed += [word for word in words if not _is_set_anew(_key(word))]
    yield from typed
    request = Request(tuple(typed), config_dir=keys.config_dir)
    start = f"{file.with_name('overrides.txt')}: "
    with raised_as(ConfigError, start, ConfigError), compose.as_config_error(keys.name, request):
        now = compose.load_config(keys.name, request)
    values = dict(flat_items(stored.plain_values(now)))
    for key, value in flat_items(read_plain(file)):
        if not _is_set_anew(key) and values.get(key) != value:
            yield key, value


def _is_set_anew(key: str) -> bool:
    """Return whether a repetition has something else; what a budget chose is not chosen again."""
    of_budget = ("budget", "models", "dial.foreseen")
    return key in of_budget or bool((Role.NAMES_RUN | Role.OTHERS) & role_of(key))
