"""`transfer presets` lists the options that there are; `transfer init` copies some to edit."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from os.path import lexists
from pathlib import Path

from transfer_cli.config.bounded_yaml import check_file_sizes
from transfer_cli.config.commands import ALL
from transfer_cli.config.describe import (
    PACKAGED,
    Option,
    comment_lines,
    key_help,
    options,
    with_comment,
)
from transfer_cli.config.flags import MANY, REPEATED, SWITCH, Flags, parse_request, read_flags
from transfer_cli.config.key_files import ENDINGS, with_key_files
from transfer_cli.config.models import ListedModel, listed_models
from transfer_cli.errors import ConfigError, did_you_mean, raised_as
from transfer_cli.runs.atomic import as_run_error, new_folder, write_text
from transfer_cli.safe_files import escaped
from transfer_cli.terminal import (
    BLANK,
    Column,
    Entry,
    Line,
    Page,
    Piece,
    Prose,
    Renderable,
    Style,
    TextTable,
    print_out,
)

MODELS = "models"
"""What `transfer presets` calls the list of published models, which are no options."""


def presets(words: list[str]) -> None:
    """Print the options of the groups that `words` name, of all where they name none."""
    flags = {"groups": MANY, "--json": SWITCH, "--schema": SWITCH, "--config-dir -cd": {}}
    parsed = read_flags(words, flags)
    folder = Path(parsed.config_dir) if parsed.config_dir else None
    if folder is not None:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir: there is no folder {folder}")
        check_file_sizes(folder)
    groups = [group for group in parsed.groups if group != MODELS]
    models = [*listed_models().values()] if MODELS in parsed.groups else []
    chosen = _options_in(options(folder), groups) if groups or not models else []
    if parsed.schema:
        from transfer_cli.config.editor_schema import editor_schema  # which imports torch

        print(json.dumps(editor_schema(folder), indent=1))
    elif parsed.json:
        print(json.dumps([*_records(chosen), *map(asdict, models)], indent=2))
    else:
        print_out(Page(*_option_blocks(chosen), *_model_blocks(models)))


def _options_in(offered: list[Option], groups: list[str]) -> list[Option]:
    """Return the options of `groups` and of the groups below them."""
    known = dict.fromkeys(option.group for option in offered)
    for group in groups:
        if group not in known:
            names = (*known, MODELS)
            hint = did_you_mean(group, names) or f" There are {', '.join(names)}"
            raise ConfigError(f"there is no group {group!r}.{hint}")
    inside = tuple(f"{group}/" for group in groups or known)
    return [option for option in offered if f"{option.group}/".startswith(inside)]


def _model_blocks(models: list[ListedModel]) -> list[Renderable]:
    """Return a table of published models, and how one is chosen."""
    if not models:
        return []
    titles = ("name", "kind", "size", "languages", "licence", "quick, CPU s", "from")
    rows = [
        (
            Piece(model.name, "name"), model.kind, model.size, model.languages, model.licence,
            "" if model.quick_seconds is None else f"{model.quick_seconds:g}", f"hf:{model.hub}",
        )
        for model in models
    ]  # fmt: skip
    return [
        TextTable([Column(title, title in ("size", "quick, CPU s")) for title in titles], rows),
        BLANK,
        Prose(
            "init_from=NAME and run=NAME take one from the hub, or without a network from its "
            "cache; a folder of that name comes first. quick: experiment=quick on the 4,907 "
            "questions of TREC, where it was measured."
        ),
    ]


def _option_blocks(chosen: list[Option]) -> list[Renderable]:
    column = 4 + max((len(option.name) for option in chosen), default=0)
    blocks: list[Renderable] = []
    for group, members in groupby(chosen, key=lambda option: option.group):
        blocks += [BLANK] if blocks else []
        blocks.append(Line(Piece(f"{group}=", "heading")))
        blocks += [_entry(option, column) for option in members]
    return blocks


def _entry(option: Option, column: int) -> Entry:
    if option.origin == PACKAGED:
        return Entry(["  ", Piece(option.name, "name")], [option.line], column)
    why = ", not used: a packaged option has this name" if option.shadowed else ""
    note = Piece(f"({option.file}{why})", "note")
    style: Style = "note" if option.shadowed else "own"
    return Entry(["  ", Piece(option.name, style)], [f"{option.line}  ", note], column)


def _records(chosen: list[Option]) -> list[dict[str, object]]:
    return [
        {
            "group": option.group,
            "option": option.name,
            "description": option.line,
            "target": option.target or None,
            "origin": option.origin,
            "file": str(option.file),
            "used": not option.shadowed,
        }
        for option in chosen
    ]


SCHEMA = "transfer.schema.json"
"""What a file of keys calls the schema beside it: a path works offline, and is of this version."""

STARTERS = {
    "experiment/mine": "experiment=sample/finetune",
    "adaptation/mine": "adaptation=adapters",
    "data/mine": "data=table",
    "data/my_text": "data=text",
    "model/mine": "model=tiny",
    "schedule/mine": "schedule=linear",
    "sweep/mine": "sweep=lr",
}
"""What a new folder holds, and which option of ours each file is a copy of."""

KEY_COMMENTS = {
    "_target_": "what is built of this; the keys beside it are its arguments",
    "defaults": "what this is put together from, in this order; later ones win",
    "_self_": "the keys of this file come here, after what stands above",
    "adaptation": "what is added, what trains, what is kept",
    "checkpoint": "when a run's whole state is written, and how many such states stay",
    "loop": "how long, in which portions and how closely watched a run trains",
    "losses": "further losses, by names of your own",
    "optimizer": "settings of the optimizer, whichever is chosen",
    "schedule": "settings of the schedule, whichever is chosen",
    "store": "all; trained: what trained, and a reference; merged: edits folded in",
    "streams": "further sources of batches, by names of your own",
}
"""What no option of ours repeats, and a copy of it says."""

README = """\
# Configs of your own

Each file here is an option that a command can choose, beside those that come with `transfer`. The
folder is named on the command line; nothing is installed.

    transfer presets --config-dir {folder}
    {plan}
    {run}

`transfer presets` shows what there is, and marks what comes from here; `transfer plan` shows what a
run would do; `--cfg job` prints the whole config that comes out.

## What is here

{listed}

## How it works

- A folder is a group, a file is an option: `model/mine.yaml` is chosen by `model=mine`. Copy a file
  to another name to have one more; `transfer init DIR --from model=small` starts one from any of
  ours, in a folder of its own.
- The first line of a file, if it is a comment, is what `transfer presets` says of it.
- A name of ours stays ours: a `model/tiny.yaml` here would not be used, and `transfer presets` says
  so. Pick names that are not taken.
- What is typed after the options wins over what stands in them: `model=mine model.depth=6`.
- `# @package _global_` at the top of a file means that its keys are those of the whole config
  (`loop.epochs`, `optimizer.lr`), and not of its group.
- A key with `???` has to be given, here or on the command line.
- Classes of your own can be named by a `_target_` as well: `--plugin PACKAGE`.
"""


def init(words: list[str]) -> None:
    """Make a folder of configs to edit, or a file of keys."""
    flags: Flags = {
        "folder": {"nargs": "?"},
        "--from": {**REPEATED, "dest": "sources"},
        "--save": {},
    }
    parsed = read_flags(words, flags)
    if parsed.save is not None:
        if parsed.sources:
            raise ConfigError("--save: makes a file, --from a folder; leave one of them out")
        _save_keys(parsed.save, parsed.folder or "")
        return
    if parsed.folder is None:
        raise ConfigError("which folder? Type transfer init DIR, for example transfer init configs")
    folder = Path(parsed.folder)
    copies = _options_to_copy(parsed.sources)
    files = _file_texts(copies, folder)
    with as_run_error(folder), new_folder(folder.expanduser()) as new:
        for inside, text in files.items():
            (new / inside).parent.mkdir(parents=True, exist_ok=True)
            (new / inside).write_text(text, encoding="utf-8")
    print_out(_summary_page(copies, folder))


def _save_keys(typed: str, place: str) -> None:
    """Write what would be typed as a file of keys."""
    file = Path(place).expanduser()
    if file.suffix not in ENDINGS:
        raise ConfigError(f"--save: writes a file such as my.yaml, got {place or 'none'}")
    if lexists(file):
        raise ConfigError(f"{place}: is there already; choose another name")
    with raised_as(ConfigError, "--save: ", ValueError):
        name, *words = shlex.split(typed.removeprefix("transfer ")) or [""]
    command = ALL.get(name)
    if command is None or not command.composes:
        close = did_you_mean(name, [other for other, known in ALL.items() if known.composes])
        raise ConfigError(f"--save: expected a command and its words, got {typed!r}.{close}")
    from transfer_cli.config.saved_keys import key_file_text  # which imports Hydra

    request = with_key_files(name, command, parse_request(words, name))
    named = ["--config"] if command.text_key else []  # where a word alone is a text
    flags = map(shlex.quote, request.flags)
    line = " ".join(["transfer", name, *flags, *named, _shell_path(Path(place))])
    text = key_file_text(name, command, request)
    head = [f"# yaml-language-server: $schema={SCHEMA}", f"# What is typed wins: {line} KEY=VALUE"]
    with as_run_error(file):
        write_text(file, "\n".join([*head, text, ""]))
    print_out(
        Page(
            Line(Piece(place, "heading"), " is made:"),
            Line(Piece("next:", "heading"), f" {line}"),
            Line(f"      transfer presets --schema > {_shell_path(file.with_name(SCHEMA))}"),
        )
    )


def _options_to_copy(sources: list[str]) -> dict[str, Option]:
    """Return the options to copy, by the path of the copy."""
    known = {f"{option.group}={option.name}": option for option in options()}
    if not sources:
        return {path: known[source] for path, source in STARTERS.items()}
    copies = {}
    for source in sources:
        group, equals, name = source.partition("=")
        if not equals:
            raise ConfigError(f"--from {source}: expected GROUP=OPTION, for example model=tiny")
        names = [option.name for option in known.values() if option.group == group]
        if not names:
            close = did_you_mean(group, dict.fromkeys(option.group for option in known.values()))
            raise ConfigError(f"--from {source}: there is no group {group!r}.{close}")
        if source not in known:
            raise ConfigError(
                f"--from {source}: {group} has no option {name!r}.{did_you_mean(name, names)} "
                f"See transfer presets {group}"
            )
        place = Path(group, name)
        copies[place.with_name(f"my_{place.name}").as_posix()] = known[source]
    return copies


def _file_texts(wanted: Mapping[str, Option], folder: Path) -> dict[Path, str]:
    """Return the text of each file, by its path in the folder."""
    files = {}
    for path, option in wanted.items():
        name = path.removeprefix(f"{option.group}/")
        inside, text = copy_option(option, name, folder)
        files[inside] = text
    listed = "\n".join(
        f"- `{path}.yaml`, from `{option.group}={option.name}`: {option.line}"
        for path, option in wanted.items()
    )
    files[Path("README.md")] = README.format(
        folder=_shell_path(folder),
        plan=_command_line("plan ", folder, wanted),
        run=_command_line("", folder, wanted),
        listed=listed,
    )
    return files


def copy_option(option: Option, name: str, folder: Path) -> tuple[Path, str]:
    """Return the path and the text of an option's copy: its file under a new head, explained."""
    lines = list(explained_lines(option))
    packages = [line for line in lines if line.startswith("# @package")]
    body = [line for line in lines if line not in packages]
    described = next(n for n, line in enumerate(body) if line.lstrip("# ").strip())
    # Where the values go may end with the option's own name.
    head = [re.sub(rf"(?<=\.){re.escape(option.name)}$", name, line) for line in packages]
    head.append(f"# Mine, begun as {option.group}={option.name}")
    head += comment_lines(
        f"The line above is what `transfer presets --config-dir {escaped(str(folder))}` shows: say "
        f"there what this is. It is chosen by `{choosing_word(option, name)}` beside the same "
        "flag. Change what you like; what you leave out has its default."
    )
    head += comment_lines(f"What it was: {body[described].lstrip('# ')}")
    text = "\n".join([*head, *body[described + 1 :]]) + "\n"
    return Path(option.group) / f"{name}.yaml", text


def explained_lines(option: Option) -> Iterator[str]:
    """Yield the lines of an option; those without a comment get what is said of them elsewhere."""
    described = {(known.group, known.name): known.line for known in options()}
    meanings = {**key_help("pretrain"), **key_help("finetune")} if not option.package else {}
    path: list[str] = []
    is_said = begun = False  # what stands above the first key is about the file
    for line in option.text.splitlines():
        text = ""
        if match := _KEY.match(line):
            path = [*path[: len(match[1]) // 2], match[2]]
            meaning = meanings.get(".".join(path), "")
            text = KEY_COMMENTS.get(match[2]) or meaning[:1].lower() + meaning[1:].rstrip(".")
        elif path == ["defaults"] and (match := _ENTRY.match(line)):
            group = match[1] or ""
            below = group[1:] if group.startswith("/") else f"{option.group}/{group}"
            text = KEY_COMMENTS.get(match[2]) or described.get((below.rstrip("/"), match[2]), "")
        yield from [line] if is_said or " #" in line else with_comment(line, text)
        is_comment = line.lstrip().startswith("#")
        is_said, begun = begun and is_comment, begun or not is_comment


_KEY = re.compile(r"( *)(\w+):")
_ENTRY = re.compile(r" *- (?:override )?(?:(/?[\w/]+)(?:@[\w.]+)?: )?\[?([\w/.-]+)")


def choosing_word(option: Option, name: str) -> str:
    """Return the word that chooses the copy of an option, as it is typed in a shell."""
    several = option.group == "adaptation/edits"
    return f"'{option.group}=[{name}]'" if several else f"{option.group}={name}"


def _command_line(before: str, folder: Path, wanted: Mapping[str, Option]) -> str:
    path, option = next(iter(wanted.items()))
    chosen = choosing_word(option, path.removeprefix(f"{option.group}/"))
    if "adaptation/mine" in wanted:
        chosen += " adaptation=mine"
    is_text = option.target.startswith(ALL["finetune"].hidden)
    command = "pretrain" if is_text else "finetune"
    start = "" if is_text else " init_from=RUN"
    return f"transfer {before}{command} --config-dir {_shell_path(folder)} {chosen}{start}"


def _shell_path(folder: Path) -> str:
    """Return the path as it is typed in a shell; `~` still means the home."""
    text = str(folder)
    return text if re.fullmatch(r"~?[\w./-]+", text) else escaped(shlex.quote(text))


def _summary_page(wanted: Mapping[str, Option], folder: Path) -> Page:
    width = 4 + max(len(f"{path}.yaml") for path in wanted)
    blocks: list[Renderable] = [Line(Piece(str(folder), "heading"), " is made:")]
    for path, option in wanted.items():
        text = [f"from {option.group}={option.name}"]
        blocks.append(Entry(["  ", Piece(f"{path}.yaml", "own")], text, width))
    blocks.append(Entry(["  ", Piece("README.md", "own")], ["how to use them"], width))
    blocks.append(
        Line(Piece("next:", "heading"), f" transfer presets --config-dir {_shell_path(folder)}")
    )
    blocks.append(Line(f"      {_command_line('plan ', folder, wanted)}"))
    return Page(*blocks)
