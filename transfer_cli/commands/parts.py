"""Everything that a run consists of, put together from its config."""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from transfer_cli.commands import compose, datasets, pretrained
from transfer_cli.commands.datasets import Prepared
from transfer_cli.commands.pretrained import Pretrained
from transfer_cli.config.build import build
from transfer_cli.data.steps import Order
from transfer_cli.data.tasks import TaskData
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.stages import Stages
from transfer_cli.engine.step import Loss, TrainStep
from transfer_cli.errors import ConfigError
from transfer_cli.lengths import Length
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.transfer_model import LayerGroup, TransferModel, layer_groups
from transfer_cli.objectives.base import Facts
from transfer_cli.optim.groups import Rates


@dataclass(frozen=True)
class Parts:
    """Everything that a run consists of, built and checked before the first batch."""

    data: Prepared
    tokenizer: Tokenizer
    model: TransferModel
    losses: list[Loss]
    pinned: dict[str, Any]
    groups: list[LayerGroup]
    stages: Stages
    step: TrainStep
    order: Order
    total_steps: int
    micro_batch: int
    precision: Precision


def put_together(config: DictConfig, command: str) -> Parts:
    """Build every part of a run from its config, in the order in which data flows."""
    precision = compose.machine(config)
    found = compose.objectives(config)
    chosen, schedule, rate = (
        compose.adaptation(config),
        compose.schedule(config),
        compose.base_rate(config),
    )
    start = pretrained.start_of(config)
    shape = compose.settled(_shape(config, start, command), found)

    data, tokenizer = _data(config, command, shape, start)
    losses = compose.losses(found, Facts(tokenizer, data.labels))

    model = compose.model(shape, tokenizer.size, losses, config.seed)
    inherited: set[str] = set()
    if start is not None and config.get("init", "pretrained") == "pretrained":
        inherited = set(compose.load(model, start).loaded)
    model.to(precision.device)

    order = Order(len(data.splits["train"].data), config.loop.batch, config.seed)
    total_steps = _total_steps(config, order)
    groups = layer_groups(model, inherited)
    spans = chosen.spans(groups, total_steps, order.steps_per_epoch)
    stages = Stages(model, spans, frozen_eval=chosen.frozen_eval)
    pinned = losses[0].objective.settle(model, stages.ever_trains)
    step = TrainStep(
        model,
        losses,
        compose.optimizer(config, model, groups, chosen),
        Rates(rate, schedule, total_steps),
        stages,
        groups=groups,
        seed=config.seed,
        precision=precision,
        clip=config.loop.clip,
        max_bad_steps=config.loop.max_bad_steps,
    )
    micro_batch = min(config.loop.micro_batch or config.loop.batch, config.loop.batch)
    return Parts(
        data, tokenizer, model, losses, pinned, groups, stages, step, order, total_steps,
        micro_batch, precision,
    )  # fmt: skip


def _shape(config: DictConfig, start: Pretrained | None, command: str) -> BackboneShape:
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


def _data(
    config: DictConfig, command: str, shape: BackboneShape, start: Pretrained | None
) -> tuple[Prepared, Tokenizer]:
    if command == "pretrain":
        return datasets.text(config, shape, start)
    source: TaskData = datasets.source(config, TaskData)
    labelled = source.load(datasets.data_folder(config.data_dir), config.seed)
    tokenizer = datasets.task_tokenizer(config, labelled, start)
    return datasets.task(labelled, source.length, tokenizer, shape), tokenizer


def _total_steps(config: DictConfig, order: Order) -> int:
    loop = config.loop
    if loop.steps is not None:
        return int(loop.steps)
    if loop.epochs is None:
        raise ConfigError("loop.epochs: needs a number of epochs, or loop.steps a number of steps")
    steps = Length(loop.epochs, "epochs").steps(order.steps_per_epoch)
    return int(steps or 1)
