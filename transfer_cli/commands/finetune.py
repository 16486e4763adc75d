"""`transfer finetune`: adapt a pretrained model to a labelled task."""

from omegaconf import DictConfig

from transfer_cli.config.command_line import CommandLine
from transfer_cli.training.train import train


def finetune(config: DictConfig) -> None:
    """Adapt a pretrained model to labelled data."""
    train(config, "finetune", CommandLine.of_this_command())
