"""`transfer pretrain` and `transfer finetune`: how a run comes together, on one screen."""

import logging
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from transfer_cli.assembly.losses import objective_options
from transfer_cli.assembly.plan_table import plan_text
from transfer_cli.assembly.resumed_config import AUTO, config_to_resume, find_run, refuse_finished
from transfer_cli.assembly.run import TrainingRun, build_run
from transfer_cli.config.check import check_training
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.stored import as_yaml
from transfer_cli.engine import distributed, handlers
from transfer_cli.errors import FinishedError, RunError
from transfer_cli.model.weights import Base, ModelDescription, write_description
from transfer_cli.runs import checkpoint
from transfer_cli.runs.atomic import write_text, writing
from transfer_cli.runs.directory import TOKENIZER, RunDirectory
from transfer_cli.runs.environment import environment
from transfer_cli.training.trainer import Trainer
from transfer_cli.training.workers import in_process_group

log = logging.getLogger(__name__)

SECONDS_TO_APPEAR = 30.0
"""How long a shared disk may take to show on one machine what was made on another."""


def train(config: DictConfig, command: str, typed: CommandLine | None = None) -> None:
    """Run one training job: config, data, model, objective, engine, run directory."""
    with handlers.end_on_signal():
        in_process_group(config, lambda: _train(config, command, typed or CommandLine()))


def _train(config: DictConfig, command: str, typed: CommandLine) -> None:
    run = _of_main(find_run(config) if distributed.is_main() else None)
    if run is None:
        _begin(config, command, typed)
        return
    try:
        _go_on(config, command, run, typed)
    except FinishedError as finished:
        if config.resume != AUTO:
            raise
        log.info("%s", finished)


def _begin(config: DictConfig, command: str, typed: CommandLine) -> None:
    """Train in a run directory of its own, which is not made before all else is known to work."""
    if config.run.dir is not None:
        RunDirectory.check_free(Path(config.run.dir).expanduser())
    parts = build_run(config, command, typed.overrides)
    made = _make(config, command, parts, typed) if distributed.is_main() else None
    run = _of_main(made)
    assert run is not None  # noqa: S101 - the main process has made it, or failed
    try:
        Trainer(config, command, parts, run).train()
    finally:
        run.unlock()


def _make(config: DictConfig, command: str, parts: TrainingRun, typed: CommandLine) -> RunDirectory:
    """Make the run directory, with all that is known before the first step."""
    run = _new_directory(config, command, typed.presets)
    try:
        with writing(run.path):
            _describe(run, config, parts)
            run.start(command, as_yaml(config), typed.overrides, typed.presets, environment())
    except BaseException:
        run.discard()
        run.unlock()
        raise
    return run


def _of_main(run: RunDirectory | None) -> RunDirectory | None:
    """Return the run directory that the main process has, or has found not to be there.

    Raises:
        RunError: This process, on another machine, does not see it.
    """
    named = distributed.broadcast_text(str(run.path.absolute()) if run is not None else "")
    if distributed.is_main() or not named:
        return run
    path, deadline = Path(named), time.monotonic() + SECONDS_TO_APPEAR
    while not path.is_dir():
        if time.monotonic() > deadline:
            raise RunError(
                f"run.dir: process {distributed.rank()} on {platform.node()} does not see {path}, "
                "which process 0 has; it has to be on a disk that all machines share"
            )
        time.sleep(0.1)
    return RunDirectory(path)


def _go_on(config: DictConfig, command: str, run: RunDirectory, typed: CommandLine) -> None:
    """Train on in the directory of a run that was begun before."""
    if distributed.is_main():
        run.lock("resume")
    try:
        stored = config_to_resume(config, run, command, typed.overrides)
        check_training(stored)
        if config.resume == AUTO:
            refuse_finished(stored, run, command)
        if distributed.is_main():
            run.clear_leftovers()
            checkpoint.clear_leftovers(run.checkpoints)
        parts = build_run(stored, command, typed.overrides)
        Trainer(stored, command, parts, run).resume(typed.overrides)
    finally:
        run.unlock()


def _new_directory(config: DictConfig, command: str, chosen: Mapping[str, str]) -> RunDirectory:
    if config.run.dir is not None:
        return RunDirectory.create(Path(config.run.dir).expanduser())
    main = chosen.get("objective" if command == "pretrain" else "adaptation", command)
    name = "-".join([chosen.get("data", "data"), main, chosen.get("model", "")]).strip("-")
    return RunDirectory.create_new(Path(config.run.root).expanduser() / command, name)


def _describe(run: RunDirectory, config: DictConfig, parts: TrainingRun) -> None:
    """Write what a reader of the weights needs, before there are any: checkpoints need it, too."""
    run.model.mkdir()
    write_description(description_of(config, parts, run.model), run.model)
    parts.tokenizer.save(run.model / TOKENIZER)
    write_text(run.plan, f"{plan_text(parts.blueprint, config.loop.batch)}\n")


def description_of(config: DictConfig, parts: TrainingRun, folder: Path) -> ModelDescription:
    """Return what must be known to build the run's model, as seen from `folder`."""
    node = objective_options(config.objective, "objective")
    base = None
    if parts.blueprint.start is not None and parts.base_hash is not None:
        lies = parts.blueprint.start.weights.resolve()
        base = Base(str(lies), os.path.relpath(lies, folder.resolve()), parts.base_hash)
    return ModelDescription(
        shape=parts.model.backbone.shape,
        vocabulary=parts.tokenizer.size,
        objective={**node, **parts.pinned},
        labels=parts.data.labels,
        tokenizer_hash=parts.tokenizer.hash,
        edits=parts.blueprint.edits,
        base=base,
        task=None if parts.data.task is None else parts.data.task.as_node(),
    )
