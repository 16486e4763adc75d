"""What a batch is trained for.

Legend: B batch, T positions, D width.

An objective returns sums and counts, never means. The step divides once, by the count over the
whole batch, so that a result cannot depend on how a batch was cut into micro-batches or over
processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor, nn

from transfer_cli.batch import Batch, is_padded
from transfer_cli.data.split import TextStats
from transfer_cli.metrics import Metric
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.seeds import ExampleNoise


class Vocabulary(Protocol):
    """What an objective may ask of a tokenizer."""

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def pad(self) -> int: ...  # noqa: D102
    @property
    def unk(self) -> int: ...  # noqa: D102
    @property
    def cls(self) -> int: ...  # noqa: D102
    @property
    def sep(self) -> int: ...  # noqa: D102
    @property
    def mask(self) -> int: ...  # noqa: D102
    @property
    def special(self) -> Set[int]: ...  # noqa: D102
    @property
    def starts_word(self) -> np.ndarray: ...  # noqa: D102


@dataclass(frozen=True)
class TaskInfo:
    """What an objective learns about the run before it is used.

    Args:
        vocabulary: Of the run's tokenizer.
        labels: Class names of its data; empty for text without labels.
        name: What the loss is called: "main", or the user's name for a further one.
        task: What its data is (`tasks.base.Task`); None: text without labels.
    """

    vocabulary: Vocabulary
    labels: tuple[str, ...] = ()
    name: str = "main"
    task: Any = None


@dataclass(frozen=True)
class Sample:
    """A prediction to look at. What is a list holds tokens, what is text is a label.

    Args:
        tokens: What the model saw.
        target: What would have been right.
        prediction: What it predicted.
    """

    tokens: list[int]
    target: list[int] | str
    prediction: list[int] | str


@dataclass(frozen=True)
class ExampleResults:
    """What became of each row of a batch, in the batch's order.

    Args:
        loss: `[B]`, summed over its targets, in nats.
        targets: `[B]`, how many it has.
        predicted: What its task makes a result of, by name, each `[B, ...]`; nothing where nothing
            is predicted but tokens.
    """

    loss: Tensor
    targets: Tensor
    predicted: Mapping[str, Tensor] = field(default_factory=dict)


class Encoding:
    """The hidden states of one batch, computed on first use and shared by all objectives on it.

    A batch that brings its `states` along (see `engine.features`) is not computed again.
    """

    def __init__(self, model: TransferModel, batch: Batch) -> None:
        self._model = model
        self._batch = batch

    @cached_property
    def states(self) -> Sequence[Tensor]:
        """L + 1 hidden states, each `[B, T, D]`; of a batch that brings its own, those it has."""
        batch = self._batch
        if "states" in batch:
            return list(batch["states"].unbind(2))
        states: Sequence[Tensor] = self._model.backbone(
            batch["tokens"], batch["mask"], batch.get("segment"), padded=is_padded(batch)
        )
        return states

    @cached_property
    def top(self) -> Tensor:
        """What the heads read, `[B, T, D]`."""
        top: Tensor = self._model.readout(self.states)
        return top


class Objective(ABC):
    """A loss, the modules it needs and the measures it is judged by."""

    task: str | None = None
    """The name of the task whose examples it needs (`tasks.base.Task.name`); None: any."""
    direction: Literal["causal", "bidirectional"] | None = None
    """The direction of attention without which the objective makes no sense."""
    keeps_tokens: bool = True
    """Whether `prepare` leaves a batch's tokens as they are."""
    info: TaskInfo

    @property
    def weights(self) -> Mapping[str, float]:
        """The terms of this loss and how much each counts."""
        return {"loss": 1.0}

    def setup(self, info: TaskInfo) -> None:
        """Take what is known about the run; called once, before anything else."""
        self.info = info

    @abstractmethod
    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return what it adds beyond the backbone, by name; equal names are shared."""

    def inherit_options(self, options: Mapping[str, Any]) -> None:  # noqa: B027 - most decide nothing
        """Take up what an earlier run decided for the very head that this one inherits.

        Args:
            options: Those that are stored with that head.
        """

    def finalize_options(self, model: TransferModel, trains: Set[str]) -> dict[str, Any]:
        """Decide what was left open until it is known which parameters ever train.

        Returns:
            The options, by name, that pin the decision; they are stored with the model.
        """
        return {}

    def on_train_start(self, model: TransferModel, inherited: Set[str]) -> None:  # noqa: B027 - most need none
        """See the model at its starting weights: before the first step, and before a resume loads.

        Args:
            model: With every edit made, on the device that it trains on.
            inherited: Names of the parameters that pretrained weights filled.
        """

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return inputs and targets; every random draw comes from `noise`. CPU tensors."""
        return batch

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """Return how many tokens or examples each term is summed over."""

    @abstractmethod
    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return each term's loss, SUMMED over them."""

    def metric_sums(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return what an evaluation adds up over batches and processes, "loss" among it."""
        return self.loss_sums(model, batch, encoded)

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return what its task makes answers of, by name, each `[B, ...]`, without targets.

        Returns:
            Nothing, unless an objective says more: then it cannot be asked.
        """
        return {}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults | None:
        """Return what became of each row; their losses add up to the "loss" of `metric_sums`.

        Returns:
            None, unless an objective says more: then nothing is known of single examples.
        """
        return None

    def tables(self, totals: Mapping[str, Tensor]) -> dict[str, list[list[int]]]:
        """Return counts that a single number cannot hold, by name, from summed tallies."""
        return {}

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        """Return the model's predictions on a batch, for people to look at."""
        return []

    @abstractmethod
    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return the measures of a split from its summed tallies and counts."""

    @abstractmethod
    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return what `compute_metrics` returns, in the order to show it; asked before `setup`.

        What a split cannot have (words of a text that are not counted) may be missing from its
        measures, and a metric may have parts (`accuracy/LABEL`). There is nothing else in them.
        """

    def answer_metrics(self) -> tuple[Metric, ...]:
        """Return what its task measures of whole answers (`tasks.base.Task.scores`)."""
        return ()


def declared_metrics(objectives: Mapping[str, Objective]) -> tuple[Metric, ...]:
    """Return what a run measures: the metrics of its main loss, then those of further ones.

    Args:
        objectives: Of its losses, by name; "main" is what the run is for.
    """
    return tuple(
        metric if name == "main" else metric.of_loss(name)
        for name, objective in objectives.items()
        for metric in (*objective.answer_metrics(), *objective.declared_metrics())
    )
