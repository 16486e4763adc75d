"""Finished runs that another one learns from: what they say of a text, or they themselves."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save

from transfer_cli.assembly.datasets import Prepared, encoded_of
from transfer_cli.assembly.ensemble import Ensemble
from transfer_cli.assembly.init_from import Pretrained, open_pretrained
from transfer_cli.assembly.losses import Asked, loss_key
from transfer_cli.assembly.origins import Origins
from transfer_cli.config.literal import as_typed
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine import distributed
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.step import Loss
from transfer_cli.errors import CheckpointError, ConfigError, NotFiniteError, listed
from transfer_cli.objectives.of_main_head import Distillation
from transfer_cli.objectives.with_teachers import WithTeachers
from transfer_cli.progress import progress
from transfer_cli.runs.cache import kept, new_entry
from transfer_cli.runs.directory import TOKENIZER
from transfer_cli.tasks.base import Task

log = logging.getLogger(__name__)

_FILE = "answers.safetensors"


def ask_teachers(
    prepared: Mapping[str, Prepared],
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
            ensemble = Ensemble(loss.objective.teachers, precision, None, batch)
            part.task.check_combines(ensemble.task, "this run", loss.objective.teachers[0])
        except CheckpointError as error:
            raise CheckpointError(f"{key}: {str(error).removeprefix('run: ')}") from error
        digest = ensemble.digest()
        origins.weights(key, Path(loss.objective.teachers[0]), digest)
        for split in part.splits.values():
            data: Any = encoded_of(split)
            ask = partial(_answers, ensemble, part.task, data.examples)
            data.add_answers(
                loss.objective.key, _known(cache, digest, part.task, data.examples, ask)
            )


def meet_teachers(asked: Mapping[str, Asked]) -> dict[str, tuple[Pretrained, ...]]:
    """Look at the teachers of all losses, without their weights, before data are read.

    Losses that compare with models in each step learn what these are like; such models are returned
    by the name of the loss.
    """
    found = {}
    for name, loss in asked.items():
        if not isinstance(loss.objective, WithTeachers | Distillation):
            continue
        key, paths = loss_key(name), loss.objective.teachers
        teachers = [open_pretrained(path, f"{key}.teachers") for path in paths]
        if isinstance(loss.objective, WithTeachers):
            loss.objective.introduce([each.description.shape for each in teachers], key)
            found[name] = tuple(teachers)
            continue
        for path, each in zip(paths, teachers, strict=True):
            if each.task is None:
                raise CheckpointError(
                    f"{key}.teachers: {path} is a language model, which answers no task; give a "
                    "run of transfer finetune, or a published model with a head for the task"
                )
    return found


def check_reads_alike(
    teachers: Mapping[str, Sequence[Pretrained]], tokenizer: Tokenizer, length: int
) -> None:
    """Refuse teachers that cannot read a run's tokens, in texts of a length."""
    for name, models in teachers.items():
        for each in models:
            key, positions = f"{loss_key(name)}.teachers", each.description.shape.positions
            if each.tokenizer.hash != tokenizer.hash:
                file = each.folder / TOKENIZER
                cure = f"give tokenizer=file {as_typed('tokenizer.path', file)}, or init_from"
                raise ConfigError(
                    f"{key}: {each.folder} reads other tokens than this run, and single tokens are "
                    f"compared; {cure if file.is_file() else 'begin with it: init_from'}"
                )
            if positions < length:
                raise ConfigError(
                    f"{key}: {each.folder} reads texts of up to {positions} tokens, and those of "
                    f"this run have up to {length}; give data.length={positions}"
                )


def lend_teachers(
    losses: Sequence[Loss],
    teachers: Mapping[str, Sequence[Pretrained]],
    precision: Precision,
    origins: Origins,
) -> None:
    """Give each loss the models that it compares with: frozen, on the device, in no optimizer."""
    for loss in losses:
        objective = loss.objective
        if not isinstance(objective, WithTeachers):
            continue
        lent, digest = [], hashlib.blake2b(digest_size=8)
        key = f"{loss_key(loss.name)}.teachers"
        for start in teachers[loss.name]:
            tensors = start.tensors()
            digest.update(start.fingerprint(tensors).encode())
            model, report = start.filled(tensors, objective.language_model)
            if report.new:
                raise CheckpointError(
                    f"{key}: {start.weights} has no language-model head ({listed(report.new)} "
                    "missing); give a run of transfer pretrain, or a published language model"
                )
            lent.append(model.to(precision.device).eval().requires_grad_(requires_grad=False))
        origins.weights(key, teachers[loss.name][0].weights, digest.hexdigest())
        objective.lend(lent)


def _known(
    cache: Path, digest: str, task: Task, examples: Sequence[Any], ask: Any
) -> npt.NDArray[np.float32]:
    texts = hashlib.blake2b(f"{digest} {task.labels}".encode(), digest_size=16)
    for example in examples:
        texts.update("\0".join(task.inputs(example)).encode() + b"\1")
    entry = cache / "teachers" / texts.hexdigest()

    def read(entry: Path) -> npt.NDArray[np.float32] | None:
        found: npt.NDArray[np.float32] = load_file(entry / _FILE)["answers"]
        return found

    def write(found: npt.NDArray[np.float32]) -> None:
        with new_entry(entry) as unfinished:
            # Not `save_file`, which has an error of its own for a full disk.
            (unfinished / _FILE).write_bytes(save({"answers": found}))

    if distributed.world_size() > 1:
        return ask()  # type: ignore[no-any-return]  # each process does a part of them
    return kept(entry, read, ask, write, partial(log.warning, "answers are not kept: %s"))


def _answers(ensemble: Ensemble, task: Task, examples: Sequence[Any]) -> npt.NDArray[np.float32]:
    """Return what the teachers say of each example, or word by word, `[N, labels]`.

    Choices and numbers likewise.
    """
    with progress("asking teachers", ensemble.num_runs * len(examples), "texts") as more:
        found = ensemble.together(examples, more)
    ensemble.say_cuts()
    if None in found:
        raise NotFiniteError(f"a teacher's answer to example {found.index(None) + 1:,}")
    ours = (task.combine([(ensemble.task, answer)]) for answer in found if answer is not None)
    rows = [row for answer in ours for row in task.learnt(answer)]
    answers = np.zeros((len(rows), max(map(len, rows))), np.float32)
    for number, row in enumerate(rows):
        answers[number, : len(row)] = row
    return answers
