"""`transfer analyze`: what is in a model, by one analysis or several."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transfer_cli.analysis.analysis import Analysis, Subject
from transfer_cli.analysis.pictures import drawn
from transfer_cli.assembly.finished_run import Opened, open_to_look_into
from transfer_cli.commands.analyze.material import material_of
from transfer_cli.commands.json_lines import STANDARD_OUTPUT, check_ending, check_output
from transfer_cli.commands.typed_paths import check_new
from transfer_cli.config.build import build
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.schema import AnalyzeConfig
from transfer_cli.config.stored import as_yaml
from transfer_cli.engine.precision import Precision, device_and_precision
from transfer_cli.errors import ConfigError, at_least
from transfer_cli.report import formats
from transfer_cli.report.finding import Finding
from transfer_cli.report.page import analyses_page
from transfer_cli.runs.analyses import write_analysis
from transfer_cli.runs.atomic import write_text
from transfer_cli.runs.directory import HUB, RunDirectory
from transfer_cli.runs.environment import environment
from transfer_cli.runs.results import Results
from transfer_cli.runs.untrusted import is_number
from transfer_cli.safe_files import printable
from transfer_cli.terminal import (
    Column,
    Line,
    Page,
    Piece,
    Prose,
    Renderable,
    TextTable,
    print_line,
    print_out,
)

_MOST_ROWS = 12
"""Of a table on the terminal."""

_MOST_CHARACTERS = 100
"""Of a cell."""

_SPLITS = {"auto": ("test", "validation", "input")}


def analyze(config: AnalyzeConfig) -> None:
    """Find out what is asked, write it beside the run, and print it."""
    at_least("batch:", config.batch, 1, ConfigError)
    if config.html is not None:
        if config.html == STANDARD_OUTPUT:
            raise ConfigError("html: a page is a file; name it, as in html=page.html")
        check_output(config.html, "html")
        check_ending("html", config.html, (".html",))
    analyses = _analyses(config.analysis)
    needing = next((name for name, each in analyses.items() if each.needs_other), None)
    precision = device_and_precision(config.device, config.precision)
    if config.output is not None:
        check_new(Path(config.output).expanduser(), "output")
    subject = _subject(config, precision, needing)
    findings: dict[str, Finding] = {}
    pictures: dict[str, Mapping[str, bytes]] = {}
    directory = None
    for name, analysis in analyses.items():
        finding = findings[name] = analysis(subject)
        pictures[name] = drawn(finding.charts)
        directory = directory or _directory(config)
        write_analysis(directory.path, name, finding.as_json(), pictures[name], finding.files)
        print_out(Page(*_printed(finding)))
        print_line(f"{name:10s} {directory.analyses / f'{name}.json'}")
    if config.html is not None:
        page = analyses_page(config.run, findings, pictures)
        write_text(Path(config.html).expanduser(), page)
        print_line(f"{'page':10s} {config.html}")


def _printed(finding: Finding) -> Iterator[Renderable]:
    """Yield what a terminal shows of a finding: its summary, and the first rows of its tables."""
    yield Prose(finding.summary)
    for table in finding.tables:
        if not table.rows:
            continue
        rows = [
            [formats.cut(printable(formats.cell(value)), _MOST_CHARACTERS) for value in row]
            for row in table.rows[:_MOST_ROWS]
        ]
        columns = [
            Column(title, right=all(value is None or is_number(value) for value in values))
            for title, *values in zip(table.columns, *table.rows, strict=True)
        ]
        if table.title:
            yield Line(Piece(table.title, "heading"))
        yield TextTable(columns, rows)
        if len(table.rows) > _MOST_ROWS:
            yield Line(Piece(f"and {len(table.rows) - _MOST_ROWS:,} rows more", "note"))
    yield from (Line(Piece(note, "note")) for note in finding.notes)


def _analyses(nodes: Mapping[str, Any] | None) -> Mapping[str, Analysis]:
    """Return the analyses that are asked for, by the names of their options."""
    if not nodes:
        raise ConfigError(
            "analysis: name one, or several as analysis=[probes,neurons]; type transfer presets "
            "analysis for all"
        )
    return {name: build(node, f"analysis.{name}", Analysis) for name, node in nodes.items()}


def _subject(config: AnalyzeConfig, precision: Precision, needing: str | None) -> Subject:
    """Return the model that is looked at, and the other one, where there is one.

    Where an analysis is `needing` another and none is named, it is the model that a run began with.
    """
    asked = _SPLITS.get(config.split, (config.split,))
    first = open_to_look_into(config.run, precision, config.base)
    other = config.other
    if needing is not None and other is None:
        other = first.config.get("init_from")
        if other is None:
            raise ConfigError(
                f"other: analysis={needing} compares two models; give other=RUN, which may be a "
                "checkpoint of the same run, too"
            )

    def made(opened: Opened, other: Subject | None = None) -> Subject:
        shown = material_of(config, opened, whose=first)
        return Subject(opened, shown, asked, precision, config.batch, config.seed, other)

    if other is None:
        return made(first)
    return made(first, made(open_to_look_into(other, precision, key="other")))


def _directory(config: AnalyzeConfig) -> RunDirectory:
    """Return the run itself, or a new run directory for what is found."""
    run = RunDirectory(Path(config.run).expanduser())
    if config.output is None and RunDirectory.holds_run(run.path):
        return run
    typed = CommandLine.of_this_command()
    if config.output is None:
        name = Path(config.run.removeprefix(HUB)).name
        directory = RunDirectory.create_new(Path("runs/analyze"), name)
    else:
        directory = RunDirectory.create(Path(config.output).expanduser())
    with directory.written_at_once():
        directory.start("analyze", as_yaml(config), typed.overrides, typed.presets, environment())
        Results("analyze", typed.presets, config.seed).write(directory.results)
    return directory
