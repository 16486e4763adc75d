"""Everything that a run consists of, put together from its config."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from omegaconf import DictConfig

from transfer_cli.adaptation.penalties import Start
from transfer_cli.assembly.blueprint import Blueprint, Sizes, batch_of, draw
from transfer_cli.assembly.datasets import Prepared
from transfer_cli.assembly.model import log_loaded
from transfer_cli.assembly.optimizer import build_optimizer, parameter_groups
from transfer_cli.assembly.pretraining_task import Forgetting, Source, fisher_of
from transfer_cli.data.folders import cache_folder
from transfer_cli.data.loader import Stream
from transfer_cli.data.sampler import StepSampler
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine import distributed
from transfer_cli.engine.distributed.replicated import Parallel, Replicated
from transfer_cli.engine.features.cached import CachedFeatures, memory_needed
from transfer_cli.engine.features.shared_states import SharedStates
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.stages import Stages
from transfer_cli.engine.step import Loss, TrainStep
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import backbone_hash
from transfer_cli.seeds import derive

log = logging.getLogger(__name__)

MOST_FEATURES = 4 * 2**30
"""Bytes of cached states from which on computing them again is the lesser evil."""


@dataclass(frozen=True)
class TrainingRun:
    """Everything that a run consists of, built and checked before the first batch.

    Args:
        blueprint: Model, losses, groups and planned stages.
        prepared: The data of every stream; "main" is what the run is for.
        streams: What the steps draw their batches from.
        stages: The stages at work.
        pinned: What the main objective decided, to be stored with the model.
        step: The training step.
        base_hash: Fingerprint of the backbone that the run starts from, where weights that never
            train are not stored again; None: all weights are stored.
        leave_out: Names of the weights that are not.
        forgetting: Measures what the backbone was pretrained for; None: nobody asked.
        micro_batch: Sequences that pass through the model at once.
    """

    blueprint: Blueprint
    prepared: Mapping[str, Prepared]
    streams: Mapping[str, Stream]
    stages: Stages
    pinned: dict[str, Any]
    step: TrainStep
    base_hash: str | None
    leave_out: frozenset[str]
    forgetting: Forgetting | None
    micro_batch: int

    @property
    def data(self) -> Prepared:
        """The data of the main stream."""
        return self.prepared["main"]

    @property
    def model(self) -> TransferModel:
        """The model that trains."""
        return self.blueprint.model

    @property
    def losses(self) -> list[Loss]:
        """What it trains for, the main loss first."""
        return self.blueprint.losses

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self.blueprint.tokenizer

    @property
    def precision(self) -> Precision:
        """With the device."""
        return self.blueprint.precision

    @property
    def sizes(self) -> Sizes:
        """How long it is."""
        return self.blueprint.sizes

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run."""
        return self.sizes.total_steps


def build_run(config: DictConfig, command: str, typed: Sequence[str] = ()) -> TrainingRun:
    """Build every part of a run from its config, in the order in which data flows.

    Args:
        config: The run's.
        command: pretrain or finetune.
        typed: The overrides that were typed.
    """
    plan = draw(config, command, typed)
    with distributed.main_first():
        prepared = plan.data.encode()
    if plan.report is not None and plan.start is not None:
        log_loaded(plan.report, plan.start)
    for warning in plan.warnings:
        log.warning("%s", warning)
    model, losses, precision = plan.model, plan.losses, plan.precision
    _place(model, config.loop, precision.device, sharded=plan.sharded)

    stages = Stages(model, plan.stage_plans, frozen_eval=plan.adaptation.frozen_eval)
    pinned = [loss.objective.finalize_options(model, stages.ever_trains) for loss in losses]
    # On the device, and before a resume loads other weights: some keep a copy.
    for loss in losses:
        loss.objective.on_train_start(model, plan.inherited)
    source = None
    if plan.start is not None:
        source = Source(config, plan.start, plan.tokenizer, model.backbone.shape, tuple(typed))
    if plan.adaptation.penalty is not None:
        fisher = fisher_of(config, source, model, plan.tensors, precision)
        with distributed.main_first():
            plan.adaptation.penalty.start(Start(model, plan.inherited, fisher))
    # Before the optimizer sees the parameters: shards are others.
    parallel = _parallel(model, losses, precision.device, sharded=plan.sharded)
    _compile(model, config.loop, precision.device, command)
    groups = parameter_groups(
        model,
        plan.groups,
        plan.adaptation.layer_scale,
        weight_decay=plan.adaptation.uses_weight_decay,
    )
    step = TrainStep(
        model,
        losses,
        build_optimizer(config.optimizer, groups),
        plan.lr_scheduler,
        stages,
        groups=plan.groups,
        seed=config.seed,
        precision=precision,
        clip=config.loop.clip,
        max_bad_steps=config.loop.max_bad_steps,
        penalty=plan.adaptation.penalty,
        parallel=parallel,
    )
    micro_batch = min(config.loop.micro_batch or config.loop.batch, config.loop.batch)
    forgetting = Forgetting.asked(config, source, model, plan.tensors, micro_batch, precision)
    if config.loop.cache_features and _has_fixed_features(plan, stages) and not plan.sharded:
        prepared = {"main": _with_features(prepared["main"], config, plan)}
    apart = plan.tensors if plan.adaptation.store == "trained" else None
    return TrainingRun(
        blueprint=replace(plan, tensors=None),  # training needs the memory
        prepared=prepared,
        streams={name: _stream(config, name, part) for name, part in prepared.items()},
        stages=stages,
        pinned=pinned[0],
        step=step,
        # A trained part alone needs the rest to lie somewhere.
        base_hash=None if apart is None else backbone_hash(apart),
        leave_out=frozenset() if apart is None else plan.inherited - stages.ever_trains,
        forgetting=forgetting,
        micro_batch=micro_batch,
    )


def _place(model: TransferModel, loop: DictConfig, device: torch.device, *, sharded: bool) -> None:
    """Put the model where it trains, and have it keep for the backward pass what it is to keep."""
    # Parts go to the device block by block: no process need hold the whole there.
    model.to("cpu" if sharded else device)
    model.backbone.recompute(loop.activation_checkpointing)


def _compile(model: TransferModel, loop: DictConfig, device: torch.device, command: str) -> None:
    """Compile the passes where that was asked for."""
    if not loop.compile:
        return
    # Only here: what compiles takes seconds to import.
    from transfer_cli.engine.compiling import compile_passes

    compile_passes(model, device, lengths_vary=command == "finetune")


def _parallel(
    model: TransferModel, losses: Sequence[Loss], device: torch.device, *, sharded: bool
) -> Parallel:
    """Let the processes of the run share its model; return how."""
    if sharded:
        from transfer_cli.engine.distributed.sharded import Sharded, shard_model

        shard_model(model, device)
        return Sharded(model)
    if distributed.world_size() == 1:
        return Parallel(model)
    return Replicated(model, some_unused=len({loss.stream for loss in losses}) > 1)


def _stream(config: DictConfig, name: str, part: Prepared) -> Stream:
    data = part.splits["train"].data
    seed = config.seed if name == "main" else derive(config.seed, "stream", name)
    # Of the texts and not of `data`: what keeps their states has the very same order.
    lengths = part.lengths if config.loop.bucket else None
    return Stream(data, StepSampler(len(data), batch_of(config, name), seed, lengths))


def _has_fixed_features(plan: Blueprint, stages: Stages) -> bool:
    """Return whether every text has the same hidden states in every epoch."""
    shape = plan.model.backbone.shape
    return (
        len(plan.sizes.counts) == 1
        and bool(plan.model.heads)
        and plan.report is not None
        and all(loss.objective.keeps_tokens for loss in plan.losses)
        and not any(name.startswith("backbone.") for name in stages.ever_trains)
        and (plan.adaptation.frozen_eval or not (shape.dropout or shape.attention_dropout))
    )


def _with_features(part: Prepared, config: DictConfig, plan: Blueprint) -> Prepared:
    """Return training and validation data that bring their hidden states along."""
    model, precision = plan.model, plan.precision
    layers = getattr(model.readout, "layers", None)
    used = {name: part.splits[name] for name in ("train", "validation") if name in part.splits}
    shape = model.backbone.shape
    needed = sum(memory_needed(split.data, shape, layers) for split in used.values())
    if needed > MOST_FEATURES:
        log.info("states are computed anew each epoch: they would take %.1f GiB", needed / 2**30)
        return part
    folder = cache_folder(config.data_dir) / "features"
    shared = SharedStates(folder, {"edits": plan.edits, "compile": config.loop.compile})
    kept = {
        name: replace(
            split,
            data=CachedFeatures(
                split.data,
                model,
                precision,
                batch=config.loop.batch,
                layers=layers,
                keep_on=precision.device,
                shared=shared,
            ),
        )
        for name, split in used.items()
    }
    log.info(
        "states of the frozen backbone are computed once: %.1f MiB; features: %s",
        needed / 2**20,
        ", ".join(sorted(set(shared.came))),
    )
    return replace(part, splits={**part.splits, **kept})
