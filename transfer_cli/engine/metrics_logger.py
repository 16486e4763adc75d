"""The records of a run: `metrics.jsonl`, `speed.jsonl`, TensorBoard's files; trackers get them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from transfer_cli.engine.trackers import Trackers
from transfer_cli.runs.atomic import append_json, as_run_error, flush, truncate_file
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.sweep import keys_in_sweep, name_in_sweep
from transfer_cli.runs.tensorboard import FINAL, SummaryWriter, event_files


class MetricsLogger:
    """Writes metrics to `metrics.jsonl`, and those of several steps to `loggers` by their names.

    What is measured once stands among the run's final measures there (`write_final`).

    Numbers that depend on the clock go to `speed.jsonl`: a resumed run then has the same
    `metrics.jsonl` as one without a break. Ignite's `TensorboardLogger` writes in a thread, where a
    full disk would go unnoticed (`runs.tensorboard`).

    Args:
        purge_step: TensorBoard drops its records of this step and later ones.
        loggers: `tensorboard`, and trackers by their names.
        config: What trackers show as the config of the run.
    """

    def __init__(
        self,
        run: RunDirectory,
        purge_step: int | None = None,
        loggers: Iterable[str] = ("tensorboard",),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._run = run
        self.writer: SummaryWriter | NoMetricsLogger = NoMetricsLogger()
        if "tensorboard" in loggers:
            earlier = event_files(run.tensorboard)
            # TensorBoard calls a run by its folder, and "3" says nothing of a sweep's third job.
            folder = earlier[-1].parent if earlier else run.tensorboard / name_in_sweep(run.path)
            self.writer = SummaryWriter(folder, purge_step=purge_step)
        self._trackers = Trackers(loggers, run, config or {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        self._trackers.finish(failed=kind is not None)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write metrics of one step; `kind` is train, validation, or what is measured once."""
        self._write(self._run.metrics, kind, step, values)

    def write_speed(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write numbers that depend on the clock."""
        self._write(self._run.speed, kind, step, values)

    def write_final(
        self, hparams: Mapping[str, str | float], measures: Mapping[str, float], step: int
    ) -> None:
        """Show hyper-parameters and final measures."""
        self.writer.add_hparams(hparams, measures, step, keys_in_sweep(self._run.path))
        self._trackers.log({f"{FINAL}/{name}": value for name, value in measures.items()}, step)

    def mark(self) -> dict[str, int]:
        """Flush all files to the disk; return their sizes in bytes, by name."""
        sizes = {}
        for name, path in _record_files(self._run).items():
            with as_run_error(path):
                flush(path)
                sizes[name] = path.stat().st_size
        return sizes

    def close(self) -> None:
        """Close the TensorBoard file."""
        self.writer.close()

    def _write(self, path: Path, kind: str, step: int, values: Mapping[str, float]) -> None:
        append_json(path, {"kind": kind, "step": step, **values})
        if kind in ("train", "validation"):
            points = {f"{kind}/{name}": value for name, value in values.items()}
            for name, value in points.items():
                self.writer.add_scalar(name, value, step)
            self._trackers.log(points, step)


class NoMetricsLogger:
    """A `MetricsLogger` for processes that write nothing, and the writer of one without curves."""

    def __init__(self) -> None:
        self.writer = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def _nothing(self, *_: object) -> dict[str, int]:
        return {}

    write = write_speed = add_text = add_scalar = add_hparams = mark = close = _nothing


def rewind(run: RunDirectory, mark: Mapping[str, int]) -> None:
    """Remove everything written after `MetricsLogger.mark` returned `mark`."""
    for name, path in _record_files(run).items():
        if name in mark:
            truncate_file(path, mark[name])
        else:
            with as_run_error(path):
                path.unlink()


def _record_files(run: RunDirectory) -> dict[str, Path]:
    files = [run.metrics, run.speed, *event_files(run.tensorboard)]
    return {path.relative_to(run.path).as_posix(): path for path in files if path.is_file()}
