"""A run at work: the engine, its handlers, and the files that a run writes."""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from transfer_cli.assembly.datasets import encoded_of
from transfer_cli.assembly.plan_table import plan_page
from transfer_cli.assembly.run import TrainingRun
from transfer_cli.config.literal import as_typed
from transfer_cli.config.stored import as_yaml
from transfer_cli.data.split import Split, some_of
from transfer_cli.engine import distributed, handlers
from transfer_cli.engine.cost import Flops
from transfer_cli.engine.evaluation import EachExample, Scores, evaluate, samples
from transfer_cli.engine.handlers import MetricsLogger, NoMetricsLogger
from transfer_cli.engine.loop import Progress, build_trainer, run_trainer
from transfer_cli.errors import (
    DivergedError,
    NotFiniteError,
    PrunedError,
    RunError,
    StoppedError,
)
from transfer_cli.lengths import Length
from transfer_cli.metrics import LOSS, judge
from transfer_cli.model.weights import WEIGHTS
from transfer_cli.objectives.base import Loss
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.environment import versions
from transfer_cli.runs.items import Item, write_items
from transfer_cli.runs.results import Cost, Parameters, Results, Seen
from transfer_cli.runs.sweep import keys_in_sweep
from transfer_cli.sweep.trial import trial_of
from transfer_cli.tasks.base import by_example
from transfer_cli.training.checkpoints import CheckpointWriter
from transfer_cli.training.console import (
    one_line,
    say_results,
    say_start,
    say_what_is_faster,
    without_details,
)
from transfer_cli.training.examples import by_words, items_of, noting, of_slices
from transfer_cli.training.measurements import (
    MOST_JUDGED,
    hyperparameters,
    layer_shares,
    peak_memory,
)
from transfer_cli.training.resume import note_overrides, take_up
from transfer_cli.training.spending import SPENT, Spending

log = logging.getLogger(__name__)

SAMPLES = 8
"""Predictions that TensorBoard shows at each validation."""

SAVING = 0.02
"""The share of the time that `checkpoint.every=auto` leaves to saving."""


FEWEST_JUDGED = 50
"""Validation examples from which on `loop.monitor=auto` keeps the weights that are best by what
runs are judged by; with fewer the last are better (docs/results.md)."""

FALLEN = 0.2
"""The share of the peak rate below which the last weights have settled."""


@dataclass(frozen=True)
class _Validated:
    """The scores of validation at a step, and what became of its examples."""

    step: int
    scores: Scores
    each: EachExample | None


class Trainer:
    """Trains a run, scores its best weights, and writes its files.

    Args:
        command: pretrain or finetune.
        run: What `build_run` built.
        directory: Where everything is written.
        spending: Adds up what it spends.
    """

    def __init__(
        self,
        command: str,
        run: TrainingRun,
        directory: RunDirectory,
        spending: Spending,
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
        self._before = 0.0
        self._validated: _Validated | None = None

    def resume(self, typed: Sequence[str]) -> None:
        """Take up what the run directory holds, and train on.

        Args:
            typed: The overrides that were typed for this resume.
        """
        if self._main:
            self._spending.go_on(self._directory)
        self._before = take_up(self._run, self._directory, self._checkpoints, self._progress)
        if self._main:
            note_overrides(self._directory, as_yaml(self._config), typed)
            self._run.origins.save(self._directory)
        self.train(resuming=True)

    def train(self, *, resuming: bool = False) -> None:
        """Train, then score the best weights, and leave the run directory complete."""
        start_step = self._progress.step
        try:
            if self._main:
                self._logger = MetricsLogger(self._directory, start_step + 1 if resuming else None)
            with contextlib.closing(self._logger):
                write, plan = self._logger.writer.add_text, plan_page(self._blueprint)
                write("config", f"```yaml\n{as_yaml(self._config)}```", start_step)
                write("plan", f"```\n{plan}\n```", start_step)
                say_start(self._command, self._directory.path, self._run)
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
                self._say_why(error)
            raise

    def _say_why(self, error: BaseException) -> None:
        """Write into the run directory why the run ends before its end."""
        if self._directory.read_status() == "finished":
            return  # nobody could be told
        stopped = isinstance(error, KeyboardInterrupt | StoppedError | PrunedError)
        reason = str(error) or type(error).__name__
        if distributed.is_lost_connection(error):
            reason = "another process failed or is gone"
        with contextlib.suppress(RunError):  # a full disk may be the very reason
            self._directory.set_status("stopped" if stopped else "failed", reason)

    def _train(self, start_step: int) -> None:
        # What was computed before the first step, which is no part of what steps take.
        self._spending.add(self._run.tally.take())
        run, loop, saving = self._run, self._blueprint.loop, self._config.checkpoint
        sizes, stages, optimizer = self._blueprint.sizes, run.step.stages, run.step.optimizer
        trainer = build_trainer(run.step, self._progress)
        handlers.attach_metrics_logger(
            trainer,
            self._logger,
            optimizer,
            lambda: stages.current,
            every=loop.log_every,
            several=len(self._blueprint.losses) > 1,
        )
        if self._main:
            what = "tokens" if self._command == "pretrain" else "examples"
            handlers.attach_progress(
                trainer, optimizer, sizes.total_steps, what, self._seconds_left
            )
            if self._blueprint.precision.device.type == "cpu":
                advise = partial(say_what_is_faster, self._command, self._blueprint)
                handlers.attach_advice(trainer, sizes.total_steps, self._seconds_left, advise)
        if "validation" in run.data.splits:
            if self._keeps_last:
                log.info(
                    "loop.monitor=auto: with fewer than %d validation %s the last weights are kept",
                    FEWEST_JUDGED, run.data.splits["validation"].unit,
                )  # fmt: skip
            handlers.attach_validation(
                trainer,
                self._progress,
                self._validate,
                every=Length.parse_rhythm(loop.evaluate_every),
                monitor=self._blueprint.monitor
                or (() if self._has_few else self._blueprint.metrics),
                keep_last=self._keeps_last,
                patience=loop.patience,
                stages=stages,
                on_measures=self._note_validation,
                on_best=self._checkpoints.save_best,
            )
        handlers.attach_checkpoints(
            trainer,
            self._save,
            Length.parse_rhythm("1 epoch" if saving.every == "auto" else saving.every),
            saving.minutes,
            share=SAVING if saving.every == "auto" else None,
            agree=lambda now: bool(distributed.all_reduce_max(now and self._main)),
        )
        handlers.attach_notes(trainer, self._spending.is_due, self._note_spending)
        if loop.minutes is not None:
            use = partial(setattr, run.step, "time_used")
            handlers.attach_time_limit(trainer, loop.minutes, self._seconds, use)
        ended = self._progress.has_ended(sizes.total_steps, stages, loop.patience, loop.minutes)
        resume = f"transfer {self._command} {as_typed('resume', self._directory.path)}"
        with (
            handlers.speak_above_the_bar(),
            handlers.stop_on_signal(trainer, self._save, resume),
        ):
            run_trainer(
                trainer,
                run.streams,
                micro_batch=run.portion,
                total_steps=start_step if ended else sizes.total_steps,
                start_step=start_step,
                epoch_length=sizes.steps_per_epoch,
                mixture=sizes.mixture,
            )
        self._save()

    @property
    def _has_few(self) -> bool:
        """Whether validation is too small for its measures, but for the loss, to decide."""
        return int(self._run.data.splits["validation"].counts()["scored"]) < FEWEST_JUDGED

    @property
    def _keeps_last(self) -> bool:
        """Whether the last weights are kept: validation is small, and the rate has fallen."""
        plan = self._blueprint
        is_measured = plan.monitor is None and judge(plan.metrics, ()) is not LOSS
        waits = plan.loop.patience or any(stage.patience for stage in plan.stage_plans)
        total = plan.sizes.total_steps
        falls = plan.lr_scheduler.schedule(total - 1, total) < FALLEN
        return bool(self._has_few and is_measured and not waits and falls)

    def _note_validation(self, step: int, measures: dict[str, float]) -> None:
        """Write down and say how a validation went, and ask the search what it thinks of it."""
        self._logger.write("validation", step, measures)
        self._logger.writer.add_text("validation/samples", self._samples(), step)
        log.info("step %d validation  %s", step, one_line(without_details(measures)))
        hopeless = self._trial is not None and self._trial.is_hopeless(step, measures)
        if distributed.all_reduce_max(int(hopeless)):
            raise PrunedError(f"pruned at step {step}: earlier trials did better by then")

    def _score(self, loss: Loss, split: Split, each: EachExample | None = None) -> Scores:
        run = self._run
        with self._diverging():
            return evaluate(
                run.model,
                loss.objective,
                split,
                batch=run.micro_batch,
                precision=self._blueprint.precision,
                each=each,
            )

    @contextlib.contextmanager
    def _diverging(self) -> Iterator[None]:
        """Blame the training where a loss is not finite."""
        try:
            yield
        except NotFiniteError as error:
            raise DivergedError(
                f"step {self._progress.step}: {error}; try a lower optimizer.lr or a longer "
                "schedule.warmup"
            ) from error

    def _validate(self) -> dict[str, float]:
        """Return the measures of validation: those of the main loss, of others by their names.

        Those of the last step are kept: if its weights are the best, they are the run's.
        """
        step = self._progress.step
        if step < self._blueprint.sizes.total_steps:
            found = self._score(self._blueprint.losses[0], self._run.data.splits["validation"])
            return found.measures | self._further_measures("validation")
        self._validated = _Validated(step, *self._of_best("validation"))
        return self._validated.scores.measures

    def _further_measures(self, name: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for loss in self._blueprint.losses[1:]:
            split = self._run.prepared[loss.stream].splits.get(name)
            if split is not None:
                measures = self._score(loss, split).measures
                found |= {f"{loss.name}/{each}": value for each, value in measures.items()}
        return found

    def _samples(self) -> str:
        """Return a few predictions on the validation split as a table."""
        run = self._run
        shown = samples(
            run.model,
            self._blueprint.losses[0].objective,
            run.data.splits["validation"],
            count=SAMPLES,
            precision=self._blueprint.precision,
        )

        def cell(content: list[int] | str) -> str:
            if not isinstance(content, str):
                content = " ".join(self._blueprint.data.tokenizer.pieces(content))
            return content.replace("|", "\\|")

        rows = [f"| {cell(s.tokens)} | {cell(s.target)} | {cell(s.prediction)} |" for s in shown]
        return "\n".join(["| input | wanted | predicted |", "|---|---|---|", *rows])

    def _seconds(self) -> float:
        """Return how long all processes of the run have trained, one after the other."""
        return self._before + time.perf_counter() - self._began

    def _seconds_left(self) -> float:
        """Return after how many seconds the run ends, however many steps it has taken."""
        minutes = self._blueprint.loop.minutes
        return math.inf if minutes is None else 60 * minutes - self._seconds()

    def _note_spending(self) -> None:
        if self._main:
            self._spending.write(self._directory, self._run.tally.counted())

    def _save(self) -> None:
        progress = self._progress
        done = self._spending.add(self._run.tally.take())
        progress.flops += done.done
        progress.flops_real += done.real
        self._note_spending()
        progress.skipped += self._run.step.read()
        progress.seconds = self._seconds()
        state = {
            "step": self._run.step.state_dict(),
            "progress": progress.state_dict(),
            "records": self._logger.mark(),
        }
        self._checkpoints.save(progress.step, state, with_best=progress.best is not None)

    def _finish(self) -> None:
        """Score the best weights, once, and write `model/` and `results.json`."""
        directory, progress = self._directory, self._progress
        distributed.barrier()  # until the best weights are written
        if progress.best is not None:
            self._checkpoints.take_best()
        if 0 < progress.best_step <= progress.step / 10:
            log.warning(
                "the weights that are kept are those of step %d of %d, from the first tenth of the "
                "run: by loop.monitor=%s no later validation was better; a lower optimizer.lr or "
                "a shorter run may do more", progress.best_step, progress.step,
                self._blueprint.loop.monitor,
            )  # fmt: skip
        run = self._fit_answers()
        task = run.data.task
        scores, items = self._judged()
        failure = self._failure(scores.get("validation"))
        measures = {name: found.measures for name, found in scores.items()}
        if "test" in measures:
            self._logger.write("test", progress.step, measures["test"])
        forgetting = self._forgetting()
        tensors = self._checkpoints.tensors()
        layers = layer_shares(run.model)
        self._spending.add(Flops())
        if not isinstance(self._logger, MetricsLogger):
            return  # only the main process writes
        parameters = sum(p.numel() for p in run.model.parameters())
        self._checkpoints.write_model(tensors)
        seconds = self._seconds()
        presets = directory.read_presets()
        results = Results(
            command=self._command,
            presets=presets,
            seed=self._config.seed,
            measures=measures,
            metrics=self._blueprint.metrics,
            tables={name: found.tables for name, found in scores.items() if found.tables},
            labels=tuple(run.data.labels),
            task=None if task is None else task.name,
            expected=None if task is None else task.expected,
            failed=failure,
            examples={name: s.counts()["scored"] for name, s in run.data.splits.items()},
            best_step=progress.best_step or progress.step,
            parameters=Parameters(parameters, run.step.stages.ever_trained()),
            seen=Seen(progress.step, progress.tokens, progress.examples, progress.skipped),
            cost=Cost(progress.flops, progress.flops_real, run.states.done, progress.tokens),
            stored_bytes=(directory.model / WEIGHTS).stat().st_size,
            more={
                "by_words": by_words(run.data, [*scores][-1]) if scores else None,
                "data_changed": run.origins.accepted,
                "context": _context_of(run.data.splits),
                "forgetting": forgetting,
                "layers": layers,
                "stages": [{"begin": s.begin, "end": s.end} for s in run.step.stages.spans],
                "versions": versions(),
            },
        )
        timing = {
            "seconds": round(seconds, 3),
            "per_second": {
                "tokens": round(progress.tokens / seconds, 1),
                "examples": round(progress.examples / seconds, 2),
            },
            "peak_memory_bytes": peak_memory(self._blueprint.precision.device),
            SPENT: self._spending.record(),
        }
        if items:
            write_items(directory.items, items)
        final = {
            f"{split}/{name}": value
            for split, found in measures.items()
            for name, value in without_details(found).items()
        }
        chosen = hyperparameters(self._config, presets)
        swept = keys_in_sweep(directory.path)
        self._logger.writer.add_hparams(chosen, final, progress.step, swept)
        write_json(directory.timing, timing)
        results.write(directory.results)
        self._checkpoints.tidy(progress.step)
        directory.set_status("finished", failure)
        if failure is not None:
            log.warning("this run failed: %s", failure)
        say_results(self._command, directory.path, results, seconds)

    def _fit_answers(self) -> TrainingRun:
        """Let the task choose what it chooses on validation; return the run that answers so."""
        loss, data = self._blueprint.losses[0], self._run.data
        task = data.task
        if task is None or not loss.objective.fits_answers:
            return self._run
        split = data.splits["validation"]
        _, each = self._of_best("validation")
        if each is None:
            each = EachExample()
            self._score(loss, split, each)
        encoded = encoded_of(split)
        rows = {found.index: found.predicted for found in each.gathered()}
        fitted = task.fit(encoded, by_example(encoded, rows))
        self._run = self._run.of_task(replace(task, fitted=fitted))
        self._blueprint = self._run.blueprint
        keep = self._config.checkpoint.keep
        self._checkpoints = CheckpointWriter(self._run, self._directory, keep)
        self._validated = None
        return self._run

    def _judged(self) -> tuple[dict[str, Scores], list[Item]]:
        """Return the scores of validation and test, and what became of their examples."""
        scores, items, data = {}, [], self._run.data
        for name in ("validation", "test"):
            if name in data.splits:
                split = data.splits[name]
                scores[name], each = self._of_best(name)
                own = items_of(split, data, each)
                if data.task is not None and own:
                    for loss in self._blueprint.losses:
                        slices = getattr(loss.objective, "parts", {})
                        found = of_slices(slices, split, data.task, own, f"losses.{loss.name}")
                        scores[name].measures.update(found)
                items += own
        return scores, items

    def _of_best(self, name: str) -> tuple[Scores, EachExample | None]:
        """Return the scores of a split by the best weights, and what became of its examples."""
        kept = self._validated
        if name == "validation" and kept is not None and kept.step == self._progress.best_step:
            return kept.scores, kept.each
        split = self._run.data.splits[name]
        each = noting(split)
        found = self._score(self._blueprint.losses[0], split, each)
        return replace(found, measures=found.measures | self._further_measures(name)), each

    def _failure(self, validation: Scores | None) -> str | None:
        """Return why the run came to nothing, judged by its best weights; None when it did not.

        What it can do on validation it has learnt: its training examples need not be asked.
        """
        data = self._run.data
        if data.task is None or not data.task.can_fail:
            return None
        if validation and not data.task.failure(validation.measures, validation.tables):
            return None
        found = self._score(self._blueprint.losses[0], some_of(data.splits["train"], MOST_JUDGED))
        return data.task.failure(found.measures, found.tables)

    def _forgetting(self) -> dict[str, dict[str, float]] | None:
        """Return the pretraining measures before and after, and write them down."""
        forgetting = self._run.forgetting
        if forgetting is None:
            return None
        with self._diverging():
            after = forgetting.measure()
        self._logger.write("forgetting", self._progress.step, after)
        return {"before": dict(forgetting.before), "after": after}


def _context_of(splits: Mapping[str, Split]) -> dict[str, Any] | None:
    """Return what was seen of running text before the tokens that are scored; None: other data."""
    context = next((split.context for split in splits.values()), None)
    return None if context is None else asdict(context)
