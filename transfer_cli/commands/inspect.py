"""`transfer inspect`: look at the data as the model will see it, before anything is trained."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from omegaconf import DictConfig

from transfer_cli.batch import IGNORE, Batch
from transfer_cli.commands import compose, datasets, pretrained
from transfer_cli.config.build import build
from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.tasks import Example, LabelledData, TaskData
from transfer_cli.data.text import TextData
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, at_least
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.objectives.base import Facts, Objective
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.seeds import ExampleNoise

SHAPE = BackboneShape(1, 1, 1, 1, 128, direction="bidirectional")
"""Stands in where no model is chosen: blocks of 128 tokens."""


def inspect(config: DictConfig) -> None:
    """Print samples with their tokens and targets, lengths, labels, unknown tokens and overlaps."""
    at_least("samples:", config.samples, 0, ConfigError)
    found: TextData | TaskData = build(config.data, "data", TextData | TaskData)
    start = pretrained.start_of(config)
    shape = SHAPE if start is None else start.description.shape
    if start is None and config.model is not None:
        shape = build(config.model, "model", BackboneShape)
    if isinstance(found, TaskData):
        data = found.load(datasets.data_folder(config.data_dir), config.seed)
        tokenizer = datasets.task_tokenizer(config, data, start)
        _labelled(config, data, found.length, tokenizer, shape)
    else:
        _text(config, shape, start)


def _labelled(
    config: DictConfig,
    data: LabelledData,
    length: int | None,
    tokenizer: Tokenizer,
    shape: BackboneShape,
) -> None:
    prepared = datasets.task(data, length, tokenizer, shape)
    for name, examples in data.splits.items():
        print(f"{name}: {len(examples):,} examples")
        counts = Counter(example.label for example in examples if example.label is not None)
        shown = [f"{data.labels[label]} {counts[label]:,}" for label in range(len(data.labels))]
        print(f"  labels   {'  '.join(shown)}")
        lengths = np.array([len(row) for row in tokenizer.encode_batch([e.text for e in examples])])
        _lengths(lengths)
        unknown = sum(
            row.count(tokenizer.unk) for row in tokenizer.encode_batch([e.text for e in examples])
        )
        _unknown(unknown, int(lengths.sum()))
        print(f"  repeats  {len(examples) - len(set(_texts(examples))):,} texts stand there before")
        dataset = prepared.splits[name].data
        for number in range(min(config.samples, len(examples))):
            row = dataset.batch(np.array([number]))["tokens"][0].tolist()
            label = examples[number].label
            print(f"  {data.labels[label] if label is not None else '?'}: {examples[number].text}")
            print(f"      {' '.join(tokenizer.pieces(row))}")
    _overlaps({name: set(_texts(examples)) for name, examples in data.splits.items()}, "texts")


def _text(config: DictConfig, shape: BackboneShape, start: pretrained.Pretrained | None) -> None:
    prepared, tokenizer = datasets.text(config, shape, start)
    objective = (
        CausalLM()
        if config.objective is None
        else build(compose.options_of(config.objective, "objective"), "objective", Objective)
    )
    objective.bind(Facts(tokenizer))
    for name, split in prepared.splits.items():
        blocks = split.data
        if not isinstance(blocks, TextBlocks):
            continue
        text = blocks.text
        print(
            f"{name}: {text.num_lines:,} lines, {text.num_words:,} words, "
            f"{text.num_bytes:,} bytes, {blocks.num_targets:,} tokens, {len(blocks):,} blocks"
        )
        print(f"  tokens a word  {blocks.num_targets / max(1, text.num_words):.3f}")
        _unknown(text.num_unknown, blocks.num_targets)
        for number in range(min(config.samples, len(blocks))):
            batch = blocks.batch(np.array([number]))
            _block(objective.prepare(batch, ExampleNoise(config.seed, "inspect")), batch, tokenizer)
    source = datasets.source(config, TextData)
    raw = source.splits(datasets.data_folder(config.data_dir), config.seed)
    lines = {
        name: set(_long_lines(split.lines())) for name, split in raw.items() if name != "train"
    }
    seen = dict.fromkeys(lines, 0)
    for line in set(_long_lines(raw["train"].lines())) if lines else ():
        for name, there in lines.items():
            seen[name] += line in there
    for name, count in seen.items():
        print(f"overlap: {count:,} of {len(lines[name]):,} long {name} lines also stand in train")


def _block(prepared: Batch, batch: Batch, tokenizer: Tokenizer) -> None:
    tokens, target = prepared["tokens"][0].tolist(), prepared["target"][0].tolist()
    print(f"  text     {tokenizer.decode(batch['tokens'][0].tolist())}")
    print(f"  tokens   {' '.join(tokenizer.pieces(tokens))}")
    named = (tokenizer.pieces([t])[0] if t != IGNORE else "." for t in target)
    print(f"  targets  {' '.join(named)}")


def _lengths(lengths: np.ndarray) -> None:
    shares = np.percentile(lengths, [50, 90, 99, 100]).astype(int)
    print(
        f"  tokens   {lengths.mean():.1f} on average, half up to {shares[0]}, "
        f"90 % up to {shares[1]}, 99 % up to {shares[2]}, longest {shares[3]}"
    )


def _unknown(count: int, total: int) -> None:
    print(f"  unknown  {count:,} tokens ({100 * count / max(1, total):.2f} %)")


def _overlaps(texts: Mapping[str, set[tuple[str, str | None]]], what: str) -> None:
    for first, second in itertools.combinations(texts, 2):
        both = len(texts[first] & texts[second])
        print(f"overlap: {both:,} {what} stand in both {first} and {second}")


def _texts(examples: Sequence[Example]) -> list[tuple[str, str | None]]:
    return [(example.text, example.pair) for example in examples]


def _long_lines(lines: Iterable[str]) -> Iterable[int]:
    """Yield a fingerprint of every line that is long enough not to recur by chance."""
    return (hash(line) for line in lines if len(line) >= 60)
