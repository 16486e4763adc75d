"""What is decided after a config was composed: it goes into a copy."""

import copy
import math
import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, read_write

from transfer_cli.errors import ConfigError

_FOR_WIDTH = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?) ?\* ?([0-9]+) ?/ ?width")


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


def base_lr(lr: object, width: int) -> float:
    """Return `optimizer.lr`: a positive number, or such a number for a width: `1e-4*384/width`.

    Adam moves each weight by about its rate, so what a layer's output moves by grows with the
    number of weights that it sums: its rate has to fall with the width (Yang et al. 2021).
    """
    rate = lr
    if isinstance(lr, str) and (rule := _FOR_WIDTH.fullmatch(lr)):
        rate = float(rule[1]) * int(rule[2]) / width
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise ConfigError(
            f"optimizer.lr: must be a number above 0, got {lr!r}; or one for a width, such as "
            "1e-4*384/width"
        )
    return float(rate)
