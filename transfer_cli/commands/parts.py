"""Everything that a run consists of, put together from its config."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from omegaconf import DictConfig

from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.adaptation.penalties import Start
from transfer_cli.commands import compose, datasets, pretrained
from transfer_cli.commands.compose import Asked
from transfer_cli.commands.datasets import Prepared
from transfer_cli.commands.layout import (
    Layout,
    batch_of,
    check_forgetting,
    inherits,
    lay_out,
    shape_of,
    sizes_of,
    warmup_problem,
)
from transfer_cli.commands.pretrained import Pretrained
from transfer_cli.commands.source import Forgetting, Source, fisher_of
from transfer_cli.data.steps import Order
from transfer_cli.data.tasks import TaskData
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine import distributed
from transfer_cli.engine.features import CachedFeatures, memory_needed
from transfer_cli.engine.parallel import Alone, Parallel, Replicated
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.shared_states import SharedStates
from transfer_cli.engine.stages import Stages
from transfer_cli.engine.step import Loss, TrainStep
from transfer_cli.engine.train import Stream
from transfer_cli.errors import ConfigError
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import backbone_hash
from transfer_cli.objectives.base import Facts
from transfer_cli.objectives.source_distillation import SourceDistillation
from transfer_cli.optim.groups import Rates
from transfer_cli.seeds import derive

log = logging.getLogger(__name__)

MOST_FEATURES = 4 * 2**30
"""Bytes of cached states from which on computing them again is the lesser evil."""


@dataclass(frozen=True)
class Parts:
    """Everything that a run consists of, built and checked before the first batch.

    Args:
        prepared: The data of every stream; "main" is what the run is for.
        streams: What the steps draw their batches from.
        layout: Model, losses, groups and planned stages.
        stages: The stages at work.
        pinned: What the main objective decided, to be stored with the model.
        step: The training step.
        start: What the run starts from.
        base_hash: Fingerprint of that backbone, where weights that never train are not stored
            again; None: all weights are stored.
        leave_out: Names of the weights that are not.
        merged: Whether low-rank products are folded into the finished model.
        forgetting: Measures what the backbone was pretrained for; None: nobody asked.
        micro_batch: Sequences that pass through the model at once.
        precision: With the device.
        sharded: Whether this process has only a part of each tensor of the model.
    """

    prepared: Mapping[str, Prepared]
    streams: Mapping[str, Stream]
    layout: Layout
    stages: Stages
    pinned: dict[str, Any]
    step: TrainStep
    start: Pretrained | None
    base_hash: str | None
    leave_out: frozenset[str]
    merged: bool
    forgetting: Forgetting | None
    micro_batch: int
    precision: Precision
    sharded: bool

    @property
    def data(self) -> Prepared:
        """The data of the main stream."""
        return self.prepared["main"]

    @property
    def model(self) -> TransferModel:
        """The model that trains."""
        return self.layout.model

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self.layout.tokenizer

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run."""
        return self.layout.sizes.total_steps


def put_together(config: DictConfig, command: str) -> Parts:
    """Build every part of a run from its config, in the order in which data flows."""
    precision = compose.machine(config)
    asked, chosen = compose.objectives(config), compose.adaptation(config)
    rate, schedule = compose.base_rate(config), compose.schedule(config)
    sharded = _is_sharded(config, asked, chosen)
    start = pretrained.start_of(config)
    check_forgetting(config, start)
    shape = compose.settled(shape_of(config, start, command), asked)

    with distributed.main_first():
        prepared, tokenizer = _data(config, command, shape, start)
    counts = {name: len(part.splits["train"].data) for name, part in prepared.items()}
    facts = {name: Facts(tokenizer, part.labels) for name, part in prepared.items()}
    sizes = sizes_of(config, counts)

    tensors = start.tensors() if start is not None and inherits(config, start) else None
    layout = lay_out(config, asked, chosen, facts, sizes, shape, tokenizer, start, tensors)
    if layout.report is not None and start is not None:
        compose.say_loaded(layout.report, start)
    problem = warmup_problem(config, chosen, layout)
    if problem is not None:
        log.warning("%s", problem)
    model, losses, inherited = layout.model, layout.losses, layout.inherited
    _place(model, config, precision.device, sharded=sharded)

    stages = Stages(model, layout.spans, frozen_eval=chosen.frozen_eval)
    pinned = [loss.objective.settle(model, stages.ever_trains) for loss in losses]
    # On the device, and before a resume loads other weights: some keep a copy.
    for loss in losses:
        loss.objective.start(model, inherited)
    source = Source(config, start, tokenizer, shape) if start is not None else None
    if chosen.penalty is not None:
        fisher = fisher_of(config, source, model, tensors, precision)
        with distributed.main_first():
            chosen.penalty.start(Start(model, inherited, fisher))
    # Before the optimizer sees the parameters: shards are others.
    parallel = _parallel(model, losses, precision.device, sharded=sharded)
    _compile(model, config, precision.device, command)
    step = TrainStep(
        model,
        losses,
        compose.optimizer(config, model, layout.groups, chosen),
        Rates(rate, schedule, sizes.total_steps, per_stage=chosen.schedule_per == "stage"),
        stages,
        groups=layout.groups,
        seed=config.seed,
        precision=precision,
        clip=config.loop.clip,
        max_bad_steps=config.loop.max_bad_steps,
        penalty=chosen.penalty,
        parallel=parallel,
    )
    micro_batch = min(config.loop.micro_batch or config.loop.batch, config.loop.batch)
    forgetting = Forgetting.asked(config, source, model, tensors, micro_batch, precision)
    if _has_fixed_features(config, layout, stages, chosen.frozen_eval) and not sharded:
        prepared = {"main": _with_features(prepared["main"], config, layout, precision)}
    apart = chosen.store == "trained" and tensors is not None
    return Parts(
        prepared=prepared,
        streams={name: _stream(config, name, part) for name, part in prepared.items()},
        layout=layout,
        stages=stages,
        pinned=pinned[0],
        step=step,
        start=start,
        # A trained part alone needs the rest to lie somewhere.
        base_hash=backbone_hash(tensors) if apart and tensors is not None else None,
        leave_out=inherited - stages.ever_trains if apart else frozenset(),
        merged=chosen.store == "merged",
        forgetting=forgetting,
        micro_batch=micro_batch,
        precision=precision,
        sharded=sharded,
    )


def _place(
    model: TransferModel, config: DictConfig, device: torch.device, *, sharded: bool
) -> None:
    """Put the model where it trains, and have it keep for the backward pass what it is to keep."""
    # Parts go to the device block by block: no process need hold the whole there.
    model.to("cpu" if sharded else device)
    model.backbone.recompute(config.loop.activation_checkpointing)


def _compile(model: TransferModel, config: DictConfig, device: torch.device, command: str) -> None:
    """Compile the passes where that was asked for."""
    if not config.loop.compile:
        return
    # Only here: what compiles takes seconds to import.
    from transfer_cli.engine.compiling import compile_passes

    compile_passes(model, device, lengths_vary=command == "finetune")


def _is_sharded(config: DictConfig, asked: Mapping[str, Asked], chosen: Adaptation) -> bool:
    """Return whether the processes of the run are to have a part of the model each.

    Raises:
        ConfigError: Something in the run needs the whole model.
    """
    if config.parallel != "fsdp" or distributed.count() == 1:
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


def _parallel(
    model: TransferModel, losses: Sequence[Loss], device: torch.device, *, sharded: bool
) -> Parallel:
    """Let the processes of the run share its model; return how."""
    if sharded:
        from transfer_cli.engine.sharded import Sharded, shard

        shard(model, device)
        return Sharded(model)
    if distributed.count() == 1:
        return Alone(model)
    return Replicated(model, some_unused=len({loss.stream for loss in losses}) > 1)


def _data(
    config: DictConfig, command: str, shape: BackboneShape, start: Pretrained | None
) -> tuple[dict[str, Prepared], Tokenizer]:
    """Return the data of every stream, the main one first, and the tokenizer of all."""
    if command == "pretrain":
        main, tokenizer = datasets.text(config, shape, start)
    else:
        source: TaskData = datasets.source(config, TaskData)
        labelled = source.load(datasets.data_folder(config.data_dir), config.seed)
        tokenizer = datasets.task_tokenizer(config, labelled, start)
        main = datasets.task(labelled, source.length, tokenizer, shape)
    others = {
        str(name): datasets.stream(config, str(name), tokenizer, shape) for name in config.streams
    }
    return {"main": main} | others, tokenizer


def _stream(config: DictConfig, name: str, part: Prepared) -> Stream:
    data = part.splits["train"].data
    seed = config.seed if name == "main" else derive(config.seed, "stream", name)
    # Of the texts and not of `data`: what keeps their states has the very same order.
    lengths = part.lengths if config.loop.bucket else None
    return Stream(data, Order(len(data), batch_of(config, name), seed, lengths))


def _has_fixed_features(
    config: DictConfig,
    layout: Layout,
    stages: Stages,
    frozen_eval: bool,  # noqa: FBT001 - a fact
) -> bool:
    """Return whether every text has the same hidden states in every epoch."""
    shape = layout.model.backbone.shape
    return (
        config.loop.cache_features
        and len(layout.sizes.counts) == 1
        and bool(layout.model.heads)
        and layout.report is not None
        and all(loss.objective.keeps_tokens for loss in layout.losses)
        and not any(name.startswith("backbone.") for name in stages.ever_trains)
        and (frozen_eval or not (shape.dropout or shape.attention_dropout))
    )


def _with_features(
    part: Prepared, config: DictConfig, layout: Layout, precision: Precision
) -> Prepared:
    """Return training and validation data that bring their hidden states along."""
    model = layout.model
    layers = getattr(model.readout, "layers", None)
    used = {name: part.splits[name] for name in ("train", "validation") if name in part.splits}
    shape = model.backbone.shape
    needed = sum(memory_needed(split.data, shape, layers) for split in used.values())
    if needed > MOST_FEATURES:
        log.info("states are computed anew each epoch: they would take %.1f GiB", needed / 2**30)
        return part
    folder = datasets.cache_folder(config.data_dir) / "features"
    shared = SharedStates(folder, {"edits": layout.edits, "compile": config.loop.compile})
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
