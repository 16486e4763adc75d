"""A finished run, opened to be scored or to answer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from transfer_cli.assembly.init_from import Pretrained, open_for_inference, tensors_with_parts
from transfer_cli.assembly.model import block_length
from transfer_cli.config.build import build
from transfer_cli.config.literal import path_override
from transfer_cli.config.models import expand_short_name
from transfer_cli.config.stored import read_stored
from transfer_cli.data.wanted import Wanted, parse_columns
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.interop.graph_folder import is_graph_folder
from transfer_cli.interop.published_folder import is_published
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import WEIGHTS
from transfer_cli.objectives.base import Objective, TaskInfo
from transfer_cli.runs.directory import HUB, RunDirectory
from transfer_cli.runs.results import Results
from transfer_cli.runs.untrusted import nested_mapping
from transfer_cli.safe_files import UnreadableError


@dataclass(frozen=True)
class OpenedModel:
    """A model to look into, with or without a head.

    Args:
        config: Of its run; of other models one without data.
        objective: What it was trained for; None: a published model without that head.
        model: On the device, in evaluation mode.
        length: See `longest_input`.
    """

    path: str
    config: DictConfig
    start: Pretrained
    objective: Objective | None
    model: TransferModel
    length: int

    @property
    def columns(self) -> Wanted:
        """The columns that were typed for the table that it was trained on, if that is one."""
        data = self.config.data
        join = data.get("join") or "space"
        return parse_columns(data.get("text"), data.get("pair"), data.get("label"), join)


def check_one_stack(opened: OpenedModel) -> None:
    """Refuse an encoder-decoder, for what looks into one stack of blocks."""
    if opened.start.description.shape.has_encoder:
        raise ConfigError(
            f"run: {opened.path} has an encoder and a decoder, and this asks for one stack of "
            "blocks; predict and evaluate take it"
        )


@dataclass(frozen=True)
class TrainedModel(OpenedModel):
    """A model with the head of what it was trained for."""

    objective: Objective

    @property
    def training_labels(self) -> tuple[Mapping[str, int], int]:
        """How many training examples have each label, and how many there are.

        Nothing and 0 where no run beside it says so.
        """
        try:
            results = Results.read(RunDirectory(self.start.folder.parent).results)
        except (OSError, UnreadableError):
            return {}, 0
        counts = nested_mapping(dict(results.more), "training_labels")
        known = {label: count for label, count in counts.items() if type(count) is int}
        return known, results.examples.get("train", 0)


def open_trained(
    path: str, precision: Precision, base: str | None = None, beams: Mapping[str, Any] | None = None
) -> TrainedModel:
    """Return the run at `path`, on the device.

    Args:
        path: The run directory, one of its checkpoints, or a published model: its folder,
            `hf:owner/name` or short name.
        base: The folder of the model that the run refers to, if it has moved.
        beams: How it looks for the texts that it writes, where not as its objective says.
    """
    place = Path(path).expanduser()
    if not (
        expand_short_name(path).startswith(HUB) or is_published(place) or is_graph_folder(place)
    ):
        run = RunDirectory.open(RunDirectory.folder_of(place), "run")
        if run.path == place and not (run.model / WEIGHTS).exists():
            raise CheckpointError(
                f"run: {path} is {run.read_status()} and has no finished model; go on with it by "
                f"{path_override('resume', run.path)}"
            )
    start = open_for_inference(path, key="run", base=base)
    if beams:
        start = _with_search(start, path, beams)
    planned, objective = bound_objective(start), bound_objective(start)
    tensors: Mapping[str, Tensor] = {}
    if start.graph is None:
        tensors = tensors_with_parts(start, planned)
        with without_weights():  # a head of absurd size is refused before there is one
            load_trained(start, planned, tensors)
    elif not start.graph.has_head:
        raise CheckpointError(
            f"run: {path} is an ONNX graph without a head, which answers nothing (embed takes it); "
            "export the run with head=true"
        )
    return TrainedModel(**vars(_load_on_device(path, start, objective, tensors, precision)))


def _with_search(start: Pretrained, path: str, beams: Mapping[str, Any]) -> Pretrained:
    """Return a start that is opened as what looks for texts in another way."""
    described, key = start.description, min(beams)
    if bound_objective(start).search is None:
        raise ConfigError(f"{key}: {path} writes no texts; this is for runs that do (text to text)")
    node = {**described.objective, **beams}
    if node.get("beams", 1) == 1 and beams.keys() - {"beams"}:
        raise ConfigError(f"{key}: is for a search, and {path} has none; say beams=4 as well")
    return replace(start, description=replace(described, objective=node))


def open_for_analysis(
    path: str, precision: Precision, base: str | None = None, key: str = "run"
) -> OpenedModel:
    """Return the model at `path`, on the device; a published one may lack its head.

    Args:
        path: What `init_from` takes: a run, one of its checkpoints, a published model.
    """
    start = open_for_inference(path, key=key, base=base)
    if start.graph is not None:
        graph_objective = bound_objective(start) if start.graph.has_head else None
        return _load_on_device(path, start, graph_objective, {}, precision)
    tensors, planned, objective = start.tensors(), bound_objective(start), bound_objective(start)
    with without_weights():
        _, report = start.filled(tensors, planned)
    lacks_head = start.published is not None and bool(report.new)
    return _load_on_device(path, start, None if lacks_head else objective, tensors, precision)


def _load_on_device(
    path: str,
    start: Pretrained,
    objective: Objective | None,
    tensors: Mapping[str, Tensor],
    precision: Precision,
) -> OpenedModel:
    if objective is None:
        model, _ = start.filled(tensors)
    else:
        model = load_trained(start, objective, tensors)
    model.to(precision.device).eval()
    without_data = {"data": {"length": None}, "data_dir": "", "seed": 0}
    config = read_run_config(start) or OmegaConf.create(without_data)
    length = longest_input(start, config.data.get("length"))
    return OpenedModel(path, config, start, objective, model, length)


def read_run_config(start: Pretrained) -> DictConfig | None:
    """Return the config of the run that a model belongs to; None where there is none beside it."""
    run = RunDirectory(start.folder.parent)
    if not (start.has_run and RunDirectory.holds_run(run.path)):
        return None
    return read_stored(run.config, run.read_command(), "run")


def longest_input(start: Pretrained, length: Any) -> int:
    """Return how many tokens of a text a model reads: what was cut in training is cut after it.

    `length` is the `data.length` of its run; None: there is none.
    """
    positions = start.description.shape.positions
    if start.graph is not None:
        return start.graph.length
    if start.published is not None:
        return min(start.published.length or positions, positions)
    if length is not None and type(length) is not int:
        raise ConfigError(f"run: its data.length is {length!r}, expected a whole number")
    return block_length(length, positions)


def bound_objective(start: Pretrained) -> Objective:
    """Return what a model was trained for, bound to its tokenizer and labels."""
    objective: Objective = build(start.description.objective, "objective", Objective)
    objective.setup(TaskInfo(start.tokenizer, start.description.labels, task=start.task))
    return objective


def load_trained(
    start: Pretrained, objective: Objective, tensors: Mapping[str, Tensor]
) -> TransferModel:
    """Return the model, filled."""
    model, report = start.filled(tensors, objective)
    if report.new and start.published is not None:
        raise CheckpointError(
            f"run: {start.weights} is a published model without the head of its pretraining "
            f"({report.new[0]}), so it can be adapted (init_from) and answers nothing by itself"
        )
    if report.new:
        raise CheckpointError(f"run: {start.weights} lacks {', '.join(report.new)}")
    return model
