"""Says before a sweep how often its data is prepared anew."""

import json
import logging
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from transfer_cli.config.flat import flat
from transfer_cli.errors import listed

log = logging.getLogger(__name__)

DECIDE = ("data", "tokenizer", "streams")
"""The parts of a config that decide how text is encoded."""


def say_what_changes_the_data(configs: Sequence[DictConfig]) -> None:
    """Say which swept keys have text or tokenizer prepared more than once, and how often."""
    plain: list[Any] = [OmegaConf.to_container(config, resolve=True) for config in configs]
    found = [dict(flat({part: each.get(part) for part in DECIDE})) for each in plain]
    keys = sorted({key for each in found for key in each})
    differ = [key for key in keys if len({json.dumps(each.get(key)) for each in found}) > 1]
    if not differ:
        return
    times = len({json.dumps([each.get(key) for key in differ]) for each in found})
    verb = "change" if len(differ) > 1 else "changes"
    log.info(
        "%s %s the data: it is prepared %d times, once for all jobs that agree in this",
        listed(differ), verb, times,
    )  # fmt: skip
