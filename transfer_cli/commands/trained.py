"""A finished run, ready to be asked: for `evaluate`, `predict` and whoever comes later."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from transfer_cli.commands import compose, pretrained
from transfer_cli.commands.pretrained import Pretrained
from transfer_cli.config.build import build
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.step import Loss
from transfer_cli.errors import CheckpointError
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
    try:
        config = OmegaConf.load(run.config)
    except (YAMLError, UnicodeDecodeError, OSError) as error:
        raise CheckpointError(f"run: {run.config} is damaged: {error}") from error
    if not isinstance(config, DictConfig):
        raise CheckpointError(f"run: {run.config} is damaged")
    if not (run.model / "weights.safetensors").exists():
        raise CheckpointError(
            f"run: {path} is {run.read_status()} and has no finished model; go on with it by "
            f"resume={path}"
        )
    start = pretrained.open_pretrained(str(run.path), key="run", base=base)
    objective: Objective = build(start.description.objective, "objective", Objective)
    objective.bind(Facts(start.tokenizer, start.description.labels))
    model = compose.model(
        start.description.shape, start.description.vocabulary, [Loss("main", objective)], seed=0
    )
    compose.make_edits(model, start.description.edits, start.tokenizer)
    report = load_pretrained(model, start.tensors(), start.weights)
    if report.new:
        raise CheckpointError(f"run: {start.weights} lacks {', '.join(report.new)}")
    model.to(precision.device)
    model.eval()
    return Trained(config, start, objective, model)
