"""`transfer inspect`: data as a model will see them; `transfer prepare`: all but a first step."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from transfer_cli.assembly import datasets
from transfer_cli.assembly.chosen_tokenizer import choose_chat_template, choose_tokenizer
from transfer_cli.assembly.datasets import DataPlace, PreparedData, build_source, encode_whole_texts
from transfer_cli.assembly.init_from import open_start
from transfer_cli.assembly.losses import (
    RequestedLoss,
    check_task,
    objective_options,
    with_direction,
)
from transfer_cli.assembly.model import build_model
from transfer_cli.batch import IGNORE, Batch
from transfer_cli.config.build import build
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.schema import InspectConfig, PrepareConfig
from transfer_cli.data.chat_template import chatml
from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.documents import TextSplit
from transfer_cli.data.equal_texts import overlaps, text_keys
from transfer_cli.data.labelled import LabelledData, TaskData
from transfer_cli.data.sentence_pairs import SentencePairs
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, at_least
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.meta_device import without_weights
from transfer_cli.objectives.base import Loss, Objective, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.safe_files import in_one_line
from transfer_cli.seeds import ExampleNoise
from transfer_cli.terminal import print_line

STAND_IN_SHAPE = BackboneShape(64, 4, 1, 64, 128, direction="bidirectional")
"""Stands in where no model is chosen: blocks of 128 tokens."""


def inspect(config: InspectConfig) -> None:
    """Print samples with their tokens and targets, lengths, labels, unknown tokens and overlaps."""
    at_least("samples:", config.samples, 0, ConfigError)
    source = build_source(config.data)
    start = open_start(config.init_from, None, CommandLine.current().overrides)
    fresh = _fresh_shape(config.model)
    shape = fresh or STAND_IN_SHAPE if start is None else start.description.shape
    place = DataPlace(config.data_dir, config.seed)
    chosen = choose_tokenizer(config.tokenizer, start, fresh)
    if isinstance(source, TaskData):
        shape = with_direction(shape, {})
        data = source.load(place.folder, place.seed)
        tokenizer = datasets.task_tokenizer(data, chosen)
        task = datasets.task_of_data(data).written_by(
            lambda: choose_chat_template(config.tokenizer, start, tokenizer) or chatml()
        )
        prepared = datasets.prepare_task(data, source.length, tokenizer, shape, known=task)
        _print_labelled(data, prepared, tokenizer, config.samples)
        return
    objective = _objective(config.objective)
    loss = RequestedLoss(objective)
    check_task("main", loss, None)
    if fresh is not None and start is None:
        shape = with_direction(shape, {"main": loss})
    elif start is None and source.pairs is None and objective.direction is not None:
        shape = replace(shape, direction=objective.direction)
    lines = None if start is None else start.lines
    prepared, tokenizer = datasets.prepare_text(source, place, shape, chosen, lines=lines)
    objective.setup(TaskInfo(tokenizer))
    with without_weights():  # of which an objective may take what fits into a model
        build_model(shape, tokenizer.size, [Loss("main", objective)], config.seed)
    for name, split in prepared.splits.items():
        if isinstance(split.data, SentencePairs):
            print_line(f"{name}: {split.data.describe()}")
        if isinstance(split.data, TextBlocks):
            _print_summary(name, split.data)
        for number in range(min(config.samples, len(split.data))):
            batch = split.data.batch(np.array([number]))
            if "pair" in batch:
                pieces = tokenizer.pieces(batch["tokens"][0].tolist())
                print_line(f"  {int(batch['pair'])}: {' '.join(pieces)}")
                continue
            noise = ExampleNoise(config.seed, "inspect")
            _print_block(objective.prepare(batch, noise), batch, tokenizer)
    read = replace(source, lines=prepared.lines)
    _print_repeated_lines(read.splits(place.folder, place.seed))


def _objective(node: Any) -> Objective:
    """Return the objective that text is shown for; by default each token tells the next."""
    if node is None:
        return CausalLM()
    return build(objective_options(node, "objective"), "objective", Objective)


def _fresh_shape(node: Any) -> BackboneShape | None:
    return None if node is None else build(node, "model", BackboneShape)


def _print_labelled(
    data: LabelledData, prepared: PreparedData, tokenizer: Tokenizer, samples: int
) -> None:
    task: Any = prepared.task
    texts = {name: list(map(task.texts, examples)) for name, examples in data.splits.items()}
    keys = {
        name: text_keys(map(task.equal_by, examples), len(examples))
        for name, examples in data.splits.items()
    }
    for name, examples in data.splits.items():
        print_line(f"{name}: {len(examples):,} examples")
        counts = Counter(label for example in examples for label in task.labels_of(example))
        if task.labels:
            print_line(
                f"  labels   {'  '.join(f'{label} {counts[label]:,}' for label in task.labels)}"
            )
        encoded = tokenizer.encode_batch(list(itertools.chain.from_iterable(texts[name])))
        pieces_of = iter(map(len, encoded))
        lengths = np.array([sum(next(pieces_of) for _ in parts) for parts in texts[name]])
        _print_lengths(lengths)
        _print_unknown(sum(row.count(tokenizer.unk) for row in encoded), int(lengths.sum()))
        print_line(
            f"  repeats  {len(examples) - len(np.unique(keys[name])):,} texts stand there before"
        )
        dataset: Any = prepared.splits[name].data
        for number in range(min(samples, len(examples))):
            print_line(
                f"  {' '.join(task.labels_of(examples[number])) or '?'}: "
                f"{' | '.join(texts[name][number])}"
            )
            for row in np.flatnonzero(dataset.example_of == number):
                batch = dataset.batch(np.array([row]))
                sequences = (batch[key].flatten(0, -2) for key in ("tokens", "mask"))
                for tokens, mask in zip(*sequences, strict=True):
                    print_line(f"      {' '.join(tokenizer.pieces(tokens[mask].tolist()))}")
    for small, large, shared in overlaps(keys):
        print_line(f"overlap: {len(shared):,} texts of {small} stand in {large}, too")


def _print_summary(name: str, blocks: TextBlocks) -> None:
    text = blocks.text
    print_line(
        f"{name}: {text.num_lines:,} lines, {text.num_words:,} words, "
        f"{text.num_bytes:,} bytes, {blocks.num_targets:,} tokens, {len(blocks):,} blocks"
    )
    print_line(f"  tokens a word  {blocks.num_targets / max(1, text.num_words):.3f}")
    _print_unknown(text.num_unknown, blocks.num_targets)


def _print_repeated_lines(raw: Mapping[str, TextSplit]) -> None:
    """Say how many long lines of the other splits are in the training text as well."""
    others = {name: _long_lines(raw[name].lines()) for name in raw if name != "train"}
    train = _long_lines(raw["train"].lines()) if others else set()
    for name, lines in others.items():
        both = len(lines & train)
        print_line(f"overlap: {both:,} of {len(lines):,} long {name} lines also stand in train")


def _print_block(prepared: Batch, batch: Batch, tokenizer: Tokenizer) -> None:
    text = tokenizer.decode(batch["tokens"][0].tolist())
    print_line(f"  text     {in_one_line(text)}")
    names = {"source": "tokens_source", "tokens": "tokens", "targets": "target"}
    for name, key in names.items():
        if key in prepared:
            tokens = prepared[key][0].tolist()
            named = (tokenizer.pieces([t])[0] if t != IGNORE else "." for t in tokens)
            print_line(f"  {name:8s} {' '.join(named)}")


def _print_lengths(lengths: np.ndarray) -> None:
    shares = np.percentile(lengths, [50, 90, 99, 100]).astype(int)
    print_line(
        f"  tokens   {lengths.mean():.1f} on average, half up to {shares[0]}, "
        f"90 % up to {shares[1]}, 99 % up to {shares[2]}, longest {shares[3]}"
    )


def _print_unknown(count: int, total: int) -> None:
    print_line(f"  unknown  {count:,} tokens ({100 * count / max(1, total):.2f} %)")


def _long_lines(lines: Iterable[str]) -> set[int]:
    """Return a fingerprint of every line that is long enough not to recur by chance."""
    return {hash(line) for line in lines if len(line) >= 60}


def prepare(config: PrepareConfig) -> None:
    """Do everything that a run on this data would do before its first step, and say what came."""
    source = build_source(config.data)
    place = DataPlace(config.data_dir, config.seed)
    if isinstance(source, TaskData):
        data = source.load(place.folder, place.seed)
        labels = f", {len(data.labels)} labels" if data.labels else ""
        for name, examples in data.splits.items():
            print_line(f"{name:10s} {len(examples):,} examples{labels}")
        return
    start = open_start(config.init_from, None, CommandLine.current().overrides)
    chosen = choose_tokenizer(config.tokenizer, start, _fresh_shape(config.model))
    encoded, tokenizer, _ = encode_whole_texts(
        source, place, "causal", chosen, lines=None if start is None else start.lines,
    )  # fmt: skip
    print_line(f"{'tokenizer':10s} {tokenizer.size:,} tokens")
    for name, text in encoded.items():
        several = "" if text.num_shards == 1 else f"{text.num_shards:,} files in "
        print_line(
            f"{name:10s} {text.num_lines:,} lines, {text.num_words:,} words, "
            f"{len(text.tokens) - 1:,} tokens, {text.num_unknown:,} unknown, {several}{text.path}"
        )
