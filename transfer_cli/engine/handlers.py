"""Handlers of the trainer's events: validation, metrics, progress, checkpoints, signals.

Each `attach` function adds one thing to the engine by Ignite's events. Handlers of the same event
act in the order in which they were attached.
"""

import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from ignite.engine import Engine, Events
from torch.optim import Optimizer
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from transfer_cli.engine import distributed
from transfer_cli.engine.loop import Progress, report_of
from transfer_cli.engine.stages import Stages
from transfer_cli.errors import ConfigError, DivergedError, StoppedError, nearest
from transfer_cli.lengths import Length
from transfer_cli.metrics import Metric
from transfer_cli.runs.atomic import append_json, cut, flush, writing
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.tensorboard import SummaryWriter, event_files

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10
SECONDS_BETWEEN_DRAWINGS = 0.2
"""Of the bar: to show a loss is to wait for the device that computes it."""
ECHO_SECONDS = 1.0
"""A signal so soon after another is the same one: scheduler and launcher may both pass it on."""


class MetricsLogger:
    """Writes metrics to `metrics.jsonl` and to TensorBoard under the same names.

    Numbers that depend on the clock go to `speed.jsonl` instead: a resumed run then has the same
    `metrics.jsonl` as one without a break. Ignite's `TensorboardLogger` writes by a thread, which a
    full disk would end unseen (`runs.tensorboard`).

    Args:
        run: The run directory to write to.
        purge_step: TensorBoard forgets what it has read of this step and later ones.
    """

    def __init__(self, run: RunDirectory, purge_step: int | None = None) -> None:
        self._run = run
        self.writer = SummaryWriter(run.tensorboard, purge_step=purge_step)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write metrics of one step; `kind` is train, validation or test."""
        append_json(self._run.metrics, {"kind": kind, "step": step, **values})
        self._draw(kind, step, values)

    def write_speed(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write numbers that depend on the clock."""
        append_json(self._run.speed, {"kind": kind, "step": step, **values})
        self._draw(kind, step, values)

    def mark(self) -> dict[str, int]:
        """Flush all files to the disk; return their sizes in bytes, by name."""
        sizes = {}
        for path in _record_files(self._run):
            with writing(path):
                flush(path)
                sizes[path.relative_to(self._run.path).as_posix()] = path.stat().st_size
        return sizes

    def close(self) -> None:
        """Close the TensorBoard file."""
        self.writer.close()

    def _draw(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"{kind}/{name}", value, step)


class NoMetricsLogger:
    """A `MetricsLogger` for processes that write nothing."""

    def __init__(self) -> None:
        self.writer = self

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write nothing."""

    write_speed = write

    def add_text(self, name: str, text: str, step: int) -> None:
        """Show nothing."""

    def mark(self) -> dict[str, int]:
        """Return that nothing was written."""
        return {}

    def close(self) -> None:
        """Close nothing."""


def rewind(run: RunDirectory, mark: Mapping[str, int]) -> None:
    """Remove everything written after `MetricsLogger.mark` returned `mark`."""
    for path in _record_files(run):
        name = path.relative_to(run.path).as_posix()
        if name in mark:
            cut(path, mark[name])
        else:
            with writing(path):
                path.unlink()


def _record_files(run: RunDirectory) -> list[Path]:
    found = [run.metrics, run.speed, *event_files(run.tensorboard)]
    return [path for path in found if path.is_file()]


def attach_metrics_logger(
    trainer: Engine,
    logger: MetricsLogger | NoMetricsLogger,
    optimizer: Optimizer,
    stage: Callable[[], int | None],
    *,
    every: int,
    several: bool,
) -> None:
    """Write losses, gradient norm, stage, the rate of what trains, and throughput, at times."""
    clock = {"time": time.perf_counter(), "tokens": 0}

    @trainer.on(Events.ITERATION_COMPLETED)
    def count(engine: Engine) -> None:
        clock["tokens"] += report_of(engine).tokens

    @trainer.on(Events.ITERATION_COMPLETED)
    def record(engine: Engine) -> None:
        step = engine.state.iteration
        if step != 1 and step % every:
            return
        report = report_of(engine)
        now = time.perf_counter()
        values = {"loss": float(report.total)}
        if several or len(report.losses) > 1:
            values |= {f"loss/{term}": float(value) for term, value in report.losses.items()}
        values["gradient_norm"] = float(report.gradient_norm)
        values["stage"] = float((stage() or 0) + 1)
        values |= {
            f"rate/{group['layer']}": group["lr"]
            for group in optimizer.param_groups
            if any(parameter.requires_grad for parameter in group["params"])
        }
        logger.write("train", step, values)
        speed = clock["tokens"] / max(1e-9, now - clock["time"])
        logger.write_speed("train", step, {"tokens_per_second": speed})
        clock.update(time=now, tokens=0)


def attach_progress(trainer: Engine, optimizer: Optimizer, total_steps: int, what: str) -> None:
    """Show a bar on a terminal, else a line every ten seconds.

    Ignite's `ProgressBar` would read the loss in every step, which waits for the device, and shows
    nothing without a terminal.
    """
    start = {"time": time.perf_counter(), "said": time.perf_counter(), "tokens": 0, "step": 0}
    bar = tqdm(total=total_steps, unit="step", disable=None, file=sys.stderr, leave=False)
    quiet = bool(bar.disable)

    @trainer.on(Events.STARTED)
    def begin(engine: Engine) -> None:
        start["time"] = start["said"] = time.perf_counter()
        start["step"] = engine.state.iteration
        bar.update(engine.state.iteration - bar.n)

    @trainer.on(Events.ITERATION_COMPLETED)
    def show(engine: Engine) -> None:
        report = report_of(engine)
        start["tokens"] += report.tokens if what == "tokens" else report.examples
        now, step = time.perf_counter(), engine.state.iteration
        if now - start["said"] < (SECONDS_BETWEEN_LINES if quiet else SECONDS_BETWEEN_DRAWINGS):
            return
        start["said"] = now
        spent = max(1e-9, now - start["time"])
        speed = f"{start['tokens'] / spent:,.0f} {what}/s"
        rate = max(group["lr"] for group in optimizer.param_groups)
        if quiet:
            left = (total_steps - step) * spent / max(1, step - start["step"])
            log.info(
                "step %d of %d  loss %.3f  rate %.2e  %s  %s left",
                step, total_steps, float(report.total), rate, speed, tqdm.format_interval(left),
            )  # fmt: skip
        else:
            bar.set_postfix_str(
                f"loss {float(report.total):.3f}  rate {rate:.2e}  {speed}", refresh=False
            )
            bar.update(step - bar.n)

    @trainer.on(Events.COMPLETED | Events.EXCEPTION_RAISED)
    def end(engine: Engine, *error: Exception) -> None:
        bar.close()
        if error:
            raise error[0]


def attach_validation(  # noqa: C901 - handlers of one event share what they remember
    trainer: Engine,
    progress: Progress,
    measure: Callable[[], dict[str, float]],
    *,
    every: Length,
    monitor: Metric,
    patience: int | None,
    stages: Stages,
    on_measures: Callable[[int, dict[str, float]], None],
    on_best: Callable[[int], None],
) -> None:
    """Measure validation every so often and at the end; keep the best weights; end when it stalls.

    Ignite's `EarlyStopping` has a counter of its own, and does not say when a value is the best.
    The counter of a run is in `progress`: best weights and `Progress.has_ended` read it too.

    Args:
        trainer: The training engine.
        progress: Remembers the best value, when it was, and how long ago.
        measure: Returns the measures of the validation split.
        every: How often.
        monitor: The metric that decides; which end of it is good, it says.
        patience: Evaluations without a better value after which to end; None for never.
        stages: Told every value: one may end early, and is measured at its end.
        on_measures: Called with the step and the measures.
        on_best: Called with the step when the monitored measure is the best so far.
    """
    sign = 1.0 if monitor.higher_is_better else -1.0

    def validate(engine: Engine) -> None:
        step = engine.state.iteration
        if progress.measures.get("step") == step:
            return
        measures = measure()
        if monitor.name not in measures:  # of a class, for example, that validation lacks
            raise ConfigError(
                f"loop.monitor: there is no measure {monitor.name!r}."
                f"{nearest(monitor.name, measures)} This run measures {', '.join(measures)}"
            )
        value = measures[monitor.name]
        if math.isnan(value):
            raise DivergedError(
                f"step {step}: validation {monitor.name} is not a number; try a lower optimizer.lr "
                "or a longer schedule.warmup"
            )
        better = progress.best is None or sign * value > sign * progress.best
        if better:
            progress.best, progress.best_step, progress.waited = value, step, 0
        else:
            progress.waited += 1
        progress.measures = {**measures, "step": float(step)}
        on_measures(step, measures)
        if better:
            on_best(step)
        stages.observe(step, -sign * value)
        if stages.exhausted:
            log.info("the last stage has ended early: ending")
            engine.terminate()
        if patience is not None and progress.waited >= patience:
            log.info("no better %s for %d evaluations: ending early", monitor.name, progress.waited)
            engine.terminate()

    at_rhythm(trainer, every, validate)

    @trainer.on(Events.ITERATION_COMPLETED)
    def at_end_of_stage(engine: Engine) -> None:
        if stages.ends_with_choice(engine.state.iteration):
            validate(engine)

    trainer.add_event_handler(Events.COMPLETED, validate)


def at_rhythm(trainer: Engine, every: Length, action: Callable[[Engine], None]) -> None:
    """Call `action` every so many steps of the run, counted from its very first."""

    @trainer.on(Events.ITERATION_COMPLETED)
    def maybe(engine: Engine) -> None:
        steps = every.steps(engine.state.epoch_length or 1)
        if steps is not None and engine.state.iteration % steps == 0:
            action(engine)


def attach_checkpoints(
    trainer: Engine,
    save: Callable[[], None],
    every: Length,
    minutes: float | None = None,
    *,
    share: float | None = None,
    agree: Callable[[bool], bool] = bool,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Save the whole state every so often, by steps and by time.

    Args:
        trainer: The training engine.
        save: Writes the state.
        every: How often by steps.
        minutes: After how long without a save there is one; None: by steps alone.
        share: The largest share of the time that saves by steps may take, going by the last one:
            one that comes too early waits. None: none waits.
        agree: Given whether this process finds that it is time for a save; returns whether there is
            one. Several processes have to save after the same step, and their clocks differ.
        clock: Returns seconds.
    """
    saved, cost, due = clock(), 0.0, False

    @trainer.on(Events.ITERATION_COMPLETED)
    def maybe(engine: Engine) -> None:
        nonlocal saved, cost, due
        steps = every.steps(engine.state.epoch_length or 1)
        due = due or (steps is not None and engine.state.iteration % steps == 0)
        now = due
        if minutes is not None or (due and share is not None):
            since = clock() - saved
            early = share is not None and since < cost / share
            late = minutes is not None and since >= 60 * minutes
            now = agree(late or (due and not early))
        if now:
            began = clock()
            save()
            saved = clock()
            cost, due = saved - began, False


def speak_above_the_bar() -> AbstractContextManager[None]:
    """Return a context in which what the package logs is written above the bar, not into it."""
    if not distributed.is_main():
        return nullcontext()  # no bar, and nothing to say
    return logging_redirect_tqdm([logging.getLogger("transfer_cli")])


@contextmanager
def stop_on_signal(trainer: Engine, save: Callable[[], None], resume: str) -> Iterator[None]:
    """Turn SIGTERM, SIGUSR1 and Ctrl-C into: finish the step, save, end. A second one ends at once.

    Several processes end after the same step, whichever of them was told to, and when it is saved.

    Raises:
        StoppedError: After SIGTERM or SIGUSR1, exit code 75.
        KeyboardInterrupt: After Ctrl-C, exit code 130.
    """
    received: list[int] = []
    since = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal since
        if received:
            if time.monotonic() - since >= ECHO_SECONDS:
                raise KeyboardInterrupt
            return
        received.append(number)
        since = time.monotonic()
        if distributed.world_size() == 1:
            _say_stopping(number)

    @trainer.on(Events.ITERATION_COMPLETED)
    def check(engine: Engine) -> None:
        # A process without a signal hears of it from the others.
        number = distributed.all_reduce_max(received[0] if received else 0)
        if not number:
            return
        if distributed.world_size() > 1:
            _say_stopping(number)
        save()
        # A process that ends would end the one that is still writing.
        distributed.barrier()
        text = f"stopped at step {engine.state.iteration} with a checkpoint; go on with {resume}"
        raise KeyboardInterrupt(text) if number == signal.SIGINT else StoppedError(text)

    with _handling((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT), note):
        yield


@contextmanager
def end_on_signal() -> Iterator[None]:
    """Turn SIGTERM and SIGUSR1 into an end with exit code 75 where no step has to be saved.

    Before the first step nothing is there yet, and after the last everything is.

    Raises:
        StoppedError: After SIGTERM or SIGUSR1.
    """
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:  # what comes later must not break into the end
            raise StoppedError(
                f"{signal.Signals(number).name} outside of training: nothing was to be saved; go "
                "on with the same command and resume=auto"
            )

    with _handling((signal.SIGTERM, signal.SIGUSR1), end):
        yield


@contextmanager
def _handling(
    numbers: Sequence[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    before = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _say_stopping(number: int) -> None:
    name = signal.Signals(number).name
    log.warning("%s: finishing this step and saving; once more ends at once", name)
