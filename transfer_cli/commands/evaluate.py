"""`transfer evaluate`: score a finished run on any split of its data, or of data that fits it."""

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from transfer_cli.assembly import datasets
from transfer_cli.assembly.datasets import DataPlace
from transfer_cli.assembly.finished_run import TrainedModel, open_trained
from transfer_cli.assembly.origins import Origins
from transfer_cli.commands.closing import AnswerSummary
from transfer_cli.commands.conversation import as_chat_model
from transfer_cli.commands.paths import check_ending, check_not_read, check_output
from transfer_cli.config.build import TARGET, build, class_of
from transfer_cli.config.check_beams import typed_beams
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.schema import EvaluateConfig
from transfer_cli.config.stored import plain_values
from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.labelled import INPUT, LabelledData, TaskData
from transfer_cli.data.split import Split
from transfer_cli.data.text import TextData, TextFiles
from transfer_cli.engine import distributed
from transfer_cli.engine.evaluation import EachExample, Scores, inference_batch_size
from transfer_cli.engine.evaluation import evaluate as score
from transfer_cli.engine.precision import Precision, device_and_precision
from transfer_cli.errors import ConfigError, DataError, NotFiniteError, count_or_auto, raised_as
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.unigram import unigram_model
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.class_scores import MOST_LISTED
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.items import MOST_ITEMS, Item, write_items
from transfer_cli.runs.results import Results
from transfer_cli.runs.slices import Slice
from transfer_cli.safe_files import in_one_line
from transfer_cli.tasks.sources import LabelledFiles
from transfer_cli.terminal import Page, print_line, print_out
from transfer_cli.training.console import label_score_blocks
from transfer_cli.training.examples import collect_items, slice_scores, with_unseen
from transfer_cli.training.process_group import in_process_group

_SPLIT_CHOICES: Mapping[str, Sequence[tuple[str, ...]]] = {
    "auto": (("test",), ("validation",)),
    "all": (datasets.SPLITS,),
}
"""What `split` may be but the name of one: sets; the first that the data have is scored.
Some labelled data have splits of their own, such as MNLI's `mismatched`."""

_INPUT_KEYS = (
    "text", "pair", "label", "delimiter", "encoding", "header", "quotes", "sheet", "format",
    "errors",
)  # fmt: skip


def evaluate(config: EvaluateConfig) -> dict[str, dict[str, float]]:
    """Print the measures of the splits asked for, return them, and write them to `output`."""
    count_or_auto("batch", config.batch)
    _check_input(config)
    for key, ending in (("output", ".json"), ("each", ".jsonl")):
        file = getattr(config, key)
        if file is not None:
            check_output(file, key)
            check_ending(key, file, (ending,))
    slices = {name: build(node, f"slices.{name}", Slice) for name, node in config.slices.items()}
    with in_process_group(plain_values(config)):
        precision = device_and_precision(config.device, config.precision)
        trained = open_trained(config.run, precision, config.base, typed_beams(vars(config)))
        if config.data is not None:
            trained = as_chat_model(trained, config.data)
        data = data_source(config, trained) if config.input is None else None
        origins = _origins(config)
        with distributed.main_first():
            if config.input is not None:
                splits = _file_splits(config, config.input, trained)
            elif data is not None:
                choices = _SPLIT_CHOICES.get(config.split, ((config.split,),))
                splits = _encode_splits(*data, trained, choices, origins)
        splits = _with_most_answers(config, trained, _with_context(config, trained, splits))
        model = trained.model
        if config.baseline == "unigram" and data is not None:
            with distributed.main_first():
                model = _unigram_baseline(*data, trained, origins).to(precision.device)
            splits = {name: replace(split, context=None) for name, split in splits.items()}
            # Its log shares are weights: half precision would round the yardstick.
            precision = Precision("fp32", precision.device)
        few = sum(len(split.data) for split in splits.values()) <= MOST_ITEMS
        summarizes = config.input is not None and trained.start.task is not None and few
        items: list[Item] | None = [] if config.each is not None or summarizes else None
        batch = inference_batch_size(config.batch, trained.model, precision.device)
        scores = {
            name: _score_split(model, trained, split, batch, precision, items, slices)
            for name, split in splits.items()
        }
        if distributed.is_main():
            _print_scores(config, trained, splits, scores, origins)
            if items is not None and config.each is not None:
                write_items(Path(config.each).expanduser(), items)
            if items is not None and summarizes:
                _log_answer_summary(trained, splits[INPUT], items)
    return {name: split_scores.measures for name, split_scores in scores.items()}


def _log_answer_summary(trained: TrainedModel, split: Split, items: Sequence[Item]) -> None:
    """Log how the answers to a file are shared out, and which are least sure."""
    task, examples = trained.start.task, split.encoded.examples
    if task is None or not any(
        item.probability or task.said_value(item.predicted) is not None for item in items
    ):
        return
    summary = AnswerSummary(task, *trained.training_labels)
    for item in items:
        example = examples[item.index]
        line, file = getattr(example, "line", None), getattr(example, "file", None)
        summary.add(item.predicted, item.probability, task.texts(example)[0], line, file)
    summary.log_summary()


def _print_scores(
    config: EvaluateConfig,
    trained: TrainedModel,
    splits: Mapping[str, Split],
    scores: Mapping[str, Scores],
    origins: Origins,
) -> None:
    """Print the measures of splits, and write them to a file if one is asked for."""
    measures = {name: figures.measures for name, figures in scores.items()}
    counts = {name: splits[name].counts() for name in scores}
    unigram = ", scored by baseline=unigram and not by the run"
    scorer = unigram if config.baseline == "unigram" else ""
    for name, figures in scores.items():
        split, tokens = splits[name], ""
        # Of replaced tokens each objective has a loss of its own, and none is that of the text.
        if isinstance(split.data, TextBlocks) and "loss" in figures.counts:
            scored, total, words = figures.counts["loss"], split.data.num_targets, split.text.words
            counts[name] |= {"tokens": scored, "of_tokens": total}
            tokens = f"; {scored:,} of {total:,} tokens"
            if scored == total:
                tokens += f", {words:,} of {words:,} words"
        print_line(f"{name}: {split.extent()}{tokens}{scorer}")
    labels = trained.start.description.labels
    tables = {name: figures.tables for name, figures in scores.items()}
    # Of many labels the worst are listed below.
    listed = {f"/{label}" for label in labels if len(labels) > MOST_LISTED}
    print_measures(measures, listed)
    results = Results(measures=measures, tables=tables, labels=labels)
    for name, table in tables.items():
        if "confusion" in table and not listed:
            print_confusion(name, labels, table["confusion"])
        if blocks := label_score_blocks(results, name):
            print_out(Page(*blocks))
    if config.output is not None:
        result = {
            "run": config.run,
            "baseline": config.baseline,
            "data_changed": origins.accepted,
            "counts": counts,
            "measures": measures,
            "labels": labels,
            "tables": tables,
        }
        write_json(Path(config.output).expanduser(), result)


def _check_input(config: EvaluateConfig) -> None:
    """Refuse what goes with a file of rows alone where there is none, and the other way round."""
    if config.input is None:
        if typed := next(iter(_typed_input_keys(config)), None):
            raise ConfigError(f"{typed}: is for input=FILE; for data=table say data.{typed}=")
        return
    other = "data" if config.data is not None else "baseline"
    if config.data is not None or config.baseline != "none":
        raise ConfigError(f"{other}: does not go with input=, whose rows are all that is scored")
    names = config.input if isinstance(config.input, list) else [config.input]
    wrong = [name for name in names if not isinstance(name, str) or not name]
    if wrong or not config.input:
        raise ConfigError(
            f"input: expected a file, a folder, a glob, or a list, got {config.input}"
        )
    for key in ("output", "each"):
        check_not_read(getattr(config, key), names, key)


def _with_context(
    config: EvaluateConfig, trained: TrainedModel, splits: Mapping[str, Split]
) -> Mapping[str, Split]:
    """Return the splits as `evaluation` says that they are read."""
    evaluation, shape = config.evaluation, trained.start.description.shape
    if evaluation.by == "memory" and not shape.recurrence:
        raise ConfigError(
            "evaluation.by: this model has no memory (model.recurrence); leave it out, for windows"
        )
    remembers = evaluation.by == "memory" or (evaluation.by == "auto" and bool(shape.recurrence))
    by: Literal["windows", "memory"] = "memory" if remembers else "windows"
    tokens = evaluation.context
    if tokens is None:
        other = "stride" if evaluation.stride is not None else "by"
        if evaluation.stride is not None or evaluation.by != "auto":
            raise ConfigError(f"evaluation.{other}: is for evaluation.context=, which is not given")
        return splits
    if not trained.objective.keeps_tokens:  # not the running text, but what it makes of it
        splits = {name: replace(split, context=None) for name, split in splits.items()}
    return {
        name: datasets.with_context(split, shape, tokens, evaluation.stride, by)
        for name, split in splits.items()
    }


def _with_most_answers(
    config: EvaluateConfig, trained: TrainedModel, splits: Mapping[str, Split]
) -> Mapping[str, Split]:
    """Return the splits; at most as many examples are answered as `evaluation` says."""
    most = config.evaluation.generate
    if most is None:
        return splits
    if not trained.objective.writes_answers:
        raise ConfigError(f"evaluation.generate: {config.run} writes no answers; leave it out")
    return {name: replace(split, answered=most) for name, split in splits.items()}


def _score_split(
    model: TransferModel,
    trained: TrainedModel,
    split: Split,
    batch: int,
    precision: Precision,
    items: list[Item] | None,
    slices: Mapping[str, Slice],
) -> Scores:
    """Return the scores of a split and its slices; add the results of its examples to `items`."""
    task = trained.start.task
    if slices and task is None:
        raise ConfigError("slices: are parts of labelled examples, and this is a language model")
    by_example = EachExample() if slices or items is not None else None
    scored = partial(score, model, trained.objective, batch=batch, precision=precision)
    scores = with_unseen(scored(split, each=by_example), split, scored)
    if by_example is not None:
        split_items = collect_items(split, task, by_example)
        if items is not None:
            items += split_items
        if task is not None:
            scores.measures.update(slice_scores(slices, split, task, split_items, "slices"))
    for name, value in scores.measures.items():
        if math.isnan(value):
            raise NotFiniteError(f"{split.name}: {name}")
    return scores


def validation_measures(
    trained: TrainedModel, models: Mapping[str, TransferModel], precision: Precision
) -> dict[str, dict[str, float]]:
    """Return the measures of models that answer as a run does, on its own validation split."""
    run_config, run = trained.config, RunDirectory(trained.start.folder.parent)
    kind = TextData if trained.start.task is None else TaskData
    source = datasets.build_source(run_config.data, kind)
    place, choices = DataPlace(run_config.data_dir, run_config.seed), [("validation",)]
    split = _encode_splits(source, place, trained, choices, Origins(run))["validation"]
    batch = inference_batch_size("auto", trained.model, precision.device)
    return {
        name: score(model, trained.objective, split, batch=batch, precision=precision).measures
        for name, model in models.items()
    }


def data_source(
    config: EvaluateConfig, trained: TrainedModel
) -> tuple[TextData | TaskData, DataPlace]:
    """Return the data to score on and its place: `data`, else the run's own."""
    kind = TextData if trained.start.task is None else TaskData
    run_config, data_dir = trained.config, config.data_dir
    if config.data is None:
        if not trained.start.has_run:
            raise ConfigError(f"data: {config.run} brings no data along; name some to score it on")
        typed = CommandLine.current().overrides
        data_dir = datasets.data_dir_of(run_config.data_dir, data_dir, typed)
    node = run_config.data if config.data is None else config.data
    source = datasets.build_source(node, kind)
    return source, DataPlace(data_dir, run_config.seed)


def print_measures(measures: Mapping[str, Mapping[str, float]], without: Set[str]) -> None:
    """Print a line for each measure of each split, but for those of parts called so."""
    for split, values in measures.items():
        for name, value in values.items():
            if name[name.find("/") :] not in without:
                print_line(f"{split:10s} {name:24s} {value:.6g}")


def print_confusion(split: str, labels: tuple[str, ...], table: list[list[int]]) -> None:
    """Print a confusion table: a row for each label given, a column for each one predicted."""
    labels = tuple(in_one_line(label) for label in labels)
    wide = max(6, *(len(label) for label in labels)) + 1
    print_line(f"{split} confusion, rows are labels, columns predictions")
    print_line(" " * wide + "".join(f"{label:>{wide}}" for label in labels))
    for label, row in zip(labels, table, strict=True):
        print_line(f"{label:<{wide}}" + "".join(f"{count:>{wide}}" for count in row))


def _origins(config: EvaluateConfig) -> Origins:
    """Return what the run's own data were when it began; nothing where others are scored."""
    is_own = config.data is None and config.input is None
    place = Path(config.run).expanduser()
    run = RunDirectory(RunDirectory.folder_of(place)) if is_own else None
    return Origins(run, config.data_changed)


def _encode_splits(
    source: TextData | TaskData,
    place: DataPlace,
    trained: TrainedModel,
    choices: Sequence[tuple[str, ...]],
    origins: Origins,
) -> Mapping[str, Split]:
    """Return the first set of splits that the data have, encoded as the run's own were."""
    shape, tokenizer = trained.start.description.shape, trained.start.tokenizer
    lines, task, labelled = trained.start.lines, trained.start.task, None
    if not isinstance(source, TextData):
        labelled = source.load(place.folder, place.seed)
        length = source.length or trained.length
    for names in choices:
        if isinstance(source, TextData):
            note = partial(origins.check_text, "data")
            prepared, _ = datasets.prepare_text(source, place, shape, tokenizer, names, note, lines)
        elif labelled and any(name in labelled.splits for name in names):
            names = tuple(labelled.splits) if names == datasets.SPLITS else names
            data = origins.check_labelled("data", _numbered_as_run(labelled, trained), names)
            prepared = datasets.prepare_task(data, length, tokenizer, shape, names, task)
        else:
            continue
        if prepared.splits:
            return prepared.splits
    missing = choices[0][0]
    there: Collection[str] = labelled.splits if labelled else ()
    if isinstance(source, TextData):
        there = source.splits(place.folder, place.seed)
    raise DataError(
        f"split: this data has no {missing} split; type split= with one of {', '.join(there)}"
    )


def _typed_input_keys(config: EvaluateConfig) -> dict[str, Any]:
    """Return what says how `input` is read, as far as it was typed."""
    values = {name: getattr(config, name) for name in _INPUT_KEYS}
    return {name: value for name, value in values.items() if value not in (None, "stop")}


def _text_splits(config: EvaluateConfig, trained: TrainedModel) -> Mapping[str, Split]:
    """Return all lines of the text `input` as a split, read as that of training but for pairs."""
    typed = _typed_input_keys(config)
    other = next((name for name in typed if name != "text"), None)
    if other is not None:
        raise ConfigError(f"{other}: is for tables, and this run is a language model")
    node = trained.config.data
    names = ("length", "documents", "lines", "heading", "field")
    options = {name: node[name] for name in names if name in node}
    options |= {"field": typed["text"]} if typed else {}
    with raised_as(ConfigError, "input: "):
        source = TextFiles(train=config.input, **options)
    start, place = trained.start, DataPlace(config.data_dir, trained.config.seed)
    shape, only = start.description.shape, (INPUT,)
    read, _ = datasets.prepare_text(source, place, shape, start.tokenizer, only, lines=start.lines)
    return read.splits


def _file_splits(config: EvaluateConfig, file: Any, trained: TrainedModel) -> Mapping[str, Split]:
    """Return all rows of the files `input` as a split, read as it says or as in training."""
    task = trained.start.task
    if task is None:
        return _text_splits(config, trained)
    if task.files is None:
        raise ConfigError(f"input: no table holds the answers of {task.name}; say data=")
    table: type[LabelledFiles] = class_of({TARGET: task.files}, "input")
    chosen = _typed_input_keys(config)
    chosen |= {name: tuple(value) for name, value in chosen.items() if isinstance(value, list)}
    other = [name for name in chosen if name not in table.__dataclass_fields__]
    if other:
        raise ConfigError(f"{other[0]}: is for tables, and files of {task.name} are none")
    node = trained.config.data
    read_as = {**node, **{name: value for name, value in vars(task).items() if value is not None}}
    chosen |= {name: read_as[name] for name in table.read_as_trained if name in read_as}
    with raised_as(ConfigError, ""):
        source = table(train=file, **chosen)
    data = _numbered_as_run(source.as_input_split(trained.columns), trained)
    shape, tokenizer = trained.start.description.shape, trained.start.tokenizer
    return datasets.prepare_task(
        data, trained.length, tokenizer, shape, (INPUT,), trained.start.task
    ).splits


def _numbered_as_run(data: LabelledData, trained: TrainedModel) -> LabelledData:
    theirs, task = datasets.task_of_data(data), trained.start.task
    if task is not None and theirs.name != task.name:
        raise DataError(
            f"data: it holds examples of the task {theirs.name}, and this run was trained for "
            f"{task.name}; choose data of that task"
        )
    return data.with_label_numbers(trained.start.description.labels)


def _unigram_baseline(
    source: TextData | TaskData, place: DataPlace, trained: TrainedModel, origins: Origins
) -> TransferModel:
    """Return the unigram model of the text that `data` (or the run's own) trains on."""
    if not isinstance(source, TextData):
        raise ConfigError("baseline: unigram scores text, and this run classifies")
    blocks: Any = _encode_splits(source, place, trained, [("train",)], origins)["train"].data
    tokens, size = blocks.text.tokens, 2**20
    chunks = (tokens[first : first + size] for first in range(1, len(tokens), size))
    return unigram_model(chunks, trained.start.tokenizer.size)
