"""A run at work: the engine, its handlers, what its weights score, and the files that it writes."""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from transfer_cli.assembly.flops_estimate import least_seconds
from transfer_cli.assembly.plan_table import plan_page
from transfer_cli.assembly.run import TrainingRun
from transfer_cli.batch import IGNORE
from transfer_cli.config.check_training import logger_names
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.decided import with_values
from transfer_cli.config.dialled import dial_record
from transfer_cli.config.literal import path_override
from transfer_cli.config.stored import as_yaml, plain_values
from transfer_cli.data.split import Split, subsample
from transfer_cli.engine import distributed, handlers
from transfer_cli.engine.averaging import PLAIN, split_by_weights
from transfer_cli.engine.cost import Flops
from transfer_cli.engine.distributed.watch import is_lost_connection
from transfer_cli.engine.evaluation import EachExample, Scores, evaluate, samples
from transfer_cli.engine.loop import Progress, build_trainer, run_trainer
from transfer_cli.engine.metrics_logger import MetricsLogger, NoMetricsLogger
from transfer_cli.errors import DivergedError, NotFiniteError, PrunedError, RunError, StoppedError
from transfer_cli.lengths import Length
from transfer_cli.metrics import AVERAGED, LOSS, judging_metric, without_details
from transfer_cli.model.weights import WEIGHTS
from transfer_cli.objectives.answering import UnitObjective
from transfer_cli.objectives.base import Loss
from transfer_cli.objectives.confidence import METRICS, MIN_EXAMPLES, fit_temperature, fit_threshold
from transfer_cli.runs.atomic import write_json, write_text
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.environment import versions
from transfer_cli.runs.items import Item, write_items
from transfer_cli.runs.results import Cost, Parameters, Results, Seen
from transfer_cli.sweeps.trial import trial_of
from transfer_cli.tasks.base import Task, rows_by_example
from transfer_cli.training import console, examples
from transfer_cli.training.checkpoints import CheckpointWriter
from transfer_cli.training.measurements import (
    hyperparameters,
    layer_shares,
    peak_flops,
    peak_memory,
)
from transfer_cli.training.resume import note_overrides, restore
from transfer_cli.training.spending import SPENT, Spending

log = logging.getLogger(__name__)

NUM_SAMPLES = 8
"""Predictions that TensorBoard shows at each validation."""


@dataclass(frozen=True)
class SplitScores:
    """The scores of a split, and what became of its examples."""

    scores: Scores
    each: EachExample | None


@dataclass(frozen=True)
class FinalMeasures:
    """What the best weights of a run do on validation and test.

    Args:
        failed: Why the run came to nothing; None when it did not.
    """

    scores: dict[str, Scores]
    items: list[Item]
    failed: str | None


class SplitScorer:
    """Scores splits of a run by the weights that its model has now."""

    def __init__(self, run: TrainingRun, progress: Progress) -> None:
        self._run = run
        self._progress = progress

    def score(self, loss: Loss, split: Split, collector: EachExample | None = None) -> Scores:
        """Return what a loss measures; `collector` notes what becomes of the examples."""
        run, precision = self._run, self._run.blueprint.precision
        with self.raise_divergence():
            return evaluate(
                run.model, loss.objective, split,
                batch=run.inference_batch, precision=precision, each=collector,
            )  # fmt: skip

    @contextlib.contextmanager
    def raise_divergence(self) -> Iterator[None]:
        """Blame the training where a loss is not finite."""
        try:
            yield
        except NotFiniteError as error:
            raise DivergedError(
                f"step {self._progress.step}: {error}; try a lower optimizer.lr or a longer "
                "schedule.warmup"
            ) from error

    def measures(self, name: str) -> dict[str, float]:
        """Return the measures of a split: those of the main loss, of others by their names."""
        return self._all_scores(name, None).measures

    def score_with_examples(self, name: str) -> SplitScores:
        """Return the scores of a split with the same measures, and what became of its examples."""
        collector = examples.outcome_collector(self._run.data.splits[name])
        return SplitScores(self._all_scores(name, collector), collector)

    def _all_scores(self, name: str, collector: EachExample | None) -> Scores:
        main, *further = self._run.blueprint.network.losses
        scores = self.score(main, self._run.data.splits[name], collector)
        measures = dict(scores.measures)
        for loss in further:
            split = self._run.prepared[loss.stream].splits.get(name)
            if split is not None:
                of_loss = self.score(loss, split).measures
                measures |= {f"{loss.name}/{metric}": value for metric, value in of_loss.items()}
        return replace(scores, measures=measures)

    def samples(self) -> str:
        """Return a few predictions on the validation split as a table."""
        plan = self._run.blueprint
        shown = samples(
            self._run.model, plan.network.losses[0].objective, self._run.data.splits["validation"],
            count=NUM_SAMPLES, precision=plan.precision,
        )  # fmt: skip

        def cell(content: list[int] | str) -> str:
            if not isinstance(content, str):
                content = " ".join(plan.data.tokenizer.pieces(content))
            return content.replace("|", "\\|")

        rows = [f"| {cell(s.tokens)} | {cell(s.target)} | {cell(s.prediction)} |" for s in shown]
        return "\n".join(["| input | wanted | predicted |", "|---|---|---|", *rows])


def with_fitted_answers(
    run: TrainingRun, progress: Progress, validation: SplitScores | None
) -> TrainingRun:
    """Return a run that answers by what its task chooses on validation; itself if it chooses none.

    `validation` is what the weights did there, where that is known.
    """
    loss, task = run.blueprint.network.losses[0], run.data.task
    if task is None:
        return run
    objective, scorer = loss.objective, SplitScorer(run, progress)
    if objective.fits_answers:
        split = run.data.splits["validation"]
        collector = validation.each if validation is not None else None
        if collector is None:
            collector = EachExample()
            scorer.score(loss, split, collector)
        encoded = split.encoded
        rows = {row.index: row.predicted for row in collector.gathered()}
        run = run.with_task(replace(task, fitted=task.fit(encoded, rows_by_example(encoded, rows))))
    if isinstance(objective, UnitObjective):
        run = _with_confidence(run, scorer, loss, objective)
    return run


MOST_SCORES = 2**20
"""Numbers that a temperature and a threshold are fitted to; of more texts, evenly spread ones."""


def _with_confidence(
    run: TrainingRun, scorer: SplitScorer, loss: Loss, objective: UnitObjective
) -> TrainingRun:
    """Return a run with the temperature and the threshold that its objective asks for."""
    split, task = run.data.splits.get("validation"), run.data.task
    if split is None or task is None:
        return run
    texts = len(split.encoded.examples)
    calibrates = texts >= MIN_EXAMPLES if objective.calibrate == "auto" else objective.calibrate
    if not calibrates and objective.abstain is None:
        return run
    units = 1 if objective.units_are_examples else int(split.encoded.lengths.max())
    collector = EachExample("unit_results")
    some = subsample(split, MOST_SCORES // (units * max(4, len(task.labels))))
    scorer.score(loss, replace(some, scorer=None), collector)
    rows = [row.predicted for row in collector.gathered()]
    scores, target = (
        pad_sequence(
            [torch.tensor(row[name]).float() for row in rows], batch_first=True, padding_value=fill
        )
        if isinstance(rows[0][name], list)
        else torch.tensor([row[name] for row in rows])
        for name, fill in (("scores", -math.inf), ("target", IGNORE))
    )
    fitted: dict[str, float] = {}
    if calibrates:
        fitted["temperature"] = fit_temperature(scores, target)
        run = run.with_task(task := replace(task, fitted={**task.fitted, **fitted}))
    if objective.abstain is not None:
        answers = objective.judged_answers(objective.calibrated(scores), target.long())
        threshold = fit_threshold(*answers, objective.abstain)
        if threshold == 0:
            log.warning(
                "objective.abstain=%g: by no threshold are that many answers on validation right "
                "beyond doubt, so that all are given; take less, or more validation texts",
                objective.abstain,
            )
        run = run.with_task(replace(task, fitted={**task.fitted, "abstain_below": threshold}))
    return run


def final_measures(
    run: TrainingRun, progress: Progress, validation: SplitScores | None
) -> FinalMeasures:
    """Score validation and test; `validation` is what is known of the first."""
    scorer, data = SplitScorer(run, progress), run.data
    scores, items = dict[str, Scores](), list[Item]()
    for name in ("validation", "test"):
        if name not in data.splits:
            continue
        scored = (validation if name == "validation" else None) or scorer.score_with_examples(name)
        score = partial(scorer.score, run.blueprint.network.losses[0])
        scores[name] = examples.with_unseen(scored.scores, data.splits[name], score)
        items_of_split = examples.collect_items(data.splits[name], data.task, scored.each)
        if data.task is not None and items_of_split:
            for loss in run.blueprint.network.losses:
                slices, key = getattr(loss.objective, "parts", {}), f"losses.{loss.name}"
                measures = examples.slice_scores(
                    slices, data.splits[name], data.task, items_of_split, key
                )
                scores[name].measures.update(measures)
        items += items_of_split
    return FinalMeasures(scores, items, _failure(run, scorer, scores.get("validation")))


def _failure(run: TrainingRun, scorer: SplitScorer, validation: Scores | None) -> str | None:
    """Return why the run came to nothing; what it can do on validation it has learnt."""
    task, main = run.data.task, run.blueprint.network.losses[0]
    weights = getattr(main.objective, "class_weights", None)
    if task is None or not task.can_fail:
        return None

    def failure(scores: Scores) -> str | None:
        judged = scores.measures, scores.tables
        return task.failure(*(judged if weights is None else weights.reweight(*judged)))

    if validation and not failure(validation):
        return None
    # Asked only then: most runs have learnt something.
    most_judged = 1000  # training examples by which a run is judged to have failed
    some = subsample(run.data.splits["train"], most_judged)
    return failure(scorer.score(main, some))


LONG_RUN_SECONDS = 3600.0
"""Seconds from which on a run on a CPU says before its first step that it will take so long."""

SAVING_SHARE = 0.02
"""The share of the time that `checkpoint.every=auto` leaves to saving."""

FEWEST_JUDGED = 50
"""Validation examples from which on `loop.monitor=auto` keeps the weights that are best by what
runs are judged by; with fewer the last are better (docs/results.md)."""


class Trainer:
    """Trains a run, scores its best weights, and writes its files."""

    def __init__(
        self, command: str, run: TrainingRun, directory: RunDirectory, spending: Spending
    ) -> None:
        self._spending = spending
        self._config = run.blueprint.config
        self._command = command
        self._run = run
        self._blueprint = run.blueprint
        self._directory = directory
        self._progress = Progress()
        self._checkpoints = CheckpointWriter(run, directory, self._config.checkpoint.keep)
        self._main = distributed.is_main()
        self._trial = trial_of(directory.path) if self._main else None
        self._logger: MetricsLogger | NoMetricsLogger = NoMetricsLogger()
        self._began = time.perf_counter()
        self._past_seconds = 0.0
        self._scorer = SplitScorer(run, self._progress)
        self._last_validation: dict[str, SplitScores] = {}

    def resume(self, typed: Sequence[str]) -> None:
        """Take up what the run directory holds, and train on; `typed` are the overrides for it."""
        if self._main:
            self._spending.load_earlier(self._directory)
        self._past_seconds = restore(self._run, self._directory, self._checkpoints, self._progress)
        if self._main:
            note_overrides(self._directory, as_yaml(self._config), typed)
            self._run.origins.save(self._directory)
        self.train(resuming=True)

    def train(self, *, resuming: bool = False) -> None:
        """Train, then score the best weights, and leave the run directory complete."""
        start_step = self._progress.step
        try:
            if self._main:
                self._logger = MetricsLogger(
                    self._directory, start_step + 1 if resuming else None,
                    logger_names(self._config.logger),
                    {**plain_values(self._config), "presets": self._directory.read_presets()},
                )  # fmt: skip
            with self._logger:
                write, plan = self._logger.writer.add_text, plan_page(self._blueprint)
                write("config", f"```yaml\n{as_yaml(self._config)}```", start_step)
                write("plan", f"```\n{plan}\n```", start_step)
                console.say_start(self._command, self._directory.path, self._run)
                if self._main:
                    self._directory.set_status("running")
                self._train(start_step)
                self._finish()
        except BaseException as error:
            if not self._main:
                raise
            if self._progress.step == 0 and not resuming:
                self._directory.discard()
            else:
                self._record_failure(error)
            raise

    def _record_failure(self, error: BaseException) -> None:
        """Write into the run directory why the run ends before its end."""
        if self._directory.read_status() == "finished":
            return  # nobody could be told
        stopped = isinstance(error, KeyboardInterrupt | StoppedError | PrunedError)
        reason = str(error) or type(error).__name__
        if is_lost_connection(error):
            reason = "another process failed or is gone"
        with contextlib.suppress(RunError):  # a full disk may be the very reason
            self._directory.set_status("stopped" if stopped else "failed", reason)

    def _train(self, start_step: int) -> None:
        # What was computed before the first step, which is no part of what steps take.
        self._spending.add(self._run.tally.take_flops())
        run, loop, sizes = self._run, self._blueprint.course.loop, self._blueprint.course.sizes
        trainer = build_trainer(run.step, self._progress)
        handlers.attach(trainer, *self._handlers())
        ended = self._progress.has_ended(
            sizes.total_steps, run.step.stages, loop.patience, loop.minutes
        )
        typed = f"{self._command} {path_override('resume', self._directory.path)}"
        resume = CommandLine.current().next_command(typed)
        with handlers.log_above_bar(), handlers.stop_on_signal(trainer, self._save, resume):
            run_trainer(
                trainer,
                run.streams,
                micro_batch=run.loss_batch,
                total_steps=start_step if ended else sizes.total_steps,
                start_step=start_step,
                epoch_length=sizes.steps_per_epoch,
                mixture=sizes.mixture,
            )
        self._save()

    def _handlers(self) -> Iterator[handlers.Handlers]:
        """Yield what happens around the steps, in order."""
        step, loop, saving = self._run.step, self._blueprint.course.loop, self._config.checkpoint
        several = len(self._blueprint.network.losses) > 1
        total = self._blueprint.course.sizes.total_steps
        yield handlers.records(
            self._logger, step.optimizer, lambda: step.stages.current,
            every=loop.log_every, several=several,
        )  # fmt: skip
        if self._main:
            what = "tokens" if self._command == "pretrain" else "examples"
            yield handlers.progress_bar(step.optimizer, total, what, self._seconds_left)
            if self._blueprint.precision.device.type == "cpu" and not self._advise_if_long():
                advise = partial(console.say_what_is_faster, self._command, self._blueprint)
                yield handlers.advice(total, self._seconds_left, advise)
            if step.waited is not None:
                yield handlers.pace(self._pace_counters, self._log_pace)
        if self._run.average is not None:
            yield [(handlers.EACH_STEP, self._run.average.on_step)]
        if "validation" in self._run.data.splits:
            if self._keeps_last:
                log.info(
                    "loop.monitor=auto: with fewer than %d validation %s the last weights are kept",
                    FEWEST_JUDGED, self._run.data.splits["validation"].unit,
                )  # fmt: skip
            yield handlers.validation(
                self._progress,
                self._validate,
                every=Length.parse_interval(loop.evaluate_every),
                monitor=self._blueprint.course.monitor
                or (() if self._has_small_validation else self._blueprint.network.metrics),
                keep_last=self._keeps_last,
                patience=loop.patience,
                stages=step.stages,
                on_measures=self._record_validation,
                on_best=self._save_best,
                average=self._run.average,
            )
        yield handlers.checkpoints(
            self._save,
            Length.parse_interval("1 epoch" if saving.every == "auto" else saving.every),
            saving.minutes,
            share=SAVING_SHARE if saving.every == "auto" else None,
            agree=lambda now: bool(distributed.all_reduce_max(now and self._main)),
        )
        yield [(handlers.EACH_STEP, self._note_spending_if_due)]
        if loop.minutes is not None:
            use = partial(setattr, step, "time_used")
            yield handlers.time_limit(loop.minutes, self._seconds, use)

    def _advise_if_long(self) -> bool:
        """Say before the first step that a run on a CPU will take long, if that is sure."""
        total, done = self._blueprint.course.sizes.total_steps, self._progress.step
        ahead = (total - done) / max(1, total) / distributed.world_size()
        if not ahead or self._seconds_left() < LONG_RUN_SECONDS:
            return False
        whole = least_seconds(self._blueprint, self._run.prepared, LONG_RUN_SECONDS / ahead)
        if whole is None:
            return False
        seconds = min(whole * ahead, self._seconds_left())
        console.say_what_is_faster(
            self._command, self._blueprint, seconds, whole * ahead / (total - done)
        )
        return True

    def _pace_counters(self) -> tuple[float, ...]:
        """Return seconds, those that the host waited, tokens and floating-point operations."""
        run = self._run
        flops = run.tally.flops().done
        return time.perf_counter(), run.step.waited or 0.0, self._progress.tokens, flops

    def _log_pace(self, *measured: float) -> None:
        log.info("%s", console.pace_text(
            *measured, peak=peak_flops(self._blueprint.precision),
            batch=self._blueprint.course.loop.batch, rate=self._config.optimizer.lr,
        ))  # fmt: skip

    @property
    def _has_small_validation(self) -> bool:
        """Whether validation is too small for its measures, but for the loss, to decide."""
        return int(self._run.data.splits["validation"].counts()["scored"]) < FEWEST_JUDGED

    @property
    def _keeps_last(self) -> bool:
        """Whether the last weights are kept: validation is small, and the rate has fallen."""
        plan = self._blueprint
        is_measured = (
            plan.course.monitor is None and judging_metric(plan.network.metrics, ()) is not LOSS
        )
        waits = plan.course.loop.patience or any(
            stage.patience for stage in plan.course.stage_plans
        )
        total = plan.course.sizes.total_steps
        fallen = 0.2  # the share of the peak rate below which the last weights have settled
        falls = plan.course.lr_scheduler.schedule(total - 1, total) < fallen
        return bool(self._has_small_validation and is_measured and not waits and falls)

    def _record_validation(self, step: int, measures: dict[str, float]) -> None:
        """Write down and say how a validation went, and ask the search what it thinks of it."""
        self._logger.write("validation", step, measures)
        self._logger.writer.add_text("validation/samples", self._scorer.samples(), step)
        log.info("step %d validation  %s", step, console.measures_text(without_details(measures)))
        if self._run.average is not None:
            of_average = without_details(split_by_weights(measures)[AVERAGED])
            log.info("step %d averaged    %s", step, console.measures_text(of_average))
        hopeless = self._trial is not None and self._trial.is_hopeless(step, measures)
        if distributed.all_reduce_max(int(hopeless)):
            raise PrunedError(f"pruned at step {step}: earlier trials did better by then")

    def _validate(self) -> dict[str, float]:
        """Return the measures of validation, and of averaged weights beside those of the plain."""
        measures, average = self._validation_measures(PLAIN), self._run.average
        if average is None:
            return measures
        average.on_validation()
        with average.swapped_in():
            averaged = self._validation_measures(AVERAGED)
        return measures | {f"{AVERAGED}/{name}": value for name, value in averaged.items()}

    def _validation_measures(self, weights: str) -> dict[str, float]:
        """Return the measures of validation by the weights that the model has now.

        Those of the last step are kept: if its weights are the best, they are the run's.
        """
        if self._progress.step < self._blueprint.course.sizes.total_steps:
            return self._scorer.measures("validation")
        scored = self._last_validation[weights] = self._scorer.score_with_examples("validation")
        return scored.scores.measures

    def _save_best(self, step: int, weights: str) -> None:
        """Keep the plain or the averaged weights."""
        average = self._run.average
        if average is None:
            self._checkpoints.save_best(step)
            return
        average.kept = weights
        with average.swapped_in() if weights == AVERAGED else contextlib.nullcontext():
            self._checkpoints.save_best(step)

    def _seconds(self) -> float:
        """Return how long all processes of the run have trained, one after the other."""
        return self._past_seconds + time.perf_counter() - self._began

    def _seconds_left(self) -> float:
        """Return after how many seconds the run ends, however many steps it has taken."""
        minutes = self._blueprint.course.loop.minutes
        return math.inf if minutes is None else 60 * minutes - self._seconds()

    def _note_spending_if_due(self) -> None:
        if self._spending.is_due():
            self._note_spending()

    def _note_spending(self) -> None:
        if self._main:
            self._spending.write(self._directory, self._run.tally.flops())

    def _save(self) -> None:
        progress, average = self._progress, self._run.average
        done = self._spending.add(self._run.tally.take_flops())
        progress.flops += done.done
        progress.flops_real += done.real
        self._note_spending()
        progress.skipped += self._run.step.read()
        progress.seconds = self._seconds()
        self._store_micro_batch()
        state = {
            "step": self._run.step.state_dict(),
            "progress": progress.state_dict(),
            "records": self._logger.mark(),
            **({} if average is None else {"average": average.state_dict()}),
        }
        self._checkpoints.save(progress.step, state, with_best=progress.best is not None)

    def _store_micro_batch(self) -> None:
        """Store what memory there was for, so that a resume begins with it."""
        rows = self._run.step.max_rows
        if rows not in (None, self._config.loop.micro_batch):
            self._config = with_values(self._config, {"loop.micro_batch": rows})
            if self._main:
                write_text(self._directory.config, as_yaml(self._config))

    def _finish(self) -> None:
        """Score the best weights, once, and write `model/` and `results.json`."""
        progress = self._progress
        distributed.barrier()  # until the best weights are written
        if progress.best is not None:
            self._checkpoints.load_best()
        if 0 < progress.best_step <= progress.step / 10:
            log.warning(
                "the weights that are kept are those of step %d of %d, from the first tenth of the "
                "run: by loop.monitor=%s no later validation was better; a lower optimizer.lr or "
                "a shorter run may do more", progress.best_step, progress.step,
                self._blueprint.course.loop.monitor,
            )  # fmt: skip
        average = self._run.average
        last = self._last_validation.get(PLAIN if average is None else average.kept)
        validation = last if progress.best_step == progress.step else None
        run = with_fitted_answers(self._run, progress, validation)
        # What was known of validation was answered otherwise.
        final = final_measures(run, progress, validation if run is self._run else None)
        if "test" in final.scores:
            self._logger.write("test", progress.step, final.scores["test"].measures)
        forgetting = self._forgetting()
        checkpoints = CheckpointWriter(run, self._directory, self._config.checkpoint.keep)
        tensors, layers = checkpoints.tensors(), layer_shares(run.model)
        self._spending.add(Flops())
        if not isinstance(self._logger, MetricsLogger):
            return  # only the main process writes
        parameters = sum(p.numel() for p in run.model.parameters())
        checkpoints.write_model(tensors)
        seconds = self._seconds()
        results = self._results(
            run, final, parameters, {"forgetting": forgetting, "layers": layers}
        )
        if final.items:
            write_items(self._directory.items, final.items)
        measured = {**results.measures, "forgetting": (forgetting or {}).get("after", {})}
        final_values = {
            f"{split}/{name}": value
            for split, measures in measured.items()
            for name, value in without_details(measures).items()
        }
        settings = hyperparameters(plain_values(self._config), results.presets)
        self._logger.write_final(settings, final_values, progress.step)
        write_json(self._directory.timing, self._timing(seconds))
        results.write(self._directory.results)
        checkpoints.prune_finished(progress.step)
        self._directory.set_status("finished", final.failed)
        if final.failed is not None:
            log.warning("this run failed: %s", final.failed)
        console.say_results(self._command, self._directory.path, results, seconds)

    def _results(
        self, run: TrainingRun, final: FinalMeasures, parameters: int, more: Mapping[str, Any]
    ) -> Results:
        progress, task, scores = self._progress, run.data.task, final.scores
        foretold = (self._config.get("ladder") or {}).get("prediction")
        context = run.data.splits["train"].context
        confidence = [m for m in METRICS if any(m.name in s.measures for s in scores.values())]
        average = {} if run.average is None else {"kept": run.average.kept, **run.average.best}
        return Results(
            command=self._command,
            presets=self._directory.read_presets(),
            seed=self._config.seed,
            measures={name: of_split.measures for name, of_split in scores.items()},
            metrics=(*self._blueprint.network.metrics, *confidence),
            tables={name: of_split.tables for name, of_split in scores.items() if of_split.tables},
            labels=tuple(run.data.labels),
            task=None if task is None else task.name,
            expected=None if task is None else task.expected,
            failed=final.failed,
            examples={name: s.counts()["scored"] for name, s in run.data.splits.items()},
            best_step=progress.best_step or progress.step,
            parameters=Parameters(parameters, run.step.stages.num_ever_trained()),
            seen=Seen(progress.step, progress.tokens, progress.examples, progress.skipped),
            cost=Cost(progress.flops, progress.flops_real, run.state_flops.done, progress.tokens),
            stored_bytes=(self._directory.model / WEIGHTS).stat().st_size,
            more={
                "by_words": examples.linear_baseline(run.data, [*scores][-1]) if scores else None,
                "data_changed": run.origins.accepted,
                **({} if (dial := dial_record(self._config)) is None else {"dial": dial}),
                "compiled": self._blueprint.course.loop.compile,
                # Of running text: what was seen before the tokens that are scored.
                "context": None if context is None else asdict(context),
                "fitted": {} if task is None else dict(task.fitted),
                **_signatures(task, scores),
                "training_labels": examples.labels_in(run.data),
                **({"average": average} if average else {}),
                **more,
                **({"prediction": dict(foretold)} if foretold else {}),
                "precision": self._blueprint.precision.kind,
                "stages": [{"begin": s.begin, "end": s.end} for s in run.step.stages.spans],
                "versions": versions(),
            },
        )

    def _timing(self, seconds: float) -> dict[str, Any]:
        progress = self._progress
        return {
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "per_second": {
                "tokens": round(progress.tokens / seconds, 1),
                "examples": round(progress.examples / seconds, 2),
            },
            "peak_memory_bytes": peak_memory(self._blueprint.precision.device),
            SPENT: self._spending.record(),
        }

    def _forgetting(self) -> dict[str, dict[str, float]] | None:
        """Return the pretraining measures before and after, and write them down."""
        forgetting = self._run.forgetting
        if forgetting is None:
            return None
        with self._scorer.raise_divergence():
            after = forgetting.measure()
        self._logger.write("forgetting", self._progress.step, after)
        return {"before": dict(forgetting.before), "after": after}


def _signatures(task: Task | None, scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Return how libraries made the measures that there are, if they made any."""
    signatures = {} if task is None else task.signatures()
    measured = {name for of_split in scores.values() for name in of_split.measures}
    used = {name: text for name, text in signatures.items() if name in measured}
    return {"signatures": used} if used else {}
