"""What teachers say of each example, for losses that learn from it."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save

from transfer_cli.assembly.datasets import PreparedData
from transfer_cli.assembly.ensemble import Ensemble
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.origins import Origins
from transfer_cli.engine import distributed
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, ConfigError, NotFiniteError
from transfer_cli.objectives.base import Loss
from transfer_cli.objectives.of_main_head import Distillation
from transfer_cli.progress import progress
from transfer_cli.runs.cache import load_or_make, new_entry
from transfer_cli.tasks.base import Task

log = logging.getLogger(__name__)

_ANSWERS_FILE = "answers.safetensors"


def add_teacher_answers(
    prepared: Mapping[str, PreparedData],
    losses: Sequence[Loss],
    precision: Precision,
    origins: Origins,
    cache: Path,
    batch: int,
) -> None:
    """Give every example the answers of its teachers, for each loss that learns from some.

    They are kept in the cache, by the teachers' weights and the texts.
    """
    for loss in losses:
        if not isinstance(loss.objective, Distillation):
            continue
        key, part = f"losses.{loss.name}.teachers", prepared[loss.stream]
        main = prepared["main"].task
        if part.task is None or main is None or part.task.name != main.name:
            raise ConfigError(
                f"losses.{loss.name}.stream: teachers answer what the main loss learns; take main, "
                "or a stream of rest or of the same task"
            )
        try:
            teachers = (open_trained(path, precision) for path in loss.objective.teachers)
            ensemble = Ensemble(teachers, precision, batch)
            part.task.check_combines(ensemble.task, "this run", loss.objective.teachers[0])
        except CheckpointError as error:
            raise CheckpointError(f"{key}: {str(error).removeprefix('run: ')}") from error
        digest = ensemble.digest()
        origins.check_weights(key, Path(loss.objective.teachers[0]), digest)
        for split in part.splits.values():
            data = split.encoded
            answers = _cached_answers(cache, digest, ensemble, part.task, data.examples)
            data.add_answers(loss.objective.key, answers)


def _cached_answers(
    cache: Path, digest: str, ensemble: Ensemble, task: Task, examples: Sequence[Any]
) -> npt.NDArray[np.float32]:
    ask = partial(_ask, ensemble, task, examples)
    if distributed.world_size() > 1:
        return ask()  # each process does a part of them
    texts = hashlib.blake2b(f"{digest} {task.labels}".encode(), digest_size=16)
    for example in examples:
        texts.update("\0".join(task.inputs(example)).encode() + b"\1")
    entry = cache / "teachers" / texts.hexdigest()

    def read(entry: Path) -> npt.NDArray[np.float32] | None:
        answers: npt.NDArray[np.float32] = load_file(entry / _ANSWERS_FILE)["answers"]
        return answers

    def write(answers: npt.NDArray[np.float32]) -> None:
        with new_entry(entry) as unfinished:
            # Not `save_file`, which has an error of its own for a full disk.
            (unfinished / _ANSWERS_FILE).write_bytes(save({"answers": answers}))

    return load_or_make(entry, read, ask, write, partial(log.warning, "answers are not kept: %s"))


def _ask(ensemble: Ensemble, task: Task, examples: Sequence[Any]) -> npt.NDArray[np.float32]:
    """Return what the teachers say of each example, or word by word, `[N, labels]`.

    Choices and numbers likewise.
    """
    with progress("asking teachers", ensemble.num_runs * len(examples), "texts") as advance:
        replies = ensemble.answers(examples, advance)
    ensemble.warn_of_texts()
    if None in replies:
        raise NotFiniteError(f"a teacher's answer to example {replies.index(None) + 1:,}")
    ours = (task.combine([(ensemble.task, answer)]) for answer in replies if answer is not None)
    rows = [row for answer in ours for row in task.learnt(answer)]
    answers = np.zeros((len(rows), max(map(len, rows))), np.float32)
    for number, row in enumerate(rows):
        answers[number, : len(row)] = row
    return answers
