"""`transfer pretrain` and `transfer finetune`: how a run comes together, on one screen."""

import logging
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.origins import Origins
from transfer_cli.assembly.plan_table import plan_page
from transfer_cli.assembly.resumed_config import AUTO, config_to_resume, find_run, refuse_finished
from transfer_cli.assembly.run import TrainingRun, build_run
from transfer_cli.config.build import build
from transfer_cli.config.check_training import check_training
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.schema import CostConfig, LoopConfig
from transfer_cli.config.stored import as_yaml, plain_values
from transfer_cli.engine import distributed, handlers
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import FinishedError, RunError
from transfer_cli.runs import checkpoint
from transfer_cli.runs.atomic import as_run_error, write_text
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.environment import environment
from transfer_cli.training.checkpoints import DESCRIPTION_FILES, describe_model
from transfer_cli.training.process_group import in_process_group
from transfer_cli.training.resume import same_threads
from transfer_cli.training.spending import Meter, Spending, device_meter
from transfer_cli.training.trainer import Trainer

log = logging.getLogger(__name__)

SECONDS_TO_APPEAR = 30.0
"""How long a shared disk may take to show on one machine what was made on another."""


@dataclass(frozen=True)
class Foresight:
    """What a command says of a run before its first step.

    Args:
        config: Returns the config with what is chosen for it, such as the depth of its model, and
            what would be typed for that.
        blueprint: Returns the blueprint with what is expected of it, such as its loss.
    """

    config: Callable[[DictConfig, str, CommandLine], tuple[DictConfig, CommandLine]]
    blueprint: Callable[[Blueprint], Blueprint]


_NO_FORESIGHT = Foresight(lambda config, _command, line: (config, line), lambda plan: plan)


def train(
    config: DictConfig,
    command: str,
    typed: CommandLine | None = None,
    foresight: Foresight = _NO_FORESIGHT,
) -> Path:
    """Run one training job: config, data, model, objective, engine; return the run directory."""
    typed = typed or CommandLine()
    with handlers.end_on_signal(), in_process_group(plain_values(config)):
        begun = find_run(config.resume, config.run.dir) if distributed.is_main() else None
        directory = _share_directory(begun)
        if directory is None:
            return _begin_run(config, command, typed, foresight)
        try:
            _resume_run(config, command, directory, typed.overrides, foresight)
        except FinishedError as finished:
            if config.resume != AUTO:
                raise
            log.info("%s", finished)
        return directory.path


def _begin_run(config: DictConfig, command: str, typed: CommandLine, foresight: Foresight) -> Path:
    """Train in a run directory of its own, which is not made before all else is known to work."""
    if config.run.dir is not None:
        RunDirectory.check_free(Path(config.run.dir).expanduser())
    spending = _build_spending(config.cost, config.device, config.precision)
    config, typed = foresight.config(config, command, typed)
    run = build_run(config, command, typed.overrides, Origins(changed=config.data_changed))
    run = replace(run, blueprint=foresight.blueprint(run.blueprint))
    directory = _make_directory(command, run, typed) if distributed.is_main() else None
    directory = _share_directory(directory)
    assert directory is not None  # noqa: S101 - the main process has made it, or failed
    try:
        Trainer(command, run, directory, spending).train()
    finally:
        directory.unlock()
    return directory.path


def _build_spending(cost: CostConfig, device: str, precision: str) -> Spending:
    """Return what adds up the spending of this process from now on."""
    meter = Meter("cost.energy=off")
    if cost.energy == "auto":
        meter = device_meter(device_and_precision(device, precision).device)
        log.info("energy: %s", meter.source if meter.has_reading else f"not known: {meter.source}")
    return Spending(meter, cost.pue, cost.kg_per_kwh)


def _make_directory(command: str, run: TrainingRun, typed: CommandLine) -> RunDirectory:
    """Make the run directory, with all that is known before the first step."""
    config = run.blueprint.config
    if config.run.dir is not None:
        directory = RunDirectory.create(Path(config.run.dir).expanduser())
    else:
        presets = typed.presets
        main = presets.get("objective" if command == "pretrain" else "adaptation", command)
        name = "-".join([presets.get("data", "data"), main, presets.get("model", "")]).strip("-")
        directory = RunDirectory.create_new(Path(config.run.root).expanduser() / command, name)
    try:
        with as_run_error(directory.path):
            # Whoever reads the weights of a checkpoint needs these, too.
            directory.model.mkdir()
            with checkpoint.listing_files(directory.model, DESCRIPTION_FILES):
                describe_model(run, directory.model)
            write_text(directory.plan, f"{plan_page(run.blueprint)}\n")
            run.origins.save(directory)
            directory.write_start(
                command, as_yaml(config), typed.overrides, typed.presets, environment()
            )
    except BaseException:
        directory.discard()
        directory.unlock()
        raise
    return directory


def _share_directory(directory: RunDirectory | None) -> RunDirectory | None:
    """Return the run directory that the main process has, or has found not to be there."""
    place = "" if directory is None else str(directory.path.absolute())
    place = distributed.broadcast_text(place)
    if distributed.is_main() or not place:
        return directory
    path, deadline = Path(place), time.monotonic() + SECONDS_TO_APPEAR
    while not path.is_dir():
        if time.monotonic() > deadline:
            raise RunError(
                f"run.dir: process {distributed.rank()} on {platform.node()} does not see {path}, "
                "which process 0 has; it has to be on a disk that all machines share"
            )
        time.sleep(0.1)
    return RunDirectory(path)


def _resume_run(
    config: DictConfig,
    command: str,
    directory: RunDirectory,
    typed: Sequence[str],
    foresight: Foresight,
) -> None:
    if distributed.is_main():
        directory.lock("resume")
    try:
        stored = config_to_resume(config, directory, command, typed)
        check_training(stored)
        if config.resume == AUTO:
            refuse_finished(build(stored.loop, "loop", LoopConfig), directory, command)
        if distributed.is_main():
            directory.clear_leftovers()
            checkpoint.clear_leftovers(directory.checkpoints)
        device = device_and_precision(stored.device, stored.precision).device
        with same_threads(directory, stored.threads, device, strict=config.resume_strict):
            spending = _build_spending(stored.cost, stored.device, stored.precision)
            run = build_run(stored, command, typed, Origins(directory, config.data_changed))
            run = replace(run, blueprint=foresight.blueprint(run.blueprint))
            Trainer(command, run, directory, spending).resume(typed)
    finally:
        directory.unlock()
