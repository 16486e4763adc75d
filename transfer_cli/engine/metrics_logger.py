"""The records of a run: `metrics.jsonl`, `speed.jsonl` and TensorBoard's files."""

from collections.abc import Mapping
from pathlib import Path

from transfer_cli.runs.atomic import append_json, cut, flush, writing
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.sweep import name_in_sweep
from transfer_cli.runs.tensorboard import SummaryWriter, event_files

_CURVES = ("train", "validation")


class MetricsLogger:
    """Writes metrics to `metrics.jsonl`, and those of several steps to TensorBoard by their names.

    What is measured once stands among the run's final measures there (`add_hparams`).

    Numbers that depend on the clock go to `speed.jsonl`: a resumed run then has the same
    `metrics.jsonl` as one without a break. Ignite's `TensorboardLogger` writes in a thread, where a
    full disk would go unnoticed (`runs.tensorboard`).

    Args:
        purge_step: TensorBoard drops its records of this step and later ones.
    """

    def __init__(self, run: RunDirectory, purge_step: int | None = None) -> None:
        self._run = run
        earlier = event_files(run.tensorboard)
        # TensorBoard calls a run by its folder, and "3" says nothing of the third job of a sweep.
        folder = earlier[-1].parent if earlier else run.tensorboard / name_in_sweep(run.path)
        self.writer = SummaryWriter(folder, purge_step=purge_step)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write metrics of one step; `kind` is train, validation, or what is measured once."""
        self._write(self._run.metrics, kind, step, values)

    def write_speed(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write numbers that depend on the clock."""
        self._write(self._run.speed, kind, step, values)

    def mark(self) -> dict[str, int]:
        """Flush all files to the disk; return their sizes in bytes, by name."""
        sizes = {}
        for name, path in _record_files(self._run).items():
            with writing(path):
                flush(path)
                sizes[name] = path.stat().st_size
        return sizes

    def close(self) -> None:
        """Close the TensorBoard file."""
        self.writer.close()

    def _write(self, path: Path, kind: str, step: int, values: Mapping[str, float]) -> None:
        append_json(path, {"kind": kind, "step": step, **values})
        for name, value in values.items() if kind in _CURVES else ():
            self.writer.add_scalar(f"{kind}/{name}", value, step)


class NoMetricsLogger:
    """A `MetricsLogger` for processes that write nothing."""

    def __init__(self) -> None:
        self.writer = self

    def _nothing(self, *_: object) -> dict[str, int]:
        return {}

    write = write_speed = add_text = mark = close = _nothing


def rewind(run: RunDirectory, mark: Mapping[str, int]) -> None:
    """Remove everything written after `MetricsLogger.mark` returned `mark`."""
    for name, path in _record_files(run).items():
        if name in mark:
            cut(path, mark[name])
        else:
            with writing(path):
                path.unlink()


def _record_files(run: RunDirectory) -> dict[str, Path]:
    files = [run.metrics, run.speed, *event_files(run.tensorboard)]
    return {path.relative_to(run.path).as_posix(): path for path in files if path.is_file()}
