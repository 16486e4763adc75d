"""`transfer pretrain` and `transfer finetune`: how a run comes together, on one screen."""

import os
from pathlib import Path

from omegaconf import DictConfig

from transfer_cli.commands import choices, compose
from transfer_cli.commands.environment import environment
from transfer_cli.commands.job import Job
from transfer_cli.commands.parts import Parts, put_together
from transfer_cli.commands.plan import plan_text
from transfer_cli.commands.resume import config_to_resume
from transfer_cli.config.check import check_training
from transfer_cli.model.weights import Base, ModelDescription, write_description
from transfer_cli.runs.directory import TOKENIZER, RunDirectory, write_text, writing


def pretrain(config: DictConfig) -> None:
    """Train a language model on unlabelled text."""
    train(config, "pretrain")


def finetune(config: DictConfig) -> None:
    """Adapt a pretrained model to labelled data."""
    train(config, "finetune")


def train(config: DictConfig, command: str) -> None:
    """Run one training job: config, data, model, objective, engine, run directory."""
    resumed = None
    if config.resume is not None:
        resumed = RunDirectory.open(Path(config.resume).expanduser(), "resume")
        config = config_to_resume(config, resumed, command)
    else:
        _check_folder(config)
    check_training(config)
    parts = put_together(config, command)
    run = resumed or _begin(config, command, parts)
    Job(config, command, parts, run).go(resuming=resumed is not None)


def _check_folder(config: DictConfig) -> None:
    if config.run.dir is not None:
        RunDirectory.check_free(Path(config.run.dir).expanduser())


def _begin(config: DictConfig, command: str, parts: Parts) -> RunDirectory:
    """Make the run directory, with all that is known before the first step."""
    run = _new_directory(config, command, parts)
    try:
        with writing(run.path):
            _describe(run, config, parts)
            typed, chosen = choices.typed_overrides(), choices.presets()
            run.start(command, choices.as_yaml(config), typed, chosen, environment())
    except BaseException:
        run.discard()
        raise
    return run


def _new_directory(config: DictConfig, command: str, parts: Parts) -> RunDirectory:
    if config.run.dir is not None:
        return RunDirectory.create(Path(config.run.dir).expanduser())
    chosen = choices.presets()
    main = chosen.get("objective" if command == "pretrain" else "adaptation", command)
    name = "-".join([chosen.get("data", "data"), main, chosen.get("model", "")]).strip("-")
    return RunDirectory.create_new(Path(config.run.root).expanduser() / command, name)


def _describe(run: RunDirectory, config: DictConfig, parts: Parts) -> None:
    """Write what a reader of the weights needs, before there are any: checkpoints need it, too."""
    run.model.mkdir()
    write_description(description_of(config, parts, run.model), run.model)
    parts.tokenizer.save(run.model / TOKENIZER)
    write_text(run.plan, f"{plan_text(config, parts.layout)}\n")


def description_of(config: DictConfig, parts: Parts, folder: Path) -> ModelDescription:
    """Return what must be known to build the run's model, as seen from `folder`."""
    node = compose.options_of(config.objective, "objective")
    base = None
    if parts.start is not None and parts.base_hash is not None:
        lies = parts.start.weights.resolve()
        base = Base(str(lies), os.path.relpath(lies, folder.resolve()), parts.base_hash)
    return ModelDescription(
        shape=parts.model.backbone.shape,
        vocabulary=parts.tokenizer.size,
        objective={**node, **parts.pinned},
        labels=parts.data.labels,
        tokenizer_hash=parts.tokenizer.hash,
        edits=parts.layout.edits,
        base=base,
    )
