"""Trackers of experiments: Weights & Biases, MLflow and trackio, each by its own package.

They get the numbers that TensorBoard's files get. Whatever goes wrong in one of them is said once,
and the run goes on without it. Where they keep runs, their own environment variables say, such as
`WANDB_MODE`, `MLFLOW_TRACKING_URI` and `TRACKIO_DIR`.
"""

import importlib
import io
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from ignite.handlers.mlflow_logger import MLflowLogger
from ignite.handlers.wandb_logger import WandBLogger

from transfer_cli.config.flat import flat_items
from transfer_cli.errors import StoppedError
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.sweep import name_in_sweep, sweep_of
from transfer_cli.safe_files import in_one_line, read_json

log = logging.getLogger(__name__)

PROJECT = "transfer"
"""What the project, in MLflow the experiment, is called where the environment names none."""

_LONGEST = 128
"""Characters of the name of a run or a group, to Weights & Biases."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker gets to know of a run.

    Args:
        group: The sweep that it is a job of; None: it is none.
        identity: What the tracker called it when it began; None: it begins.
    """

    name: str
    group: str | None
    config: Mapping[str, Any]
    identity: str | None


class Tracker(Protocol):
    """A program that keeps runs."""

    def start(self, run: TrackedRun) -> str:
        """Begin a run, or go on with it; return its identity."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each of some curves."""

    def finish(self, *, failed: bool) -> None:
        """End the run."""


class _WandB:
    def start(self, run: TrackedRun) -> str:
        self._logger = WandBLogger(init=False)
        mode = os.environ.get("WANDB_MODE")
        if mode is None:  # asks for no account
            mode = "online" if self._logger.login(prompt=False, verify=False) else "offline"
        identity = run.identity or uuid4().hex[:8]
        self._logger.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), group=run.group, name=run.name,
            id=identity, resume="allow", config=dict(run.config), mode=mode,
            settings={"console": "off", "silent": True},  # our words stay our own
        )  # fmt: skip
        return identity

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._logger.log(dict(values), step=step)

    def finish(self, *, failed: bool) -> None:
        self._logger.finish(exit_code=int(failed))


class _MLflow:
    _REFUSED = re.compile(r"[^\w\-. :/]", re.ASCII)
    """What names must not contain there."""

    # In its store of files, `train/loss` is a file, and no folder for `train/loss/lm`.

    def start(self, run: TrackedRun) -> str:
        mlflow = importlib.import_module("mlflow")
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        if run.identity is not None:
            active = mlflow.start_run(run_id=run.identity)
        else:
            group = {"group": run.group} if run.group else None
            active = mlflow.start_run(run_name=run.name, tags=group)
        self._logger = MLflowLogger()  # of the run that is active
        if run.identity is None:
            # A resume cannot change them: they are what the run began with.
            values = {name.replace("/", "."): value for name, value in flat_items(run.config)}
            self._logger.log_params(self._with_allowed_names(values))
        return str(active.info.run_id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        curves = {}
        for name, value in values.items():
            kind, slash, rest = name.partition("/")
            curves[kind + slash + rest.replace("/", ".")] = value
        self._logger.log_metrics(self._with_allowed_names(curves), step=step)

    def finish(self, *, failed: bool) -> None:
        self._logger.end_run("FAILED" if failed else "FINISHED")

    def _with_allowed_names(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {self._REFUSED.sub("_", name): value for name, value in values.items()}


class _Trackio:
    def start(self, run: TrackedRun) -> str:
        self._trackio = importlib.import_module("trackio")
        # It tells runs by their names alone.
        identity = run.identity or f"{run.name}-{uuid4().hex[:8]}"
        with redirect_stdout(io.StringIO()):  # standard output is for what a command finds out
            self._trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT), group=run.group, name=identity,
                resume="allow", config=dict(run.config), embed=False,
            )  # fmt: skip
        return identity

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._trackio.log(dict(values), step=step)

    def finish(self, *, failed: bool) -> None:
        with redirect_stdout(io.StringIO()):
            self._trackio.finish()


KNOWN: Mapping[str, Callable[[], Tracker]] = {
    "wandb": _WandB,
    "mlflow": _MLflow,
    "trackio": _Trackio,
}
"""By their names in `logger=`."""


class Trackers:
    """Those trackers that a run asks for, as long as they work."""

    def __init__(self, names: Iterable[str], run: RunDirectory, config: Mapping[str, Any]) -> None:
        self._at_work = {name: KNOWN[name]() for name in names if name in KNOWN}
        sweep = sweep_of(run.path)
        label = (name_in_sweep(run.path) or run.path.resolve().name)[:_LONGEST]
        group = sweep.resolve().name[:_LONGEST] if sweep else None

        def start(name: str, tracker: Tracker) -> None:
            noted = read_json(run.trackers) if run.trackers.exists() else {}
            begun = None if name not in noted else str(noted[name])
            identity = tracker.start(TrackedRun(label, group, config, begun))
            write_json(run.trackers, {**noted, name: identity})
            log.info("logger: %s has this run as %s", name, identity)

        self._for_each(start)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Hand on what was measured at a step."""
        self._for_each(lambda _, tracker: tracker.log(values, step))

    def finish(self, *, failed: bool) -> None:
        """End the run in all of them."""
        self._for_each(lambda _, tracker: tracker.finish(failed=failed))
        self._at_work.clear()

    def _for_each(self, do: Callable[[str, Tracker], None]) -> None:
        for name, tracker in list(self._at_work.items()):
            try:
                do(name, tracker)
            except StoppedError:  # a signal that came meanwhile
                raise
            except (Exception, SystemExit) as error:  # a package that is not ours raises anything
                del self._at_work[name]
                log.warning(
                    "logger: %s has failed, and the run goes on without it: %s",
                    name, in_one_line(f"{type(error).__name__}: {error}"),
                )  # fmt: skip
                with suppress(Exception, SystemExit):
                    tracker.finish(failed=True)
