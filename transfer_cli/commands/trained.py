"""A finished run, ready to be asked: for `evaluate`, `predict` and whoever comes later."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from torch import Tensor

from transfer_cli.commands import compose, pretrained
from transfer_cli.commands.pretrained import Pretrained
from transfer_cli.config.build import build
from transfer_cli.config.stored import read_stored
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.step import Loss
from transfer_cli.errors import CheckpointError
from transfer_cli.model.meta import without_weights
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import load_pretrained
from transfer_cli.objectives.base import Facts, Objective
from transfer_cli.runs.directory import RunDirectory


@dataclass(frozen=True)
class Trained:
    """A run's best weights with all that belongs to them."""

    config: DictConfig
    start: Pretrained
    objective: Objective
    model: TransferModel


def open_trained(path: str, precision: Precision, base: str | None = None) -> Trained:
    """Return the run at `path`, on the device.

    Args:
        path: The run directory.
        precision: With the device.
        base: Where the model lies that the run refers to, if not where it was.

    Raises:
        CheckpointError: There is no run, it has not finished, or its weights lack a part.
    """
    run = RunDirectory.open(Path(path).expanduser(), "run")
    config = read_stored(run.config, run.read_command(), "run")
    if not (run.model / "weights.safetensors").exists():
        raise CheckpointError(
            f"run: {path} is {run.read_status()} and has no finished model; go on with it by "
            f"resume={path}"
        )
    start = pretrained.open_pretrained(str(run.path), key="run", base=base)
    tensors = start.tensors()
    planned, objective = _objective(start), _objective(start)
    with without_weights():  # a head of absurd size is refused before there is one
        _load(start, planned, tensors)
    model = _load(start, objective, tensors)
    model.to(precision.device)
    model.eval()
    return Trained(config, start, objective, model)


def _objective(start: Pretrained) -> Objective:
    objective: Objective = build(start.description.objective, "objective", Objective)
    objective.bind(Facts(start.tokenizer, start.description.labels))
    return objective


def _load(start: Pretrained, objective: Objective, tensors: Mapping[str, Tensor]) -> TransferModel:
    """Return the model, filled.

    Raises:
        CheckpointError: The weights lack a part.
    """
    shape, vocabulary = start.description.shape, start.description.vocabulary
    model = compose.model(shape, vocabulary, [Loss("main", objective)], seed=0)
    compose.make_edits(model, start.description.edits, start.tokenizer)
    report = load_pretrained(model, tensors, start.weights)
    if report.new:
        raise CheckpointError(f"run: {start.weights} lacks {', '.join(report.new)}")
    return model
