"""`transfer pretrain`: train a language model on unlabelled text."""

from omegaconf import DictConfig

from transfer_cli.config.command_line import CommandLine
from transfer_cli.training.train import train


def pretrain(config: DictConfig) -> None:
    """Train a language model on unlabelled text."""
    train(config, "pretrain", CommandLine.of_this_command())
