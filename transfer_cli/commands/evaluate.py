"""`transfer evaluate`: score a finished run on any split of its data, or of data that fits it."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from transfer_cli.assembly import datasets
from transfer_cli.assembly.datasets import DataPlace
from transfer_cli.assembly.finished_run import Trained, open_trained
from transfer_cli.assembly.origins import Origins
from transfer_cli.config.build import build
from transfer_cli.config.command_line import CommandLine
from transfer_cli.data.split import Split
from transfer_cli.data.tasks import TaskData
from transfer_cli.data.text import TextData
from transfer_cli.engine import distributed
from transfer_cli.engine.evaluation import Scores
from transfer_cli.engine.evaluation import evaluate as score
from transfer_cli.engine.precision import Precision, device_and_precision
from transfer_cli.errors import ConfigError, DataError, NotFiniteError, at_least, one_of
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.unigram import unigram_model
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.safe_files import in_one_line
from transfer_cli.terminal import print_line
from transfer_cli.training.workers import in_process_group

ASKED = (*datasets.SPLITS, "all")
BASELINES = ("none", "unigram")


def evaluate(config: DictConfig) -> None:
    """Print the measures of the splits asked for; write them to `output` if there is one."""
    one_of("split", config.split, ASKED)
    one_of("baseline", config.baseline, BASELINES)
    at_least("batch:", config.batch, 1, ConfigError)
    with in_process_group(config):
        precision = device_and_precision(config.device, config.precision)
        trained = open_trained(config.run, precision, config.base)
        source, place = data_source(config, trained)
        origins = _origins(config)
        names = datasets.SPLITS if config.split == "all" else (config.split,)
        with distributed.main_first():
            splits = _encoded(source, place, trained, names, origins)
        model = trained.model
        if config.baseline == "unigram":
            with distributed.main_first():
                model = _unigram(source, place, trained, origins).to(precision.device)
            # Its log shares are weights: half precision would round the yardstick.
            precision = Precision("fp32", precision.device)
        scores = {
            name: _scores(model, trained, split, config.batch, precision)
            for name, split in splits.items()
        }
        if not distributed.is_main():
            return
        measures = {name: found.measures for name, found in scores.items()}
        counts = {name: splits[name].counts() for name in scores}
        unigram = ", scored by baseline=unigram and not by the run"
        scorer = unigram if config.baseline == "unigram" else ""
        for name in scores:
            print_line(f"{name}: {splits[name].extent()}{scorer}")
        say(measures)
        labels = trained.start.description.labels
        for name, found in scores.items():
            if "confusion" in found.tables:
                say_confusion(name, labels, found.tables["confusion"])
        if config.output is not None:
            result = {
                "run": config.run,
                "baseline": config.baseline,
                "data_changed": origins.accepted,
                "counts": counts,
                "measures": measures,
            }
            write_json(Path(config.output).expanduser(), result)


def _scores(
    model: TransferModel, trained: Trained, split: Split, batch: int, precision: Precision
) -> Scores:
    """Return the scores of a split.

    Raises:
        NotFiniteError: A loss or a measure is not a number.
    """
    found = score(model, trained.objective, split, batch=batch, precision=precision)
    for name, value in found.measures.items():
        if math.isnan(value):
            raise NotFiniteError(f"{split.name}: {name}")
    return found


def data_source(config: DictConfig, trained: Trained) -> tuple[TextData | TaskData, DataPlace]:
    """Return the data to score on and its place: `data`, else the run's own."""
    kind: Any = TextData if trained.start.task is None else TaskData
    own, data_dir = trained.config, config.data_dir
    if config.data is None:
        if trained.start.published is not None:
            raise ConfigError(f"data: {config.run} brings no data along; name some to score it on")
        typed = CommandLine.of_this_command().overrides
        data_dir = datasets.data_dir_of(own.data_dir, data_dir, typed)
    node = own.data if config.data is None else config.data
    found = datasets.of_kind(build(node, "data", TextData | TaskData), kind)
    return found, DataPlace(data_dir, own.seed)


def say(measures: dict[str, dict[str, float]]) -> None:
    """Print a line for each measure of each split."""
    for split, found in measures.items():
        for name, value in found.items():
            print_line(f"{split:10s} {name:24s} {value:.6g}")


def say_confusion(split: str, labels: tuple[str, ...], table: list[list[int]]) -> None:
    """Print a confusion table: a row for each label given, a column for each one predicted."""
    labels = tuple(in_one_line(label) for label in labels)
    wide = max(6, *(len(label) for label in labels)) + 1
    print_line(f"{split} confusion, rows are labels, columns predictions")
    print_line(" " * wide + "".join(f"{label:>{wide}}" for label in labels))
    for label, row in zip(labels, table, strict=True):
        print_line(f"{label:<{wide}}" + "".join(f"{count:>{wide}}" for count in row))


def _origins(config: DictConfig) -> Origins:
    """Return what the run's own data were when it began; nothing where others are scored."""
    own = RunDirectory(Path(config.run).expanduser()) if config.data is None else None
    return Origins(own, config.data_changed)


def _encoded(
    source: TextData | TaskData,
    place: DataPlace,
    trained: Trained,
    names: tuple[str, ...],
    origins: Origins,
) -> Mapping[str, Split]:
    """Return splits of the data, encoded as the run's own were."""
    shape, tokenizer = trained.start.description.shape, trained.start.tokenizer
    if isinstance(source, TextData):
        note = partial(origins.text, "data")
        text, _ = datasets.text(source, place, shape, tokenizer, names, note)
        _check_there(text.splits, names)
        return text.splits
    data = source.load(place.folder, place.seed)
    _check_there(data.splits, names)
    task: Any = trained.start.task
    theirs = datasets.task_of_data(data)
    if theirs.name != task.name:
        raise DataError(
            f"data: it holds examples of the task {theirs.name}, and this run was trained for "
            f"{task.name}; choose data of that task"
        )
    data = data.numbered_as(trained.start.description.labels)
    data = origins.labelled("data", data, names)
    longest = source.length or trained.length
    return datasets.task(data, longest, tokenizer, shape, names, task).splits


def _unigram(
    source: TextData | TaskData, place: DataPlace, trained: Trained, origins: Origins
) -> TransferModel:
    """Return the unigram model of the text that `data` (or the run's own) trains on."""
    if not isinstance(source, TextData):
        raise ConfigError("baseline: unigram scores text, and this run classifies")
    blocks: Any = _encoded(source, place, trained, ("train",), origins)["train"].data
    tokens = blocks.text.tokens[1:]
    chunks = np.array_split(tokens, max(1, len(tokens) // 2**20))
    return unigram_model(chunks, trained.start.tokenizer.size)


def _check_there(found: Any, names: tuple[str, ...]) -> None:
    if not any(name in found for name in names):
        there = ", ".join(found) or ", ".join(n for n in datasets.SPLITS if n not in names)
        raise DataError(
            f"split: this data has no {names[0]} split; ask for another, such as {there}"
        )
