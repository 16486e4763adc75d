"""Commented copies of packaged options, made from those files and from what their classes say.

Nothing is written down here that stands elsewhere: values are the packaged ones, the meaning of an
argument is what the docstring of its class says of it, and so a copy is never out of date.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import yaml

from transfer_cli.config import schema
from transfer_cli.config.describe import Option, key_help, options
from transfer_cli.safe_files import escaped

WIDTH = 100

_COLUMN = 33
"""Where the packaged files begin their comments."""

_WORDS = {
    "_target_": "what is built of this; the keys beside it are its arguments",
    "defaults": "what this is put together from, in this order; later ones win",
    "_self_": "the keys of this file come here, after what stands above",
    "hydra": "what makes a sweep of it",
    "hydra.sweeper": "the part of Hydra that makes the jobs",
    "hydra.sweeper.params": "one job for each combination of these values",
    "optimizer": "settings of the optimizer, whichever is chosen",
    "schedule": "settings of the schedule, whichever is chosen",
    "tokenizer": "settings of the tokenizer, where one is made",
    "objective": "settings of the main loss",
    "losses": "further losses, by names of your own",
    "streams": "further sources of batches, by names of your own",
    "task": "the labelled data whose texts are read",
    "lr": "the peak learning rate",
    "weight": "how much this loss counts",
    "weight_decay": "the share of a weight that rate 1 takes away; of matrices only",
    "betas": "how much of the averages of gradients and of their squares each step keeps",
    "eps": "keeps divisions by averages near 0 finite",
    "momentum": "how much of the average gradient each step keeps",
    "nesterov": "look a step ahead along the average",
    "warmup": "steps when 1 or more, else a share of the run",
    "dropout": "on what the head reads",
    "stream": "whose batches this loss reads; main: those of the task",
}
"""What no class and no field explains: keys of Hydra, of sections of the config, of torch."""

_KEY = re.compile(r"(?P<indent> *)(?P<key>[\w.@/-]+):(?: (?P<value>.*))?$")
_ITEM = re.compile(r"(?P<indent> *)- (?P<item>.*)$")


def copy(option: Option, name: str, folder: Path) -> tuple[Path, str]:
    """Return where the copy of an option lies, and what stands there.

    Args:
        option: The packaged option.
        name: What the copy is chosen by.
        folder: The folder of one's own configs.
    """
    inside = Path(option.group) / f"{name}.yaml"
    lines = option.file.read_text(encoding="utf-8").splitlines()
    packages = [line for line in lines if line.startswith("# @package")]
    body = [line for line in lines if line not in packages]
    described = next(n for n, line in enumerate(body) if line.lstrip("# ").strip())
    head = [_renamed(line, option.name, name) for line in packages]
    head.append(f"# Mine, begun as {option.group}={option.name}")
    head += _comment(
        f"The line above is what `transfer presets --config-dir {escaped(str(folder))}` shows: say "
        f"there what this is. It is chosen by `{chosen_by(option, name)}` beside the same flag. "
        "Change what you like; what you leave out has its default."
    )
    head += _comment(f"What it was: {body[described].lstrip('# ')}")
    return inside, "\n".join([*head, *_explained(option, body[described + 1 :])]) + "\n"


def chosen_by(option: Option, name: str) -> str:
    """Return the word that chooses the copy of an option, as it is typed in a shell."""
    several = option.group == "adaptation/edits"
    return f"'{option.group}=[{name}]'" if several else f"{option.group}={name}"


def _renamed(line: str, old: str, new: str) -> str:
    """Return the line that says where the values go, without the old name at its end."""
    return re.sub(rf"(?<=\.){re.escape(old)}$", new, line)


def _comment(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _explained(option: Option, lines: list[str]) -> Iterator[str]:
    """Yield the lines of a config, each key and each default with what it means."""
    meanings = _meanings(option)
    above: list[tuple[int, str]] = []
    for line in lines:
        bare, hash_sign, _ = line.partition(" #")
        key, item = _KEY.match(bare.rstrip()), _ITEM.match(bare)
        if key is not None:
            indent = key["indent"]
            above = [each for each in above if each[0] < len(indent)]
            above.append((len(indent), key["key"]))
        if hash_sign or line.lstrip().startswith("#") or not (key or item):
            yield line
            continue
        if key is not None:
            meaning = meanings.of(".".join(name for _, name in above))
        else:
            assert item is not None  # noqa: S101 - for the type checker
            indent = item["indent"]
            meaning = _of_default(option.group, item["item"])
        yield from _with_comment(line, indent, meaning)


def _with_comment(line: str, indent: str, meaning: str) -> list[str]:
    beside = f"{line:<{_COLUMN - 1}} # {meaning}"
    if not meaning:
        return [line]
    if len(beside) <= WIDTH and len(line) < _COLUMN:
        return [beside]
    return [*_comment(meaning, indent), line]


# --- what a key means ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Meanings:
    """What the keys of a file mean.

    Args:
        targets: The class that each node is built of, by its path; "" for the whole file.
        keys: Of the plain values of the whole config, by full key.
    """

    targets: Mapping[str, str]
    keys: Mapping[str, str]

    def of(self, path: str) -> str:
        """Return what a key means; "" where nobody knows."""
        parent, _, name = path.rpartition(".")
        arguments = argument_help(self.targets[parent]) if parent in self.targets else {}
        found = arguments.get(name) or self.keys.get(path) or _WORDS.get(path)
        if found is None and path.startswith("hydra.sweeper.params."):
            swept = self.keys.get(path.removeprefix("hydra.sweeper.params."), "")
            found = f"a value for each job. {swept}".rstrip(". ")
        return _as_note(found or _WORDS.get(name, ""))


def _as_note(text: str) -> str:
    """Return a sentence as it stands beside a value."""
    text = text.rstrip(".")
    is_word = re.match(r"(A|[A-Z][a-z]+)[ ,]", text)
    return text[0].lower() + text[1:] if is_word else text


def _meanings(option: Option) -> _Meanings:
    keys = {**key_help("pretrain"), **key_help("finetune")}
    for name, kind in schema.TrainConfig.__annotations__.items():
        if isinstance(kind, type) and kind.__module__ == schema.__name__ and kind.__doc__:
            keys[name] = kind.__doc__.splitlines()[0]
    return _Meanings(_targets(option), keys)


def _targets(option: Option) -> dict[str, str]:
    """Return the class of each node of a file, also of those that it takes over from another."""
    found: dict[str, str] = {}
    left = [("", yaml.safe_load(option.file.read_text(encoding="utf-8")))]
    while left:
        path, node = left.pop()
        if isinstance(node, dict):
            if "_target_" in node:
                found[path] = node["_target_"]
            left += [(f"{path}.{name}".lstrip("."), each) for name, each in node.items()]
    known = {(each.group, each.name): each for each in options()}
    for name in re.findall(r"^  - ([\w/]+)$", option.file.read_text("utf-8"), re.MULTILINE):
        base = known.get((option.group, name))
        if base is not None:
            found = _targets(base) | found
    return found


@cache
def argument_help(target: str) -> dict[str, str]:
    """Return what the docstring of a class of ours says of each argument; the class stays unread.

    To import it could take seconds, and torch with it.
    """
    module, _, name = target.rpartition(".")
    if not module.startswith("transfer_cli."):
        return {}
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return {}
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _arguments(ast.get_docstring(node) or "")
        if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names):
            return argument_help(f"{node.module}.{name}")
    return {}


def _arguments(docstring: str) -> dict[str, str]:
    _, _, section = docstring.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    found = {}
    for names, text in re.findall(
        r"^    ([\w, ]+): (.*(?:\n(?:        .*)?)*)", section, re.MULTILINE
    ):
        for name in names.split(","):
            found[name.strip()] = " ".join(text.split())
    return found


def _of_default(group: str, entry: str) -> str:
    """Return what an entry of a list of defaults takes in."""
    if entry in _WORDS:
        return _WORDS[entry]
    place, _, chosen = entry.removeprefix("override ").rpartition(":")
    if not place:  # an option of the same group
        place, chosen = "/" + group, entry.partition("@")[0]
    where = place.partition("@")[0]
    where = where.removeprefix("/") if where.startswith("/") else f"{group}/{where}"
    names = re.findall(r"[\w/-]+", chosen)
    lines = {each.name: each.line for each in options() if each.group == where}
    return "; ".join(lines[name] for name in names if name in lines)
