"""Base class of objectives.

Legend: B batch, T positions, D width, S sequences: B, or more where examples have several.

An objective returns sums and counts, never means. The step divides once, by the count over the
whole batch, so that results do not depend on micro-batches and processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from transfer_cli.batch import Batch, Counts, Sums, is_padded, select_view
from transfer_cli.data.split import Dataset, Split, TextStats
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.attention import SourceText
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.memory import Memory
from transfer_cli.model.packing import Packing, RowPacking
from transfer_cli.model.pooling import Pooling, pool
from transfer_cli.model.shape import BackboneShape, SettledDirection
from transfer_cli.model.transfer_model import Pass, TransferModel
from transfer_cli.seeds import ExampleNoise

if TYPE_CHECKING:
    from transfer_cli.data.tokenizer import Tokenizer


def loss_key(name: str) -> str:
    """Return the config key of a loss."""
    return "objective" if name == "main" else f"losses.{name}"


@dataclass(frozen=True)
class TaskInfo:
    """The facts of a run that an objective gets before it is used.

    Args:
        labels: Class names of its data; empty for text without labels.
        name: The name of the loss: "main", or the user's name for a further one.
        task: The task of its data (`tasks.base.Task`); None: text without labels.
        main: The objective of the main loss, for a further one.
        pairs: What pairs of running text are asked (`data.text.Pairs`); None: its data are others.
        train: The training examples of a run that begins, if they have labels.
        stream: The stream of batches that the loss reads.
        validates: Whether its data have a validation split.
    """

    vocabulary: "Tokenizer"
    labels: tuple[str, ...] = ()
    name: str = "main"
    task: Any = None
    main: "Objective | None" = None
    pairs: str | None = None
    train: Sequence[Any] = field(default=(), repr=False, compare=False)
    stream: str = "main"
    validates: bool = True

    @property
    def key(self) -> str:
        """The config key of the loss."""
        return loss_key(self.name)


@dataclass(frozen=True)
class ModelPart:
    """A model that trains as a head of another one, whose embeddings it reads.

    Args:
        shape: Of its backbone.
        objective: The config node of what it is opened as.
    """

    shape: BackboneShape
    objective: Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """A prediction to look at: lists are tokens, texts are labels."""

    tokens: list[int]
    target: list[int] | str
    prediction: list[int] | str


@dataclass(frozen=True)
class ExampleResults:
    """The results of each row of a batch, in the batch's order.

    Args:
        loss: `[B]`, summed over its targets, in nats.
        targets: `[B]`, its number of targets.
        predicted: The predictions of its task, by name, each `[B, ...]`; empty if only tokens are
            predicted.
    """

    loss: Tensor
    targets: Tensor
    predicted: Mapping[str, Tensor] = field(default_factory=dict)


class Encoding:
    """The hidden states of one batch, computed on first use and shared by all objectives on it.

    `top` is computed without what the readout does not read: `states` after it take another pass. A
    batch with `states` or `pooled` (see `engine.features`) is not computed again. `memory` holds
    the states of earlier blocks of its texts, and gets those of this one.
    """

    def __init__(self, model: TransferModel, batch: Batch, memory: Memory | None = None) -> None:
        self._model = model
        self._batch = batch
        self._memory = memory
        self.outputs: dict[Objective, Any] = {}  # see `answering.Answering`

    @cached_property
    def states(self) -> Sequence[Tensor]:
        """L + 1 hidden states, each `[S, T, D]`; or those of the batch."""
        return [self._unpacked(state) for state in self._passed]

    @cached_property
    def top(self) -> Tensor:
        """The input of the heads, `[S, T, D]`."""
        layers = getattr(self._model.readout, "layers", None)
        needs_all = layers is None or self._memory is not None or "_passed" in vars(self)
        states = self._passed if needs_all else self._pass(layers)
        return self._unpacked(self._model.readout(states))

    @cached_property
    def _packing(self) -> Packing | None:
        batch = self._batch
        if "states" in batch or "real_rows" not in batch or self._rows is not None:
            return None
        return Packing.from_mask(_flatten_sequences(batch["mask"]), batch["real_rows"])

    @cached_property
    def _rows(self) -> RowPacking | None:
        batch = self._batch
        if "row_text" not in batch:
            return None
        shape = _flatten_sequences(batch["mask"]).shape
        return RowPacking(batch["real_rows"], batch["row_places"], batch["row_text"], *shape)

    def _unpacked(self, state: Tensor) -> Tensor:
        packing = self._rows or self._packing
        return state if packing is None else packing.unpack(state)

    @cached_property
    def _passed(self) -> Sequence[Tensor]:
        """All hidden states as the backbone returns them."""
        return self._pass(None)

    def _pass(self, layers: tuple[int, ...] | None) -> Sequence[Tensor]:
        model, batch, rows = self._model, self._batch, self._rows
        if "states" in batch:
            return [state.flatten(0, -3) for state in batch["states"].unbind(-2)]
        flat = {
            name: _flatten_sequences(batch[name])
            for name in ("tokens", "mask", "segment", "document")
            if name in batch
        }
        segment = flat.get("segment")
        if model.on_pass is not None:
            model.on_pass(self.backbone_pass)
        with nullcontext() if model.around_pass is None else model.around_pass(self.backbone_pass):
            if rows is not None:
                packed: Sequence[Tensor] = model.backbone(
                    rows.pack(flat["tokens"]), rows.mask,
                    None if segment is None else rows.pack(segment),
                    document_BT=rows.sequence, layers=layers,
                )  # fmt: skip
                return packed
            packing, close = self._closed_gaps()
            states: Sequence[Tensor] = model.backbone(
                close(flat["tokens"]), close(flat["mask"]),
                None if segment is None else close(segment), padded=is_padded(batch),
                prefix_B=batch.get("prefix"),
                document_BT=None if "document" not in flat else close(flat["document"]),
                restart_BT=None if "restart" not in batch else close(batch["restart"]),
                packing=packing, memory=self._memory,
                layers=layers,
                **({"source": source_text(batch)} if "tokens_source" in batch else {}),
            )  # fmt: skip
            return states

    def _closed_gaps(self) -> tuple[Packing | None, Callable[[Tensor], Tensor]]:
        """Return how a pass is packed, and what closes gaps in values of positions.

        Windows, and positions that are distances, would count what a view leaves out of a text. The
        states are the same tokens' in the same order.
        """
        packing = self._packing
        # A prefix is told by its length, gaps included.
        if packing is None or "closed_rows" not in self._batch or "prefix" in self._batch:
            return packing, lambda values: values
        closed = replace(packing, rows=self._batch["closed_rows"])
        return closed, lambda values: closed.unpack(packing.pack(values))

    @property
    def backbone_pass(self) -> Pass:
        """What its pass through the backbone is made of; none is made for that."""
        batch, packing = self._batch, self._packing
        sequences, positions = _flatten_sequences(batch["mask"]).shape
        if self._rows is not None:
            sequences, positions = self._rows.sequence.shape
        computed = sequences * positions if packing is None else len(packing.rows)
        source = None
        if "tokens_source" in batch:
            source = replace(Encoding(self._model, _source_view(batch)).backbone_pass, causal=False)
        causal = source is not None or (self._model.backbone.causal and "prefix" not in batch)
        # On the host, where it is known: to ask a device would be to wait for it.
        lengths = batch["lengths"].tolist() if "lengths" in batch else [positions] * sequences
        earlier = 0 if self._memory is None else self._memory.length
        return Pass(computed, sequences, positions, causal, lengths, earlier, source)

    def pooled(self, pooling: Pooling) -> Tensor:
        """Return one vector a sequence, see `model.pooling.pool`; or that of the batch."""
        if "pooled" in self._batch:
            return _flatten_sequences(self._batch["pooled"])
        return pool(self.top, _flatten_sequences(self._batch["mask"]), pooling)


def _flatten_sequences(values: Tensor) -> Tensor:
    """Return `[S, ...]` of what there is for each position, or dimension, of each sequence."""
    return values.flatten(0, -2)


def source_text(batch: Batch) -> SourceText:
    """Return what a decoder reads in a batch."""
    view = _source_view(batch)
    rows = view.get("real_rows")
    packing = None if rows is None else Packing.from_mask(view["mask"], rows)
    return SourceText(view["tokens"], view["mask"], is_padded(view), packing)


def _source_view(batch: Batch) -> Batch:
    view = select_view(batch, "source")
    return {name: value for name, value in view.items() if not name.endswith("_source")}


class Objective(ABC):
    """A loss, its modules and its metrics."""

    task: str | None = None
    """The name of the task whose examples it needs (`tasks.base.Task.name`); None: any."""
    direction: SettledDirection | None = None
    """The direction of attention that the objective needs; None: either."""
    keeps_tokens: bool = True
    """Whether `prepare` leaves a batch's tokens as they are."""
    reads_main_view: bool = False
    """Whether it reads what `prepare` of the main loss made of the batch, if that is of its stream:
    both then share one pass, though that one changes tokens."""
    predicts_tokens: bool = False
    """Whether its targets are the tokens of the text itself, or what became of them."""
    asks_language_model: bool = False
    """Whether it asks the language model that `init_from` was, whose head has to be there."""
    needs_whole_model: bool = False
    """Whether it works in processes alone that have the whole model (`parallel=ddp`)."""
    reaches_all: bool = True
    """Whether every parameter of the backbone that trains has a part in it."""
    published_as: str = "language_model"
    """The kind of head that a model without labels is published with (`interop.family`)."""
    writes_answers: bool = False
    """Whether evaluations have the model write answers, token by token: they take long."""
    search: Any = None
    """How it looks for the texts that it writes, a `BeamSearch`; None: it writes none."""
    fits_answers: bool = False
    """Whether its task is to choose values on validation at the end of a run (`Task.fit`)."""
    metrics: ClassVar[tuple[Metric, ...]] = (replace(LOSS, headline=True, per_example=False),)
    """What `compute_metrics` measures, in the order of a report; of some splits it is less."""
    task_metrics: ClassVar[tuple[Metric, ...]] = ()
    """The measures of its task's answers (`tasks.base.Task.scores`)."""
    info: TaskInfo

    @property
    def head(self) -> str | None:
        """The name of its head, which no other loss has; None: it has none, or shares it."""
        return None

    @property
    def is_steady(self) -> bool:
        """Whether the same operations compute `loss_sums` of all batches of a shape.

        They can be captured then: none depends on numbers of the host, or on which values there
        are. A subclass says so itself.
        """
        return False

    @property
    def token_head(self) -> str | None:
        """The head whose answers are all it needs, if it is applied to each token's state."""
        return None

    @property
    def weights(self) -> Mapping[str, float]:
        """The terms of this loss and their weights."""
        return {"loss": 1.0}

    @property
    def compares(self) -> tuple[str, ...]:
        """The keys of a batch by which it compares the examples of a step with each other.

        Empty: each has a loss of its own. Else it has `losses` of the outputs and these keys of all
        micro-batches and processes (`engine.gradient_cache.Comparing`), and its `loss_sums` take
        `output_loss` and `output_gradient` from a batch that has them.
        """
        return ()

    @property
    def training_heads(self) -> Set[str]:
        """The names of its heads that the finished model does not keep."""
        return frozenset()

    @property
    def teacher_runs(self) -> Sequence[str]:
        """The runs, or published models, that it learns from."""
        return ()

    @property
    def other_models(self) -> Sequence[TransferModel]:
        """The models beside the run's own that it passes batches through in each step."""
        return ()

    def parts_of(self, shape: BackboneShape) -> Mapping[str, ModelPart]:
        """Return those of its `training_heads` that a run leaves beside its model, by name."""
        return {}

    def head_rows(self, batch: Batch) -> dict[str, int]:
        """Return how many rows of a batch pass through each head that reads tokens, by name."""
        return {}

    def setup(self, info: TaskInfo) -> None:
        """Store the facts of the run; called once, before anything else."""
        self.info = info

    def task_of(
        self, task: Any, *, words: Mapping[str, str], lines: bool, before_text: int | None
    ) -> Any:
        """Return the task of the main data as it has them encoded, by default as it is.

        Args:
            words: Words for labels that are none themselves, as the data say.
            lines: Whether the model was pretrained on lines, as in `data.corpus`.
            before_text: The token that it reads before other texts; None: none.
        """
        return task

    @abstractmethod
    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return the modules that it adds to the backbone, by name; equal names are shared."""

    def inherit_options(self, options: Mapping[str, Any]) -> None:  # noqa: B027 - most decide nothing
        """Take over the options stored with the head that this run inherits."""

    def described(self, node: dict[str, Any]) -> dict[str, Any]:
        """Return the config node of what a finished model is opened as; by default its own."""
        return node

    def check_start(self, model: TransferModel, inherited: Set[str]) -> None:  # noqa: B027 - most need nothing
        """Raise `ConfigError` where it needs other weights to begin with; see `on_train_start`."""

    def finalize_options(self, model: TransferModel, trains: Set[str]) -> dict[str, Any]:
        """Return the options that depend on what trains, to be stored with the model."""
        return {}

    def on_data(self, data: Dataset) -> None:  # noqa: B027 - a hook that few objectives fill
        """Look at the training examples of its stream, before the first step."""

    def on_examples(self, splits: Mapping[str, Split], shape: BackboneShape) -> None:  # noqa: B027 - a hook that few objectives fill
        """Add to the batches of its stream what it knows of each example, before the first step."""

    def on_step(self, progress: float) -> None:  # noqa: B027 - a hook that few objectives fill
        """Learn how much of the run is over when a step begins, in [0, 1)."""

    def on_train_start(self, model: TransferModel, inherited: Set[str]) -> None:  # noqa: B027 - a hook that few objectives fill
        """Read the starting weights: before the first step, and before a resume loads others.

        The model has all edits and is on its training device; `inherited` are the names of the
        parameters that pretrained weights filled.
        """

    def pooling_of(self, model: TransferModel) -> Pooling | None:
        """Return how it pools a text's states, if it reads nothing else of them; asked last."""
        return None

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return inputs and targets, on the CPU; every random draw comes from `noise`."""
        return batch

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of tokens or examples that each term is summed over."""

    def divisors(self, batch: Batch) -> Mapping[str, float]:
        """Return what a step divides each sum by: `counts`, or the weights of what it counts."""
        return self.counts(batch)

    @abstractmethod
    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return each term's loss, summed over them."""

    def metric_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Sums:
        """Return the sums, "loss" among them, that an evaluation adds up over batches."""
        return self.loss_sums(model, batch, encoded)

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        """Return its task's answers without targets, by name, each `[B, ...]`; by default none."""
        return {}

    def predictions_together(
        self, asked: Sequence[tuple["Objective", TransferModel, Batch]]
    ) -> dict[str, Tensor]:
        """Return answers that several models write together, where each has a `search`.

        Args:
            asked: The model of each, what it was trained for, and the same examples as it has them.
        """
        return {}

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults | None:
        """Return the results of each row, whose losses add up to the "loss" of `metric_sums`.

        By default there are none.
        """
        return None

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        """Return the model's predictions on a batch, for display."""
        return []

    def tables(self, totals: Mapping[str, Tensor]) -> dict[str, list[list[int]]]:
        """Return tables of counts, by name, from summed tallies."""
        return {}

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        """Return the measures of a split from its summed tallies and counts.

        By default these are the tallies but tables, divided by the count of "loss".
        """
        count = max(1, counts["loss"])
        return {name: float(total) / count for name, total in totals.items() if not total.dim()}

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return `metrics`, or those that its options choose; called before `setup`."""
        return self.metrics

    def answer_metrics(self) -> tuple[Metric, ...]:
        """Return `task_metrics`, or those that its options choose."""
        return self.task_metrics


def declared_metrics(objectives: Mapping[str, Objective]) -> tuple[Metric, ...]:
    """Return the metrics of a run, given the objective of each loss by name: "main" is first."""
    return tuple(
        metric if name == "main" else metric.for_loss(name)
        for name, objective in objectives.items()
        for metric in (*objective.answer_metrics(), *objective.declared_metrics())
    )


@dataclass(frozen=True)
class Loss:
    """An objective in a run.

    Args:
        name: "main", or the user's name for a further loss.
        stream: The stream of batches that it reads.
        weight: Its weight, or the weight at each step.
    """

    name: str
    objective: Objective
    stream: str = "main"
    weight: float | Callable[[int], float] = 1.0

    def weight_at(self, step: int) -> float:
        """Return its weight at a step."""
        return self.weight(step) if callable(self.weight) else self.weight
