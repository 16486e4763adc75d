"""What a run will be: data, model, losses, groups and stages, with every check that needs no batch.

`build_run` builds on a blueprint and `transfer plan` shows one, so a run and its plan cannot
disagree.
"""

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from omegaconf import DictConfig, ListConfig
from torch import Tensor, nn

from transfer_cli.adaptation.adaptation import Adaptation, check_fresh
from transfer_cli.adaptation.edit import Edit
from transfer_cli.adaptation.stage_plan import StagePlan
from transfer_cli.assembly import datasets
from transfer_cli.assembly.checks import (
    check_average,
    check_bounded_by_time,
    check_compared,
    check_confidence,
    check_head,
    check_memory,
    check_residual,
    check_rows,
    check_source,
    check_stored,
    is_sharded,
)
from transfer_cli.assembly.datasets import RunData
from transfer_cli.assembly.init_from import (
    INHERITED,
    Pretrained,
    open_start,
    pick_layers,
    with_parts,
    with_rows,
)
from transfer_cli.assembly.losses import (
    Asked,
    bind_losses,
    build_objectives,
    objective_options,
    with_direction,
)
from transfer_cli.assembly.model import build_model, edit_nodes, make_edits
from transfer_cli.assembly.optimizer import is_solver, parameter_groups
from transfer_cli.assembly.origins import Origins
from transfer_cli.assembly.teachers import check_reads_alike, meet_teachers
from transfer_cli.config.build import TARGET, build
from transfer_cli.config.check_training import base_lr, check_start
from transfer_cli.config.decided import with_values
from transfer_cli.config.flat import flat
from transfer_cli.config.schema import LoopConfig, MixingConfig
from transfer_cli.config.stored import plain_values
from transfer_cli.data.mixture import Mixture, mixed_epoch
from transfer_cli.data.tokenizer_recipes import AUTO
from transfer_cli.earlier_runs import LABELLED
from transfer_cli.engine import distributed
from transfer_cli.engine.bf16_products import precision_of
from transfer_cli.engine.compiling import missing_for, why_eager
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import ConfigError, raised_as
from transfer_cli.lengths import MAX_COUNT, Length
from transfer_cli.metrics import Metric, require
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.heads import BatchNorm
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.transfer_model import LayerGroup, TransferModel, layer_groups
from transfer_cli.model.weights import (
    Base,
    LazyTensors,
    LoadReport,
    ModelDescription,
    load_pretrained,
    without_values,
)
from transfer_cli.objectives.base import Loss, TaskInfo, declared_metrics
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.optim.schedules import LRScheduler, Schedule
from transfer_cli.seeds import derive

log = logging.getLogger(__name__)

DEPTH = "model.depth"
"""The key of a model that may be typed beside `init_from`: so many of its blocks."""


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
        fresh: Names of those that an edit drew anew.
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
    def at_most(self) -> str:
        """In words, how long it may take: `, at most 10 minutes`; empty where time is no bound."""
        minutes = self.course.loop.minutes
        return "" if minutes is None else f", at most {minutes:g} minutes"

    @property
    def remembers(self) -> bool:
        """Whether each block of text sees those before it, by states carried between steps."""
        return _remembers(self.model.backbone.shape, self.data)

    @cached_property
    def left_out(self) -> frozenset[str]:
        """The parameters that are not stored with the run, as `init_from` has them."""
        is_apart = self.start.pretrained is not None and self.adaptation.store == "trained"
        return self.network.inherited - self.course.ever_trains if is_apart else frozenset()

    @cached_property
    def training_weights(self) -> frozenset[str]:
        """The weights of heads that the finished model does not keep."""
        heads = frozenset[str]().union(
            *(loss.objective.training_heads for loss in self.network.losses)
        )
        return frozenset(
            name
            for name in self.model.state_dict()
            if name.startswith("heads.") and name.split(".")[1] in heads
        )

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
            edits={name: each for name, each in self.network.edits.items() if name not in without},
            base=base,
            task=None if info.task is None else info.task.as_node(),
            pairs=info.pairs is not None,
            lines=self.data.lines,
        )


def draw(
    config: DictConfig,
    command: str,
    typed: Sequence[str],
    origins: Origins,
    *,
    device: Literal["cpu", "meta"] = "cpu",
) -> Blueprint:
    """Return what a run of this config will be, in the order in which data flows.

    On the device "meta" nothing is computed and no weights are read: so `plan` looks at a large
    model. What the run reads is noted in `origins`, or compared with what is noted there.
    """
    # A minimum is found to more digits than bf16 has.
    exact = config.precision == "auto" and is_solver(config.optimizer)
    precision = precision_of(command, config.device, "fp32" if exact else config.precision)
    loop = build(config.loop, "loop", LoopConfig)
    check_residual(loop, precision)
    asked, adaptation = build_objectives(config), build(config.adaptation, "adaptation", Adaptation)
    sharded = is_sharded(config, asked, adaptation)
    start = _start(config, command, typed, asked, adaptation, values=device != "meta")
    shape = with_direction(shape_of(config, start.pretrained, command), asked)
    check_rows(shape, config)
    config = with_values(config, _decided(config, start.pretrained, shape, precision))
    with distributed.main_first():
        data = datasets.of_run(config, command, shape, start.pretrained, origins, asked["main"])
    check_reads_alike(start.teachers, data.tokenizer, config.data.get("length") or shape.positions)
    mixing = build(config.mixing, "mixing", MixingConfig)
    sizes = sizes_of(data.drawn, loop, mixing, config.seed)
    losses = _losses(config.objective.get("_target_"), start, data, sizes, asked)
    with without_weights() if device == "meta" else torch.device(device):
        model = build_model(shape, data.tokenizer.size, losses, config.seed)
        nodes = edit_nodes(config.adaptation)
        network = _network(model, losses, start, data, nodes, adaptation.edits, config.seed)
    model.backbone.keep_residual(torch.bfloat16 if loop.bf16_residual else None)
    check_average(loop.average, losses, validates="validation" in data.splits)
    check_stored(adaptation.store, network.model, network.losses)
    if _remembers(shape, data):
        check_memory(network.model, network.losses)
    if adaptation.penalty is not None:
        adaptation.penalty.check(network.inherited)
    loop = replace(loop, batch=min(loop.batch, data.counts["main"]))
    check_compared(network.losses, loop.batch)
    kernels = ""
    if loop.compile == "auto":
        is_compiled, kernels = _kernels(
            precision.device, sizes.total_steps, sharded=sharded, varies=not _in_blocks(shape, data)
        )
        loop = replace(loop, compile=is_compiled)
    config = with_values(config, {"loop.compile": loop.compile, **_vocabulary(config, data, start)})
    course = _course(config, loop, sizes, network, adaptation)
    decided = _finalize_options(network, course)
    # For what it refuses: a run asks again once its parameters are where they will stay.
    parameter_groups(network.model, network.groups, adaptation.layer_scale)
    objective = {
        **network.losses[0].objective.described(objective_options(config.objective, "objective")),
        **decided,
    }
    plan = Blueprint(
        config, adaptation, start, data, network, course, objective, precision, sharded, kernels
    )
    return _solvable(plan)


def _kernels(device: torch.device, steps: int, *, sharded: bool, varies: bool) -> tuple[bool, str]:
    """Return whether passes are compiled with `loop.compile=auto`, and on a GPU what is said."""
    eager = why_eager(
        device, missing_for(device), lengths_vary=varies, sharded=sharded, steps=steps
    )
    said = f"{f'eager, as {eager}' if eager else 'compiled'} (loop.compile=auto)"
    return not eager, said if device.type == "cuda" else ""


def _vocabulary(config: DictConfig, data: RunData, start: StartingPoint) -> dict[str, int]:
    """Return the size of the vocabulary as a value of its key, where `auto` asks for one."""
    if config.tokenizer is None or config.tokenizer.get("size") != AUTO:
        return {}
    size = data.tokenizer.size - config.tokenizer.get("sentinels", 0)
    if start.pretrained is None:
        log.info(
            "tokenizer.size=auto: a vocabulary of %s tokens suits this text and a model of this "
            "size; tokenizer.size=N makes another", f"{size:,}",
        )  # fmt: skip
    return {"tokenizer.size": size}


def _losses(
    kind: str | None, origin: StartingPoint, data: RunData, sizes: Sizes, asked: Mapping[str, Asked]
) -> list[Loss]:
    """Return the losses, told of their data; a main one of the `kind` of before goes on as it."""
    start = origin.pretrained
    if start is not None and origin.tensors is not None:
        described, same_task = start.description, start.task == data.info["main"].task
        if same_task and described.objective["_target_"] == kind:
            asked["main"].objective.inherit_options(described.objective)
    losses = bind_losses(
        asked, data.info, total_steps=sizes.total_steps, steps_per_epoch=sizes.steps_per_epoch
    )
    check_confidence(losses, validates="validation" in data.splits)
    return losses


def _course(
    config: DictConfig, loop: LoopConfig, sizes: Sizes, network: Network, adaptation: Adaptation
) -> Course:
    lr_scheduler = LRScheduler(
        config.optimizer.lr,
        build(config.schedule, "schedule", Schedule),
        sizes.total_steps,
        per_stage=adaptation.schedule_per == "stage",
    )
    asked, metrics = loop.monitor, network.metrics
    monitor = None if asked == "auto" else require(asked, metrics, "loop.monitor")
    stages = adaptation.plan_stages(network.groups, sizes.total_steps, sizes.steps_per_epoch)
    check_bounded_by_time(loop, stages, config.mixing.target_only)
    if network.report is not None:
        check_fresh(network.fresh, stages)
    return Course(loop, sizes, lr_scheduler, stages, monitor)


def _finalize_options(network: Network, course: Course) -> dict[str, Any]:
    """Let objectives refuse the start; return what the main one decides by what trains."""
    model, objectives = network.model, [loss.objective for loss in network.losses]
    for objective in objectives:
        objective.check_start(model, network.inherited)
    main, *_ = [each.finalize_options(model, course.ever_trains) for each in objectives]
    return main


def _remembers(shape: BackboneShape, data: RunData) -> bool:
    return bool(shape.recurrence) and data.info["main"].task is None


def _in_blocks(shape: BackboneShape, data: RunData) -> bool:
    """Return whether batches are blocks of one text, each read alone: full ones are alike."""
    main = data.info["main"]
    apart = main.task is None and main.pairs is None and not _remembers(shape, data)
    return apart and len(data.counts) == 1


def has_fixed_features(plan: Blueprint) -> bool:
    """Return whether every text has the same hidden states in every epoch."""
    shape = plan.model.backbone.shape
    return (
        len(plan.data.counts) == 1
        and bool(plan.model.heads)
        and not plan.remembers
        and plan.network.report is not None
        and all(loss.objective.keeps_tokens for loss in plan.network.losses)
        and not any(name.startswith("backbone.") for name in plan.course.ever_trains)
        and (plan.adaptation.frozen_eval or not (shape.dropout or shape.attention_dropout))
    )


def _solvable(plan: Blueprint) -> Blueprint:
    """Return the plan, if the loss of an optimizer that solves is the same at each evaluation."""
    if not is_solver(plan.config.optimizer):
        return plan
    count, strengths = plan.data.counts["main"], plan.config.optimizer.get("weight_decay")
    random = [
        part
        for part in plan.model.heads.modules()
        if isinstance(part, BatchNorm) or (isinstance(part, nn.Dropout) and part.p)
    ]
    problems = {
        "the states of the texts change (give adaptation=frozen, and one stream)": (
            not has_fixed_features(plan)
        ),
        "its head is random (objective.dropout=0 objective.batch_norm=false)": random,
        f"a step sees {plan.config.loop.batch} of {count} texts (loop.batch={count})": (
            plan.config.loop.batch < count
        ),
        f"{plan.precision.kind} is too coarse (precision=fp32)": plan.precision.kind != "fp32",
        "no process has the whole head (parallel=ddp)": plan.sharded,
        "each step is a solution of its own (loop.average=null)": plan.course.loop.average,
    }
    if isinstance(strengths, ListConfig) and plan.course.sizes.total_steps < len(strengths):
        text = f"a step is for one of {len(strengths)} weight decays (loop.steps={len(strengths)})"
        problems[text] = True
    found = [problem for problem, holds in problems.items() if holds]
    if found:
        raise ConfigError(
            f"optimizer: L-BFGS needs the same loss at each evaluation, but {'; '.join(found)}; "
            "experiment=quick sets all of this, or take optimizer=adamw"
        )
    return plan


def _start(
    config: DictConfig,
    command: str,
    typed: Sequence[str],
    asked: Mapping[str, Asked],
    chosen: Adaptation,
    *,
    values: bool,
) -> StartingPoint:
    """Return what the run starts from, in pretraining perhaps some of its blocks alone."""
    may_change = {DEPTH} if command == "pretrain" else frozenset[str]()
    start = open_start(config.init_from, config.get("base"), typed, may_change)
    if command == "pretrain":
        asks = any(word.lstrip("+").partition("=")[0] == DEPTH for word in typed)
        layers = config.student.layers
        start = pick_layers(
            start, None if layers is None else list(layers), config.model.depth if asks else None
        )
    if start is not None and start.layers is not None and chosen.store == "trained":
        raise ConfigError(
            "adaptation.store: trained leaves weights where init_from has them, and a model of "
            "some of its blocks has them at other places; take adaptation.store=all"
        )
    teachers = meet_teachers(asked)
    tensors = None
    if _inherits(config, start, asked, chosen) and start is not None:
        tensors = with_parts(start, asked["main"].objective, values=values)
    return StartingPoint(start, tensors, teachers)


def _decided(
    config: DictConfig, start: Pretrained | None, shape: BackboneShape, precision: Precision
) -> dict[str, Any]:
    """Return the values of keys of which a config leaves open what they come to.

    What is stored, and compared with other runs, is what was used.
    """
    decided: dict[str, Any] = {
        "optimizer.lr": base_lr(config.optimizer.get("lr"), shape.width),
        "precision": precision.kind,
        "data_changed": "refuse",  # it holds for one command
    }
    if start is not None and start.layers is not None:
        decided["student.layers"] = list(start.layers)  # a resume types nothing of it
    values = dict(flat(plain_values(config)))
    for key, value in values.items():
        if isinstance(value, str) and value in LABELLED:
            drawn = f"{key.rpartition('.')[0]}.duplicates"
            decided[drawn] = values.get(drawn, "together")
    return decided


def _inherits(
    config: DictConfig, start: Pretrained | None, asked: Mapping[str, Asked], adaptation: Adaptation
) -> bool:
    """Return whether the run begins with the weights of `init_from`."""
    inherits = start is not None and config.get("init", "pretrained") == "pretrained"
    if config.forgetting.data is not None and not inherits:
        raise ConfigError(
            "forgetting.data: fresh weights have nothing to forget; give init_from=RUN "
            "without init=scratch, or leave it out"
        )
    check_head(start if inherits else None, asked, adaptation)
    check_source(config, start if inherits else None, adaptation)
    return inherits


def shape_of(config: DictConfig, start: Pretrained | None, command: str) -> BackboneShape:
    """Return the model's shape: that of `init_from`, else the config's own."""
    if start is not None:
        return start.description.shape
    if command != "pretrain":
        check_start(config.init_from, config.init)
    for key, example in (("model", "tiny"), ("tokenizer", "wordpiece")):
        if config[key] is None or config[key].get(TARGET) == INHERITED:
            raise ConfigError(
                f"{key}: a fresh model (init=scratch) needs one, for example {key}={example}; "
                "or give init_from=RUN"
            )
    return build(config.model, "model", BackboneShape)


def sizes_of(counts: Mapping[str, int], loop: LoopConfig, mixing: MixingConfig, seed: int) -> Sizes:
    """Return how long the run is, from the number of training examples of each stream."""
    epoch = -(-counts["main"] // loop.batch)
    if len(counts) == 1:
        return Sizes(epoch, total_steps_of(loop, epoch), None)
    with raised_as(ConfigError, "mixing: "):
        epoch = mixed_epoch(counts, epoch, power=mixing.power, anneal=mixing.anneal)
        total = total_steps_of(loop, epoch)
        alone = Length.parse(mixing.target_only) if mixing.target_only else None
        mixture = Mixture(
            counts,
            total=total,
            steps_per_epoch=epoch,
            seed=seed,
            power=mixing.power,
            anneal=mixing.anneal,
            target_only=(alone.resolve(epoch, total, 1) or total) if alone else 0,
        )
    return Sizes(epoch, total, mixture)


def _of_these_labels(
    tensors: Mapping[str, Tensor], start: Pretrained, info: Mapping[str, TaskInfo]
) -> Mapping[str, Tensor]:
    """Leave out heads of other labels: that their shape fits by chance means nothing.

    That of a language model is about the vocabulary, and no task's labels.
    """
    same = start.task == info["main"].task
    every = (start.task, *(each.task for each in info.values()))
    tasks = [task for task in every if task and task.head != HEAD]
    refused = tuple(f"heads.{task.head}_" for task in tasks)
    refused += () if same else tuple(f"heads.{task.head}." for task in tasks)
    shapes = without_values(tensors)
    kept = {name: shape for name, shape in shapes.items() if not name.startswith(refused)}
    return LazyTensors(kept, tensors.__getitem__)


def total_steps_of(loop: LoopConfig, steps_per_epoch: int) -> int:
    """Return the steps of a run."""
    if loop.steps is not None:
        return loop.steps
    if loop.epochs is None:
        raise ConfigError("loop.epochs: needs a number of epochs, or loop.steps a number of steps")
    steps = Length(loop.epochs, "epochs").steps(steps_per_epoch) or 1
    if steps > MAX_COUNT:
        raise ConfigError(f"loop.epochs: {loop.epochs:g} are {steps:,} steps, over {MAX_COUNT:,}")
    return steps


def _network(
    model: TransferModel,
    losses: list[Loss],
    origin: StartingPoint,
    data: RunData,
    nodes: Mapping[str, Any],
    edits: Mapping[str, Edit],
    seed: int,
) -> Network:
    start, tensors, before = origin.pretrained, origin.tensors, dict[str, Any]()
    report = None
    if start is not None and tensors is not None:
        # What an earlier run added belongs to what it hands on.
        before = dict(start.description.edits)
        make_edits(model, before, data.tokenizer)
        fitting = _of_these_labels(tensors, start, data.info)
        fitting, grown = with_rows(fitting, start.tokenizer, data.tokenizer, seed)
        report = load_pretrained(model, fitting, start.weights)
        # A table with new rows is no longer that of the model that this one starts from.
        loaded = tuple(name for name in report.loaded if name not in grown)
        unread = start.published.dropped if start.published else ()
        dropped = {*report.dropped, *(set(tensors) - set(fitting)), *unread}
        new = {*report.new, *grown}
        report = LoadReport(loaded, tuple(sorted(new)), tuple(sorted(dropped)))
    torch.manual_seed(derive(seed, "edits"))
    # Nodes of an earlier version may lack options that it did not have.
    made = {name: build(node, f"adaptation.edits.{name}", Edit) for name, node in before.items()}
    further = {
        name: node
        for name, node in nodes.items()
        if before.get(name) != node and made.get(name) != edits[name]
    }
    fresh, structure = make_edits(model, further, data.tokenizer, edits)
    names = {name for name, _ in model.named_parameters()}
    inherited = frozenset(names & set(report.loaded if report else ())) - fresh
    return Network(model, losses, before | structure, inherited, fresh, report)
