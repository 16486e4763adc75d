"""Which slices the examples of a run are in, for the losses that learn slices."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from transfer_cli.assembly.datasets import Prepared, encoded_of
from transfer_cli.data.split import Split
from transfer_cli.engine.step import Loss
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.objectives.beside_main_head import SliceHeads
from transfer_cli.runs.slices import Slice
from transfer_cli.tasks.base import Task

log = logging.getLogger(__name__)


def mark_slices(prepared: Mapping[str, Prepared], losses: Sequence[Loss]) -> None:
    """Tell every example which slices it is in, for each loss that learns some."""
    for loss in losses:
        if not isinstance(loss.objective, SliceHeads):
            continue
        key, part = f"losses.{loss.name}", prepared[loss.stream]
        if part.task is None or loss.stream != "main":
            raise ConfigError(f"{key}.stream: slices are parts of the labelled main stream")
        for split in part.splits.values():
            members = members_of(loss.objective.parts, split, part.task, f"{key}.parts")
            data: Any = encoded_of(split)
            data.add(loss.objective.key, np.stack([*members.values()], 1)[data.example_of])
            for name, member_N in members.items():
                if split.name == "train" and not member_N.any():
                    log.warning("%s.parts.%s: no training example is in it", key, name)


def members_of(
    slices: Mapping[str, Slice], split: Split, task: Task, key: str
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which examples of a split are in each slice, by name."""
    texts = [task.texts(example) for example in encoded_of(split).examples]
    found = {}
    for name, part in slices.items():
        try:
            found[name] = part.members(split.name, texts, split.column)
        except DataError as error:
            raise DataError(f"{key}.{name}: {error}") from error
    return found
