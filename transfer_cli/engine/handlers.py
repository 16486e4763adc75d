"""What happens around the steps of a run: records, validation, progress, checkpoints, signals.

Most functions here return what is called at which of the trainer's events; `attach` takes all of it
in the order in which it is to happen.
"""

import itertools
import logging
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any

import numpy as np
from ignite.engine import Engine, Events
from torch.optim import Optimizer
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from transfer_cli.engine import distributed
from transfer_cli.engine.averaging import PLAIN, Average, split_by_weights
from transfer_cli.engine.loop import Progress, report_of
from transfer_cli.engine.metrics_logger import MetricsLogger, NoMetricsLogger
from transfer_cli.engine.stages import Stages
from transfer_cli.errors import DivergedError, StoppedError
from transfer_cli.lengths import Length
from transfer_cli.metrics import LOSS, Metric, judging_metric, unknown_metric
from transfer_cli.progress import memory_text, new_bar
from transfer_cli.terminal import STOP_SIGNALS, handle_signals

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10
SECONDS_BETWEEN_DRAWINGS = 0.2
"""Of the bar: to show a loss is to wait for the device that computes it."""
ECHO_SECONDS = 1.0
"""A signal so soon after another is the same one: scheduler and launcher may both pass it on."""
LONG_SECONDS = 30 * 60.0
"""Seconds to go from which on a run says what would be faster."""
MEASURED_STEPS = 3
PACED_STEPS = 25
"""Steps that are warm, and steps that are measured, before a run on a GPU says how fast it is."""
_TIME_PARTS = 2**40
"""Of the time of a run: processes agree on whole numbers."""

EACH_STEP, START, END = Events.ITERATION_COMPLETED, Events.STARTED, Events.COMPLETED

Handlers = list[tuple[Any, Callable[..., None]]]
"""What is called, each with its event."""


def attach(trainer: Engine, *several: Handlers) -> None:
    """Have all handlers called at their events; of the same event in this order."""
    for event, handler in itertools.chain(*several):
        trainer.add_event_handler(event, handler)


def records(
    logger: MetricsLogger | NoMetricsLogger,
    optimizer: Optimizer,
    stage: Callable[[], int | None],
    *,
    every: int,
    several: bool,
) -> Handlers:
    """Record losses, gradient norm, stage, the rates of what trains, and tokens per second.

    There is a record every so many steps, and one of the first step.
    """
    since, tokens = time.perf_counter(), 0

    def record(engine: Engine) -> None:
        nonlocal since, tokens
        step, report = engine.state.iteration, report_of(engine)
        tokens += report.tokens
        if step != 1 and step % every:
            return
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
        speed = tokens / max(1e-9, now - since)
        logger.write_speed("train", step, {"tokens_per_second": speed})
        since, tokens = now, 0

    return [(EACH_STEP, record)]


def progress_bar(
    optimizer: Optimizer,
    total_steps: int,
    what: str,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Handlers:
    """Show a bar on a terminal or in a notebook, else a line every ten seconds.

    `seconds_left` returns the seconds after which the run ends anyway.

    Ignite's `ProgressBar` would read the loss in every step, which waits for the device, and shows
    nothing without a terminal.
    """
    began = shown_at = time.perf_counter()
    first_step = done = 0
    shown_bar = new_bar(total=total_steps, unit="step")
    pause = SECONDS_BETWEEN_LINES if shown_bar is None else SECONDS_BETWEEN_DRAWINGS

    def begin(engine: Engine) -> None:
        nonlocal began, shown_at, first_step
        began = shown_at = time.perf_counter()
        first_step = engine.state.iteration
        if shown_bar is not None:
            shown_bar.update(first_step - shown_bar.n)

    def show(engine: Engine) -> None:
        nonlocal shown_at, done
        report, step, now = report_of(engine), engine.state.iteration, time.perf_counter()
        done += report.tokens if what == "tokens" else report.examples
        if now - shown_at < pause:
            return
        shown_at = now
        spent = max(1e-9, now - began)
        rate = max(group["lr"] for group in optimizer.param_groups)
        shown = f"loss {float(report.total):.3f}  rate {rate:.2e}  {done / spent:,.0f} {what}/s"
        shown += f"  {memory_text()}"
        if shown_bar is None:
            by_steps = (total_steps - step) * spent / max(1, step - first_step)
            left = tqdm.format_interval(min(by_steps, max(0.0, seconds_left())))
            log.info("step %d of %d  %s  %s left", step, total_steps, shown, left)
        else:
            if seconds_left() < math.inf:
                shown += f"  ends in {tqdm.format_interval(max(0.0, seconds_left()))} at most"
            shown_bar.set_postfix_str(shown, refresh=False)
            shown_bar.update(step - shown_bar.n)

    def end(engine: Engine, *error: Exception) -> None:
        if shown_bar is not None:
            shown_bar.close()
        if error:
            raise error[0]

    return [(START, begin), (EACH_STEP, show), (END | Events.EXCEPTION_RAISED, end)]


def validation(
    progress: Progress,
    measure: Callable[[], dict[str, float]],
    *,
    every: Length,
    monitor: Metric | Sequence[Metric],
    keep_last: bool = False,
    patience: int | None,
    stages: Stages,
    on_measures: Callable[[int, dict[str, float]], None],
    on_best: Callable[[int, str], None],
    average: Average | None = None,
) -> Handlers:
    """Measure validation at intervals, at the end of stages with patience, and of the run.

    `progress` stores the best value of the monitored metric (of several: of what runs with these
    are judged by), the step of the weights to keep and the number of evaluations since the best:
    Ignite's `EarlyStopping` has its own counter, and does not report the best value. Of equal
    values that of the lower loss is better. `stages` get every value: one may end early.
    `on_measures` is called with the step and the measures, then `on_best` with the step and which
    weights to keep if the value is the best so far, or always with `keep_last`. The run ends after
    `patience` evaluations without a better one. With an `average` its measures stand beside the
    plain ones, and the better value counts, but for stages, which know nothing of it.
    """

    def is_time(engine: Engine, step: int) -> bool:
        return _ends_interval(engine, every) or stages.ends_patient_stage(step)

    def validate(engine: Engine) -> None:
        step = engine.state.iteration
        if progress.measures.get("step") == step:
            return
        measures = measure()
        metric = _monitored(monitor, measures)
        better, judged = _judge_weights(metric, measures, step, average)
        value, loss = judged[better]
        place = _place(metric, value, loss)
        is_best = progress.best is None or place < _place(metric, progress.best, progress.best_loss)
        if is_best:
            progress.best, progress.best_loss, progress.waited = value, loss, 0
        else:
            progress.waited += 1
        is_kept = is_best or keep_last
        if is_kept:
            progress.best_step = step
        progress.measures = {**measures, "step": float(step)}
        on_measures(step, measures)
        if is_kept:
            on_best(step, better)
        stages.observe_validation(step, _place(metric, *judged[PLAIN]))
        if stages.is_exhausted:
            log.info("the last stage has ended early: ending")
            engine.terminate()
        if patience is not None and progress.waited >= patience:
            log.info("no better %s for %d evaluations: ending early", metric.name, progress.waited)
            engine.terminate()

    return [(EACH_STEP(event_filter=is_time) | END, validate)]


def _monitored(monitor: Metric | Sequence[Metric], measures: Mapping[str, float]) -> Metric:
    if not isinstance(monitor, Metric):
        return judging_metric(monitor, measures)
    if monitor.name not in measures:  # of a class, for example, that validation lacks
        raise unknown_metric("loop.monitor", monitor.name, measures)
    return monitor


def _judge_weights(
    metric: Metric, measures: Mapping[str, float], step: int, average: Average | None
) -> tuple[str, dict[str, tuple[float, float | None]]]:
    """Return which weights are better, and the monitored value and the loss of each."""
    scores = {PLAIN: measures} if average is None else split_by_weights(measures)
    judged: dict[str, tuple[float, float | None]] = {}
    for weights, measured in scores.items():
        # A correlation with equal answers is not defined, so not measured.
        value = measured.get(metric.name, metric.worst)
        if math.isnan(value):
            raise DivergedError(
                f"step {step}: validation {metric.name} is not a number; try a lower optimizer.lr "
                "or a longer schedule.warmup"
            )
        judged[weights] = value, measured.get(LOSS.name)
    places = {weights: _place(metric, *values) for weights, values in judged.items()}
    if average is not None:
        average.note(step, scores, places)
    return min(places, key=places.__getitem__), judged  # of equal ones the plain, which come first


def _place(metric: Metric, value: float, loss: float | None) -> tuple[float, ...]:
    """Return what orders validations, the best first; of some no loss is known."""
    return (-value if metric.higher_is_better else value, *(() if loss is None else (loss,)))


def _ends_interval(engine: Engine, every: Length) -> bool:
    """Return whether the engine's step ends an interval; they count from the run's first step."""
    steps = every.steps(engine.state.epoch_length or 1)
    return steps is not None and engine.state.iteration % steps == 0


def checkpoints(
    save: Callable[[], None],
    every: Length,
    minutes: float | None = None,
    *,
    share: float | None = None,
    agree: Callable[[bool], bool] = bool,
    clock: Callable[[], float] = time.monotonic,
) -> Handlers:
    """Save the whole state every so often, by steps and by time.

    Args:
        minutes: Maximum time between two saves; None: by steps alone.
        share: Maximum share of the time that saves by steps may take, judged by the last one; a
            save that is too early waits. None: none waits.
        agree: Maps "this process is due" to "all processes save": they have to save after the same
            step, and their clocks differ.
    """
    saved, cost, due = clock(), 0.0, False

    def maybe(engine: Engine) -> None:
        nonlocal saved, cost, due
        now = due = due or _ends_interval(engine, every)
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

    return [(EACH_STEP, maybe)]


def time_limit(
    minutes: float, spent: Callable[[], float], use: Callable[[float], None]
) -> Handlers:
    """End the run after a step by which its time is used.

    It comes after all that takes time. Clocks of processes differ: the main one's counts.

    Args:
        spent: Returns the seconds that it has trained, before a resume too.
        use: Is told, before each step, which share of the time is used.
    """

    def look(engine: Engine) -> None:
        used = spent() / (60 * minutes) if distributed.is_main() else 0.0
        share = min(1.0, distributed.all_reduce_max(int(used * _TIME_PARTS)) / _TIME_PARTS)
        use(share)
        if share >= 1 and engine.state.iteration:
            log.info("loop.minutes: time is up after step %d: ending", engine.state.iteration)
            engine.terminate()

    return [(START | EACH_STEP, look)]


def advice(
    total_steps: int,
    seconds_left: Callable[[], float],
    say: Callable[[float, float], None],
    clock: Callable[[], float] = time.monotonic,
) -> Handlers:
    """Say once, after some measured steps, that a run will take long, if it will.

    Args:
        seconds_left: Returns the seconds after which it ends anyway.
        say: Is given the seconds to go, evaluations not counted, and those of a step.
    """
    began, first, over = 0.0, 0, False

    def measure(engine: Engine) -> None:
        nonlocal began, first, over
        step, now = engine.state.iteration, clock()
        if not first:  # the first step warms up
            began, first = now, step
        elif not over and step - first >= MEASURED_STEPS and now - began >= SECONDS_BETWEEN_LINES:
            over = True
            seconds = (now - began) / (step - first)
            left = min(seconds * (total_steps - step), seconds_left())
            if left > LONG_SECONDS:
                say(left, seconds)

    return [(EACH_STEP, measure)]


def pace(counters: Callable[[], Sequence[float]], say: Callable[..., None]) -> Handlers:
    """Say once, after `PACED_STEPS` that follow as many warm ones, what a step comes to.

    Args:
        counters: Return what has grown with the steps, such as seconds.
        say: Is given the median growth of each; what lies between steps (a validation) is in few.
    """
    seen: list[Sequence[float]] = []

    def note(engine: Engine) -> None:
        if len(seen) <= 2 * PACED_STEPS:
            seen.append(counters())
            if len(seen) > 2 * PACED_STEPS:
                say(*np.median(np.diff(seen[PACED_STEPS:], axis=0), axis=0).tolist())

    return [(EACH_STEP, note)]


def log_above_bar() -> AbstractContextManager[None]:
    """Return a context in which the package's log lines appear above the bar, not in it."""
    if not distributed.is_main():
        return nullcontext()  # no bar, and nothing to say
    return logging_redirect_tqdm([logging.getLogger("transfer_cli")])


@contextmanager
def stop_on_signal(trainer: Engine, save: Callable[[], None], resume: str) -> Iterator[None]:
    """Turn the signals of `STOP_SIGNALS` and Ctrl-C into: finish the step, save, end.

    A second one ends at once. Several processes save and end after the same step, whichever of
    them got the signal.

    Raises:
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

    attach(trainer, [(EACH_STEP, check)])
    with handle_signals((*STOP_SIGNALS, signal.SIGINT), note):
        yield


@contextmanager
def end_on_signal() -> Iterator[None]:
    """Turn `STOP_SIGNALS` into exit code 75 outside of training: nothing is unsaved."""
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:  # what comes later must not break into the end
            raise StoppedError(
                f"{signal.Signals(number).name} outside of training: nothing was to be saved; go "
                "on with the same command and resume=auto"
            )

    with handle_signals(STOP_SIGNALS, end):
        yield


def _say_stopping(number: int) -> None:
    name = signal.Signals(number).name
    log.warning("%s: finishing this step and saving; once more ends at once", name)
