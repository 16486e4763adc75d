"""Finished runs that another one learns from: looked at first, and given to the losses later."""

import hashlib
from collections.abc import Mapping, Sequence

from transfer_cli.assembly.init_from import Pretrained, open_pretrained
from transfer_cli.assembly.losses import RequestedLoss
from transfer_cli.assembly.origins import Origins
from transfer_cli.config.literal import path_override
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, ConfigError, list_names
from transfer_cli.objectives.base import Loss, loss_key
from transfer_cli.objectives.with_teachers import WithTeachers
from transfer_cli.runs.directory import TOKENIZER


def open_teachers(losses: Mapping[str, RequestedLoss]) -> dict[str, tuple[Pretrained, ...]]:
    """Look at the teachers of all losses, without their weights, before data are read.

    Losses that compare with models in each step learn what these are like; such models are returned
    by the name of the loss.
    """
    compared = {}
    for name, loss in losses.items():
        key, paths = loss_key(name), loss.objective.teacher_runs
        if not paths:
            continue
        teachers = [open_pretrained(path, f"{key}.teachers") for path in paths]
        if isinstance(loss.objective, WithTeachers):
            loss.objective.check_teachers([teacher.description.shape for teacher in teachers], key)
            compared[name] = tuple(teachers)
            continue
        for path, teacher in zip(paths, teachers, strict=True):
            if teacher.task is None:
                raise CheckpointError(
                    f"{key}.teachers: {path} is a language model, which answers no task; give a "
                    "run of transfer finetune, or a published model with a head for the task"
                )
    return compared


def check_teachers(
    teachers: Mapping[str, Sequence[Pretrained]], tokenizer: Tokenizer, length: int
) -> None:
    """Refuse teachers that cannot read a run's tokens, in texts of a length."""
    for name, models in teachers.items():
        for teacher in models:
            key, positions = f"{loss_key(name)}.teachers", teacher.description.shape.positions
            if teacher.tokenizer.hash != tokenizer.hash:
                file = teacher.folder / TOKENIZER
                cure = f"give tokenizer=file {path_override('tokenizer.path', file)}, or init_from"
                raise ConfigError(
                    f"{key}: {teacher.folder} reads other tokens than this run, and single tokens "
                    f"are compared; {cure if file.is_file() else 'begin with it: init_from'}"
                )
            if positions < length:
                raise ConfigError(
                    f"{key}: {teacher.folder} reads texts of up to {positions} tokens, and those "
                    f"of this run have up to {length}; give data.length={positions}"
                )


def load_teachers(
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
        models, digest = [], hashlib.blake2b(digest_size=8)
        key = f"{loss_key(loss.name)}.teachers"
        for start in teachers[loss.name]:
            tensors = start.tensors()
            digest.update(start.fingerprint(tensors).encode())
            model, report = start.filled(tensors, objective.language_model)
            if report.new:
                raise CheckpointError(
                    f"{key}: {start.weights} has no language-model head ({list_names(report.new)} "
                    "missing); give a run of transfer pretrain, or a published language model"
                )
            models.append(model.to(precision.device).eval().requires_grad_(requires_grad=False))
        origins.check_weights(key, teachers[loss.name][0].weights, digest.hexdigest())
        objective.set_teachers(models)
