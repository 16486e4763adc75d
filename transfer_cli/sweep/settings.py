"""Checks `sweep.*`: how the jobs of a sweep run, and what a search looks for."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from transfer_cli.config.schema import SweepConfig
from transfer_cli.errors import ConfigError, at_least, one_of

AUTO = "auto"


def settings_of(node: DictConfig) -> SweepConfig:
    """Return the `sweep` node of a config as the class that declares it.

    Raises:
        ConfigError: A value is not allowed; the message names its key.
    """
    one_of("sweep.on_error", node.on_error, ("continue", "stop"))
    one_of("sweep.direction", node.direction, (AUTO, "minimize", "maximize"))
    one_of("sweep.sampler", node.sampler, ("tpe", "random"))
    at_least("sweep.trials:", node.trials, 1, ConfigError)
    if node.workers != AUTO and (not str(node.workers).isdecimal() or int(node.workers) < 1):
        raise ConfigError(
            f"sweep.workers: must be auto or a whole number from 1, got {node.workers!r}"
        )
    if not node.isolate and node.workers not in (AUTO, "1"):
        raise ConfigError(
            "sweep.isolate: one process has one job at a time; leave sweep.workers out, or "
            "sweep.isolate"
        )
    found: Any = OmegaConf.to_object(node)
    settings: SweepConfig = found
    return settings
