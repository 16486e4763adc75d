"""Config to losses: what a run trains for, and how much each counts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from transfer_cli.config.build import build, resolved_node
from transfer_cli.errors import ConfigError, at_least, did_you_mean, raised_as
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.objectives.base import Loss, Objective, TaskInfo, loss_key
from transfer_cli.objectives.language_model import LanguageModel
from transfer_cli.objectives.with_teachers import LANGUAGE_MODELS, SourceDistillation
from transfer_cli.optim.loss_weight import LossWeight
from transfer_cli.tasks.base import Task

LOSS_OPTIONS = ("stream", "weight")
"""Options in the node of an objective that are not the objective's."""

OWN_DATA = {
    "classification": "data=table, where the label is a name",
    "regression": "data=numbers, where the label is a number",
    "multilabel": "data=labels, where a text has several labels",
    "tagging": "data=conll, where each word has a tag",
    "span": "data=squad, where the answer is a part of a text",
    "choice": "data=choices, where one of several texts is right",
    "dialog": "data=dialog, where a reply follows",
    "similarity": "data=pairs, where two texts belong together, or have a score",
    "text to text": "data=text_pairs, where the label is a text",
    "chat": "data=chat, where a model is talked to",
}
"""Task -> own data that have it."""


@dataclass(frozen=True)
class RequestedLoss:
    """A loss as the config asks for it."""

    objective: Objective
    stream: str = "main"
    weight: float | LossWeight = 1.0


def with_direction(shape: BackboneShape, losses: Mapping[str, RequestedLoss]) -> BackboneShape:
    """Return the shape with its direction settled, by the main objective first."""
    needed = {name: loss.objective.direction for name, loss in losses.items()}
    direction = shape.direction
    if direction == "auto":
        direction = next(filter(None, needed.values()), "causal")
    for name, need in needed.items():
        kind = "an encoder_decoder" if need == "encoder_decoder" else f"a {need or 'one-stack'}"
        if need != direction and (need is not None or direction == "encoder_decoder"):
            raise ConfigError(
                f"{loss_key(name)}: {type(losses[name].objective).__name__} needs {kind} model, "
                f"and this one is {direction} (model.direction, the main objective, or init_from "
                f"decides){_direction_cure(name, losses[name].objective, direction)}"
            )
    with raised_as(ConfigError, "model: "):
        return BackboneShape(**{**vars(shape), "direction": direction})


def _direction_cure(name: str, objective: Objective, direction: str) -> str:
    """Return what to choose for a model of this direction, where that is known."""
    if isinstance(objective, SourceDistillation):
        key = f"{loss_key(name)}.language_model._target_"
        return f"; for this model give {key}={LANGUAGE_MODELS[direction]}"
    option = {"causal": "clm", "bidirectional": "mlm", "encoder_decoder": "seq2seq"}[direction]
    if objective.direction == "encoder_decoder":
        option = "prefix_lm"
    if isinstance(objective, LanguageModel) or direction == "encoder_decoder":
        choose = "objective" if name == "main" else f"objective@losses.{name}"
        return f"; for this model take {choose}={option}"
    return ""


def build_objectives(
    objective: Any, further: Mapping[str, Any], streams: Iterable[str]
) -> dict[str, RequestedLoss]:
    """Return the losses that nodes of the config ask for, "main" first."""
    nodes = {"main": objective, **further}
    streams = ["main", *streams]
    losses: dict[str, RequestedLoss] = {}
    for name, node in nodes.items():
        key = loss_key(name)
        own = build(objective_options(node, key), key, Objective)
        options = {n: value for n, value in resolved_node(node, key).items() if n in LOSS_OPTIONS}
        loss = losses[name] = build(options, key, RequestedLoss, objective=own)
        stream = loss.stream
        if stream not in streams:
            raise ConfigError(
                f"{key}.stream: there is no stream {stream!r}.{did_you_mean(stream, streams)} "
                f"The streams are {', '.join(streams)}; add one with +data@streams.NAME.data=..."
            )
        if name == "main" and stream != "main":
            raise ConfigError("objective.stream: the main loss reads the stream main")
        if not callable(loss.weight):
            at_least(f"{key}.weight:", loss.weight, 0, ConfigError)
    read_streams = {loss.stream for loss in losses.values() if loss.weight != 0}
    for name in streams[1:]:
        if name not in read_streams:
            raise ConfigError(
                f"streams.{name}: no loss reads it with a weight above 0; add one, for example "
                f"+objective@losses.{name}=clm +losses.{name}.stream={name}"
            )
    return losses


def objective_options(node: Any, key: str) -> dict[str, Any]:
    """Return the node of an objective without what belongs to the loss: its weight and stream."""
    if not isinstance(node, Mapping):
        raise ConfigError(f"{key}: expected an objective, got {node!r}")
    return {n: value for n, value in resolved_node(node, key).items() if n not in LOSS_OPTIONS}


def bind_losses(
    requested: Mapping[str, RequestedLoss],
    info: Mapping[str, TaskInfo],
    *,
    total_steps: int,
    steps_per_epoch: int,
) -> list[Loss]:
    """Tell every objective about its stream's data, and return the losses.

    A further loss of weight 0 is left out.
    """
    losses = []
    for name, loss in requested.items():
        check_task(name, loss, info[loss.stream].task)
        main = None if name == "main" else requested["main"].objective
        loss.objective.setup(replace(info[loss.stream], name=name, stream=loss.stream, main=main))
        weight = loss.weight
        if callable(weight):
            changing = partial(weight, total=total_steps, steps_per_epoch=steps_per_epoch)
            losses.append(Loss(name, loss.objective, loss.stream, changing))
        elif weight > 0 or name == "main":
            losses.append(Loss(name, loss.objective, loss.stream, weight))
    return losses


def check_task(name: str, loss: RequestedLoss, task: Task | type[Task] | None) -> None:
    """Refuse an objective that needs other examples than its data has (None: unlabelled text)."""
    needs, there = loss.objective.task, None if task is None else task.name
    hides_tokens = loss.objective.predicts_tokens and not loss.objective.keeps_tokens
    if there == "choice" and needs is None and hides_tokens:
        raise ConfigError(
            f"{loss_key(name)}: {type(loss.objective).__name__} hides tokens of single texts, and "
            "a question with choices is several; choose objective=choice or clm"
        )
    if needs is None or needs == there:
        return
    key, data = ("objective", "data") if name == "main" else (f"losses.{name}", loss.stream)
    objective = None if task is None else task.objective
    source = OWN_DATA.get(needs, f"data of the task {needs}")
    cure = f"objective={objective}, or " if objective and name == "main" else ""
    raise ConfigError(
        f"{key}: {type(loss.objective).__name__} needs examples of the task {needs}, and "
        f"{data} has {'text without labels' if there is None else f'those of {there}'}; choose "
        f"{cure}{source}"
    )
