"""Draws the blueprint of a run from its config, with every check that needs no batch."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from omegaconf import DictConfig, ListConfig
from torch import Tensor, nn

from transfer_cli.adaptation.adaptation import Adaptation, check_fresh
from transfer_cli.adaptation.edit import Edit
from transfer_cli.assembly import checks, datasets
from transfer_cli.assembly.blueprint import (
    Blueprint,
    Course,
    Network,
    Sizes,
    StartingPoint,
    carries_memory,
    has_fixed_features,
)
from transfer_cli.assembly.chosen_tokenizer import INHERITED, with_new_rows
from transfer_cli.assembly.datasets import RunData
from transfer_cli.assembly.flops_estimate import flops_of_run, full_text_costs
from transfer_cli.assembly.init_from import (
    Pretrained,
    as_encoder_decoder,
    open_start,
    pick_layers,
    tensors_with_parts,
)
from transfer_cli.assembly.losses import (
    RequestedLoss,
    bind_losses,
    build_objectives,
    objective_options,
    with_direction,
)
from transfer_cli.assembly.model import apply_edits, build_model, edit_nodes
from transfer_cli.assembly.optimizer import is_solver, parameter_groups
from transfer_cli.assembly.origins import Origins
from transfer_cli.assembly.teachers import check_teachers, open_teachers
from transfer_cli.config.build import TARGET, build, class_of
from transfer_cli.config.decided import base_lr, with_values
from transfer_cli.config.flat import flat_items
from transfer_cli.config.models import check_init_from
from transfer_cli.config.schema import LoopConfig, MixingConfig
from transfer_cli.config.stored import plain_values
from transfer_cli.data.mixture import Mixture, mixture_epoch_steps
from transfer_cli.data.tokenizer_recipes import is_auto
from transfer_cli.earlier_runs import LABELLED_SOURCES
from transfer_cli.engine import distributed
from transfer_cli.engine.bf16_products import command_precision
from transfer_cli.engine.compiling import missing_compiler, why_eager
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import ConfigError, between, raised_as
from transfer_cli.lengths import MAX_COUNT, Length
from transfer_cli.metrics import require_metric
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.heads import BatchNorm
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import LazyTensors, LoadReport, load_pretrained, without_values
from transfer_cli.objectives.base import Loss, TaskInfo
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.optim.schedules import LRScheduler, Schedule
from transfer_cli.seeds import derive

log = logging.getLogger(__name__)

PROBED_STEPS = 1000
"""Steps of a run that only estimates the cost of training: enough for its stages."""


def draw_blueprint(
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
    precision = command_precision(command, config.device, "fp32" if exact else config.precision)
    loop = build(config.loop, "loop", LoopConfig)
    checks.check_residual(loop, precision)
    requested = build_objectives(config.objective, config.losses, config.streams)
    adaptation = build(config.adaptation, "adaptation", Adaptation)
    sharded = checks.is_sharded(config.parallel, requested, adaptation, config.forgetting.data)
    start = _starting_point(config, command, typed, requested, adaptation, values=device != "meta")
    shape = with_direction(choose_shape(config, start.pretrained, command), requested)
    checks.check_packed_rows(
        shape,
        {
            "data": config.data,
            **{f"streams.{name}.data": part.data for name, part in config.streams.items()},
        },
        packs=loop.pack,
    )
    config = with_values(config, _decided_values(config, start.pretrained, shape, precision))
    with distributed.main_first():
        data = datasets.run_data(
            config, command, shape, start.pretrained, origins, requested["main"]
        )
    check_teachers(start.teachers, data.tokenizer, config.data.get("length") or shape.positions)
    mixing = build(config.mixing, "mixing", MixingConfig)
    loop = _with_length_in_steps(
        replace(loop, batch=min(loop.batch, data.counts["main"])), data, shape,
        config.data.get("length"), lambda: draw_blueprint(
            with_values(config, {"loop.flops": None, "loop.steps": PROBED_STEPS}),
            command, typed, origins, device="meta",
        ),
    )  # fmt: skip
    sizes = sizes_of(data.drawn_counts, loop, mixing, config.seed)
    losses = _bound_losses(config.objective.get("_target_"), start, data, sizes, requested)
    with without_weights() if device == "meta" else torch.device(device):
        model = build_model(shape, data.tokenizer.size, losses, config.seed)
        nodes = edit_nodes(config.adaptation)
        network = _build_network(model, losses, start, data, nodes, adaptation.edits, config.seed)
    model.backbone.set_residual_dtype(torch.bfloat16 if loop.bf16_residual else None)
    checks.check_average(loop.average, losses, validates="validation" in data.splits)
    checks.check_store(adaptation.store, network.model, network.losses)
    if carries_memory(shape, data):
        weights = None if origins.lines else config.data.get("weights")  # earlier runs go on
        checks.check_recurrence(network.model, network.losses, weights)
    if adaptation.penalty is not None:
        adaptation.penalty.check(network.inherited)
    checks.check_contrastive_batch(network.losses, loop.batch)
    loop, kernels = _choose_kernels(
        loop, precision.device, sizes.total_steps,
        sharded=sharded, varies=_lengths_vary(shape, data),
    )  # fmt: skip
    config = with_values(
        config, {"loop.compile": loop.compile, **_decided_vocabulary(config.tokenizer, data, start)}
    )
    course = _build_course(
        config.optimizer.lr, build(config.schedule, "schedule", Schedule), loop,
        mixing, sizes, network, adaptation,
    )  # fmt: skip
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
    _check_optimizer(plan)
    return plan


def _with_length_in_steps(
    loop: LoopConfig,
    data: RunData,
    shape: BackboneShape,
    length: int | None,
    draw_probe: Callable[[], Blueprint],
) -> LoopConfig:
    """Return the loop with its length in steps, where that is given in tokens or operations."""
    if not (loop.tokens or loop.flops):
        return loop
    price: float = checks.checked_block_length(length, data, shape, loop)
    if loop.flops:
        probe = draw_probe()
        of_run = flops_of_run(probe, *full_text_costs(probe, int(price))[:2])
        price = of_run / (PROBED_STEPS * probe.course.loop.batch)
    return replace(loop, steps=steps_for_length(loop, data.drawn_counts["main"], price))


def steps_for_length(loop: LoopConfig, blocks: int, price: float) -> int:
    """Return after how many steps a run has had its tokens, or operations: whole epochs and a rest.

    Args:
        blocks: Of an epoch, whose last step takes what is left.
        price: What a block has of them.
    """
    batch = min(loop.batch, blocks)
    epochs, rest = divmod((loop.tokens or loop.flops or 0) / price, blocks)
    steps = int(epochs) * -(-blocks // batch) + math.ceil(rest / batch - 1e-9)
    between("loop.tokens, loop.flops: in steps,", steps, 0, MAX_COUNT, ConfigError)
    return max(1, steps)


def _choose_kernels(
    loop: LoopConfig, device: torch.device, steps: int, *, sharded: bool, varies: bool
) -> tuple[LoopConfig, str]:
    """Return the loop with `loop.compile=auto` decided, and on a GPU a text that says how."""
    if loop.compile != "auto":
        return loop, ""
    eager = why_eager(
        device,
        missing_compiler(device),
        lengths_vary=varies,
        sharded=sharded,
        steps=steps,
        minutes=loop.minutes or math.inf,
    )
    text = f"{f'eager, as {eager}' if eager else 'compiled'} (loop.compile=auto)"
    return replace(loop, compile=not eager), text if device.type == "cuda" else ""


def _decided_vocabulary(
    tokenizer: Mapping[str, Any] | None, data: RunData, start: StartingPoint
) -> dict[str, int]:
    """Return the size of the vocabulary as a value of its key, where `auto` asks for one."""
    if tokenizer is None or not is_auto(tokenizer.get("size")):
        return {}
    size = data.tokenizer.size - tokenizer.get("sentinels", 0)
    if start.pretrained is None:
        log.info(
            "tokenizer.size: a vocabulary of %s tokens suits this text and a model of this "
            "size; tokenizer.size=N makes another", f"{size:,}",
        )  # fmt: skip
    return {"tokenizer.size": size}


def _bound_losses(
    kind: str | None,
    origin: StartingPoint,
    data: RunData,
    sizes: Sizes,
    requested: Mapping[str, RequestedLoss],
) -> list[Loss]:
    """Return the losses, told of their data; a main one of the `kind` of before goes on as it."""
    start = origin.pretrained
    if start is not None and origin.tensors is not None:
        described, same_task = start.description, start.task == data.info["main"].task
        if same_task and described.objective["_target_"] == kind:
            requested["main"].objective.inherit_options(described.objective)
    return bind_losses(
        requested, data.info, total_steps=sizes.total_steps, steps_per_epoch=sizes.steps_per_epoch
    )


def _build_course(
    base: float, schedule: Schedule, loop: LoopConfig, mixing: MixingConfig, sizes: Sizes,
    network: Network, adaptation: Adaptation,
) -> Course:  # fmt: skip
    lr_scheduler = LRScheduler(
        base, schedule, sizes.total_steps, per_stage=adaptation.schedule_per == "stage"
    )
    monitor = None
    if loop.monitor != "auto":
        monitor = require_metric(loop.monitor, network.metrics, "loop.monitor")
    stages = adaptation.plan_stages(network.groups, sizes.total_steps, sizes.steps_per_epoch)
    checks.check_time_limit(loop, stages, mixing)
    if network.report is not None:
        check_fresh(network.fresh, stages)
    return Course(loop, sizes, lr_scheduler, stages, monitor)


def _finalize_options(network: Network, course: Course) -> dict[str, Any]:
    """Let objectives refuse the start; return what the main one decides by what trains."""
    model, objectives = network.model, [loss.objective for loss in network.losses]
    for objective in objectives:
        objective.check_start(model, network.inherited)
    main, *_ = [objective.finalize_options(model, course.ever_trains) for objective in objectives]
    return main


def _lengths_vary(shape: BackboneShape, data: RunData) -> bool:
    """Return whether full batches may differ: only blocks of one text, read alone, are alike."""
    main = data.info["main"]
    is_text = main.task is None and main.pairs is None and len(data.counts) == 1
    return not is_text or carries_memory(shape, data)


def _check_optimizer(plan: Blueprint) -> None:
    """Refuse one that cannot train it, or that solves where each evaluation has another loss."""
    kind = class_of(plan.config.optimizer, "optimizer")
    if issubclass(kind, torch.optim.SparseAdam):
        raise ConfigError(
            "optimizer: SparseAdam takes sparse gradients, and there are none; take optimizer=adamw"
        )
    if issubclass(kind, torch.optim.LBFGS):
        raise ConfigError(
            "optimizer: torch's LBFGS knows no layer groups and no weight decay; take "
            "optimizer=lbfgs"
        )
    if not is_solver(plan.config.optimizer):
        return
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
        problem = f"a step is for one of {len(strengths)} weight decays"
        problems[f"{problem} (loop.steps={len(strengths)})"] = True
    reasons = [problem for problem, holds in problems.items() if holds]
    if reasons:
        raise ConfigError(
            f"optimizer: L-BFGS needs the same loss at each evaluation, but {'; '.join(reasons)}; "
            "experiment=quick sets all of this, or take optimizer=adamw"
        )


def _starting_point(
    config: DictConfig,
    command: str,
    typed: Sequence[str],
    requested: Mapping[str, RequestedLoss],
    adaptation: Adaptation,
    *,
    values: bool,
) -> StartingPoint:
    """Return what the run starts from, in pretraining perhaps some of its blocks alone."""
    depth = {"model.depth"} if command == "pretrain" else set[str]()  # so many of its blocks
    start = open_start(config.init_from, config.get("base"), typed, may_change=depth)
    if command == "pretrain":
        asks = any(word.lstrip("+").partition("=")[0] in depth for word in typed)
        layers = config.student.layers
        start = pick_layers(
            start, None if layers is None else list(layers), config.model.depth if asks else None
        )
    if start is not None:
        start = as_encoder_decoder(start, requested["main"].objective)
        if (start.in_both or start.layers is not None) and adaptation.store == "trained":
            raise ConfigError(
                "adaptation.store: trained leaves weights where init_from has them, and a model "
                "of its blocks has them at other places; take adaptation.store=all"
            )
    teachers = open_teachers(requested)
    tensors = None
    begins_with = start if config.get("init", "pretrained") == "pretrained" else None
    forgetting = config.forgetting.data
    if forgetting is not None and begins_with is None:
        raise ConfigError(
            "forgetting.data: fresh weights have nothing to forget; give init_from=RUN "
            "without init=scratch, or leave it out"
        )
    checks.check_lm_head(begins_with, requested, adaptation)
    if begins_with is not None:
        if config.source.data is None:
            checks.check_source(begins_with, adaptation, forgetting)
        tensors = tensors_with_parts(begins_with, requested["main"].objective, values=values)
    return StartingPoint(start, tensors, teachers)


def _decided_values(
    config: DictConfig, start: Pretrained | None, shape: BackboneShape, precision: Precision
) -> dict[str, Any]:
    """Return the values of keys that a config leaves open.

    What is stored, and compared with other runs, is what was used.
    """
    decided: dict[str, Any] = {
        "optimizer.lr": base_lr(config.optimizer.get("lr"), shape.width),
        "precision": precision.kind,
        "data_changed": "refuse",  # it holds for one command
    }
    if start is not None and start.layers is not None:
        decided["student.layers"] = list(start.layers)  # a resume types nothing of it
    values = dict(flat_items(plain_values(config)))
    for key, value in values.items():
        if isinstance(value, str) and value in LABELLED_SOURCES:
            option = f"{key.rpartition('.')[0]}.duplicates"
            decided[option] = values.get(option, "together")
    return decided


def choose_shape(config: DictConfig, start: Pretrained | None, command: str) -> BackboneShape:
    """Return the model's shape: that of `init_from`, else the config's own."""
    if start is not None:
        return start.description.shape
    if command != "pretrain":
        check_init_from(config.init_from, config.init)
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
        epoch = mixture_epoch_steps(counts, epoch, power=mixing.power, anneal=mixing.anneal)
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


def _without_other_heads(
    tensors: Mapping[str, Tensor], start: Pretrained, info: Mapping[str, TaskInfo]
) -> Mapping[str, Tensor]:
    """Leave out heads of other labels: that their shape fits by chance means nothing.

    That of a language model is about the vocabulary, and no task's labels.
    """
    same = start.task == info["main"].task
    known_tasks = (start.task, *(stream.task for stream in info.values()))
    tasks = [task for task in known_tasks if task and task.head != HEAD]
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
    between("loop.epochs: in steps,", steps, 1, MAX_COUNT, ConfigError)
    return steps


def _build_network(
    model: TransferModel,
    losses: list[Loss],
    origin: StartingPoint,
    data: RunData,
    nodes: Mapping[str, Any],
    edits: Mapping[str, Edit],
    seed: int,
) -> Network:
    start, tensors, earlier_nodes = origin.pretrained, origin.tensors, dict[str, Any]()
    report, unfilled = None, frozenset[str]()
    if start is not None and tensors is not None:
        # What an earlier run added belongs to what it hands on.
        earlier_nodes = dict(start.description.edits)
        apply_edits(model, earlier_nodes, data.tokenizer)
        fitting = _without_other_heads(tensors, start, data.info)
        fitting, grown = with_new_rows(fitting, start.tokenizer, data.tokenizer, seed)
        unfilled = start.fresh_names(model)
        report = load_pretrained(model, fitting, start.weights, unfilled)
        # A table with new rows is no longer that of the model that this one starts from.
        loaded = tuple(name for name in report.loaded if name not in grown)
        unread = start.published.dropped if start.published else ()
        dropped = {*report.dropped, *(set(tensors) - set(fitting)), *unread}
        new = {*report.new, *grown}
        report = LoadReport(loaded, tuple(sorted(new)), tuple(sorted(dropped)))
    torch.manual_seed(derive(seed, "edits"))
    # Nodes of an earlier version may lack options that it did not have.
    earlier_edits = {
        name: build(node, f"adaptation.edits.{name}", Edit) for name, node in earlier_nodes.items()
    }
    new_nodes = {
        name: node
        for name, node in nodes.items()
        if earlier_nodes.get(name) != node and earlier_edits.get(name) != edits[name]
    }
    fresh, structure = apply_edits(model, new_nodes, data.tokenizer, edits)
    names = {name for name, _ in model.named_parameters()}
    inherited = frozenset(names & set(report.loaded if report else ())) - fresh
    return Network(model, losses, earlier_nodes | structure, inherited, fresh | unfilled, report)
