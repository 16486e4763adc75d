"""Config to the other objects of a run: losses, model, adaptation, optimizer."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch.optim import Optimizer

from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.commands.pretrained import Pretrained
from transfer_cli.config.build import build
from transfer_cli.engine.precision import Precision, choose_device
from transfer_cli.engine.step import Loss
from transfer_cli.errors import ConfigError
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.transfer_model import LayerGroup, TransferModel
from transfer_cli.model.weights import LoadReport, load_pretrained, read_weights
from transfer_cli.objectives.base import Facts, Objective
from transfer_cli.optim.groups import Height, optimizer_groups
from transfer_cli.optim.schedules import Schedule
from transfer_cli.seeds import derive

log = logging.getLogger(__name__)


def settled(
    shape: BackboneShape, found: Mapping[str, tuple[Objective, str, float]]
) -> BackboneShape:
    """Return the shape with its direction settled, by the main objective first.

    Raises:
        ConfigError: The model looks one way and an objective needs the other.
    """
    needed = {name: objective.direction for name, (objective, _, _) in found.items()}
    direction = shape.direction
    if direction == "auto":
        direction = next(filter(None, needed.values()), "causal")
    for name, own in needed.items():
        if own not in (None, direction):
            key = "objective" if name == "main" else f"losses.{name}"
            raise ConfigError(
                f"{key}: {type(found[name][0]).__name__} needs a {own} model, and this one is "
                f"{direction} (model.direction, the main objective, or init_from decides)"
            )
    return BackboneShape(**{**vars(shape), "direction": direction})


def objectives(config: DictConfig) -> dict[str, tuple[Objective, str, float]]:
    """Return each loss's objective, stream and weight, "main" first."""
    nodes = {"objective": config.objective}
    nodes |= {f"losses.{name}": config.losses[name] for name in config.losses}
    found: dict[str, tuple[Objective, str, float]] = {}
    for key, node in nodes.items():
        plain = options_of(node, key)
        weight, stream = node.get("weight", 1.0), node.get("stream", "main")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or weight < 0:
            raise ConfigError(f"{key}.weight: must be a number of 0 or more, got {weight!r}")
        if stream != "main":
            raise ConfigError(f"{key}.stream: there is no stream {stream!r}; the streams are main")
        name = "main" if key == "objective" else key.removeprefix("losses.")
        found[name] = (build(plain, key, Objective), stream, float(weight))
    return found


def options_of(node: Any, key: str) -> dict[str, Any]:
    """Return the node of an objective without what belongs to the loss: its weight and stream."""
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{key}: expected an objective, got {node!r}")
    plain: Any = OmegaConf.to_container(node, resolve=True)
    return {str(name): plain[name] for name in plain if name not in ("weight", "stream")}


def losses(found: Mapping[str, tuple[Objective, str, float]], facts: Facts) -> list[Loss]:
    """Tell every objective about the run, and return them as losses. A weight of 0 is left out."""
    for objective, _, _ in found.values():
        objective.bind(facts)
    return [
        Loss(name, objective, stream, weight)
        for name, (objective, stream, weight) in found.items()
        if weight > 0 or name == "main"
    ]


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


def load(fresh: TransferModel, start: Pretrained) -> LoadReport:
    """Fill a model with pretrained weights, and say what was loaded, new and dropped."""
    report = load_pretrained(fresh, read_weights(start.weights), start.weights)
    log.info("loaded %d tensors from %s", len(report.loaded), start.weights)
    for what, names in (("new", report.new), ("dropped", report.dropped)):
        if names:
            log.info("%s: %s", what, ", ".join(names))
    return report


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


def optimizer(
    config: DictConfig, trained: TransferModel, groups: Sequence[LayerGroup], chosen: Adaptation
) -> Optimizer:
    """Return the optimizer over all layer groups, built once for the whole run."""
    heights = [Height(group.name, group.depth, group.parameters) for group in groups]
    parameters = dict(trained.named_parameters())
    made = optimizer_groups(parameters, heights, chosen.layer_scale)
    return build(config.optimizer, "optimizer", Optimizer, params=made)


def machine(config: DictConfig) -> Precision:
    """Return the device and what to compute in on it."""
    return Precision.choose(config.precision, choose_device(config.device))
