"""Lets a run that is a trial report to its search, and learn whether to continue.

The search leaves a small file beside the trial's run directory; without one, a run is no trial.
"""

import logging
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transfer_cli.errors import ConfigError
from transfer_cli.safe_files import UnreadableError, check_field_types, read_json

if TYPE_CHECKING:
    from optuna import Study

STUDY_NAME = "search"
"""What the study is called in its file."""

WARM_UP_TRIALS = 5
"""Trials that are never pruned: before, there is no median worth the name."""


@dataclass(frozen=True)
class TrialRecord:
    """What a search leaves for the run of a trial.

    Args:
        objective: The validation measure that it is judged by: `validation/NAME`.
        direction: minimize or maximize.
    """

    study: str
    number: int
    objective: str
    direction: str


class Trial:
    """The link from a run to its search."""

    def __init__(self, record: TrialRecord) -> None:
        from optuna.trial import Trial as OptunaTrial

        study = open_study(Path(record.study), direction=record.direction)
        ids = {trial.number: trial._trial_id for trial in study.get_trials(deepcopy=False)}
        self._trial = OptunaTrial(study, ids[record.number]) if record.number in ids else None
        self._measure = record.objective.partition("/")[2]

    def is_hopeless(self, step: int, measures: Mapping[str, float]) -> bool:
        """Report a validation's measures; return whether the trial is to end.

        It is if its best value so far is worse than the median of earlier trials at this step
        (Golovin et al. 2017).
        """
        if self._trial is None or self._measure not in measures:
            return False
        with warnings.catch_warnings():
            # A resumed run measures some steps a second time.
            warnings.simplefilter("ignore", UserWarning)
            self._trial.report(measures[self._measure], step)
        return bool(self._trial.should_prune())


def trial_file(run: Path) -> Path:
    """Return the file in which a run finds its search."""
    return run.parent / f".trial-{run.name}.json"


def trial_of(run: Path) -> Trial | None:
    """Return the trial of a run; None if it is none."""
    with suppress(OSError, UnreadableError, TypeError, ImportError):
        record = TrialRecord(**read_json(trial_file(run.absolute())))
        check_field_types(record)
        # A search made it; none is begun where somebody's file says so.
        if Path(record.study).is_file():
            return Trial(record)
    return None


def open_study(file: Path, *, direction: str) -> "Study":
    """Return the study in an SQLite file, which is made if it does not exist."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    # Two commands that write at once wait for each other.
    wait: dict[str, Any] = {"connect_args": {"timeout": 60}}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = optuna.storages.RDBStorage(f"sqlite:///{file.absolute()}", engine_kwargs=wait)
            return optuna.create_study(
                storage=storage,
                study_name=STUDY_NAME,
                direction="maximize" if direction == "maximize" else "minimize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=WARM_UP_TRIALS),
            )
    except (SQLAlchemyError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"sweep.study: {file} is no study: {reason}; choose another file"
        ) from error
