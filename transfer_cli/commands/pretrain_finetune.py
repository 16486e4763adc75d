"""`transfer pretrain` and `transfer finetune`."""

from pathlib import Path

from omegaconf import DictConfig

from transfer_cli.assembly.foretold import runs_of_ladder
from transfer_cli.config.command_line import CommandLine
from transfer_cli.training.run_before import with_run_before
from transfer_cli.training.train import train


def finetune(config: DictConfig) -> Path:
    """Adapt a pretrained model to labelled data; return the run directory."""
    if config.before is not None:
        config = with_run_before(config)
    return train(config, "finetune", CommandLine.of_this_command())


def pretrain(config: DictConfig) -> Path:
    """Train a language model on unlabelled text; return the run directory."""
    if config.ladder.of is not None:
        runs_of_ladder(config.ladder.of)
    return train(config, "pretrain", CommandLine.of_this_command())
