"""`transfer pretrain` and `transfer finetune`."""

from omegaconf import DictConfig

from transfer_cli.config.command_line import CommandLine
from transfer_cli.training.train import train


def finetune(config: DictConfig) -> None:
    """Adapt a pretrained model to labelled data."""
    train(config, "finetune", CommandLine.of_this_command())


def pretrain(config: DictConfig) -> None:
    """Train a language model on unlabelled text."""
    train(config, "pretrain", CommandLine.of_this_command())
