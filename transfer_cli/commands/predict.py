"""`transfer predict`: label texts from a file or a pipe; JSON lines out, in input order."""

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np
from omegaconf import DictConfig

from transfer_cli.commands import compose, datasets
from transfer_cli.commands.processes import together
from transfer_cli.commands.trained import Trained, open_trained
from transfer_cli.data import readers
from transfer_cli.data.encoded_task import EncodedTask, warn_of_cuts
from transfer_cli.data.tasks import Example
from transfer_cli.engine import distributed
from transfer_cli.engine.evaluate import logits
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, ConfigError, nearest
from transfer_cli.runs.directory import writing

FORMATS = ("auto", "text", "jsonl", "csv", "tsv")


def predict(config: DictConfig) -> None:
    """Write `{"text", "label", "probabilities"}` for every text."""
    _check(config)
    together(config, lambda: _predict(config))


def _predict(config: DictConfig) -> None:
    precision = compose.machine(config)
    trained = open_trained(config.run, precision, config.base)
    description = trained.start.description
    if not description.labels:
        raise CheckpointError(
            f"run: {config.run} is a language model; predict needs a fine-tuned run"
        )
    # As in training: a text that was cut there is cut here.
    longest = datasets.block_length(trained.config.data.get("length"), description.shape.positions)
    answer = Answering(trained, precision, longest, config.batch)
    if not distributed.is_main():
        while texts := json.loads(distributed.from_main("")):
            answer.together([Example(**text) for text in texts])
        return
    with _input(config.input) as stream, _output(config.output) as out:
        examples = _examples(config, stream)
        while portion := list(itertools.islice(examples, config.batch * distributed.count())):
            # The first process alone reads: there is one standard input.
            distributed.from_main(json.dumps([{"text": e.text, "pair": e.pair} for e in portion]))
            for example, row in zip(portion, answer.together(portion), strict=True):
                _write(out, example, row, description.labels)
            out.flush()
        distributed.from_main("[]")
    warn_of_cuts(answer.num_cut, answer.num_texts, longest)


@dataclass
class Answering:
    """Finds the probabilities of labels, on however many processes there are.

    Args:
        trained: The run that answers.
        precision: With the device.
        longest: Tokens that a text is cut to.
        batch: Texts that pass through the model at once.
    """

    trained: Trained
    precision: Precision
    longest: int
    batch: int
    num_texts: int = 0
    num_cut: int = 0

    def together(self, portion: Sequence[Example]) -> list[list[float]]:
        """Return a row of probabilities for each text; a process answers a run of neighbours."""
        parts = np.array_split(np.arange(len(portion)), distributed.count())
        own = [portion[number] for number in parts[distributed.rank()]]
        rows, num_cut = self._rows(own) if own else ([], 0)
        found = [json.loads(text) for text in distributed.texts(json.dumps([rows, num_cut]))]
        self.num_texts += len(portion)
        self.num_cut += sum(cut for _, cut in found)
        return [row for part, _ in found for row in part]

    def _rows(self, own: Sequence[Example]) -> tuple[list[list[float]], int]:
        start = self.trained.start
        causal = start.description.shape.direction == "causal"
        data = EncodedTask(
            own, start.tokenizer, self.longest, "causal" if causal else "bidirectional"
        )
        batches = logits(
            self.trained.model, self.trained.objective, data,
            batch=self.batch, precision=self.precision,
        )  # fmt: skip
        return [row for batch in batches for row in batch.softmax(1).tolist()], data.num_cut


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
