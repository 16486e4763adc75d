"""Config to the device and the precision of a run."""

from typing import TYPE_CHECKING

from omegaconf import DictConfig

from transfer_cli.engine import distributed
from transfer_cli.engine.precision import Precision, choose_device, device_of_process

if TYPE_CHECKING:
    pass


def device_and_precision(config: DictConfig) -> Precision:
    """Return the device and what to compute in on it."""
    device = choose_device(config.device)
    if distributed.started_by_torchrun():
        place = distributed.local_rank(), distributed.local_count()
        device = device_of_process(config.device, *place)
    return Precision.choose(config.precision, device)
