"""Runs a search: trials proposed one after the other by Optuna (Akiba et al. 2019).

The study is an SQLite file, so that a search can be continued and several commands can work on it.
It proposes values and remembers their results; jobs run as in any other sweep.
"""

import importlib
import json
import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override

from transfer_cli.config.flat import flat_items
from transfer_cli.config.schema import SweepConfig
from transfer_cli.config.stored import plain_values
from transfer_cli.errors import ConfigError, did_you_mean, pip_install, raised_as
from transfer_cli.metrics import Metric, require_metric
from transfer_cli.runs.atomic import as_run_error, write_json
from transfer_cli.runs.cache import locked
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.results import Results
from transfer_cli.runs.sweep import STUDY, JobState, SweepJob
from transfer_cli.runs.untrusted import is_number
from transfer_cli.safe_files import UnreadableError
from transfer_cli.sweeps.grid import Planner, log_data_changes
from transfer_cli.sweeps.jobs import names_run
from transfer_cli.sweeps.local import AUTO, shares_of
from transfer_cli.sweeps.processes import SECONDS_BETWEEN_LOOKS
from transfer_cli.sweeps.trial import open_study, trial_file

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

log = logging.getLogger(__name__)

_MEASURE = re.compile(r"(measures\.)?(?P<split>validation|test)[/.](?P<name>.+)")
"""A measure of a run, as `sweep.objective` may call it."""


class Search(Planner):
    """Looks for the values that make a measure small or large."""

    _has_logged_wait = False

    def run(self) -> None:
        """Run trials until there are as many as were asked for."""
        swept = [override for override in self.overrides if override.is_sweep_override()]
        fixed = [
            word
            for override in self.overrides
            if not override.is_sweep_override()
            for word in self.override_words(override)
        ]
        if not swept:
            raise ConfigError(
                "sweep: a search needs a range to search in, such as "
                "'optimizer.lr=tag(log, interval(1e-5, 1e-2))'"
            )
        if not self.jobs.makes_runs:
            raise ConfigError("sweep: only pretrain and finetune can be searched")
        _check_optuna()
        space = {override.get_key_element(): self._distribution(override) for override in swept}
        corners = [[*fixed, *_override_words(low)] for low in _corners(space)]
        configs = self.checked_configs(corners)
        first = configs[0]
        shares = shares_of(first.sweep, first.devices, first.device)
        self._settings = self._with_aim(shares.settings, self.jobs.metrics(first))
        self._aim = {"objective": self._settings.objective, "direction": self._settings.direction}
        self._fixed, self._space, self._shares = fixed, space, shares
        log_data_changes(map(plain_values, configs))
        self._warn_of_objective()
        self._search(seed=first.seed)

    def _distribution(self, override: Override) -> "BaseDistribution":
        """Return Optuna's form of a typed range or list of values."""
        from optuna import distributions

        value: Any = override.value()
        with raised_as(ConfigError, f"{override.input_line}: "):
            if not override.is_interval_sweep():
                choices = [word.partition("=")[2] for word in self.override_words(override)]
                return distributions.CategoricalDistribution(choices)
            kind: Any = distributions.FloatDistribution
            if isinstance(value.start, int) and isinstance(value.end, int):
                kind = distributions.IntDistribution
            distribution: BaseDistribution = kind(value.start, value.end, log="log" in value.tags)
        return distribution

    def _with_aim(self, settings: SweepConfig, metrics: Sequence[Metric]) -> SweepConfig:
        """Return settings with the objective as `split/measure`, if it is one, and a direction."""
        measure = _MEASURE.fullmatch(settings.objective)
        is_place = "." in settings.objective or settings.objective in Results.__dataclass_fields__
        if measure is None and not is_place:
            raise ConfigError(
                f"sweep.objective: type where {settings.objective} stands, as validation/accuracy"
            )
        if measure is not None:
            settings = replace(settings, objective=f"{measure['split']}/{measure['name']}")
        if settings.direction != AUTO:
            return settings
        if measure is None:  # a cost, for example
            return replace(settings, direction="minimize")
        metric = require_metric(measure["name"], metrics, "sweep.objective")
        return replace(settings, direction="maximize" if metric.higher_is_better else "minimize")

    def _warn_of_objective(self) -> None:
        objective = self._settings.objective
        if objective.startswith("test/"):
            log.warning("%s chooses by the test set, which should see the result alone", objective)
        if self._settings.prune and not objective.startswith("validation/"):
            log.info("no trial is pruned: %s is not measured before the end", objective)

    def _search(self, seed: int) -> None:
        settings, jobs = self._settings, self.jobs
        if settings.study:  # what is none is refused before anything else is written
            with as_run_error(self._file):
                self._file.parent.mkdir(parents=True, exist_ok=True)
            if self._file.exists():
                open_study(self._file, direction=settings.direction)
        jobs.begin(self.folder, [], self._shares.threads, trials=settings.trials, **self._aim)
        study = self._open(seed)
        while jobs.stopped is None:
            batch = self._next_trials(study)
            if not batch and self._wait_for_others():
                continue
            if not batch:
                break
            try:
                self.launch(batch, self._shares)
            finally:
                failed = [self._report_trial(study, job.number) for job in batch]
            if settings.on_error == "stop" and any(failed):
                break
        if not settings.objective.startswith("validation/"):
            self._say_best(study)

    def _wait_for_others(self) -> bool:
        """Wait a moment if a command or process works on a trial; it may leave that undone."""
        others = [j for j in self.jobs.directory.jobs() if j.outcome == JobState.RUNNING]
        if others and not self._has_logged_wait:
            self._has_logged_wait = True
            log.info("waiting for %d trials that other commands or processes work on", len(others))
        if others:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return bool(others)

    # --- the study -----------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        study = self._settings.study
        return Path(study).expanduser() if study else self.folder / STUDY

    def _open(self, seed: int) -> "Study":
        from optuna import samplers
        from optuna.distributions import distribution_to_json

        with locked(self._file):
            study = open_study(self._file, direction=self._settings.direction)
            space = {
                key: distribution_to_json(distribution) for key, distribution in self._space.items()
            }
            aim = {"space": space, **self._aim}
            begun = study.user_attrs.get("search")
            if begun is None:
                study.set_user_attr("search", aim)
            elif begun != aim:
                raise ConfigError(
                    f"sweep.study: {self._file} is of another search: {_difference(begun, aim)}; "
                    "type what it was begun with, or choose another run.dir or sweep.study"
                )
            # Every command that joins proposes other values, though all have the same seed.
            joined = int(study.user_attrs.get("joined", 0))
            study.set_user_attr("joined", joined + 1)
        if self._settings.sampler == "random":
            study.sampler = samplers.RandomSampler(seed=seed + joined)
        else:
            # With several at work, a trial that runs counts as a bad one: the next looks elsewhere.
            study.sampler = samplers.TPESampler(seed=seed + joined, constant_liar=True)
        return study

    def _next_trials(self, study: "Study") -> list[SweepJob]:
        """Return the trials to run now: first those that were stopped, then new ones."""
        from optuna.trial import TrialState

        directory = self.jobs.directory
        with locked(self._file):
            known = {job.number: job for job in directory.jobs()}
            trials = study.get_trials(deepcopy=False)
            todo = [
                known[trial.number]
                for trial in trials
                if trial.state == TrialState.RUNNING
                and trial.number in known
                and known[trial.number].outcome in (JobState.STOPPED, JobState.LEFT)
                and not directory.is_claimed(trial.number)
            ][: self._shares.workers]
            for _ in range(
                min(self._shares.workers - len(todo), self._settings.trials - len(trials))
            ):
                trial = study.ask(dict(self._space))
                proposed = tuple(_override_words(trial.params))
                fixed = [word for word in self._fixed if not names_run(word)]
                job = SweepJob(trial.number, proposed, (*fixed, *proposed))
                directory.write_job(job)
                if self._settings.prune and self._settings.objective.startswith("validation/"):
                    # Found by the run itself, wherever it is started.
                    study_file = {"study": str(self._file.absolute()), "number": trial.number}
                    write_json(trial_file(directory.run(job.number)), {**study_file, **self._aim})
                todo.append(job)
        return todo

    def _report_trial(self, study: "Study", number: int) -> bool:
        """Report the end of a trial to the study; return whether it failed."""
        from optuna.trial import TrialState

        directory = self.jobs.directory
        job = directory.job(number)
        if job is None or job.outcome not in (JobState.DONE, JobState.FAILED, JobState.PRUNED):
            return False
        value = self._value(directory.run(number)) if job.outcome == JobState.DONE else None
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        if job.outcome == JobState.PRUNED:
            state = TrialState.PRUNED
        study.tell(number, value, state=state, skip_if_finished=True)
        directory.write_job(replace(job, value=value))
        trial_file(directory.run(number)).unlink(missing_ok=True)
        if value is not None:
            log.info("trial %d: %s %.6g", number, self._settings.objective, value)
        return state == TrialState.FAIL

    def _value(self, run: Path) -> float | None:
        """Return the result of a finished run; None if it is no finite number."""
        path = RunDirectory(run).results
        try:
            value = value_at(Results.read(path), self._settings.objective)
        except (OSError, UnreadableError) as error:
            log.warning("%s cannot be read, so the trial counts as failed: %s", path, error)
            return None
        except KeyError as error:
            raise ConfigError(f"sweep.objective: {error.args[0]}") from error
        return value if math.isfinite(value) else None

    def _say_best(self, study: "Study") -> None:
        """Say which trial is best by what is no measure of validation.

        By those the sweep names its best run itself.
        """
        trials = study.get_trials(deepcopy=False)
        fit = [trial for trial in trials if trial.value is not None and self._learnt(trial.number)]
        if not fit:
            return
        sign = -1 if self._settings.direction == "maximize" else 1
        best = min(fit, key=lambda trial: sign * (trial.value or 0.0))
        log.info(
            "of %d trials, %d has the %s %s, %.6g: %s",
            len(trials), best.number, "lowest" if sign == 1 else "highest",
            self._settings.objective, best.value, " ".join(_override_words(best.params)),
        )  # fmt: skip

    def _learnt(self, number: int) -> bool:
        """Return whether the run of a trial is there, and is not one that learnt nothing."""
        try:
            results = Results.read(RunDirectory(self.jobs.directory.run(number)).results)
        except (OSError, UnreadableError):
            return False
        return results.failed is None


def value_at(results: Results, key: str) -> float:
    """Return a number of `results.json`, by `split/measure` or by dotted names.

    Raises:
        KeyError: There is none; the message names the nearest one.
    """
    known = {name: value for name, value in flat_items(results.as_json()) if is_number(value)}
    for split, measures in results.measures.items():
        known |= {f"{split}/{name}": value for name, value in measures.items()}
    if key not in known:
        shown = [name for name in known if not name.startswith(("measures.", "tables."))]
        close = did_you_mean(key, shown) or f" There are {', '.join(sorted(shown))}"
        raise KeyError(f"results.json has no number {key!r}.{close}")
    return float(known[key])


# --- what is searched --------------------------------------------------------------------------


def _check_optuna() -> None:
    try:
        importlib.import_module("optuna")
    except ImportError as error:
        raise ConfigError(f"sweep: a search needs Optuna: {pip_install('search')}") from error


def _corners(space: "Mapping[str, BaseDistribution]") -> list[dict[str, Any]]:
    """Return the two ends of a space: jobs that show whether its keys and values are valid."""
    from optuna.distributions import CategoricalDistribution

    known: dict[str, Any] = dict(space)
    ends = {
        key: distribution.choices
        if isinstance(distribution, CategoricalDistribution)
        else (distribution.low, distribution.high)
        for key, distribution in known.items()
    }
    return [{key: values[at] for key, values in ends.items()} for at in (0, -1)]


def _override_words(params: Mapping[str, Any]) -> list[str]:
    """Return overrides, with rates to four digits."""
    return [
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in params.items()
    ]


def _difference(begun: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    for key in ("objective", "direction"):
        if begun.get(key) != asked[key]:
            return f"its {key} is {begun.get(key)}, not {asked[key]}"
    theirs, ours = begun.get("space", {}), asked["space"]
    for key in sorted({*theirs, *ours}):
        if key not in ours:
            return f"it searches {key}, too"
        if key not in theirs:
            return f"it does not search {key}"
        if theirs[key] != ours[key]:
            return f"its range of {key} is {_range(theirs[key])}, not {_range(ours[key])}"
    return "it was made in another way"


def _range(stored: str) -> str:
    bounds = json.loads(stored)["attributes"]
    if "choices" in bounds:
        return ", ".join(map(str, bounds["choices"]))
    return f"{bounds['low']} to {bounds['high']}" + (" (log)" if bounds.get("log") else "")
