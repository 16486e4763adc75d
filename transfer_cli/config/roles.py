"""The roles of the keys of a run's config, for a resume, a report, a sweep and a model card.

The role of a key holds for all keys below it. Types and defaults are in `schema`.
"""

from enum import Flag, auto


class Role(Flag):
    """What a key is for."""

    SETTING = auto()
    """Tells runs apart in a report, since it can change what a run learns."""
    HYPERPARAMETER = auto()
    """Is listed beside a run's measures in TensorBoard."""
    EXTENDS = auto()
    """May change when a run is resumed: it makes it longer, watches it otherwise, or moves it."""
    NAMES_RUN = auto()
    """Says where the run is, or how this command alone goes on with it."""
    OTHERS = auto()
    """Is for another command than the one that trains, which ignores it."""
    PLACE = auto()
    """Names a file or folder of this machine."""
    PER_PROCESS = auto()
    """May differ between the processes of a run: machines are not all alike."""


LEARNS = Role.SETTING | Role.HYPERPARAMETER
NO_ROLE = Role(0)

ROLES = {
    "budget": NO_ROLE,
    "models": NO_ROLE,
    "dial": NO_ROLE,  # what it decided stands in the keys that it decided
    "seed": Role.HYPERPARAMETER,  # a report takes runs that differ in it for repetitions
    "data_dir": Role.EXTENDS | Role.PLACE | Role.PER_PROCESS,
    "data": LEARNS,
    "data.workers": Role.EXTENDS,
    "data_changed": Role.NAMES_RUN,
    "tokenizer": LEARNS,
    "experiment": Role.SETTING,
    "device": Role.EXTENDS | Role.PER_PROCESS,
    "precision": LEARNS | Role.EXTENDS,
    "devices": Role.EXTENDS,
    "parallel": Role.SETTING | Role.EXTENDS,
    "restarts": Role.EXTENDS,
    "timeout_minutes": Role.EXTENDS,
    "threads": Role.EXTENDS,
    "init_from": Role.SETTING | Role.PLACE,
    "init": LEARNS,
    "before": Role.SETTING,
    "base": Role.EXTENDS | Role.PLACE,
    "resume": Role.NAMES_RUN | Role.PLACE,
    "resume_strict": Role.NAMES_RUN,
    "model": LEARNS,
    "student": Role.SETTING,
    "objective": LEARNS,
    "losses": LEARNS,
    "streams": LEARNS,
    "mixing": LEARNS,
    "optimizer": LEARNS,
    "schedule": LEARNS,
    "adaptation": LEARNS,
    "evaluation": Role.SETTING | Role.EXTENDS,
    "loop.epochs": LEARNS | Role.EXTENDS,
    "loop.steps": LEARNS | Role.EXTENDS,
    "loop.minutes": LEARNS | Role.EXTENDS,
    "loop.tokens": LEARNS | Role.EXTENDS,
    "loop.flops": LEARNS | Role.EXTENDS,
    "loop.batch": LEARNS,
    "loop.micro_batch": LEARNS | Role.EXTENDS,
    "loop.bucket": LEARNS,
    "loop.pack": LEARNS,
    "loop.activation_checkpointing": LEARNS,
    "loop.bf16_residual": LEARNS,
    "loop.compile": LEARNS,
    "loop.cuda_graphs": LEARNS,
    "loop.clip": LEARNS,
    "loop.evaluate_every": LEARNS | Role.EXTENDS,
    "loop.log_every": Role.HYPERPARAMETER | Role.EXTENDS,
    "loop.monitor": LEARNS,
    "loop.patience": LEARNS | Role.EXTENDS,
    "loop.average": LEARNS,
    "loop.average_decay": LEARNS,
    "loop.average_last": LEARNS,
    "loop.max_bad_steps": LEARNS | Role.EXTENDS,
    "loop.cache_features": LEARNS,
    "checkpoint.every": Role.EXTENDS,
    "checkpoint.minutes": Role.EXTENDS,
    "checkpoint.keep": Role.EXTENDS,
    "run.dir": Role.NAMES_RUN | Role.PLACE,
    "run.root": Role.NAMES_RUN | Role.PLACE,
    "logger": Role.EXTENDS,
    "cost": Role.EXTENDS,
    "source": Role.SETTING,
    "forgetting": NO_ROLE,
    "ladder": Role.EXTENDS,
    "ladder.of": Role.EXTENDS | Role.PLACE,
    "plan": Role.OTHERS,
    "lr_find": Role.OTHERS,
    "sweep": Role.OTHERS,
}


def role_of(key: str) -> Role:
    """Return the role of a key; an unknown one may change what a run learns."""
    while key not in ROLES:
        key, dot, _ = key.rpartition(".")
        if not dot:
            return LEARNS
    return ROLES[key]
