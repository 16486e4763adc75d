"""`transfer analyze`: what is in a model, by one analysis or several."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from transfer_cli.analysis.analysis import Analysis, Material, Subject
from transfer_cli.analysis.pictures import draw_charts
from transfer_cli.assembly import datasets
from transfer_cli.assembly.datasets import DataPlace
from transfer_cli.assembly.finished_run import OpenedModel, check_one_stack, open_for_analysis
from transfer_cli.assembly.origins import Origins
from transfer_cli.commands.paths import STANDARD_OUTPUT, check_ending, check_new, check_output
from transfer_cli.commands.predict import reading
from transfer_cli.commands.predict.reading import Columns
from transfer_cli.config.build import build
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.schema import AnalyzeConfig
from transfer_cli.config.stored import as_yaml
from transfer_cli.data import readers
from transfer_cli.data.cloze import ClozeTexts, PairsOfSentences
from transfer_cli.data.labelled import INPUT, LabelledData, TaskData
from transfer_cli.data.layout import Layout
from transfer_cli.data.split import Split
from transfer_cli.data.text import TextData
from transfer_cli.data.wanted import Wanted
from transfer_cli.engine.precision import Precision, device_and_precision
from transfer_cli.errors import ConfigError, DataError, at_least
from transfer_cli.model.weights import DESCRIPTION
from transfer_cli.reports import formats
from transfer_cli.reports.finding import Finding
from transfer_cli.reports.page import analyses_page
from transfer_cli.runs.analyses import write_analysis
from transfer_cli.runs.atomic import write_text
from transfer_cli.runs.directory import HUB, RunDirectory
from transfer_cli.runs.environment import environment
from transfer_cli.runs.results import Results
from transfer_cli.runs.untrusted import is_number
from transfer_cli.safe_files import printable
from transfer_cli.tasks.classification import ClassificationTask
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


def analyze(config: AnalyzeConfig) -> None:
    """Find out what is asked, write it beside the run, and print it."""
    at_least("batch:", config.batch, 1, ConfigError)
    if config.html is not None:
        if config.html == STANDARD_OUTPUT:
            raise ConfigError("html: a page is a file; name it, as in html=page.html")
        check_output(config.html, "html")
        check_ending("html", config.html, (".html",))
    analyses = _build_analyses(config.analysis)
    needing = next((name for name, analysis in analyses.items() if analysis.needs_other), None)
    precision = device_and_precision(config.device, config.precision)
    if config.output is not None:
        check_new(Path(config.output).expanduser(), "output")
    subject = _subject(config, precision, needing)
    findings: dict[str, Finding] = {}
    pictures: dict[str, Mapping[str, bytes]] = {}
    directory = None
    for name, analysis in analyses.items():
        finding = findings[name] = analysis(subject)
        pictures[name] = draw_charts(finding.charts)
        directory = directory or _open_directory(config)
        write_analysis(directory.path, name, finding.as_json(), pictures[name], finding.files)
        print_out(Page(*_finding_blocks(finding)))
        print_line(f"{name:10s} {directory.analyses / f'{name}.json'}")
    if config.html is not None:
        page = analyses_page(config.run, findings, pictures)
        write_text(Path(config.html).expanduser(), page)
        print_line(f"{'page':10s} {config.html}")


def _finding_blocks(finding: Finding) -> Iterator[Renderable]:
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


def _build_analyses(nodes: Mapping[str, Any] | None) -> Mapping[str, Analysis]:
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
    splits = (config.split,) if config.split != "auto" else ("test", "validation", INPUT)
    first = open_for_analysis(config.run, precision, config.base)
    other = config.other
    if needing is not None and other is None:
        other = first.config.get("init_from")
        if other is None:
            raise ConfigError(
                f"other: analysis={needing} compares two models; give other=RUN, which may be a "
                "checkpoint of the same run, too"
            )

    def make_subject(opened: OpenedModel, other: Subject | None = None) -> Subject:
        check_one_stack(opened)
        if opened.start.graph is not None:
            raise ConfigError(
                f"run: {opened.path} is an ONNX graph, into which no analysis looks; take the run"
            )
        material = material_of(config, opened, whose=first)
        return Subject(opened, material, splits, precision, config.batch, config.seed, other)

    if other is None:
        return make_subject(first)
    return make_subject(first, make_subject(open_for_analysis(other, precision, key="other")))


def _open_directory(config: AnalyzeConfig) -> RunDirectory:
    """Return the run itself, or a new run directory for what is found."""
    run = RunDirectory(Path(config.run).expanduser())
    if config.output is None and RunDirectory.holds_run(run.path):
        return run
    typed = CommandLine.current()
    if config.output is None:
        name = Path(config.run.removeprefix(HUB)).name
        directory = RunDirectory.create_new(Path("runs/analyze"), name)
    else:
        directory = RunDirectory.create(Path(config.output).expanduser())
    with directory.written_at_once():
        directory.write_start(
            "analyze", as_yaml(config), typed.overrides, typed.presets, environment()
        )
        Results("analyze", typed.presets, config.seed).write(directory.results)
    return directory


MOST_TEXTS = 100_000
"""Of a file: all of them are in memory."""


def material_of(config: AnalyzeConfig, opened: OpenedModel, whose: OpenedModel) -> Material:
    """Return what `config` names for the model at hand, not yet encoded.

    Where nothing is named, it is what the run of `whose` was trained on.
    """
    if config.input is not None:
        if config.data is not None:
            raise ConfigError("input: is all that is shown; leave data= out")
        return _file_texts(config, opened, says_cut=opened is whose)
    node = whose.config.data if config.data is None else config.data
    if "_target_" not in node:
        return _no_texts(f"{whose.path} brings no data along")
    source: Any = build(node, "data", TextData | TaskData | PairsOfSentences | ClozeTexts)
    if isinstance(source, ClozeTexts):
        raise ConfigError("data: these are texts with a gap, which only score takes")
    if isinstance(source, PairsOfSentences):
        return _no_texts("these are pairs of sentences", pairs=source)
    is_own, data_dir = config.data is None, config.data_dir
    if is_own:
        typed = CommandLine.current().overrides
        data_dir = datasets.data_dir_of(whose.config.data_dir, data_dir, typed)
    place = DataPlace(data_dir, whose.config.seed if is_own else config.seed)
    run = RunDirectory(whose.start.folder.parent)
    has_record = is_own and opened is whose and (run.model / DESCRIPTION).is_file()
    origins = Origins(run if has_record else None, config.data_changed)
    if isinstance(source, TextData):
        return _running_text(source, place, opened, origins)
    return _labelled_texts(source, place, opened, origins)


def _no_texts(why: str, pairs: PairsOfSentences | None = None) -> Material:
    """Return what some analyses do without: no texts."""

    def refuse(name: str) -> Split:
        raise ConfigError(
            f"data: {why}, and this analysis shows a model some texts; name labelled data or text "
            "(data=), or a file of texts (input=)"
        )

    return Material(why, (), None, refuse, pairs)


def _running_text(
    source: TextData, place: DataPlace, opened: OpenedModel, origins: Origins
) -> Material:
    start = opened.start

    def encode(name: str) -> Split:
        prepared, _ = datasets.prepare_text(
            source, place, start.description.shape, start.tokenizer, (name,),
            lambda splits: origins.check_text("data", splits), start.lines,
        )  # fmt: skip
        return prepared.splits[name]

    return Material("this text", datasets.SPLITS, None, encode)


def _labelled_texts(
    source: TaskData, place: DataPlace, opened: OpenedModel, origins: Origins
) -> Material:
    data, start = source.load(place.folder, place.seed), opened.start
    if start.task is not None and data.labels and set(data.labels) <= set(start.task.labels):
        data = data.with_label_numbers(start.task.labels)
    data = origins.check_labelled("data", data)
    task, length = datasets.task_of_data(data), source.length or opened.length
    known = start.task
    if known is None or (known.name, known.labels) != (task.name, task.labels):
        known = task

    def encode(name: str) -> Split:
        shape = start.description.shape
        names, tokenizer = (name,), start.tokenizer
        return datasets.prepare_task(data, length, tokenizer, shape, names, known).splits[name]

    return Material("this data set", tuple(data.splits), known, encode)


def _file_texts(config: AnalyzeConfig, opened: OpenedModel, *, says_cut: bool) -> Material:
    """Return the texts of a file: one a line, or a column of a table."""
    start = opened.start
    task = start.task or ClassificationTask()
    path = str(config.input)
    kind = reading.format_of("auto", path)
    selection = Wanted(labelled=False, keys="")
    with reading.open_input(path, kind, Layout(), selection) as opened_input:
        chosen = reading.columns_for(opened_input.table, selection, selection, task)
        columns = Columns(chosen, keep=False, task=task)
        rows = reading.read_rows(opened_input.table, columns, readers.refuse)
        examples = [row.example for row in islice(rows, MOST_TEXTS)]
        is_cut = True
        with suppress(DataError):  # of a row that is not shown
            is_cut = next(rows, None) is not None
    name = Path(path).name
    if is_cut and says_cut:
        print_line(
            f"{'input':10s} the first {MOST_TEXTS:,} texts of {name}; the others are not read"
        )

    data = LabelledData(name, task.labels, {INPUT: examples})

    def encode(split: str) -> Split:
        shape = start.description.shape
        return datasets.prepare_task(
            data, opened.length, start.tokenizer, shape, (INPUT,), task
        ).splits[INPUT]

    return Material(name, (INPUT,), task, encode)
