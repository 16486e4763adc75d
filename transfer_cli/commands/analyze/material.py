"""The texts that a model is shown: its own data, other data, or a file of texts."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from transfer_cli.analysis.analysis import Material
from transfer_cli.assembly import datasets
from transfer_cli.assembly.datasets import DataPlace
from transfer_cli.assembly.finished_run import Opened
from transfer_cli.assembly.origins import Origins
from transfer_cli.commands.predict import reading
from transfer_cli.commands.predict.reading import Columns
from transfer_cli.config.build import build
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.schema import AnalyzeConfig
from transfer_cli.data.cloze import ClozeTexts
from transfer_cli.data.columns import Wanted
from transfer_cli.data.labelled import INPUT, LabelledData, TaskData
from transfer_cli.data.layout import Layout
from transfer_cli.data.minimal_pairs import PairsOfSentences
from transfer_cli.data.split import Split
from transfer_cli.data.text import TextData
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.model.weights import DESCRIPTION
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.terminal import print_line

MOST_TEXTS = 100_000
"""Of a file: all of them are in memory."""


def material_of(config: AnalyzeConfig, opened: Opened, whose: Opened) -> Material:
    """Return what `config` names for the model at hand, not yet encoded.

    Where nothing is named, it is what the run of `whose` was trained on.
    """
    if config.input is not None:
        if config.data is not None:
            raise ConfigError("input: is all that is shown; leave data= out")
        return _file(config, opened)
    node = whose.config.data if config.data is None else config.data
    if "_target_" not in node:
        return _nothing(f"{whose.path} brings no data along")
    source: Any = build(node, "data", TextData | TaskData | PairsOfSentences | ClozeTexts)
    if isinstance(source, ClozeTexts):
        raise ConfigError("data: these are texts with a gap, which only score takes")
    if isinstance(source, PairsOfSentences):
        return _nothing("these are pairs of sentences", pairs=source)
    own, data_dir = config.data is None, config.data_dir
    if own:
        typed = CommandLine.of_this_command().overrides
        data_dir = datasets.data_dir_of(whose.config.data_dir, data_dir, typed)
    place = DataPlace(data_dir, whose.config.seed if own else config.seed)
    run = RunDirectory(whose.start.folder.parent)
    has_record = own and opened is whose and (run.model / DESCRIPTION).is_file()
    origins = Origins(run if has_record else None, config.data_changed)
    if isinstance(source, TextData):
        return _running_text(source, place, opened, origins)
    return _labelled(source, place, opened, origins)


def _nothing(why: str, pairs: PairsOfSentences | None = None) -> Material:
    """Return what some analyses do without: no texts."""

    def refuse(name: str) -> Split:
        raise ConfigError(
            f"data: {why}, and this analysis shows a model some texts; name labelled data or text "
            "(data=), or a file of texts (input=)"
        )

    return Material(why, (), None, refuse, pairs)


def _running_text(source: TextData, place: DataPlace, opened: Opened, origins: Origins) -> Material:
    start = opened.start

    def encode(name: str) -> Split:
        prepared, _ = datasets.text(
            source, place, start.description.shape, start.tokenizer, (name,),
            lambda splits: origins.text("data", splits), start.lines,
        )  # fmt: skip
        return prepared.splits[name]

    return Material("this text", datasets.SPLITS, None, encode)


def _labelled(source: TaskData, place: DataPlace, opened: Opened, origins: Origins) -> Material:
    data = source.load(place.folder, place.seed)
    data = origins.labelled("data", _as_known(data, opened.start.task))
    task = datasets.task_of_data(data)
    start, length = opened.start, source.length or opened.length
    known = start.task if start.task is not None and start.task.name == task.name else task
    if known.labels != task.labels:
        known = task

    def encode(name: str) -> Split:
        shape = start.description.shape
        return datasets.task(data, length, start.tokenizer, shape, (name,), known).splits[name]

    return Material("this data set", tuple(data.splits), known, encode)


def _as_known(data: LabelledData, task: Task | None) -> LabelledData:
    """Return data with the numbers of a model's labels, where it knows them all."""
    if task is None or not data.labels or not set(data.labels) <= set(task.labels):
        return data
    return data.numbered_as(task.labels)


def _file(config: AnalyzeConfig, opened: Opened) -> Material:
    """Return the texts of a file: one a line, or a column of a table."""
    start = opened.start
    task = start.task or ClassificationTask()
    path = str(config.input)
    kind = reading.format_of("auto", path)
    wanted = Wanted(labelled=False, keys="")
    with reading.opened(path, kind, Layout(), wanted) as given:
        chosen = given.table.columns(wanted, wanted)
        columns = Columns(chosen.text, chosen.pair, keep=False, task=task)
        rows = reading.rows_of(given.table, columns, _refuse)
        examples = [row.example for row in islice(rows, MOST_TEXTS)]
        is_cut = next(rows, None) is not None
    name = Path(path).name
    if is_cut:
        print_line(
            f"{'input':10s} the first {MOST_TEXTS:,} texts of {name}; the others are not read"
        )

    def encode(split: str) -> Split:
        return _encoded(examples, task, opened)

    return Material(name, (INPUT,), task, encode)


def _refuse(error: DataError) -> None:
    raise error


def _encoded(examples: Sequence[Any], task: Task, opened: Opened) -> Split:
    start = opened.start
    direction = datasets.direction_of(start.description.shape)
    encoded = task.encode(examples, start.tokenizer, opened.length, direction)
    return Split(
        INPUT,
        encoded,
        order=np.argsort(encoded.lengths, kind="stable"),
        example_of=encoded.example_of if len(encoded) > len(examples) else None,
        unit="examples",
        num_cut=encoded.num_cut,
        shown=lambda number: task.texts(examples[number])[0],
    )
