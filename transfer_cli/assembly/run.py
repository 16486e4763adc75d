"""Everything that a run consists of, put together from its config."""

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig
from torch.optim import Optimizer

from transfer_cli.adaptation.penalties import Start
from transfer_cli.assembly import checks
from transfer_cli.assembly.advice import advice
from transfer_cli.assembly.blueprint import Blueprint, has_fixed_features
from transfer_cli.assembly.datasets import DataPlace, PreparedData
from transfer_cli.assembly.drawing import draw_blueprint
from transfer_cli.assembly.memory_estimate import with_micro_batch
from transfer_cli.assembly.optimizer import is_solver, parameter_groups
from transfer_cli.assembly.origins import Origins
from transfer_cli.assembly.pretraining_task import (
    Forgetting,
    ForgettingText,
    PretrainingSource,
    build_forgetting,
    pretraining_fisher,
)
from transfer_cli.assembly.teacher_answers import add_teacher_answers
from transfer_cli.assembly.teachers import load_teachers
from transfer_cli.batch import with_facts, with_packed_rows
from transfer_cli.config.build import build
from transfer_cli.config.schema import LoopConfig
from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.loader import Stream
from transfer_cli.data.sampler import LaneSampler, StepSampler
from transfer_cli.data.text import TextData
from transfer_cli.engine import distributed
from transfer_cli.engine.averaging import EMA, Average, LastK
from transfer_cli.engine.carried_memory import CarriedMemory
from transfer_cli.engine.compiling import compile_passes
from transfer_cli.engine.cost import FlopCounter, Flops
from transfer_cli.engine.distributed.replicated import Parallel, Replicated
from transfer_cli.engine.evaluation import inference_batch_size
from transfer_cli.engine.features.cached import CachedFeatures, memory_needed
from transfer_cli.engine.features.shared_states import SharedStates
from transfer_cli.engine.pass_graphs import PassGraphs
from transfer_cli.engine.precision import cast_to_bf16, frozen_matrices
from transfer_cli.engine.stages import Stages
from transfer_cli.engine.step import Passes, TrainStep, Update
from transfer_cli.model.readout import TopLayer
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import backbone_hash
from transfer_cli.objectives.base import Loss
from transfer_cli.seeds import ExampleNoise, derive
from transfer_cli.tasks.base import Task

log = logging.getLogger(__name__)

MAX_FEATURE_BYTES = 4 * 2**30
"""Bytes of cached states from which on computing them again is the lesser evil."""

_INSPECTED_BLOCKS = 8
"""Blocks of text by which is seen whether a loss changes their lengths."""


@dataclass(frozen=True)
class TrainingRun:
    """Everything that a run consists of, built and checked before the first batch.

    Args:
        base_hash: Fingerprint of the backbone that the run starts from, where weights that never
            train are not stored again; None: all weights are stored.
        forgetting: Measures what the backbone was pretrained for; None: it is not measured.
        micro_batch: Sequences that pass through the model at once.
        inference_batch: The same where nothing trains.
        average: Of the weights; None: it keeps none.
        state_flops: What the kept states of a frozen backbone took, here or where the cache has
            them from.
    """

    blueprint: Blueprint
    prepared: Mapping[str, PreparedData]
    streams: Mapping[str, Stream]
    step: TrainStep
    tally: FlopCounter
    base_hash: str | None
    forgetting: Forgetting | None
    micro_batch: int
    inference_batch: int
    origins: Origins
    average: Average | None
    state_flops: Flops

    @property
    def data(self) -> PreparedData:
        """The data of the main stream."""
        return self.prepared["main"]

    @property
    def model(self) -> TransferModel:
        """The model that trains."""
        return self.blueprint.model

    def with_task(self, task: Task) -> "TrainingRun":
        """Return the run with another record of its task: it answers and is described by that."""
        plan = self.blueprint
        objective, info = plan.network.losses[0].objective, plan.data.info
        objective.info = replace(objective.info, task=task)
        data = replace(plan.data, info={**info, "main": replace(info["main"], task=task)})
        prepared = {**self.prepared, "main": self.data.with_task(task)}
        return replace(self, blueprint=replace(plan, data=data), prepared=prepared)

    @property
    def loss_batch(self) -> int:
        """Sequences of a step that the losses take at once; of pooled features, all of them."""
        data = self.streams["main"].data
        pooled = isinstance(data, CachedFeatures) and data.pooling is not None
        return self.blueprint.course.loop.batch if pooled else self.micro_batch


def build_run(
    config: DictConfig, command: str, typed: Sequence[str] = (), origins: Origins | None = None
) -> TrainingRun:
    """Build every part of a run from its config, in the order in which data flows.

    What it is made from is noted in `origins`, or compared with what is noted there.
    """
    origins = origins or Origins()
    plan = with_micro_batch(draw_blueprint(config, command, typed, origins))
    start, tensors = plan.start.pretrained, plan.start.tensors
    if start is not None and tensors is not None:
        origins.check_weights("init_from", start.weights, start.fingerprint(tensors))
    network, precision, loop = plan.network, plan.precision, plan.course.loop
    adaptation, model, losses = plan.adaptation, network.model, network.losses
    with distributed.main_first():
        prepared = _limit_answered(plan.data.encoded(), losses, config.evaluation.generate)
    _log_start(plan)
    _load_word_vectors(plan, origins)
    # A sharded model goes to the device block by block, so no process holds all of it there.
    model.to("cpu" if plan.sharded else precision.device)
    model.backbone.set_activation_checkpointing(loop.activation_checkpointing)
    place = DataPlace(config.data_dir, config.seed)
    micro_batch = min(int(loop.micro_batch or loop.batch), loop.batch)
    inference_batch = _inference_batch(plan, micro_batch)
    add_teacher_answers(prepared, losses, precision, origins, place.cache, inference_batch)
    load_teachers(losses, plan.start.teachers, precision, origins)
    for loss in losses:
        loss.objective.on_examples(prepared[loss.stream].splits, model.backbone.shape)
    stages = Stages(model, plan.course.stage_plans, frozen_eval=adaptation.frozen_eval)
    for loss in losses:
        loss.objective.on_data(prepared[loss.stream].splits["train"].data)
        # On the device, and before a resume loads other weights: some keep a copy.
        loss.objective.on_train_start(model, network.inherited)
    source = _pretraining_source(plan, place, origins, typed)
    if adaptation.penalty is not None:
        fisher = partial(pretraining_fisher, source, model, tensors)
        with distributed.main_first():
            adaptation.penalty.start(Start(model, network.inherited, fisher))
    cast_to_bf16(
        model, frozen_matrices(model, precision, plan.omitted_weights, sharded=plan.sharded)
    )
    # Before the optimizer sees the parameters: shards are others.
    parallel = _parallelize(model, losses, precision.device, sharded=plan.sharded)
    graphs = _compile_or_capture(plan, prepared, micro_batch)
    step = _build_step(plan, stages, parallel, micro_batch, graphs)
    tally = attach_tally(step)
    options = build(config.forgetting, "forgetting", ForgettingText)
    forgetting = build_forgetting(options, source, model, tensors, inference_batch, precision)
    if loop.cache_features and has_fixed_features(plan) and not plan.sharded:
        with tally.counting(0):
            prepared = {
                "main": _cache_features(prepared["main"], plan, place.cache, inference_batch)
            }
    splits = prepared["main"].splits.values()
    cached = [split.data for split in splits if isinstance(split.data, CachedFeatures)]
    return TrainingRun(
        # Without the tensors: training needs the memory.
        blueprint=replace(plan, start=replace(plan.start, tensors=None)),
        prepared=prepared,
        streams={name: _stream(name, part, plan, config.seed) for name, part in prepared.items()},
        step=step,
        tally=tally,
        # Trained weights alone refer to the backbone that has the others.
        base_hash=backbone_hash(tensors)
        if tensors is not None and adaptation.store == "trained"
        else None,
        forgetting=forgetting,
        micro_batch=micro_batch,
        inference_batch=inference_batch,
        origins=origins,
        average=_build_average(model, plan.course.ever_trains, loop),
        state_flops=tally.flops_of_passes(one for data in cached for one in data.passes(model)),
    )


def _build_step(
    plan: Blueprint,
    stages: Stages,
    parallel: Parallel,
    micro_batch: int,
    graphs: PassGraphs | None,
) -> TrainStep:
    model, loop, adaptation = plan.model, plan.course.loop, plan.adaptation
    groups = parameter_groups(
        model, plan.network.groups, adaptation.layer_scale,
        weight_decay=adaptation.uses_weight_decay,
    )  # fmt: skip
    prepare_batch = with_packed_rows if loop.pack else with_facts
    return TrainStep(
        model,
        plan.network.losses,
        stages,
        Passes(plan.precision, parallel, prepare_batch, _carried_memory(plan, micro_batch), graphs),
        Update(
            build(plan.config.optimizer, "optimizer", Optimizer, params=groups),
            plan.course.lr_scheduler, loop.clip, loop.max_bad_steps, adaptation.penalty,
            uses_closure=is_solver(plan.config.optimizer),
        ),
        groups=plan.network.groups,
        seed=plan.config.seed,
    )  # fmt: skip


def _inference_batch(plan: Blueprint, micro_batch: int) -> int:
    """Return how many sequences pass at once where nothing trains."""
    device = plan.precision.device
    if device.type != "cuda" or plan.sharded:
        return micro_batch
    return max(micro_batch, inference_batch_size("auto", plan.model, device))


def _compile_or_capture(
    plan: Blueprint, prepared: Mapping[str, PreparedData], micro_batch: int
) -> PassGraphs | None:
    """Compile the passes of a run, if it asks for it; else return graphs of them, if any."""
    loop, device = plan.course.loop, plan.precision.device
    varies = bool(loop.compile) and _lengths_vary(plan, prepared)
    takes_graphs = checks.takes_graphs(
        loop, plan.precision, plan.network.losses, micro_batch=micro_batch, differs=varies,
        is_shared=plan.sharded or distributed.world_size() > 1,
        solves=is_solver(plan.config.optimizer),
    )  # fmt: skip
    if loop.compile:
        compile_passes(plan.model, device, lengths_vary=varies, cuda_graphs=takes_graphs)
        return None
    return PassGraphs(plan.model, device) if takes_graphs else None


def _lengths_vary(plan: Blueprint, prepared: Mapping[str, PreparedData]) -> bool:
    """Return whether full batches differ in what is computed: in length, stream, memory."""
    data, *others = (part.splits["train"].data for part in prepared.values())
    if plan.carries_memory or others or not isinstance(data, TextBlocks):
        return True
    losses = (loss for loss in plan.network.losses if not loss.objective.reads_main_view)
    blocks = data.batch(np.arange(min(_INSPECTED_BLOCKS, len(data))))
    views = (loss.objective.prepare(blocks, ExampleNoise(0)) for loss in losses)
    return not all(bool(view["mask"].all()) for view in views)


def _log_start(plan: Blueprint) -> None:
    report, start = plan.network.report, plan.start.pretrained
    if report is not None and start is not None:
        log.info("loaded %d tensors from %s", len(report.loaded), start.weights)
        for what, names in (("new", report.new), ("dropped", report.dropped)):
            if names:
                log.info("%s: %s", what, ", ".join(names))
    for warning in advice(plan):
        log.warning("%s", warning)


def _pretraining_source(
    plan: Blueprint, place: DataPlace, origins: Origins, typed: Sequence[str]
) -> PretrainingSource | None:
    """Return what the run starts from, for what goes back to it; None for fresh weights."""
    node = plan.config.source.data
    text = None if node is None else build(node, "source.data", TextData)
    if plan.start.pretrained is None:
        return None
    return PretrainingSource(
        plan.start.pretrained, plan.model.backbone.shape, place, origins, text, typed
    )


def _load_word_vectors(plan: Blueprint, origins: Origins) -> None:
    """Put word vectors in place of the embeddings of words, where a new model asks for it."""
    path = None if plan.start.pretrained else plan.config.model.get("embeddings")
    if path is None or origins.lines is not None:  # a resume has weights
        return
    from transfer_cli.data.word_vectors import WordVectors, token_vectors

    vectors, table = WordVectors.open(Path(path)), plan.model.backbone.token_embedding.weight
    vectors.check_size(table.shape[1])
    for token, vector in token_vectors(vectors, plan.data.tokenizer).items():
        table.detach()[token] = torch.from_numpy(vector)


def _parallelize(
    model: TransferModel, losses: Sequence[Loss], device: torch.device, *, sharded: bool
) -> Parallel:
    """Let the processes of the run share its model; return how."""
    if sharded:
        from transfer_cli.engine.distributed.sharded import Sharded, shard_model

        shard_model(model, device)
        return Sharded(model)
    if distributed.world_size() == 1:
        return Parallel(model)
    several = len({loss.stream for loss in losses}) > 1
    some_unused = several or not all(loss.objective.reaches_all for loss in losses)
    return Replicated(model, some_unused=some_unused)


def _build_average(model: TransferModel, trains: Set[str], loop: LoopConfig) -> Average | None:
    match loop.average:
        case "ema":
            return EMA(model, trains, loop.average_decay)
        case "last_k":
            return LastK(model, trains, loop.average_last)
    return None


def _carried_memory(plan: Blueprint, micro_batch: int) -> CarriedMemory | None:
    if not plan.carries_memory:
        return None
    shape, epoch = plan.model.backbone.shape, plan.course.sizes.steps_per_epoch
    return CarriedMemory(shape, plan.course.loop.batch, micro_batch, epoch, plan.precision.device)


def _stream(name: str, part: PreparedData, plan: Blueprint, seed: int) -> Stream:
    data = part.splits["train"].data
    own_seed = seed if name == "main" else derive(seed, "stream", name)
    # Of the texts and not of `data`: what keeps their states has the very same order.
    lengths = part.lengths if plan.course.loop.bucket else None
    if plan.carries_memory:
        return Stream(data, LaneSampler(len(data), plan.course.loop.batch, own_seed))
    sampler = StepSampler(len(data), plan.data.batches[name], own_seed, lengths, part.sources)
    return Stream(data, sampler, joins_main=name in plan.data.joining)


def _limit_answered(
    prepared: Mapping[str, PreparedData], losses: Sequence[Loss], most: int | None
) -> dict[str, PreparedData]:
    """Return data of whose validation examples at most so many are answered; None: all."""
    writes = {loss.stream for loss in losses if loss.objective.writes_answers}
    bounded = dict(prepared)
    for stream in writes:
        part = prepared[stream]
        if "validation" in part.splits:
            split = replace(part.splits["validation"], answered=most)
            if "answered" in split.counts():
                log.info("validation: %s (evaluation.generate)", split.extent())
            bounded[stream] = replace(part, splits={**part.splits, "validation": split})
    return bounded


def _cache_features(part: PreparedData, plan: Blueprint, cache: Path, batch: int) -> PreparedData:
    """Return training and validation data that bring their hidden states along."""
    model, precision = plan.model, plan.precision
    layers = getattr(model.readout, "layers", None)
    poolings = {loss.objective.pooling_of(model) for loss in plan.network.losses}
    pooling = poolings.pop() if len(poolings) == 1 and layers == TopLayer.layers else None
    used = {name: part.splits[name] for name in ("train", "validation") if name in part.splits}
    shape = model.backbone.shape
    needed = sum(memory_needed(split.data, shape, layers, pooling) for split in used.values())
    if needed > MAX_FEATURE_BYTES:
        log.info("states are computed anew each epoch: they would take %.1f GiB", needed / 2**30)
        return part
    settings = {"edits": plan.network.edits, "compile": plan.course.loop.compile}
    if plan.course.loop.bf16_residual:
        settings["bf16_residual"] = True
    shared = SharedStates(cache / "features", settings)
    cached = {}
    for name, split in used.items():
        states = CachedFeatures(
            split.data, model, precision,
            batch=batch, layers=layers, pooling=pooling, device=precision.device, shared=shared,
        )  # fmt: skip
        cached[name] = replace(split, without_states=split.data, data=states)
    log.info(
        "states of the frozen backbone are computed once: %.1f MiB; features: %s",
        needed / 2**20, ", ".join(sorted(set(shared.outcomes))),
    )  # fmt: skip
    return replace(part, splits={**part.splits, **cached})


def attach_tally(step: TrainStep) -> FlopCounter:
    """Return what counts all that a step computes from now on, in this process."""
    others = {id(model): model for loss in step.losses for model in loss.objective.other_models}
    trains = [span.trains for span in step.stages.spans]
    tally = FlopCounter(step.model, trains, [*others.values()])
    step.counting = tally.counting
    return tally
