"""The commands as functions: `import transfer_cli as transfer`.

Keys are those of the command line and of a file of keys, as plain values; a mistake raises the line
that the command would print (`errors.TransferError`). Only warnings are printed (a notebook has a
bar of what takes long), and the process keeps its signals, its random state and its threads; what a
run says is in the log of `transfer_cli`. After Ctrl-C, `resume=RUN` goes on from the last
checkpoint.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transfer_cli import cli, progress, terminal
from transfer_cli.assembly.ensemble import Ensemble
from transfer_cli.assembly.finished_run import TrainedModel, open_for_analysis
from transfer_cli.assembly.sentence_vectors import SentenceVectors
from transfer_cli.commands.generate import Continuation
from transfer_cli.commands.predict.reading import example_from_record
from transfer_cli.config.commands import ALL
from transfer_cli.config.compose import compose
from transfer_cli.config.flags import Request
from transfer_cli.config.key_files import swept_words, with_key_files
from transfer_cli.config.schema import GenerateConfig
from transfer_cli.data.labelled import Example
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.wanted import PAIR, TEXT
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    NotFiniteError,
    one_of,
    raised_as,
)
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.reports.collect import collect, read_run, resolve_run
from transfer_cli.reports.contents import Run
from transfer_cli.safe_files import UnreadableError, check_field_types
from transfer_cli.tasks.base import Task


def pretrain(**keys: Any) -> Run:
    """Train a language model on unlabelled text; return its run, with `path` and `measures`."""
    return read_run(_run_command("pretrain", keys))


def finetune(**keys: Any) -> Run:
    """Adapt a pretrained model to labelled data; return its run, with `path` and `measures`.

    `finetune(data={"train": "a.csv"}, init_from="minilm", adaptation="lora", run={"dir": "mine"})`
    """
    return read_run(_run_command("finetune", keys))


def load(
    path: str | Path, *, device: str = "auto", precision: str = "auto", base: str | None = None
) -> "LoadedModel":
    """Return a model to use.

    Args:
        path: A run, one of its checkpoints, a sweep (its best run), the folder of a published
            model, its short name (`transfer presets models`), or `hf:owner/name`.
        device: auto, cpu or cuda.
        precision: auto, fp32, bf16 or fp16.
        base: The folder of the model that a run refers to, if it has moved.
    """
    with _without_side_effects():
        return LoadedModel(path, device, precision, base)


def report(paths: str | Path | Iterable[str | Path]) -> list[dict[str, Any]]:
    """Return a row for each run at or below a path or several, as pandas and polars take them.

    A row has the run's path, its status, its config (`optimizer.lr`) and its measures
    (`test/accuracy`). All rows have the same keys; the values of a key are of one type, or None.
    """
    places = [paths] if isinstance(paths, str | Path) else paths
    rows: list[dict[str, Any]] = [
        {"run": run.name, "path": str(run.path), "status": str(run.status), **run.config}
        | run.results.by_name
        for run in collect([Path(place).expanduser() for place in places]).runs
    ]
    columns = {
        key: _as_one_type([row.get(key) for row in rows])
        for key in dict.fromkeys(key for row in rows for key in row)
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def sweep(command: str, over: Mapping[str, Sequence[Any]] | None = None, **keys: Any) -> "Sweep":
    """Train a run for each combination of values, and return them when all have ended.

    `sweep("finetune", over={"optimizer.lr": [1e-3, 1e-4], "seed": [0, 1]}, init_from="minilm")`

    Args:
        command: finetune or pretrain.
        over: The values of each key; None: what the preset `sweep="lr"` says.
        keys: Those of all runs; `sweep={"workers": 2}` and the others of `sweep` say how they run.

    Raises:
        SweepError: Some have failed; `report` of the folder shows the others.
    """
    one_of("command", command, ("finetune", "pretrain"))
    with _without_side_effects():
        request = with_key_files(command, ALL[command], Request(), keys)
        words = swept_words(command, over or {})
        if not words and not request.multirun:
            raise ConfigError('over: nothing is swept; give over={KEY: [A, B]}, or sweep="lr"')
        request = replace(request, overrides=(*request.overrides, *words), multirun=True)
        return Sweep(cli.sweep(command, ALL[command], request))


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep.

    Args:
        path: Its folder, which `report` and `load` take, too: `load` takes its best run.
    """

    path: Path

    @property
    def runs(self) -> list[Run]:
        """All of them, in the order of their combinations."""
        return sorted(collect([self.path]).runs, key=lambda run: run.number or 0)

    @property
    def best(self) -> Run:
        """The best by validation of those that learnt anything; ConfigError where there is none."""
        return read_run(Path(resolve_run(str(self.path), "sweep")))


class LoadedModel:
    """A trained or published model, in evaluation mode.

    Attributes:
        tokenizer: What turns texts into its tokens.
        labels: The names of its classes or tags; of language models none.
        task: What it was fine-tuned for; of language models none.
    """

    def __init__(
        self, path: str | Path, device: str, precision: str, base: str | None = None
    ) -> None:
        self._keys = {"device": device, "precision": precision, "base": base}
        self._precision = device_and_precision(device, precision)
        self._opened = open_for_analysis(resolve_run(str(path), "run"), self._precision, base)
        self.model: TransferModel = self._opened.model
        self.tokenizer: Tokenizer = self._opened.start.tokenizer
        self.labels: tuple[str, ...] = self._opened.start.description.labels
        self.task: Task | None = self._opened.start.task

    @property
    def abilities(self) -> tuple[str, ...]:
        """Which of `predict`, `generate` and `embed` this model can do."""
        objective, graph = self._opened.objective, self._opened.start.graph
        is_able = {
            "predict": objective is not None and self.task is not None,
            "generate": isinstance(objective, CausalLM) and graph is None,
            "embed": graph is None or not graph.has_head,
        }
        return tuple(name for name, can in is_able.items() if can)

    def predict(self, texts: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the answer to each text, as `transfer predict` writes it.

        Args:
            texts: Texts, pairs of texts, or mappings with the columns that the task reads.

        Returns:
            For a classification `label`, its `probability` and the `probabilities` of all labels;
            a text that is empty, or has no token the model knows, also gets a `warning`.
        """
        answers = self.answers(self.examples(texts))
        for number, answer in enumerate(answers, 1):
            if answer is None:
                raise NotFiniteError(f"texts, line {number}: the answer")
        return [answer for answer in answers if answer is not None]

    def examples(self, texts: Sequence[Any]) -> list[Any]:
        """Return texts, as `predict` takes them, as what `answers` takes; no model is asked."""
        ensemble = self._ensemble
        return [
            example_from_record(
                Record(number, fields), ensemble.task, ensemble.first.columns, "texts"
            )
            for number, fields in enumerate(_rows(texts), 1)
        ]

    def answers(self, examples: Sequence[Any]) -> list[dict[str, Any] | None]:
        """Return the answer to each example, as `predict` does; None: one that is not finite."""
        with _without_side_effects():
            answers = self._ensemble.answers(examples)
        line = self._ensemble.task.line
        return [None if answer is None else line(answer) for answer in answers]

    def evaluate(self, file: str | Path | None = None, **keys: Any) -> dict[str, dict[str, float]]:
        """Return measures by split and name: of a file of one's own, else of the run's own data.

        `keys` are those of `transfer evaluate`, such as split, batch, slices.
        """
        typed = {"input": file, **keys} if file is not None else keys
        measures: dict[str, dict[str, float]] = _run_command(
            "evaluate", {"run": self._opened.path, **self._keys, **typed}
        )
        return measures

    def generate(self, prompt: str, **keys: Any) -> str:
        """Return what a causal language model goes on with after a text.

        `keys` are those of `transfer generate`, such as max_tokens, temperature, stop and seed.
        """
        continuation = self.continuation(prompt, **keys)
        with _without_side_effects():
            continuation.run(lambda text: None)
        return continuation.texts[0].text

    def continuation(self, prompt: str, **keys: Any) -> Continuation:
        """Return what `generate` makes before it is made; its `run` takes how it is shown."""
        if not isinstance(self._opened.objective, CausalLM):
            raise CheckpointError(f"{self._opened.path} is no causal language model")
        if not isinstance(prompt, str):
            raise ConfigError(f"prompt: expected a text, got {prompt!r:.60}")
        beside = {"run", "messages", "samples", "output", *self._keys}
        if unknown := keys.keys() - (GenerateConfig.__dataclass_fields__.keys() - beside):
            raise ConfigError(f"{min(unknown)}: generate takes no such key here")
        config = GenerateConfig(prompt=prompt, **keys)
        with raised_as(ConfigError, "generate: ", UnreadableError):
            check_field_types(config)
        return Continuation(self._trained, self._precision, prompt, config)

    def embed(
        self, texts: Sequence[Any], pooling: str = "auto", *, normalize: bool | None = None
    ) -> Tensor:
        """Return a vector for each text (or pair), `[texts, width]` in float32 on the CPU.

        Args:
            texts: Texts, or pairs of texts.
            pooling: How the last hidden states of a text's tokens become one, see `pooling.pool`.
            normalize: Whether vectors have length 1; None: where the model's folder says so.
        """
        vectors = SentenceVectors(self._opened, self._precision, pooling, normalize=normalize)
        return vectors.encode(text_examples(texts))

    @property
    def _trained(self) -> TrainedModel:
        return TrainedModel(**vars(self._opened))

    @cached_property
    def _ensemble(self) -> Ensemble:
        if self._opened.objective is None:
            raise CheckpointError(f"{self._opened.path} has no head, so it answers nothing")
        return Ensemble([self._trained], self._precision, "auto")


def text_examples(texts: Sequence[Any]) -> list[Example]:
    """Return texts, or pairs of texts, without what a task would read beside them."""
    examples = []
    for number, fields in enumerate(_rows(texts), 1):
        record = Record(number, fields)
        pair = text_of(record, PAIR, "texts") if fields.get(PAIR) is not None else None
        examples.append(Example(text_of(record, TEXT, "texts"), pair=pair))
    return examples


def _rows(texts: Any) -> list[Mapping[str, Any]]:
    """Return texts, pairs or mappings as rows; one text alone would be taken for its letters."""
    if isinstance(texts, str | Mapping):
        raise DataError("texts: expected a list of texts; of one text it is [text]")
    return [_fields(text) for text in texts]


def _fields(text: Any) -> Mapping[str, Any]:
    """Return a text, a pair of texts or a mapping as the columns of a row."""
    if isinstance(text, Mapping):
        return text
    texts = (text,) if isinstance(text, str) else text
    if not isinstance(texts, Sequence) or len(texts) > len((TEXT, PAIR)):
        raise DataError(f"texts: expected a text, a pair of texts or a mapping, got {text!r:.60}")
    return dict(zip((TEXT, PAIR), texts, strict=False))


def _as_one_type(values: list[Any]) -> list[Any]:
    """Return the values of a key as numbers, as true and false, or else as text; None stays."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int, float}:
        return [value if value is None else float(value) for value in values]
    if kinds in ({int}, {float}, {bool}, {str}):
        return values
    return [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]


def _run_command(name: str, keys: Mapping[str, Any]) -> Any:
    """Return what the function of a command returns."""
    command = ALL[name]
    with _without_side_effects():
        request = with_key_files(name, command, Request(), keys)
        if request.multirun:
            raise ConfigError("sweep: this function makes one run; transfer_cli.sweep makes many")
        composition = compose(name, request)
        if composition.config.get("devices", 1) != 1:
            raise ConfigError("devices: a function is one process; type the command for several")
        with composition.typed.as_current():
            return cli.perform(name, command, request, composition.config)


@contextmanager
def _without_side_effects() -> Iterator[None]:
    """Leave what the process prints, its signals and its random state as they are."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with terminal.silent(), progress.without_terminal_bars(), torch.random.fork_rng(gpus):
        yield
