"""Says before a sweep how often its data is prepared anew."""

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from transfer_cli.config.flat import flat
from transfer_cli.errors import listed

log = logging.getLogger(__name__)

DECIDE = ("data", "tokenizer", "streams")
"""The parts of a config that decide how text is encoded."""


def say_what_changes_the_data(configs: Sequence[DictConfig]) -> None:
    """Say which swept keys have text or tokenizer prepared more than once, and how often."""
    found = [dict(_flat(config)) for config in configs]
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


def _flat(config: DictConfig) -> Iterator[tuple[str, Any]]:
    for part in DECIDE:
        node = config.get(part)
        plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        yield from flat({part: plain})
