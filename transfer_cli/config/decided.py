"""What is decided after a config was composed: it goes into a copy."""

import copy
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, read_write


def with_values(config: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    """Return a frozen copy of a config in which keys have other values, such as what was decided.

    No code writes into a config that is composed and checked (`config.check`).
    """
    if not values:
        return config
    changed = copy.deepcopy(config)
    with read_write(changed):
        for key, value in values.items():
            OmegaConf.update(changed, key, value, merge=False, force_add=True)
    OmegaConf.set_readonly(changed, True)  # noqa: FBT003 - takes no keyword
    return changed
