"""What trains when: the model, its losses and its stages, laid out before any data is touched.

With `tensors` on the meta device nothing is computed and no weights are read: that is how `plan`
looks at a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from transfer_cli.adaptation.adaptation import Adaptation, Span, check_fresh
from transfer_cli.commands import compose
from transfer_cli.commands.compose import Asked
from transfer_cli.commands.datasets import count_of
from transfer_cli.commands.pretrained import Pretrained
from transfer_cli.config.build import build
from transfer_cli.data.mixture import Mixture, mixed_epoch
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine.step import Loss
from transfer_cli.errors import ConfigError
from transfer_cli.lengths import Length
from transfer_cli.metrics import Metric, require
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.meta import without_weights
from transfer_cli.model.transfer_model import LayerGroup, TransferModel, layer_groups
from transfer_cli.model.weights import LoadReport, load_pretrained
from transfer_cli.objectives.base import Facts, declared_metrics
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
class Layout:
    """A model and what is going to happen to it.

    Args:
        model: With its edits, at its starting weights.
        tokenizer: Its tokenizer.
        losses: What it trains for, the main loss first.
        report: What came from `init_from`; None for fresh weights.
        inherited: Names of the parameters that did.
        edits: Config nodes of all that was added to the network, by name.
        groups: Layer groups, from the bottom to the top.
        spans: The stages.
        sizes: How long.
        metrics: What an evaluation of these losses measures.
        monitor: The one that decides which weights are best.
    """

    model: TransferModel
    tokenizer: Tokenizer
    losses: list[Loss]
    report: LoadReport | None
    inherited: frozenset[str]
    edits: dict[str, Any]
    groups: list[LayerGroup]
    spans: tuple[Span, ...]
    sizes: Sizes
    metrics: tuple[Metric, ...]
    monitor: Metric


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


def _is_same_task(start: Pretrained, config: DictConfig, facts: Mapping[str, Facts]) -> bool:
    """Return whether the run goes on with the very head that an earlier one trained."""
    own, description = config.objective.get("_target_"), start.description
    return description.labels == facts["main"].labels and description.objective["_target_"] == own


def _of_these_labels(
    tensors: Mapping[str, Tensor], start: Pretrained, facts: Mapping[str, Facts]
) -> dict[str, Tensor]:
    """Leave out classifiers of other labels: that their shape fits by chance means nothing."""
    same = start.description.labels == facts["main"].labels
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith("heads.class_") and (same or not name.startswith("heads.class."))
    }


def warmup_problem(config: DictConfig, chosen: Adaptation, layout: Layout) -> str | None:
    """Return what is wrong with a warm-up that is as long as what it warms up; None if nothing is.

    Such a run works, at rates below the one that was asked for.
    """
    schedule = compose.schedule(config)
    whole = [("the run", layout.sizes.total_steps)]
    if chosen.schedule_per == "stage":
        whole = [(f"stage {n + 1}", s.end - s.begin) for n, s in enumerate(layout.spans)]
    for what, steps in whole:
        warmup = schedule.warmup_steps(steps)
        if warmup >= steps > 1:
            return (
                f"schedule.warmup: its {warmup} steps are as long as {what}, which has {steps}; "
                "make it shorter (a share such as 0.1 fits any run) or the run longer"
            )
    return None


def _total_steps(loop: DictConfig, steps_per_epoch: int) -> int:
    if loop.steps is not None:
        return int(loop.steps)
    if loop.epochs is None:
        raise ConfigError("loop.epochs: needs a number of epochs, or loop.steps a number of steps")
    return int(Length(loop.epochs, "epochs").steps(steps_per_epoch) or 1)


def lay_out(
    config: DictConfig,
    asked: Mapping[str, Asked],
    chosen: Adaptation,
    facts: Mapping[str, Facts],
    sizes: Sizes,
    shape: BackboneShape,
    tokenizer: Tokenizer,
    start: Pretrained | None,
    tensors: Mapping[str, Tensor] | None,
    *,
    device: str = "cpu",
) -> Layout:
    """Return the model and its stages.

    Args:
        config: The run's.
        asked: Its losses.
        chosen: Its adaptation.
        facts: What each stream's data is.
        sizes: How long it is.
        shape: The model's.
        tokenizer: Its tokenizer.
        start: What it starts from.
        tensors: The weights of that; None for fresh ones.
        device: "cpu", or "meta" to compute nothing.

    Raises:
        ConfigError: The parts do not fit each other; the message names the key.
        SelectionError: A pattern of the plan matches nothing.
        CheckpointError: The weights do not fill the model.
    """
    if start is not None and tensors is not None and _is_same_task(start, config, facts):
        asked["main"].objective.take_over(start.description.objective)
    losses = compose.losses(
        asked, facts, total_steps=sizes.total_steps, steps_per_epoch=sizes.steps_per_epoch
    )
    metrics = declared_metrics({loss.name: loss.objective for loss in losses})
    monitor = require(config.loop.monitor, metrics, "loop.monitor")
    nodes, before = compose.edit_nodes(config), {}
    report = None
    with without_weights() if device == "meta" else torch.device(device):
        model = compose.model(shape, tokenizer.size, losses, config.seed)
        if start is not None and tensors is not None:
            # What an earlier run added belongs to what it hands on.
            before = dict(start.description.edits)
            compose.make_edits(model, before, tokenizer)
            fitting = _of_these_labels(tensors, start, facts)
            report = load_pretrained(model, fitting, start.weights)
            unused = {*(set(tensors) - set(fitting)), *start.dropped}
            report = replace(report, dropped=tuple(sorted({*report.dropped, *unused})))
        torch.manual_seed(derive(config.seed, "edits"))
        new = {name: node for name, node in nodes.items() if before.get(name) != node}
        edited = compose.make_edits(model, new, tokenizer)
    parameters = {name for name, _ in model.named_parameters()}
    if chosen.store == "merged" and not any(".lora." in name for name in parameters):
        raise ConfigError(
            "adaptation.store: merged folds in low-rank products, and there are none; "
            "add adaptation/edits=lora, or take store=all"
        )
    inherited = frozenset(parameters & set(report.loaded if report else ())) - edited.fresh
    groups = layer_groups(model, inherited)
    spans = chosen.spans(groups, sizes.total_steps, sizes.steps_per_epoch)
    if report is not None:
        check_fresh(edited.fresh, spans)
    structure = before | edited.structure
    return Layout(
        model, tokenizer, losses, report, inherited, structure, groups, spans, sizes, metrics,
        monitor,
    )  # fmt: skip
