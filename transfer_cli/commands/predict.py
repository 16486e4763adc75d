"""`transfer predict`: label texts from a file or a pipe; JSON lines out, in input order."""

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from omegaconf import DictConfig

from transfer_cli.commands import compose, datasets
from transfer_cli.commands.trained import open_trained
from transfer_cli.data import readers
from transfer_cli.data.encoded_task import EncodedTask, warn_of_cuts
from transfer_cli.data.tasks import Example
from transfer_cli.engine.evaluate import logits
from transfer_cli.errors import CheckpointError, ConfigError, nearest
from transfer_cli.runs.directory import writing

FORMATS = ("auto", "text", "jsonl", "csv", "tsv")


def predict(config: DictConfig) -> None:
    """Write `{"text", "label", "probabilities"}` for every text."""
    _check(config)
    precision = compose.machine(config)
    trained = open_trained(config.run, precision, config.base)
    description = trained.start.description
    if not description.labels:
        raise CheckpointError(
            f"run: {config.run} is a language model; predict needs a fine-tuned run"
        )
    # As in training: a text that was cut there is cut here.
    longest = datasets.block_length(trained.config.data.get("length"), description.shape.positions)
    with _input(config.input) as stream, _output(config.output) as out:
        examples = _examples(config, stream)
        num_texts = num_cut = 0
        while portion := list(itertools.islice(examples, config.batch)):
            data = EncodedTask(
                portion,
                trained.start.tokenizer,
                longest,
                "causal" if description.shape.direction == "causal" else "bidirectional",
            )
            for batch in logits(
                trained.model, trained.objective, data, batch=config.batch, precision=precision
            ):
                for example, row in zip(portion, batch.softmax(1).tolist(), strict=True):
                    _write(out, example, row, description.labels)
            out.flush()
            num_texts, num_cut = num_texts + len(data), num_cut + data.num_cut
    warn_of_cuts(num_cut, num_texts, longest)


def _check(config: DictConfig) -> None:
    if config.format not in FORMATS:
        raise ConfigError(
            f"format: {config.format!r} is not one of {', '.join(FORMATS)}."
            f"{nearest(config.format, FORMATS)}"
        )
    same = config.input != "-" and config.output != "-"
    if (
        same
        and Path(config.input).expanduser().resolve() == Path(config.output).expanduser().resolve()
    ):
        raise ConfigError(f"output: {config.output} is the input, and would be lost; name another")
    if config.batch < 1:
        raise ConfigError(f"batch: must be at least 1, got {config.batch}")


@contextlib.contextmanager
def _input(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
    else:
        with contextlib.closing(readers.open_file(Path(name).expanduser())) as stream:
            yield stream


@contextlib.contextmanager
def _output(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdout
        return
    path = Path(name).expanduser()
    if path.exists() and not path.is_file():
        # A device or a pipe cannot be replaced by a file; a folder is refused by `open`.
        with writing(path), path.open("w", encoding="utf-8") as out:
            yield out
        return
    temporary = path.with_name(f".{path.name}.part")
    try:
        with writing(path):
            with temporary.open("w", encoding="utf-8") as out:
                yield out
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _examples(config: DictConfig, stream: BinaryIO) -> Iterator[Example]:
    name = "standard input" if config.input == "-" else config.input
    kind = config.format
    if kind == "auto":
        kind = (readers.format_of(Path(config.input)) if config.input != "-" else None) or "text"
    lines = readers.numbered_lines(stream, name)
    if kind == "text":
        for _, line in lines:
            yield Example(line)
        return
    for record in readers.table_records(lines, name, kind):
        pair = readers.text_of(record, config.pair, name) if config.pair else None
        yield Example(readers.text_of(record, config.text, name), pair=pair)


def _write(out: TextIO, example: Example, row: list[float], labels: tuple[str, ...]) -> None:
    best = max(range(len(row)), key=row.__getitem__)
    shown = {label: round(value, 6) for label, value in zip(labels, row, strict=True)}
    found = {"text": example.text, "label": labels[best], "probabilities": shown}
    if example.pair is not None:
        found["pair"] = example.pair
    out.write(json.dumps(found, ensure_ascii=False) + "\n")
