"""`transfer report`: runs and sweeps side by side, as a table, as files, as a page."""

import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from transfer_cli.commands.paths import STANDARD_OUTPUT, check_ending, check_output
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.flags import MANY, REPEATED, Flags, check_plugins, read_flags
from transfer_cli.config.plain_yaml import scalar
from transfer_cli.errors import ConfigError
from transfer_cli.reports.collect import CollectedRuns, collect
from transfer_cli.reports.compare import compare_tasks
from transfer_cli.reports.contents import RUNNING, Report
from transfer_cli.reports.outcomes import with_slices
from transfer_cli.reports.tables import as_csv, as_json, as_markdown, as_terminal_page
from transfer_cli.runs.atomic import write_text
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.slices import Slice
from transfer_cli.runs.sweep import SweepDirectory
from transfer_cli.terminal import Line, is_colourful, print_err, print_out

FORMATS: Mapping[str, tuple[Callable[[Report], str], str]] = {
    "csv": (as_csv, ".csv"),
    "markdown": (as_markdown, ".md"),
    "json": (as_json, ".json"),
    "html": (lambda report: _as_html(report), ".html"),
}
"""What a report can be written as, and how such a file ends."""


def report(words: list[str]) -> None:
    """Print a table of the runs at the paths among `words`, and write the files asked for."""
    files: Flags = {f"--{name}": {} for name in FORMATS}
    repeated = {"--slice": REPEATED, "--plugin": REPEATED}
    flags = {"paths": MANY, "--sort": {}, "--baseline": {}, **files, **repeated}
    parsed = read_flags(words, flags)
    if not parsed.paths:
        raise ConfigError(
            "name runs, sweeps or folders that hold them, such as: transfer report runs/finetune"
        )
    if parsed.plugin:
        # Only here: it brings Hydra along. Packages register their sections of the page.
        from transfer_cli.config.build import import_plugins

        check_plugins(parsed.plugin)
        import_plugins(parsed.plugin)
    targets = {name: getattr(parsed, name) for name in FORMATS if getattr(parsed, name) is not None}
    check_targets(targets)
    slices = _slices(parsed.slice) if parsed.slice else {}
    collected = collect([Path(path).expanduser() for path in parsed.paths])
    _check_any_ended(collected)
    if slices:
        collected.runs = [with_slices(run, slices, collected.problems) for run in collected.runs]
    page = Report(
        tasks=compare_tasks(collected.runs, parsed.sort, parsed.baseline),
        standings=tuple(collected.standings),
        problems=tuple(collected.problems),
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
    )
    with CommandLine(plugins=tuple(parsed.plugin)).as_current():
        written = {name: FORMATS[name][0](page) for name in targets}
        if STANDARD_OUTPUT not in targets.values():
            width = shutil.get_terminal_size().columns if is_colourful(sys.stdout) else None
            print_out(as_terminal_page(page, width))
    for name, text in written.items():
        if targets[name] == STANDARD_OUTPUT:
            sys.stdout.write(text)
        else:
            write_text(Path(targets[name]).expanduser(), text)
            print_err(Line(f"{name}: {targets[name]}"))


def _slices(words: Sequence[str]) -> dict[str, Slice]:
    """Return the slices that words such as `short.length=[0,6]` describe."""
    # Only here: it brings Hydra along.
    from transfer_cli.config.build import build

    nodes: dict[str, dict[str, Any]] = {}
    for word in words:
        place, equals, text = word.partition("=")
        name, _, key = place.rpartition(".")
        if not name or not equals:
            raise ConfigError(f"--slice: {word!r} is none; say 'NAME.length=[0,6]', for example")
        nodes.setdefault(name, {})[key] = _slice_value(key, text)
    return {name: build(node, f"--slice {name}", Slice) for name, node in nodes.items()}


def _slice_value(key: str, text: str) -> Any:
    """Return what was typed: all but a length is a text, which `[` may begin, or quotes enclose."""
    if key != "length":
        return text[1:-1] if re.fullmatch(r"""(["']).*\1""", text) else text
    ends = re.fullmatch(r"\[(.*)\]", text)
    return [scalar(end.strip()) for end in ends[1].split(",")] if ends else scalar(text)


def _check_any_ended(collected: CollectedRuns) -> None:
    """Refuse runs that are all at work; there is always something to say of a sweep."""
    if not collected.standings and all(run.status == RUNNING for run in collected.runs):
        first = collected.runs[0]
        raise ConfigError(
            f"nothing to report yet: {first.path} is still being written; it has results when it "
            f"has ended, and curves until then: tensorboard --logdir {first.path}"
        )


def check_targets(targets: Mapping[str, str]) -> None:
    """Refuse files that a report must not write, before anything else is done."""
    if list(targets.values()).count(STANDARD_OUTPUT) > 1:
        raise ConfigError("only one of them can go to standard output; name a file for the others")
    for name, target in targets.items():
        path = Path(target).expanduser()
        check_output(target, f"--{name}")
        if target != STANDARD_OUTPUT and _belongs_to_run(path, FORMATS[name][1]):
            raise ConfigError(f"--{name}: {path} is part of a run; choose another file")
        if target != STANDARD_OUTPUT:
            check_ending(f"--{name}", target, (FORMATS[name][1],))


def _belongs_to_run(path: Path, ending: str) -> bool:
    """Return whether a file is, or is called like, one that a run or a sweep writes."""
    deepest = 3  # folders from a file of a run, such as of a checkpoint, up to the run directory
    folders = path.resolve().parents[:deepest]
    if not any(
        SweepDirectory.is_at(folder)
        or (RunDirectory.holds_run(folder) and RunDirectory(folder).status.is_file())
        for folder in folders
    ):
        return False
    # None of theirs is called `report...`, or ends as a page or a table does.
    return path.suffix != ending or (ending == ".json" and not path.name.startswith("report"))


def _as_html(report: Report) -> str:
    # Only here: it brings the template engine along.
    from transfer_cli.reports.page import page

    return page(report)
