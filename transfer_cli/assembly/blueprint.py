"""What a run will be: data, model, losses, groups and stages, with every check that needs no batch.

`build_run` goes on from a blueprint, and `transfer plan` shows one, so a run and its plan cannot
disagree. With `device="meta"` nothing is computed and no weights are read: that is how `plan` looks
at a large model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from omegaconf import DictConfig
from torch import Tensor

from transfer_cli.adaptation.adaptation import Adaptation, StagePlan, check_fresh
from transfer_cli.assembly import datasets
from transfer_cli.assembly.datasets import RunData, count_of
from transfer_cli.assembly.init_from import Pretrained, open_start
from transfer_cli.assembly.losses import Asked, bind_losses, build_objectives, with_direction
from transfer_cli.assembly.model import build_model, edit_nodes, make_edits
from transfer_cli.assembly.optimizer import base_lr, build_schedule, parameter_groups
from transfer_cli.config.build import build
from transfer_cli.data.mixture import Mixture, mixed_epoch
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine import distributed
from transfer_cli.engine.precision import Precision, device_and_precision
from transfer_cli.engine.step import Loss
from transfer_cli.errors import ConfigError
from transfer_cli.lengths import Length
from transfer_cli.metrics import Metric, require
from transfer_cli.model.added import edits_in, unmergeable_edits
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.transfer_model import LayerGroup, TransferModel, layer_groups
from transfer_cli.model.weights import LoadReport, load_pretrained
from transfer_cli.objectives.base import TaskInfo, declared_metrics
from transfer_cli.objectives.source_distillation import SourceDistillation
from transfer_cli.optim.lr_scheduler import LRScheduler
from transfer_cli.seeds import derive


@dataclass(frozen=True)
class Sizes:
    """How long a run is.

    Args:
        counts: Training examples of each stream.
        steps_per_epoch: In steps; with several streams, an epoch is about one pass over the main
            one.
        total_steps: Of the run.
        mixture: Which stream each step draws; None where there is one alone.
    """

    counts: Mapping[str, int]
    steps_per_epoch: int
    total_steps: int
    mixture: Mixture | None


@dataclass(frozen=True)
class Blueprint:
    """A model and what is going to happen to it.

    Args:
        adaptation: What is added, what trains when, what pulls back.
        lr_scheduler: Sets the learning rate of every parameter group at every step.
        start: What the run starts from; None for a fresh model.
        tensors: The weights of that, on the meta device for a plan; None for fresh ones, and once
            nobody needs them any more.
        data: Of every stream.
        model: With its edits, at its starting weights.
        losses: What it trains for, the main loss first.
        report: What came from `init_from`; None for fresh weights.
        inherited: Names of the parameters that did.
        edits: Config nodes of all that was added to the network, by name.
        groups: Layer groups, from the bottom to the top.
        stage_plans: The stages.
        sizes: How long.
        precision: With the device.
        sharded: Whether each process is to hold only a part of each tensor of the model.
        metrics: What an evaluation of these losses measures.
        monitor: The one that decides which weights are best.
        warnings: What will work, and not as it was probably meant.
    """

    adaptation: Adaptation
    lr_scheduler: LRScheduler
    start: Pretrained | None
    tensors: Mapping[str, Tensor] | None
    data: RunData
    model: TransferModel
    losses: list[Loss]
    report: LoadReport | None
    inherited: frozenset[str]
    edits: dict[str, Any]
    groups: list[LayerGroup]
    stage_plans: tuple[StagePlan, ...]
    sizes: Sizes
    precision: Precision
    sharded: bool
    metrics: tuple[Metric, ...]
    monitor: Metric
    warnings: tuple[str, ...]

    @property
    def tokenizer(self) -> Tokenizer:
        """That of all its data."""
        return self.data.tokenizer


def draw(
    config: DictConfig,
    command: str,
    typed: Sequence[str] = (),
    *,
    device: Literal["cpu", "meta"] = "cpu",
) -> Blueprint:
    """Return what a run of this config will be, in the order in which data flows.

    Args:
        config: The run's.
        command: pretrain or finetune.
        typed: The overrides that were typed.
        device: "meta" to build the model without weights and to read none.

    Raises:
        ConfigError: Parts do not fit each other; the message names the key.
        SelectionError: A pattern of the plan matches nothing.
        CheckpointError: `init_from` names no model, or its weights do not fill this one.
    """
    precision = device_and_precision(config.device, config.precision)
    asked, adaptation = build_objectives(config), build_adaptation(config.adaptation)
    lr, schedule = base_lr(config.optimizer), build_schedule(config.schedule)
    sharded = _is_sharded(config, asked, adaptation)
    start = open_start(config.init_from, config.get("base"), typed)
    check_forgetting(config, start)
    shape = with_direction(shape_of(config, start, command), asked)
    with distributed.main_first():
        data = datasets.of_run(config, command, shape, start)
    sizes = sizes_of(config, data.counts)
    per_stage = adaptation.schedule_per == "stage"
    lr_scheduler = LRScheduler(lr, schedule, sizes.total_steps, per_stage=per_stage)

    tensors = None
    if start is not None and inherits(config, start):
        tensors = start.shapes() if device == "meta" else start.tensors()
        if _is_same_task(start, config, data.info):
            asked["main"].objective.inherit_options(start.description.objective)
    losses = bind_losses(
        asked, data.info, total_steps=sizes.total_steps, steps_per_epoch=sizes.steps_per_epoch
    )
    metrics = declared_metrics({loss.name: loss.objective for loss in losses})
    monitor = require(config.loop.monitor, metrics, "loop.monitor")
    made = _Made.of(config, adaptation, shape, losses, data, start, tensors, device)
    if adaptation.store == "merged":
        _check_mergeable(made.model)
    if adaptation.penalty is not None:
        adaptation.penalty.check(made.inherited)
    groups = layer_groups(made.model, made.inherited)
    stage_plans = adaptation.plan_stages(groups, sizes.total_steps, sizes.steps_per_epoch)
    if made.report is not None:
        check_fresh(made.fresh, stage_plans)
    # For what it refuses: a run asks again once its parameters are where they will stay.
    parameter_groups(made.model, groups, adaptation.layer_scale)
    return Blueprint(
        adaptation=adaptation,
        lr_scheduler=lr_scheduler,
        start=start,
        tensors=tensors,
        data=data,
        model=made.model,
        losses=losses,
        report=made.report,
        inherited=made.inherited,
        edits=made.edits,
        groups=groups,
        stage_plans=stage_plans,
        sizes=sizes,
        precision=precision,
        sharded=sharded,
        metrics=metrics,
        monitor=monitor,
        warnings=_warmup_problem(lr_scheduler, stage_plans),
    )


def build_adaptation(node: DictConfig) -> Adaptation:
    """Return the adaptation that the node describes."""
    return build(node, "adaptation", Adaptation)


def shape_of(config: DictConfig, start: Pretrained | None, command: str) -> BackboneShape:
    """Return the model's shape: that of `init_from`, else the config's own."""
    if start is not None:
        return start.description.shape
    scratch = command == "pretrain" or config.init == "scratch"
    if not scratch:
        raise ConfigError(
            "init_from: needs a pretrained run directory, for example init_from=runs/pretrain/...; "
            "to train a fresh model instead, give init=scratch, model= and tokenizer="
        )
    for key, example in (("model", "tiny"), ("tokenizer", "wordpiece")):
        if config[key] is None:
            raise ConfigError(
                f"{key}: a fresh model (init=scratch) needs one, for example {key}={example}; "
                "or give init_from=RUN"
            )
    return build(config.model, "model", BackboneShape)


def inherits(config: DictConfig, start: Pretrained | None) -> bool:
    """Return whether a run starts from the weights of `init_from`, not from its shape alone."""
    return start is not None and config.get("init", "pretrained") == "pretrained"


def check_forgetting(config: DictConfig, start: Pretrained | None) -> None:
    """Refuse to measure what fresh weights forget.

    Raises:
        ConfigError: There is nothing to forget.
    """
    if config.forgetting.data is not None and not inherits(config, start):
        raise ConfigError(
            "forgetting.data: fresh weights have nothing to forget; give init_from=RUN "
            "without init=scratch, or leave it out"
        )


def batch_of(config: DictConfig, stream: str) -> int:
    """Return how many examples a step takes from a stream."""
    own = None if stream == "main" else config.streams[stream].get("batch")
    return count_of(own, f"streams.{stream}.batch") or int(config.loop.batch)


def sizes_of(config: DictConfig, counts: Mapping[str, int]) -> Sizes:
    """Return how long the run is, from the number of training examples of each stream.

    Raises:
        ConfigError: No length is given, or streams cannot be mixed so.
    """
    loop, mixing = config.loop, config.mixing
    epoch = -(-counts["main"] // loop.batch)
    try:
        if len(counts) > 1:
            epoch = mixed_epoch(counts, epoch, power=mixing.power, anneal=mixing.anneal)
        total = _total_steps(loop, epoch)
        mixture = None
        if len(counts) > 1:
            alone = Length.parse(mixing.target_only) if mixing.target_only else None
            mixture = Mixture(
                counts,
                total=total,
                steps_per_epoch=epoch,
                seed=config.seed,
                power=mixing.power,
                anneal=mixing.anneal,
                target_only=(alone.resolve(epoch, total, 1) or total) if alone else 0,
            )
    except ValueError as error:
        raise ConfigError(f"mixing: {error}") from error
    return Sizes(dict(counts), epoch, total, mixture)


def _is_same_task(start: Pretrained, config: DictConfig, info: Mapping[str, TaskInfo]) -> bool:
    """Return whether the run goes on with the very head that an earlier one trained."""
    own, description = config.objective.get("_target_"), start.description
    return bool(start.task == info["main"].task) and description.objective["_target_"] == own


def _of_these_labels(
    tensors: Mapping[str, Tensor], start: Pretrained, info: Mapping[str, TaskInfo]
) -> dict[str, Tensor]:
    """Leave out heads of other labels: that their shape fits by chance means nothing."""
    same = start.task == info["main"].task
    tasks = [task for task in (start.task, *(each.task for each in info.values())) if task]
    refused = tuple(f"heads.{task.head}_" for task in tasks)
    refused += () if same else tuple(f"heads.{task.head}." for task in tasks)
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(refused)}


def _warmup_problem(
    lr_scheduler: LRScheduler, stage_plans: tuple[StagePlan, ...]
) -> tuple[str, ...]:
    """Say what is wrong with a warm-up that is as long as what it warms up.

    Such a run works, at rates below the one that was asked for.
    """
    whole = [("the run", lr_scheduler.total)]
    if lr_scheduler.per_stage:
        whole = [(f"stage {n + 1}", stage.end - stage.begin) for n, stage in enumerate(stage_plans)]
    for what, steps in whole:
        warmup = lr_scheduler.schedule.warmup_steps(steps)
        if warmup >= steps > 1:
            return (
                f"schedule.warmup: its {warmup} steps are as long as {what}, which has {steps}; "
                "make it shorter (a share such as 0.1 fits any run) or the run longer",
            )
    return ()


def _total_steps(loop: DictConfig, steps_per_epoch: int) -> int:
    if loop.steps is not None:
        return int(loop.steps)
    if loop.epochs is None:
        raise ConfigError("loop.epochs: needs a number of epochs, or loop.steps a number of steps")
    return int(Length(loop.epochs, "epochs").steps(steps_per_epoch) or 1)


@dataclass(frozen=True)
class _Made:
    """The model as it is when training begins; see `Blueprint`."""

    model: TransferModel
    report: LoadReport | None
    inherited: frozenset[str]
    fresh: frozenset[str]
    edits: dict[str, Any]

    @classmethod
    def of(
        cls,
        config: DictConfig,
        adaptation: Adaptation,
        shape: BackboneShape,
        losses: list[Loss],
        data: RunData,
        start: Pretrained | None,
        tensors: Mapping[str, Tensor] | None,
        device: str,
    ) -> "_Made":
        """Build the network, fill it with what it inherits, and edit it."""
        before: dict[str, Any] = {}
        report = None
        with without_weights() if device == "meta" else torch.device(device):
            model = build_model(shape, data.tokenizer.size, losses, config.seed)
            if start is not None and tensors is not None:
                # What an earlier run added belongs to what it hands on.
                before = dict(start.description.edits)
                make_edits(model, before, data.tokenizer)
                fitting = _of_these_labels(tensors, start, data.info)
                report = load_pretrained(model, fitting, start.weights)
                unused = {*(set(tensors) - set(fitting)), *start.dropped}
                report = replace(report, dropped=tuple(sorted({*report.dropped, *unused})))
            torch.manual_seed(derive(config.seed, "edits"))
            nodes = edit_nodes(config.adaptation)
            new = {name: node for name, node in nodes.items() if before.get(name) != node}
            edited = make_edits(model, new, data.tokenizer, adaptation.edits)
        names = {name for name, _ in model.named_parameters()}
        inherited = frozenset(names & set(report.loaded if report else ())) - edited.fresh
        return cls(model, report, inherited, edited.fresh, before | edited.structure)


def _check_mergeable(model: TransferModel) -> None:
    """Refuse to store a model merged where nothing of it can be."""
    stay = unmergeable_edits(model)
    if not edits_in(model):
        raise ConfigError(
            "adaptation.store: merged folds edits into the base weights, and none adds anything; "
            "add adaptation/edits=lora, or take store=all"
        )
    if not edits_in(model) - stay.keys():
        raise ConfigError(
            "adaptation.store: merged folds edits into the base weights, which cannot take over "
            f"{', '.join(stay.values())}; take store=all or store=trained"
        )


def _is_sharded(config: DictConfig, asked: Mapping[str, Asked], chosen: Adaptation) -> bool:
    """Return whether the processes of the run are to have a part of the model each.

    Raises:
        ConfigError: Something in the run needs the whole model.
    """
    if config.parallel != "fsdp" or distributed.world_size() == 1:
        return False
    whole = {
        "adaptation.penalty": chosen.penalty is not None,
        "adaptation.store=merged": chosen.store == "merged",
        "forgetting.data": config.forgetting.data is not None,
        "source_distillation": any(
            isinstance(loss.objective, SourceDistillation) for loss in asked.values()
        ),
    }
    for what in (name for name, needs in whole.items() if needs):
        raise ConfigError(
            f"parallel: with fsdp no process has the whole model, which {what} needs; leave one "
            "of them out, or take parallel=ddp"
        )
    return True
