"""Config to the other objects of a run: losses, model, adaptation, optimizer."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch.optim import Optimizer

from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.adaptation.edits import Edit
from transfer_cli.config.build import build
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine import distributed
from transfer_cli.engine.precision import Precision, choose_device, device_of_process
from transfer_cli.engine.step import Loss
from transfer_cli.errors import ConfigError, nearest
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.transfer_model import LayerGroup, TransferModel
from transfer_cli.model.weights import LoadReport
from transfer_cli.objectives.base import Facts, Objective
from transfer_cli.objectives.language_model import LanguageModel
from transfer_cli.objectives.source_distillation import SourceDistillation
from transfer_cli.optim.groups import Height, optimizer_groups
from transfer_cli.optim.loss_weight import LossWeight
from transfer_cli.optim.schedules import Schedule
from transfer_cli.seeds import derive
from transfer_cli.tasks.base import Task

if TYPE_CHECKING:
    from transfer_cli.commands.pretrained import Pretrained

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """A loss as the config asks for it.

    Args:
        objective: What it computes.
        stream: The stream that it reads.
        weight: How much it counts: a number, or what makes one of the step.
    """

    objective: Objective
    stream: str
    weight: float | LossWeight


def settled(shape: BackboneShape, asked: Mapping[str, Asked]) -> BackboneShape:
    """Return the shape with its direction settled, by the main objective first.

    Raises:
        ConfigError: The model looks one way and an objective needs the other.
    """
    needed = {name: loss.objective.direction for name, loss in asked.items()}
    direction = shape.direction
    if direction == "auto":
        direction = next(filter(None, needed.values()), "causal")
    for name, own in needed.items():
        if own not in (None, direction):
            raise ConfigError(
                f"{_loss_key(name)}: {type(asked[name].objective).__name__} needs a {own} model, "
                f"and this one is {direction} (model.direction, the main objective, or init_from "
                f"decides){_cure(name, asked[name].objective, direction)}"
            )
    return BackboneShape(**{**vars(shape), "direction": direction})


def _cure(name: str, objective: Objective, direction: str) -> str:
    """Return what to choose for a model of this direction, where that is known."""
    option, module = {
        "causal": ("clm", "causal_lm.CausalLM"),
        "bidirectional": ("mlm", "masked_lm.MaskedLM"),
    }[direction]
    if isinstance(objective, LanguageModel):
        choose = "objective" if name == "main" else f"objective@losses.{name}"
        return f"; for this model take {choose}={option}"
    if isinstance(objective, SourceDistillation):
        path = f"{_loss_key(name)}.language_model._target_"
        return f"; for this model give {path}=transfer_cli.objectives.{module}"
    return ""


def objectives(config: DictConfig) -> dict[str, Asked]:
    """Return the losses that the config asks for, "main" first.

    Raises:
        ConfigError: One names a stream that there is not, or a stream feeds no loss.
    """
    nodes = {"main": config.objective} | {str(name): config.losses[name] for name in config.losses}
    streams = ["main", *map(str, config.streams)]
    found: dict[str, Asked] = {}
    for name, node in nodes.items():
        key = _loss_key(name)
        plain = options_of(node, key)
        stream = node.get("stream", "main")
        if stream not in streams:
            raise ConfigError(
                f"{key}.stream: there is no stream {stream!r}.{nearest(str(stream), streams)} "
                f"The streams are {', '.join(streams)}; add one with +data@streams.NAME.data=..."
            )
        if name == "main" and stream != "main":
            raise ConfigError("objective.stream: the main loss reads the stream main")
        weight = _weight(node.get("weight", 1.0), f"{key}.weight")
        found[name] = Asked(build(plain, key, Objective), stream, weight)
    for name in streams:
        if name != "main" and not any(
            loss.stream == name and loss.weight != 0 for loss in found.values()
        ):
            raise ConfigError(
                f"streams.{name}: no loss reads it with a weight above 0; add one, for example "
                f"+objective@losses.{name}=clm +losses.{name}.stream={name}"
            )
    return found


def _loss_key(name: str) -> str:
    return "objective" if name == "main" else f"losses.{name}"


def _weight(value: Any, key: str) -> float | LossWeight:
    if isinstance(value, DictConfig):
        made: LossWeight = build(value, key, LossWeight)
        return made
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"{key}: must be a number of 0 or more, got {value!r}")
    return float(value)


def options_of(node: Any, key: str) -> dict[str, Any]:
    """Return the node of an objective without what belongs to the loss: its weight and stream."""
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{key}: expected an objective, got {node!r}")
    plain: Any = OmegaConf.to_container(node, resolve=True)
    return {str(name): plain[name] for name in plain if name not in ("weight", "stream")}


def losses(
    asked: Mapping[str, Asked],
    facts: Mapping[str, Facts],
    *,
    total_steps: int,
    steps_per_epoch: int,
) -> list[Loss]:
    """Tell every objective about its data, and return the losses. A weight of 0 is left out.

    Args:
        asked: What the config asks for.
        facts: What each stream's data is.
        total_steps: Of the run, for weights that change.
        steps_per_epoch: The same.
    """
    found = []
    for name, loss in asked.items():
        _check_task(name, loss, facts[loss.stream].task)
        loss.objective.bind(replace(facts[loss.stream], name=name))
        weight = loss.weight
        if callable(weight):
            changing = partial(weight, total=total_steps, steps_per_epoch=steps_per_epoch)
            found.append(Loss(name, loss.objective, loss.stream, changing))
        elif weight > 0 or name == "main":
            found.append(Loss(name, loss.objective, loss.stream, weight))
    return found


def _check_task(name: str, loss: Asked, task: Task | None) -> None:
    """Refuse an objective that needs other examples than its data has.

    Raises:
        ConfigError: It does.
    """
    needs, there = loss.objective.task, None if task is None else task.name
    if needs is None or needs == there:
        return
    key, data = ("objective", "data") if name == "main" else (f"losses.{name}", loss.stream)
    cure = "choose labelled data" if task is None else f"choose objective={task.objective}"
    raise ConfigError(
        f"{key}: {type(loss.objective).__name__} needs examples of the task {needs}, and "
        f"{data} has {'text without labels' if there is None else f'those of {there}'}; {cure}"
    )


def model(shape: BackboneShape, vocabulary: int, used: Sequence[Loss], seed: int) -> TransferModel:
    """Return a model with fresh weights, the same for the same seed.

    Raises:
        ConfigError: Two objectives want modules of the same name and other shapes.
    """
    torch.manual_seed(derive(seed, "weights"))
    backbone = Backbone(shape, vocabulary)
    heads: dict[str, torch.nn.Module] = {}
    for loss in used:
        for name, head in loss.objective.modules(backbone).items():
            if name in heads and shapes_of(heads[name]) != shapes_of(head):
                raise ConfigError(
                    f"losses.{loss.name}: its head {name!r} has another shape elsewhere"
                )
            heads.setdefault(name, head)
    return TransferModel(backbone, heads)


def shapes_of(module: torch.nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of a module's tensors, by name."""
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


@dataclass(frozen=True)
class Edited:
    """What edits did to a network.

    Args:
        fresh: Names of inherited parameters that were drawn anew.
        structure: Config nodes of what has to be made again before the weights can be loaded.
    """

    fresh: frozenset[str]
    structure: dict[str, Any]


def make_edits(trained: TransferModel, nodes: Mapping[str, Any], tokenizer: Tokenizer) -> Edited:
    """Change the network as config nodes say, in their order.

    Raises:
        ConfigError: One cannot be made; the message begins with its key.
    """
    fresh: set[str] = set()
    structure = {}
    for name, node in nodes.items():
        key = f"adaptation.edits.{name}"
        edit: Edit = build(node, key, Edit)
        try:
            fresh |= edit(trained, special_tokens(tokenizer))
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error
        if edit.structural:
            structure[name] = node
    return Edited(frozenset(fresh), structure)


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the numbers of the special tokens, by name."""
    return {name: getattr(tokenizer, name) for name in ("cls", "sep", "mask", "unk", "pad")}


def edit_nodes(config: DictConfig) -> dict[str, Any]:
    """Return the nodes of the edits that the config asks for, by name, in order."""
    node = config.adaptation.get("edits")
    plain: Any = OmegaConf.to_container(node, resolve=True) if node else {}
    return {str(name): found for name, found in plain.items() if found is not None}


def say_loaded(report: LoadReport, start: "Pretrained") -> None:
    """Say what was loaded, what is new and what was dropped."""
    log.info("loaded %d tensors from %s", len(report.loaded), start.weights)
    for what, names in (("new", report.new), ("dropped", report.dropped)):
        if names:
            log.info("%s: %s", what, ", ".join(names))


def adaptation(config: DictConfig) -> Adaptation:
    """Return the adaptation that the config describes."""
    return build(config.adaptation, "adaptation", Adaptation)


def schedule(config: DictConfig) -> Schedule:
    """Return the learning-rate schedule that the config describes."""
    return build(config.schedule, "schedule", Schedule)


def base_rate(config: DictConfig) -> float:
    """Return the optimizer's rate.

    Raises:
        ConfigError: It is no positive number.
    """
    rate = config.optimizer.get("lr")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        raise ConfigError(f"optimizer.lr: must be a number above 0, got {rate!r}")
    return float(rate)


def parameter_groups(
    trained: TransferModel, groups: Sequence[LayerGroup], chosen: Adaptation
) -> list[dict[str, Any]]:
    """Return the optimizer's groups: one for each layer group, two where weight decay differs.

    Raises:
        ConfigError: The layer scale does not fit the layer groups.
    """
    heights = [Height(group.name, group.depth, group.parameters) for group in groups]
    parameters = dict(trained.named_parameters())
    penalty = chosen.penalty
    # A penalty of this kind is weight decay, towards another place than zero.
    decays = penalty is None or not penalty.replaces_weight_decay
    return optimizer_groups(parameters, heights, chosen.layer_scale, decay=lambda _: decays)


def optimizer(
    config: DictConfig, trained: TransferModel, groups: Sequence[LayerGroup], chosen: Adaptation
) -> Optimizer:
    """Return the optimizer over all layer groups, built once for the whole run."""
    made = parameter_groups(trained, groups, chosen)
    return build(config.optimizer, "optimizer", Optimizer, params=made)


def machine(config: DictConfig) -> Precision:
    """Return the device and what to compute in on it."""
    device = choose_device(config.device)
    if distributed.started_by_torchrun():
        place = distributed.local_rank(), distributed.local_count()
        device = device_of_process(config.device, *place)
    return Precision.choose(config.precision, device)
