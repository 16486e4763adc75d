"""`transfer evaluate`: score a finished run on any split of its data, or of data that fits it."""

from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from transfer_cli.assembly import datasets
from transfer_cli.assembly.finished_run import Trained, open_trained
from transfer_cli.config.command_line import CommandLine
from transfer_cli.data.corpus import TextBlocks, encode_text
from transfer_cli.data.split import Split
from transfer_cli.data.tasks import TaskData
from transfer_cli.data.text import TextData
from transfer_cli.engine import distributed
from transfer_cli.engine.evaluate import evaluate as score
from transfer_cli.engine.precision import Precision, device_and_precision
from transfer_cli.errors import ConfigError, DataError, at_least, one_of
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.unigram import unigram_model
from transfer_cli.runs.atomic import write_json
from transfer_cli.safe_files import escaped
from transfer_cli.training.workers import in_process_group

ASKED = (*datasets.SPLITS, "all")
BASELINES = ("none", "unigram")


def evaluate(config: DictConfig) -> None:
    """Print the measures of the splits asked for; write them to `output` if there is one."""
    _check(config)
    in_process_group(config, lambda: _evaluate(config))


def _evaluate(config: DictConfig) -> None:
    precision = device_and_precision(config.device, config.precision)
    trained = open_trained(config.run, precision, config.base)
    if config.data is None:
        typed = CommandLine.of_this_command().overrides
        config.data_dir = datasets.data_dir_of(trained.config, config, typed)
    names = datasets.SPLITS if config.split == "all" else (config.split,)
    source = data_source(config, trained)
    of_kind = _text if isinstance(source, TextData) else _labelled
    with distributed.main_first():
        splits = of_kind(config, source, trained, names)
    model = trained.model
    if config.baseline == "unigram":
        with distributed.main_first():
            model = _unigram(config, source, trained).to(precision.device)
        # Its log shares are weights: half precision would round the yardstick.
        precision = Precision("fp32", precision.device)
    scores = {
        split.name: score(model, trained.objective, split, batch=config.batch, precision=precision)
        for split in splits
    }
    if not distributed.is_main():
        return
    measures = {name: found.measures for name, found in scores.items()}
    say(measures)
    labels = trained.start.description.labels
    for name, found in scores.items():
        for table in found.tables.values() if labels else ():
            say_confusion(name, labels, table)
    if config.output is not None:
        result = {"run": config.run, "baseline": config.baseline, "measures": measures}
        write_json(Path(config.output).expanduser(), result)


def _check(config: DictConfig) -> None:
    one_of("split", config.split, ASKED)
    one_of("baseline", config.baseline, BASELINES)
    at_least("batch:", config.batch, 1, ConfigError)


def data_source(config: DictConfig, trained: Trained) -> Any:
    """Return the data to score on: the one asked for, else the run's own."""
    kind: Any = TextData if trained.start.task is None else TaskData
    own = config.data is None
    if own and trained.start.published is not None:
        raise ConfigError(f"data: {config.run} brings no data along; name some to score it on")
    return datasets.source(trained.config if own else config, kind)


def say(measures: dict[str, dict[str, float]]) -> None:
    """Print a line for each measure of each split."""
    for split, found in measures.items():
        for name, value in found.items():
            print(f"{split:10s} {name:24s} {value:.6g}")


def say_confusion(split: str, labels: tuple[str, ...], table: list[list[int]]) -> None:
    """Print a confusion table: a row for each label given, a column for each one predicted."""
    labels = tuple(escaped(label) for label in labels)
    wide = max(6, *(len(label) for label in labels)) + 1
    print(f"{split} confusion, rows are labels, columns predictions")
    print(" " * wide + "".join(f"{label:>{wide}}" for label in labels))
    for label, row in zip(labels, table, strict=True):
        print(f"{label:<{wide}}" + "".join(f"{count:>{wide}}" for count in row))


def _text(config: DictConfig, source: Any, trained: Trained, names: tuple[str, ...]) -> list[Split]:
    shape = trained.start.description.shape
    length = datasets.block_length(source.length, shape.positions)
    raw = source.splits(datasets.data_folder(config.data_dir), trained.config.seed, only=names)
    _check_there(raw, names, config.split)
    cache = datasets.cache_folder(config.data_dir)
    tokenizer = trained.start.tokenizer
    encoded = {name: encode_text(raw[name], tokenizer, cache) for name in names if name in raw}
    return [
        Split(name, TextBlocks(part, length, tokenizer.pad), datasets.text_facts(part))
        for name, part in encoded.items()
    ]


def _unigram(config: DictConfig, source: Any, trained: Trained) -> TransferModel:
    """Return the unigram model of the text that `data` (or the run's own) trains on."""
    if not isinstance(source, TextData):
        raise ConfigError("baseline: unigram scores text, and this run classifies")
    folder = datasets.data_folder(config.data_dir)
    raw = source.splits(folder, trained.config.seed, only=("train",))
    cache = datasets.cache_folder(config.data_dir)
    tokenizer = trained.start.tokenizer
    tokens = encode_text(raw["train"], tokenizer, cache).tokens[1:]
    chunks = np.array_split(tokens, max(1, len(tokens) // 2**20))
    return unigram_model(chunks, tokenizer.size)


def _labelled(
    config: DictConfig, source: Any, trained: Trained, names: tuple[str, ...]
) -> list[Split]:
    description, task = trained.start.description, trained.start.task
    data = source.load(datasets.data_folder(config.data_dir), trained.config.seed)
    _check_there(data.splits, names, config.split)
    theirs = datasets.task_of_data(data)
    if task is None or theirs.name != task.name:
        raise DataError(
            f"data: it holds examples of the task {theirs.name}, and this run was trained for "
            f"{'text' if task is None else task.name}; choose data of that task"
        )
    if data.labels != description.labels:
        raise DataError(
            f"data: its labels are {', '.join(data.labels)}, and this run knows "
            f"{', '.join(description.labels)}; choose data with the same labels"
        )
    longest = datasets.block_length(source.length, description.shape.positions)
    return [
        datasets.task_split(
            name, data.splits[name], task, trained.start.tokenizer, longest, description.shape
        )
        for name in names
        if name in data.splits
    ]


def _check_there(found: Any, names: tuple[str, ...], asked: str) -> None:
    if not any(name in found for name in names):
        there = ", ".join(found) or ", ".join(n for n in datasets.SPLITS if n not in names)
        raise DataError(f"split: this data has no {asked} split; ask for another, such as {there}")
