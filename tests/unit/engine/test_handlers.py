import logging
import math
import os
import signal
import time

import pytest
from ignite.engine import Events

from tests import tiny
from tests.fake_runs import write_sweep
from tests.records import read_metrics
from transfer_cli.engine import handlers, metrics_logger
from transfer_cli.engine.averaging import EMA
from transfer_cli.errors import EXIT_STOPPED, ConfigError, DivergedError, StoppedError
from transfer_cli.lengths import Length
from transfer_cli.metrics import LOSS, Metric, require_metric
from transfer_cli.objectives.classification import Classification
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.sweep import SweepJob

METRICS = (
    Metric("loss", higher_is_better=False),
    Metric("error_rate", higher_is_better=False),
    Metric("accuracy", higher_is_better=True),
    Metric("macro_f1", higher_is_better=True),
    Metric("exact_match", higher_is_better=True),
)


def a_run(total=20):
    """Return a run with epochs of eight steps."""
    return tiny.run(Classification(), tiny.Questions(), tiny.Recipe(total=total), depth=1)


def validated(
    run, values, *, every="2 steps", monitor="loss", metrics=METRICS, patience=None,
    keep_last=False, average=None,
):  # fmt: skip
    """Let the run measure these values in turn; return what was said about them."""
    left, said = iter(values), {"measures": [], "best": [], "kept": []}
    handlers.attach(
        run.trainer,
        handlers.validation(
            run.progress,
            lambda: next(left),
            every=Length.parse(every),
            monitor=require_metric(monitor, metrics, "loop.monitor") if monitor else metrics,
            keep_last=keep_last,
            patience=patience,
            stages=run.step.stages,
            on_measures=lambda step, measures: said["measures"].append((step, measures)),
            on_best=lambda step, kept: (said["best"].append(step), said["kept"].append(kept)),
            average=average,
        ),
    )
    return said


def losses(*values):
    return [{"loss": value} for value in values]


# Validation.


@pytest.mark.parametrize(
    ("total", "every", "steps"), [(7, "2 steps", [2, 4, 6, 7]), (6, "3 steps", [3, 6])]
)
def test_validation_happens_in_its_rhythm_and_once_at_the_end(total, every, steps):
    run = a_run(total)
    said = validated(run, losses(5, 4, 3, 2), every=every)

    run.go()

    assert [step for step, _ in said["measures"]] == steps


ACCURACY = Metric("accuracy", higher_is_better=True, headline=True)
PEARSON = Metric("pearson", higher_is_better=True, headline=True)
TIES = [
    {"accuracy": accuracy, "loss": loss}
    for accuracy, loss in ((0.8, 1.0), (0.9, 3.0), (0.9, 2.0), (0.9, 2.5))
]
UNDEFINED = [{"loss": 2.0}, {"loss": 1.0}, {"loss": 3.0, "pearson": -0.5}, {"loss": 0.5}]


@pytest.mark.parametrize(
    ("values", "options", "best", "progress"),
    [
        (losses(5, 4, 4, 4.5, 3), {}, [2, 4, 10], (3, 10, 0)),
        ([{"error_rate": 9.0}, {"error_rate": 9.5}], {"monitor": "error_rate"}, [2], (9.0, 2, 1)),
        *(
            ([{name: value} for value in (0.5, 0.4, 0.6)], {"monitor": name}, [2, 6], (0.6, 6, 0))
            for name in ("accuracy", "macro_f1", "accuracy/animal", "exact_match")
        ),
        # Of equal values that of the lower loss.
        *(
            (TIES, {"monitor": name, "metrics": (ACCURACY, LOSS)}, [2, 4, 6], (0.9, 6, 1))
            for name in ("accuracy", None)
        ),
        # Where the last is kept, the best value still counts for patience.
        (losses(3, 4, 5, 6), {"patience": 3, "keep_last": True}, [2, 4, 6, 8], (3, 8, 3)),
        # What is not defined is worse than anything measured.
        (UNDEFINED, {"monitor": None, "metrics": (PEARSON, LOSS)}, [2, 4, 6], (-0.5, 6, 1)),
        (losses(float("inf"), 9.0), {}, [2, 4], (9.0, 4, 0)),
    ],
)
def test_the_best_is_kept_at_each_improvement_and_only_then(values, options, best, progress):
    run = a_run(total=2 * len(values))
    said = validated(run, values, **options)

    run.go()

    assert said["best"] == best
    assert (run.progress.best, run.progress.best_step, run.progress.waited) == progress


@pytest.mark.parametrize(
    ("pairs", "options", "kept", "ended"),
    [
        # Of both values the better; of equal ones the plain.
        (((5, 6), (4, 3), (2, 2), (3, 4)), {}, "plain averaged plain", (2, 6, 1)),
        (((5, 6), (5, 4), (6, 3), (7, 2)), {"patience": 1}, "plain averaged averaged averaged",
         (2, 8, 0)),
        (((5, 4), (5, 6)), {"keep_last": True}, "averaged plain", (4, 4, 1)),
    ],
)  # fmt: skip
def test_the_better_of_plain_and_averaged_weights_is_kept(pairs, options, kept, ended):
    run = a_run(total=2 * len(pairs))
    average = EMA(run.step.model, frozenset(), 0.9)
    values = [{"loss": plain, "averaged/loss": mean} for plain, mean in pairs]
    said = validated(run, values, average=average, **options)

    run.go()

    assert said["kept"] == kept.split()
    assert (run.progress.best, run.progress.best_step, run.progress.waited) == ended
    best = [min((p[side], 2 * n) for n, p in enumerate(pairs, 1)) for side in (0, 1)]
    assert [(average.best[w]["loss"], average.best[w]["step"]) for w in WEIGHTS] == best


WEIGHTS = ("plain", "averaged")


def test_stages_see_the_plain_weights_alone():
    run = a_run(total=4)
    seen = []
    run.step.stages.observe_validation = lambda step, place: seen.append(place)
    average = EMA(run.step.model, frozenset(), 0.9)
    values = [{"loss": 5.0, "averaged/loss": 1.0}, {"loss": 6.0, "averaged/loss": 2.0}]
    validated(run, values, average=average)

    run.go()

    assert seen == [(5.0, 5.0), (6.0, 6.0)]


def test_a_value_noted_without_its_loss_by_an_earlier_version_is_beaten_by_a_better_one_alone():
    run = a_run(total=4)
    run.progress.best, run.progress.best_step = 0.5, 1
    said = validated(run, [{"accuracy": a, "loss": 0.1} for a in (0.5, 0.6)], monitor="accuracy")

    run.go()

    assert said["best"] == [4]


def test_a_run_ends_when_patience_is_out_and_ends_properly():
    run = a_run(total=20)
    said = validated(run, losses(5, 4, 4.1, 4.2, 4.3), patience=2)
    ended = []
    run.trainer.add_event_handler(Events.COMPLETED, lambda: ended.append(run.progress.step))

    run.go()

    assert [step for step, _ in said["measures"]] == [2, 4, 6, 8]
    assert (run.progress.step, ended) == (8, [8])
    assert run.progress.best_step == 4


def test_what_else_happens_at_the_step_that_ends_early_still_happens():
    run = a_run(total=20)
    validated(run, losses(5, 6, 7), patience=1)
    saves = []
    handlers.attach(
        run.trainer,
        handlers.checkpoints(lambda: saves.append(run.progress.step), Length.parse("2 steps")),
    )

    run.go()

    assert saves == [2, 4]


def test_a_monitor_that_validation_does_not_have_is_refused_with_the_nearest():
    run = a_run()
    measured = [{"loss": 1.0, "accuracy/animal": 0.5}]
    validated(run, measured, monitor="accuracy/animol")

    with pytest.raises(ConfigError) as refused:
        run.go()

    assert str(refused.value).startswith("loop.monitor: there is no measure 'accuracy/animol'. Did")


def test_a_measure_that_is_not_a_number_ends_the_run():
    run = a_run()
    validated(run, losses(5.0, float("nan")))

    with pytest.raises(DivergedError, match="step 4: validation loss is not a number"):
        run.go()


# Rhythms.


@pytest.mark.parametrize(
    ("every", "minutes", "steps"),
    [
        ("5 steps", None, [5, 10, 15, 20]), ("1 epoch", None, [8, 16]),
        ("0.5 epochs", None, [4, 8, 12, 16, 20]), ("rest", None, []),
        ("rest", 5, [5, 10, 15, 20]),
        ("8 steps", 5, [5, 8, 13, 16]),  # the time counts from the last one, however it came about
        ("8 steps", 2.5, [3, 6, 8, 11, 14, 16, 19]),
    ],
)  # fmt: skip
def test_a_state_is_saved_by_steps_from_the_very_first_on_and_by_time(every, minutes, steps):
    assert saved(a_run(), every, minutes) == steps


def test_a_resumed_run_keeps_the_rhythm():
    run = a_run()
    run.progress.step = 7

    assert saved(run, "5 steps") == [10, 15, 20]


# Records.


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5, 6]), (3, [1, 3, 6]), (9, [1])])
def test_training_is_recorded_in_its_rhythm_and_at_the_first_step(tmp_path, every, steps):
    run = a_run(total=6)
    with metrics_logger.MetricsLogger(RunDirectory(tmp_path)) as logger:
        recorded = handlers.records(
            logger, run.step.optimizer, lambda: run.step.stages.current,
            every=every, several=False,
        )  # fmt: skip
        handlers.attach(run.trainer, recorded)
        run.go()

    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == steps
    assert {record["kind"] for record in records} == {"train"}
    for record in records:
        assert record["loss"] == pytest.approx(run.losses[record["step"] - 1])
        assert record["gradient_norm"] > 0
        assert record["rate/embeddings"] == record["rate/head.class"] == 1e-2
        assert record["stage"] == 1
        assert "tokens_per_second" not in record
    speeds = read_metrics(tmp_path / "speed.jsonl")
    assert [speed["step"] for speed in speeds] == steps
    assert all(speed["tokens_per_second"] > 0 for speed in speeds)


def curve(folder, name="train/loss"):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [(p.step, p.value) for p in EventAccumulator(str(folder)).Reload().Scalars(name)]


def written(run, steps, *, loss=1.0, purge=None):
    """Record a loss at some steps, and how fast they were; return where the records then end."""
    with metrics_logger.MetricsLogger(run, purge_step=purge) as logger:
        for step in steps:
            logger.write("train", step, {"loss": loss})
            logger.write_speed("train", step, {"tokens_per_second": 9.0})
        return logger.mark()


def test_records_go_back_to_where_a_checkpoint_was(tmp_path):
    run = RunDirectory(tmp_path)
    with metrics_logger.MetricsLogger(run) as first:
        for step in (5, 10):
            first.write("train", step, {"loss": 1.0})
            first.write_speed("train", step, {"tokens_per_second": 9.0})
        mark, before = first.mark(), run.metrics.read_bytes()
        first.write("train", 15, {"loss": 1.0})
        first.write("test", 10, {"loss": 1.0})
    written(run, [15])  # of a resume that was killed, too

    metrics_logger.rewind(run, mark)

    assert run.metrics.read_bytes() == before
    assert [record["step"] for record in read_metrics(run.speed)] == [5, 10]
    with metrics_logger.MetricsLogger(run, purge_step=11) as again:
        again.write("train", 15, {"loss": 2.0})
        again.write("test", 10, {"loss": 3.0})
    assert curve(run.tensorboard) == [(5, 1.0), (10, 1.0), (15, 2.0)]
    assert len(list(run.tensorboard.iterdir())) == 2


def test_the_curves_of_a_sweep_are_named_by_what_varies_also_after_a_resume(tmp_path):
    words = ("init_from=runs/a", "optimizer.lr=1e-3")
    sweep = write_sweep(tmp_path / "sweep", SweepJob(3, words), SweepJob(4, ("x=" + "é" * 300,)))
    run = RunDirectory(sweep.run(3))
    written(run, [])
    # A wider grid tells jobs apart by more.
    sweep.write_job(SweepJob(3, (*words, "seed=0")))
    mark = written(run, [1], loss=2.0, purge=1)
    written(RunDirectory(sweep.run(4)), [])

    (folder,) = run.tensorboard.iterdir()
    assert folder.name == "init_from=runs-a optimizer.lr=1e-3"
    assert len(list(folder.iterdir())) == 2
    assert curve(folder) == [(1, 2.0)]
    assert set(mark) >= {f"tensorboard/{folder.name}/{p.name}" for p in folder.iterdir()}


def test_a_run_that_begins_again_has_none_of_its_earlier_records(tmp_path):
    run = RunDirectory(tmp_path)
    written(run, [1])

    metrics_logger.rewind(run, {})
    written(run, [1], loss=2.0, purge=1)

    assert read_metrics(run.metrics) == [{"kind": "train", "step": 1, "loss": 2.0}]
    assert curve(run.tensorboard) == [(1, 2.0)]


def test_who_is_looking_on_forgets_what_is_written_again(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunDirectory(tmp_path)
    with metrics_logger.MetricsLogger(run) as first:
        first.write("train", 1, {"loss": 1.0})
        mark = first.mark()
        first.write("train", 2, {"loss": 1.0})
    looking_on = EventAccumulator(str(run.tensorboard)).Reload()

    metrics_logger.rewind(run, mark)
    written(run, [2], loss=2.0, purge=2)

    points = looking_on.Reload().Scalars("train/loss")
    assert [(point.step, point.value) for point in points] == [(1, 1.0), (2, 2.0)]


def test_event_files_are_in_order_whatever_the_clock_says(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path)
    for now, step in ((2000.0, 1), (1000.0, 2)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        written(run, [step], loss=float(step), purge=step)

    assert curve(run.tensorboard) == [(1, 1.0), (2, 2.0)]


def test_every_record_is_also_a_point_of_a_curve(tmp_path):
    with metrics_logger.MetricsLogger(RunDirectory(tmp_path)) as logger:
        logger.write("validation", 7, {"loss": 0.25, "accuracy": 0.5})

    (record,) = read_metrics(tmp_path / "metrics.jsonl")
    assert record == {"kind": "validation", "step": 7, "loss": 0.25, "accuracy": 0.5}
    for name in ("loss", "accuracy"):
        assert curve(tmp_path / "tensorboard", f"validation/{name}") == [(7, record[name])]


# Checkpoints.


def saved(run, every, minutes=None, *, seconds_to_save=0, **further):
    """Let the run save its state while each step takes a minute; return the steps."""
    saves, clock = [], {"now": 0.0}

    @run.trainer.on(Events.ITERATION_STARTED)
    def pass_time():
        clock["now"] += 60

    def save():
        saves.append(run.progress.step)
        clock["now"] += seconds_to_save

    handlers.attach(
        run.trainer,
        handlers.checkpoints(
            save, Length.parse(every), minutes, clock=lambda: clock["now"], **further
        ),
    )
    run.go()
    return saves


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        *((seconds, [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]) for seconds in (0, 1.2, 2.0)),
        (3.0, [2, 5, 8, 11, 14, 17, 20]),  # as soon as it is no longer too early
        (12.0, [2, 12]),
    ],
)
def test_saving_by_steps_takes_no_more_than_its_share(seconds, steps):
    assert saved(a_run(), "2 steps", seconds_to_save=seconds, share=0.02) == steps


def test_a_save_by_time_does_not_wait():
    assert saved(a_run(), "rest", 5, seconds_to_save=60, share=0.02) == [5, 10, 15, 20]


def test_processes_agree_on_the_steps_after_which_they_save():
    asked = []

    def agree(due):
        asked.append(due)
        return len(asked) % 7 == 0

    assert saved(a_run(), "10 steps", 5, agree=agree) == [7, 14]
    assert len(asked) == 20


# Progress.


def test_without_a_terminal_progress_is_lines_in_the_log(caplog, monkeypatch):
    monkeypatch.setattr(handlers, "SECONDS_BETWEEN_LINES", 0)
    caplog.set_level(logging.INFO, handlers.__name__)
    run = a_run(total=3)
    handlers.attach(run.trainer, handlers.progress_bar(run.step.optimizer, 3, "examples"))

    run.go()

    lines = [record.message for record in caplog.records if record.name == handlers.__name__]
    assert [line.split("  ")[0] for line in lines] == ["step 1 of 3", "step 2 of 3", "step 3 of 3"]
    assert all("examples/s" in line and "rate 1.00e-02" in line for line in lines)


def test_progress_hands_errors_on():
    run = a_run()
    handlers.attach(run.trainer, handlers.progress_bar(run.step.optimizer, 20, "tokens"))
    validated(run, losses(float("nan")))

    with pytest.raises(DivergedError):
        run.go()


# Time.


def bounded(run, minutes, seconds_a_step=6.0):
    """Bound a run by time, each of whose steps takes so long; return the shares that were used."""
    shares = []
    handlers.attach(
        run.trainer,
        handlers.time_limit(minutes, lambda: seconds_a_step * run.progress.step, shares.append),
    )
    run.go()
    return shares


@pytest.mark.parametrize(("minutes", "steps"), [(1, 10), (60, 20), (1e-9, 1)])
def test_a_run_ends_with_the_step_by_which_its_time_is_used_and_takes_one(minutes, steps):
    run = a_run(total=20)

    shares = bounded(run, minutes)

    assert run.progress.step == steps
    used = [min(1.0, step / (10 * minutes)) for step in range(steps + 1)]
    assert shares == pytest.approx(used, abs=1e-9)


@pytest.mark.parametrize(
    ("seconds_a_step", "limit", "said"),
    [
        (120.0, math.inf, [(120.0 * 26, 120.0)]),  # once, after the first step and three more
        (100.0, 1900.0, [(1900.0, 100.0)]),
        (120.0, 600.0, []),
        (60.0, math.inf, []),
        (0.001, math.inf, []),
    ],
)
def test_a_run_that_takes_long_says_so_once(seconds_a_step, limit, said):
    run, estimates = a_run(total=30), []
    handlers.attach(
        run.trainer,
        handlers.advice(
            30,
            lambda: limit,
            lambda *seconds: estimates.append(pytest.approx(seconds)),
            clock=lambda: seconds_a_step * run.progress.step,
        ),
    )

    run.go()

    assert estimates == said


def test_a_pace_is_the_median_of_warm_steps():
    run, paces = a_run(total=2 * handlers.PACED_STEPS + 3), []

    def counters():
        step = run.progress.step
        # The first steps warm up, and a validation takes long.
        return 2.0 * step + 50 * min(step, 9) + 70 * (step > 30), step / 4

    handlers.attach(run.trainer, handlers.pace(counters, lambda *pace: paces.append(pace)))
    run.go()

    assert paces == [(2.0, 0.25)]


# Signals.


def signalled(run, numbers, at=3):
    """Let the run receive signals during a step; return the steps at which it saved."""
    saves = []

    @run.trainer.on(Events.ITERATION_STARTED(once=at))
    def send():
        for number in numbers:
            os.kill(os.getpid(), number)

    def go():
        with handlers.stop_on_signal(
            run.trainer, lambda: saves.append(run.progress.step), "transfer finetune resume=x"
        ):
            run.go()

    return go, saves


@pytest.mark.parametrize(
    ("numbers", "error"),
    [
        ([signal.SIGTERM], StoppedError),
        ([signal.SIGUSR1], StoppedError),
        ([signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM], StoppedError),  # two pass it on
        ([signal.SIGINT], KeyboardInterrupt),
    ],
)
def test_a_signal_finishes_the_step_saves_and_ends_and_means_afterwards_what_it_did(numbers, error):
    run = a_run()
    handlers.attach(run.trainer, handlers.progress_bar(run.step.optimizer, 20, "examples"))
    go, saves = signalled(run, numbers)
    before = [signal.getsignal(number) for number in numbers]
    cure = "stopped at step 3 with a checkpoint; go on with transfer finetune resume=x"

    with pytest.raises(error, match=cure) as stopped:
        go()

    assert getattr(stopped.value, "exit_code", 75) == EXIT_STOPPED == 75
    assert (run.progress.step, saves) == (3, [3])
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_second_signal_ends_at_once(monkeypatch):
    monkeypatch.setattr(handlers, "ECHO_SECONDS", 0.0)
    run = a_run()
    go, saves = signalled(run, [signal.SIGTERM, signal.SIGTERM])

    with pytest.raises(KeyboardInterrupt):
        go()

    assert (run.progress.step, saves) == (2, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_where_no_step_is_under_way_ends_with_code_75(number):
    before = signal.getsignal(number)

    @handlers.end_on_signal()
    def go():
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)  # a second one does not break into the end

    with pytest.raises(StoppedError, match=f"{number.name} outside of training") as stopped:
        go()

    assert stopped.value.exit_code == EXIT_STOPPED
    assert signal.getsignal(number) == before


def test_the_checkpoint_of_a_stop_knows_the_validation_of_its_step():
    run = a_run()
    validated(run, losses(5.0), every="3 steps")
    go, _ = signalled(run, [signal.SIGTERM])

    with pytest.raises(StoppedError):
        go()

    assert run.progress.measures == {"loss": 5.0, "step": 3.0}
