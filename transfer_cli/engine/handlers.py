"""What is attached to the trainer: validation, records, progress, checkpoints, signals.

Each function adds one thing to the engine by Ignite's events; the order in which `attach` functions
are called is the order in which they act on the same event.
"""

import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

from ignite.engine import Engine, Events
from torch.optim import Optimizer
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from transfer_cli.engine.stages import Stages
from transfer_cli.engine.train import Progress, report_of
from transfer_cli.errors import ConfigError, DivergedError, StoppedError, nearest
from transfer_cli.lengths import Length
from transfer_cli.runs.curves import Curves
from transfer_cli.runs.records import MetricsFile

log = logging.getLogger(__name__)

HIGHER_IS_BETTER = ("accuracy", "macro_f1")
SECONDS_BETWEEN_LINES = 10


class Recorder:
    """Writes numbers to `metrics.jsonl` and to TensorBoard under the same names.

    Args:
        metrics: The file `metrics.jsonl`.
        tensorboard: The folder of event files.
        resume_step: Steps already taken; curves of later steps are dropped.
    """

    def __init__(self, metrics: Path, tensorboard: Path, resume_step: int = 0) -> None:
        self._file = MetricsFile(metrics, after=resume_step)
        purge = resume_step + 1 if resume_step else None
        self.writer = Curves(tensorboard, purge_step=purge)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of one step; `kind` is train, validation or test."""
        self._file.write(kind, step, values)
        for name, value in values.items():
            self.writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Close the curves."""
        self.writer.close()


def attach_records(
    trainer: Engine,
    recorder: Recorder,
    optimizer: Optimizer,
    stage: Callable[[], int | None],
    *,
    every: int,
    several: bool,
) -> None:
    """Write losses, gradient norm, stage, throughput and the rate of what trains, at times."""
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
        values["tokens_per_second"] = clock["tokens"] / max(1e-9, now - clock["time"])
        values["stage"] = float((stage() or 0) + 1)
        values |= {
            f"rate/{group['layer']}": group["lr"]
            for group in optimizer.param_groups
            if any(parameter.requires_grad for parameter in group["params"])
        }
        recorder.write("train", step, values)
        clock.update(time=now, tokens=0)


def attach_progress(trainer: Engine, optimizer: Optimizer, total_steps: int, what: str) -> None:
    """Show a bar on a terminal, else a line every ten seconds."""
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
        if quiet and now - start["said"] < SECONDS_BETWEEN_LINES:
            return
        spent = max(1e-9, now - start["time"])
        speed = f"{start['tokens'] / spent:,.0f} {what}/s"
        rate = max(group["lr"] for group in optimizer.param_groups)
        if quiet:
            start["said"] = now
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
    monitor: str,
    patience: int | None,
    stages: Stages,
    on_measures: Callable[[int, dict[str, float]], None],
    on_best: Callable[[int], None],
) -> None:
    """Measure validation every so often and at the end; keep the best weights; end when it stalls.

    Args:
        trainer: The training engine.
        progress: Remembers the best value, when it was, and how long ago.
        measure: Returns the measures of the validation split.
        every: How often.
        monitor: Which measure decides.
        patience: Evaluations without a better value after which to end; None for never.
        stages: Told every value: one may end early, and is measured at its end.
        on_measures: Called with the step and the measures.
        on_best: Called with the step when the monitored measure is the best so far.
    """
    # A further loss's measures begin with its name, those of a class end with it.
    sign = 1.0 if set(HIGHER_IS_BETTER) & set(monitor.split("/")) else -1.0

    def validate(engine: Engine) -> None:
        step = engine.state.iteration
        if progress.measures.get("step") == step:
            return
        measures = measure()
        if monitor not in measures:
            raise ConfigError(
                f"loop.monitor: there is no measure {monitor!r}.{nearest(monitor, measures)} "
                f"This run measures {', '.join(measures)}"
            )
        value = measures[monitor]
        if math.isnan(value):
            raise DivergedError(
                f"step {step}: validation {monitor} is not a number; try a lower optimizer.lr "
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
            log.info("no better %s for %d evaluations: ending early", monitor, progress.waited)
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


def attach_checkpoints(trainer: Engine, save: Callable[[], None], every: Length) -> None:
    """Save the whole state every so often."""
    at_rhythm(trainer, every, lambda _: save())


def speak_above_the_bar() -> AbstractContextManager[None]:
    """Return a context in which what the package logs is written above the bar, not into it."""
    return logging_redirect_tqdm([logging.getLogger("transfer_cli")])


@contextmanager
def stop_on_signal(trainer: Engine, save: Callable[[], None], resume: str) -> Iterator[None]:
    """Turn SIGTERM, SIGUSR1 and Ctrl-C into: finish the step, save, end. A second one ends at once.

    Raises:
        StoppedError: After SIGTERM or SIGUSR1, exit code 75.
        KeyboardInterrupt: After Ctrl-C, exit code 130.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        log.warning("%s: finishing this step and saving; once more ends at once",
                    signal.Signals(number).name)  # fmt: skip

    @trainer.on(Events.ITERATION_COMPLETED)
    def check(engine: Engine) -> None:
        if not received:
            return
        save()
        text = f"stopped at step {engine.state.iteration} with a checkpoint; go on with {resume}"
        if received[0] == signal.SIGINT:
            raise KeyboardInterrupt(text)
        raise StoppedError(text)

    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            before[number] = signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
