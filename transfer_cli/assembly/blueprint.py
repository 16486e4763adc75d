"""What a run will be: data, model, losses, groups and stages.

`build_run` builds on a blueprint and `transfer plan` shows one, so a run and its plan cannot
disagree.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.assembly.datasets import RunData
from transfer_cli.assembly.init_from import Pretrained
from transfer_cli.assembly.model import block_length
from transfer_cli.config.schema import LoopConfig
from transfer_cli.data.mixture import Mixture
from transfer_cli.engine.precision import Precision
from transfer_cli.metrics import Metric
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.transfer_model import LayerGroup, TransferModel, layer_groups
from transfer_cli.model.weights import Base, LoadReport, ModelDescription
from transfer_cli.objectives.base import Loss, declared_metrics
from transfer_cli.optim.schedules import LRScheduler, StagePlan


@dataclass(frozen=True)
class Sizes:
    """How long a run is.

    Args:
        steps_per_epoch: With several streams, an epoch is about one pass over the main one.
        mixture: Which stream each step draws; None where there is one alone.
    """

    steps_per_epoch: int
    total_steps: int
    mixture: Mixture | None


@dataclass(frozen=True)
class StartingPoint:
    """The models that a run starts from, and learns from.

    Args:
        pretrained: What `init_from` names; None for a fresh model.
        tensors: Its weights, on the meta device for a plan; None for fresh weights, and in a run
            that has been built.
        teachers: The models that losses compare with in each step, by the name of the loss.
    """

    pretrained: Pretrained | None
    tensors: Mapping[str, Tensor] | None
    teachers: Mapping[str, Sequence[Pretrained]]


@dataclass(frozen=True)
class Network:
    """A model at its starting weights, where these are from, and what it trains for.

    Args:
        losses: What it trains for, the main loss first.
        edits: Config nodes of everything that was added to it, by name.
        inherited: Names of the parameters that keep what was loaded.
        fresh: Names of those below the heads that were drawn anew.
        report: The tensors loaded from `init_from`; None for fresh weights.
    """

    model: TransferModel
    losses: list[Loss]
    edits: dict[str, Any]
    inherited: frozenset[str]
    fresh: frozenset[str]
    report: LoadReport | None

    @cached_property
    def groups(self) -> list[LayerGroup]:
        """Its layer groups, from the bottom to the top."""
        return layer_groups(self.model, self.inherited)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What an evaluation of its losses measures."""
        return declared_metrics({loss.name: loss.objective for loss in self.losses})


@dataclass(frozen=True)
class Course:
    """How long a run is, and what happens when.

    Args:
        monitor: The metric that decides which weights are best; None: what runs are judged by.
    """

    loop: LoopConfig
    sizes: Sizes
    lr_scheduler: LRScheduler
    stage_plans: tuple[StagePlan, ...]
    monitor: Metric | None

    @cached_property
    def ever_trains(self) -> frozenset[str]:
        """The parameters that train in any stage."""
        return frozenset[str]().union(*(stage.trains for stage in self.stage_plans))


@dataclass(frozen=True)
class Blueprint:
    """A model and how it will be trained.

    Args:
        config: The run's config with what was decided, which is stored, and compared by a resume.
        objective: Config node of the main objective, with what it has decided.
        sharded: Whether each process is to hold only a part of each tensor of the model.
        kernels: What `loop.compile=auto` has decided for a GPU, and why.
    """

    config: DictConfig
    adaptation: Adaptation
    start: StartingPoint
    data: RunData
    network: Network
    course: Course
    objective: dict[str, Any]
    precision: Precision
    sharded: bool
    kernels: str

    @property
    def model(self) -> TransferModel:
        """The model, with its edits."""
        return self.network.model

    @property
    def most_tokens(self) -> int:
        """Tokens of a block of running text, and of a labelled one at most."""
        return block_length(self.config.data.get("length"), self.model.backbone.shape.positions)

    @property
    def time_limit_text(self) -> str:
        """In words, how long it may take: `, at most 10 minutes`; empty where time is no bound."""
        minutes = self.course.loop.minutes
        return "" if minutes is None else f", at most {minutes:g} minutes"

    @property
    def carries_memory(self) -> bool:
        """Whether each block of text sees those before it, by states carried between steps."""
        return carries_memory(self.model.backbone.shape, self.data)

    @cached_property
    def omitted_weights(self) -> frozenset[str]:
        """The parameters that are not stored with the run, as `init_from` has them."""
        is_apart = self.start.pretrained is not None and self.adaptation.store == "trained"
        return self.network.inherited - self.course.ever_trains if is_apart else frozenset()

    @cached_property
    def training_only_weights(self) -> frozenset[str]:
        """The weights of heads that the finished model does not keep."""
        heads = (head for loss in self.network.losses for head in loss.objective.training_heads)
        prefixes = tuple(f"heads.{head}." for head in heads)
        return frozenset(name for name in self.model.state_dict() if name.startswith(prefixes))

    def description(
        self, base: Base | None = None, *, without: Set[str] = frozenset()
    ) -> ModelDescription:
        """Return what builds the run's model, but for its weights, which may lack some edits."""
        info, tokenizer = self.data.info["main"], self.data.tokenizer
        return ModelDescription(
            shape=self.model.backbone.shape,
            vocabulary=tokenizer.size,
            objective=self.objective,
            labels=info.labels,
            tokenizer_hash=tokenizer.hash,
            edits={name: edit for name, edit in self.network.edits.items() if name not in without},
            base=base,
            task=None if info.task is None else info.task.as_node(),
            pairs=info.pairs is not None,
            lines=self.data.lines,
        )


def carries_memory(shape: BackboneShape, data: RunData) -> bool:
    """Return whether the states of a block are a memory for the next one."""
    return bool(shape.recurrence) and data.info["main"].task is None


def has_fixed_features(plan: Blueprint) -> bool:
    """Return whether every text has the same hidden states in every epoch."""
    shape = plan.model.backbone.shape
    return (
        len(plan.data.counts) == 1
        and bool(plan.model.heads)
        and not plan.carries_memory
        and plan.network.report is not None
        and all(loss.objective.keeps_tokens for loss in plan.network.losses)
        and not any(name.startswith("backbone.") for name in plan.course.ever_trains)
        and (plan.adaptation.frozen_eval or not (shape.dropout or shape.attention_dropout))
    )
