"""The commands as functions: `import transfer_cli as transfer`.

Keys are those of the command line and of a file of keys, as plain values; a mistake raises the line
that the command would print (`errors.TransferError`). Nothing is printed, and the process keeps its
signals, its random state and its threads; what a run says is in the log of `transfer_cli`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transfer_cli import cli, terminal
from transfer_cli.assembly.ensemble import Ensemble
from transfer_cli.assembly.finished_run import Opened, Trained, open_to_look_into
from transfer_cli.assembly.model import direction_of
from transfer_cli.batch import to_device, with_facts
from transfer_cli.commands.generate import continued
from transfer_cli.config.commands import ALL
from transfer_cli.config.compose import composed
from transfer_cli.config.flags import Request
from transfer_cli.config.key_files import with_files
from transfer_cli.config.schema import GenerateConfig
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.records import Record
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.wanted import TEXT
from transfer_cli.engine.evaluation import batch_of, portions
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import CheckpointError, ConfigError, DataError, NotFiniteError
from transfer_cli.model.heads import Pooling, pool
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.reports.collect import collect, read_run
from transfer_cli.reports.contents import Run

_PAIR = "pair"


def pretrain(**keys: Any) -> Run:
    """Train a language model on unlabelled text; return its run, with `path` and `measures`."""
    return _trained("pretrain", keys)


def finetune(**keys: Any) -> Run:
    """Adapt a pretrained model to labelled data; return its run, with `path` and `measures`.

    `finetune(data={"train": "a.csv"}, init_from="minilm", adaptation="lora", run={"dir": "mine"})`
    """
    return _trained("finetune", keys)


def load(
    path: str | Path, *, device: str = "auto", precision: str = "auto", base: str | None = None
) -> "LoadedModel":
    """Return a model to use.

    Args:
        path: A run, one of its checkpoints, the folder of a published model, its short name
            (`transfer presets models`), or `hf:owner/name`.
        device: auto, cpu or cuda.
        precision: auto, fp32, bf16 or fp16.
        base: The folder of the model that a run refers to, if it has moved.
    """
    with _aside():
        return LoadedModel(path, device, precision, base)


def results(*paths: str | Path) -> list[dict[str, Any]]:
    """Return a row for each run at or below the paths, as pandas and polars take them.

    A row has the run's path, its status, its settings (`optimizer.lr`) and its measures
    (`test/accuracy`); what a run does not have is left out.
    """
    return [
        {"run": run.name, "path": str(run.path), "status": run.status, **run.settings}
        | run.results.by_name
        for run in collect([Path(path).expanduser() for path in paths]).runs
    ]


class LoadedModel:
    """A trained or published model, in evaluation mode.

    Attributes:
        model: The torch module.
        tokenizer: What turns texts into its tokens.
        labels: The names of its classes or tags; of language models none.
    """

    def __init__(
        self, path: str | Path, device: str, precision: str, base: str | None = None
    ) -> None:
        self._precision = device_and_precision(device, precision)
        self._opened: Opened = open_to_look_into(str(path), self._precision, base)
        self.model: TransferModel = self._opened.model
        self.tokenizer: Tokenizer = self._opened.start.tokenizer
        self.labels: tuple[str, ...] = self._opened.start.description.labels

    def predict(self, texts: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the answer to each text, as `transfer predict` writes it.

        Args:
            texts: Texts, pairs of texts, or mappings with the columns that the task reads.

        Returns:
            For a classification `label`, its `probability` and the `probabilities` of all labels.
        """
        task = self._ensemble.task
        examples = []
        for number, text in enumerate(texts, 1):
            fields = _fields(text)
            column = task.text_column([*fields], "texts") or TEXT
            pair = _PAIR if _PAIR in fields else None
            examples.append(task.read(Record(number, fields), column, pair, "texts"))
        with _aside():
            answers = self._ensemble.together(examples)
        rows = []
        for number, answer in enumerate(answers, 1):
            if answer is None:
                raise NotFiniteError(f"texts, line {number}: the answer")
            rows.append(task.written(answer))
        return rows

    def evaluate(self, file: str | Path | None = None, **keys: Any) -> dict[str, dict[str, float]]:
        """Return measures by split and name: of a file of one's own, else of the run's own data.

        `keys` are those of `transfer evaluate`, such as split, batch, slices.
        """
        given = {} if file is None else {"input": file}
        called: dict[str, dict[str, float]] = _called(
            "evaluate", {"run": self._opened.path, **given, **keys}
        )
        return called

    def generate(self, prompt: str, **keys: Any) -> str:
        """Return what a causal language model goes on with after a text.

        `keys` are those of `transfer generate`, such as max_tokens, temperature, stop and seed.
        """
        if not isinstance(self._opened.objective, CausalLM):
            raise CheckpointError(f"{self._opened.path} is no causal language model")
        unknown = keys.keys() - GenerateConfig.__dataclass_fields__.keys()
        if unknown or "samples" in keys:
            raise ConfigError(f"{min(unknown or {'samples'})}: generate takes no such key here")
        config = GenerateConfig(prompt=prompt, **keys)
        with _aside():
            _, texts, _ = continued(self._trained, self._precision, prompt, config)
        return texts[0].text

    def embed(self, texts: Sequence[Any], pooling: Pooling = "mean") -> Tensor:
        """Return a vector for each text (or pair), `[texts, width]` in float32 on the CPU.

        Args:
            texts: Texts, or pairs of texts.
            pooling: How the last hidden states of a text's tokens become one, see `pool`.
        """
        fields = [_fields(text) for text in texts]
        examples = [Example(each[TEXT], pair=each.get(_PAIR)) for each in fields]
        direction = direction_of(self.model.backbone.shape)
        data = encode_texts(examples, self.tokenizer, self._opened.length, direction, {})
        vectors: Tensor | None = None
        batch = batch_of("auto", self.model, self._precision.device)
        for rows in portions(data, data.lengths.argsort(kind="stable"), batch):
            view = to_device(with_facts(data.batch(rows)), self._precision.device)
            with torch.inference_mode(), self._precision.context():
                states_BTD = Encoding(self.model, view).states[-1]
                pooled_BD = pool(states_BTD, view["mask"], pooling).float().cpu()
            if vectors is None:
                vectors = torch.empty(len(data), pooled_BD.shape[1])
            vectors[torch.from_numpy(rows)] = pooled_BD
        return torch.empty(0, self.model.backbone.shape.width) if vectors is None else vectors

    @property
    def _trained(self) -> Trained:
        return Trained(**vars(self._opened))

    @cached_property
    def _ensemble(self) -> Ensemble:
        if self._opened.objective is None:
            raise CheckpointError(f"{self._opened.path} has no head, so it answers nothing")
        return Ensemble([self._trained], self._precision, "auto")


def _fields(text: Any) -> Mapping[str, Any]:
    """Return a text, a pair of texts or a mapping as the columns of a row."""
    if isinstance(text, Mapping):
        return text
    texts = (text,) if isinstance(text, str) else text
    if not isinstance(texts, Sequence) or len(texts) > len((TEXT, _PAIR)):
        raise DataError(f"texts: expected a text, a pair of texts or a mapping, got {text!r:.60}")
    return dict(zip((TEXT, _PAIR), texts, strict=False))


def _trained(name: str, keys: Mapping[str, Any]) -> Run:
    return read_run(_called(name, keys))


def _called(name: str, keys: Mapping[str, Any]) -> Any:
    """Return what the function of a command returns."""
    command = ALL[name]
    with _aside():
        request = with_files(name, command, Request(), keys)
        made = composed(name, request)
        if made.config.get("devices", 1) != 1:
            raise ConfigError("devices: a function is one process; type the command for several")
        with made.typed.at_work():
            return cli.perform(name, command, request, made.config)


@contextmanager
def _aside() -> Iterator[None]:
    """Leave what the process prints, its signals and its random state as they are."""
    with terminal.silent(), torch.random.fork_rng():
        yield
