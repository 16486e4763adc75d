"""A run at work: the engine, what is attached to it, and what is written when."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from transfer_cli.assembly.plan_table import plan_text
from transfer_cli.assembly.run import TrainingRun
from transfer_cli.config.stored import as_yaml
from transfer_cli.data.split import Split, some_of
from transfer_cli.engine import distributed, handlers
from transfer_cli.engine.evaluate import EachExample, Scores, evaluate, samples
from transfer_cli.engine.step import Loss
from transfer_cli.engine.train import Progress, build_trainer, run_trainer
from transfer_cli.errors import (
    PrunedError,
    RunError,
    StoppedError,
)
from transfer_cli.lengths import Length
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.environment import versions
from transfer_cli.runs.items import Item, write_items
from transfer_cli.sweep.trial import trial_of
from transfer_cli.training.checkpoints import Keeping
from transfer_cli.training.console import say_results, say_start
from transfer_cli.training.examples import items_of, noting
from transfer_cli.training.hyperparameters import hyperparameters
from transfer_cli.training.results import (
    MOST_JUDGED,
    layer_shares,
    peak_memory,
    weights_size,
)
from transfer_cli.training.resume import note_overrides, take_up

log = logging.getLogger(__name__)

SAMPLES = 8
"""Predictions that TensorBoard shows at each validation."""

SAVING = 0.02
"""The share of the time that `checkpoint.every=auto` leaves to saving."""


class Job:
    """A run at work: the engine, what is attached to it, and what is written when.

    Args:
        config: The whole config, for the files of the run alone.
        command: pretrain or finetune.
        parts: What `build_run` built.
        run: Where everything is written.
    """

    def __init__(
        self, config: DictConfig, command: str, parts: TrainingRun, run: RunDirectory
    ) -> None:
        self._config = config
        self._command = command
        self._parts = parts
        self._run = run
        self._progress = Progress()
        self._keeping = Keeping(parts, run, config.checkpoint.keep)
        self._main = distributed.is_main()
        self._trial = trial_of(run.path) if self._main else None
        self._began = time.perf_counter()
        self._before = 0.0
        self._mark: Callable[[], dict[str, int]] = dict

    def resume(self, typed: Sequence[str]) -> None:
        """Take up what the run directory holds, and train on.

        Args:
            typed: The overrides that were typed for this resume.
        """
        self._before = take_up(
            self._parts, self._run, self._keeping, self._progress, self._config.loop.patience
        )
        if self._main:
            note_overrides(self._run, as_yaml(self._config), typed)
        self.train(resuming=True)

    def train(self, *, resuming: bool = False) -> None:
        """Train, then score the best weights, and leave the run directory complete."""
        run, progress = self._run, self._progress
        start_step = progress.step
        try:
            logger = self._logger(start_step + 1 if resuming else None)
            self._mark = logger.mark
            with contextlib.closing(logger):
                shown = f"```yaml\n{as_yaml(self._config)}```"
                logger.writer.add_text("config", shown, start_step)
                logger.writer.add_text("plan", self._plan(), start_step)
                say_start(self._command, run.path, self._parts, self._config)
                if self._main:
                    run.set_status("running")
                self._train(logger, start_step)
                self._finish(logger)
        except BaseException as error:
            if not self._main:
                raise
            if progress.step == 0 and not resuming:
                run.discard()
            else:
                self._say_why(error)
            raise

    def _logger(self, purge_step: int | None) -> handlers.MetricsLogger | handlers.NoMetricsLogger:
        if not self._main:
            return handlers.NoMetricsLogger()
        return handlers.MetricsLogger(self._run, purge_step)

    def _say_why(self, error: BaseException) -> None:
        """Write into the run directory why the run ends before its end."""
        stopped = isinstance(error, KeyboardInterrupt | StoppedError | PrunedError)
        reason = str(error) or type(error).__name__
        if distributed.is_lost_connection(error):
            reason = "another process failed or is gone"
        with contextlib.suppress(RunError):  # a full disk may be the very reason
            self._run.set_status("stopped" if stopped else "failed", reason)

    def _train(
        self, logger: handlers.MetricsLogger | handlers.NoMetricsLogger, start_step: int
    ) -> None:
        parts, loop = self._parts, self._config.loop
        optimizer = parts.step.optimizer
        trainer = build_trainer(parts.step, self._progress)
        handlers.attach_metrics_logger(
            trainer,
            logger,
            optimizer,
            lambda: parts.stages.current,
            every=loop.log_every,
            several=len(parts.losses) > 1,
        )
        what = "tokens" if self._command == "pretrain" else "examples"
        if self._main:
            handlers.attach_progress(trainer, optimizer, parts.total_steps, what)
        if "validation" in parts.data.splits:

            def on_measures(step: int, measures: dict[str, float]) -> None:
                logger.write("validation", step, measures)
                logger.writer.add_text("validation/samples", self._samples(), step)
                shown = _without_details(measures)
                listed = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
                log.info("step %d validation  %s", step, listed)
                self._ask_search(step, measures)

            handlers.attach_validation(
                trainer,
                self._progress,
                lambda: self._measures("validation"),
                every=Length.parse_rhythm(loop.evaluate_every),
                monitor=parts.blueprint.monitor,
                patience=loop.patience,
                stages=parts.stages,
                on_measures=on_measures,
                on_best=self._keeping.save_best,
            )
        saving = self._config.checkpoint
        handlers.attach_checkpoints(
            trainer,
            self._save,
            Length.parse_rhythm("1 epoch" if saving.every == "auto" else saving.every),
            saving.minutes,
            share=SAVING if saving.every == "auto" else None,
            agree=lambda now: bool(distributed.all_reduce_max(now and self._main)),
        )
        ended = self._progress.has_ended(parts.total_steps, parts.stages, loop.patience)
        resume = f"transfer {self._command} resume={self._run.path}"
        with (
            handlers.speak_above_the_bar(),
            handlers.stop_on_signal(trainer, self._save, resume),
        ):
            run_trainer(
                trainer,
                parts.streams,
                micro_batch=parts.micro_batch,
                total_steps=start_step if ended else parts.total_steps,
                start_step=start_step,
                epoch_length=parts.sizes.steps_per_epoch,
                mixture=parts.sizes.mixture,
            )
        self._save()

    def _ask_search(self, step: int, measures: Mapping[str, float]) -> None:
        """End a trial that its search has no hope in.

        Raises:
            PrunedError: It has none.
        """
        hopeless = self._trial is not None and self._trial.is_hopeless(step, measures)
        if distributed.all_reduce_max(int(hopeless)):
            raise PrunedError(f"pruned at step {step}: earlier trials did better by then")

    def _score(self, loss: Loss, split: Split, each: EachExample | None = None) -> Scores:
        parts = self._parts
        return evaluate(
            parts.model,
            loss.objective,
            split,
            batch=parts.micro_batch,
            precision=parts.precision,
            each=each,
        )

    def _measures(self, name: str) -> dict[str, float]:
        """Return the measures of a split: those of the main loss, and of others by their names."""
        main = self._score(self._parts.losses[0], self._parts.data.splits[name])
        return main.measures | self._further_measures(name)

    def _further_measures(self, name: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for loss in self._parts.losses[1:]:
            split = self._parts.prepared[loss.stream].splits.get(name)
            if split is not None:
                measures = self._score(loss, split).measures
                found |= {f"{loss.name}/{each}": value for each, value in measures.items()}
        return found

    def _plan(self) -> str:
        return f"```\n{plan_text(self._parts.blueprint, self._config.loop.batch)}\n```"

    def _samples(self) -> str:
        """Return a few predictions on the validation split as a table."""
        parts = self._parts
        shown = samples(
            parts.model,
            parts.losses[0].objective,
            parts.data.splits["validation"],
            count=SAMPLES,
            precision=parts.precision,
        )

        def cell(content: list[int] | str) -> str:
            text = (
                content if isinstance(content, str) else " ".join(parts.tokenizer.pieces(content))
            )
            return text.replace("|", "\\|")

        rows = [f"| {cell(s.tokens)} | {cell(s.wanted)} | {cell(s.said)} |" for s in shown]
        return "\n".join(["| input | wanted | predicted |", "|---|---|---|", *rows])

    def _save(self) -> None:
        progress = self._progress
        progress.skipped += self._parts.step.read()
        progress.seconds = self._before + time.perf_counter() - self._began
        state = {
            "step": self._parts.step.state_dict(),
            "progress": progress.state_dict(),
            "records": self._mark(),
        }
        self._keeping.save(progress.step, state, with_best=progress.best is not None)

    def _finish(self, logger: handlers.MetricsLogger | handlers.NoMetricsLogger) -> None:
        """Score the best weights, once, and write `model/` and `results.json`."""
        parts, run, progress = self._parts, self._run, self._progress
        distributed.barrier()  # until the best weights are written
        if progress.best is not None:
            self._keeping.take_best()
        failure = self._failure()
        main = parts.losses[0]
        scores, items = self._judged(main)
        measures = {
            name: found.measures | self._further_measures(name) for name, found in scores.items()
        }
        for name, found in measures.items():
            if name == "test":
                logger.write(name, progress.step, found)
        forgetting = self._forgetting(logger)
        tensors = self._keeping.tensors()
        layers = layer_shares(parts.model)
        if not isinstance(logger, handlers.MetricsLogger):
            return  # only the main process writes
        trained = sum(p.numel() for p in parts.model.parameters())
        self._keeping.write_model(tensors)
        seconds = self._before + time.perf_counter() - self._began
        results: dict[str, Any] = {
            "command": self._command,
            "presets": run.read_presets(),
            "seed": self._config.seed,
            "measures": measures,
            "metrics": [metric.as_json() for metric in parts.blueprint.metrics],
            "tables": {name: found.tables for name, found in scores.items() if found.tables},
            "labels": list(parts.data.labels),
            "task": None if parts.data.task is None else parts.data.task.shown(),
            "failed": failure,
            "forgetting": forgetting,
            "best_step": progress.best_step or progress.step,
            "parameters": {"total": trained, "trainable": parts.stages.ever_trained()},
            "layers": layers,
            "stages": [{"begin": s.begin, "end": s.end} for s in parts.stages.spans],
            "seen": {
                "steps": progress.step,
                "tokens": progress.tokens,
                "examples": progress.examples,
                "skipped_steps": progress.skipped,
            },
            "stored_bytes": weights_size(run.model),
            "versions": versions(),
        }
        timing = {
            "seconds": round(seconds, 3),
            "per_second": {
                "tokens": round(progress.tokens / seconds, 1),
                "examples": round(progress.examples / seconds, 2),
            },
            "peak_memory_bytes": peak_memory(parts.precision.device),
        }
        if items:
            write_items(run.items, items)
        listed = {
            f"{split}/{name}": value
            for split, found in measures.items()
            for name, value in _without_details(found).items()
        }
        chosen = hyperparameters(self._config, run.read_presets())
        logger.writer.add_hparams(chosen, listed, progress.step)
        write_json(run.timing, timing)
        write_json(run.results, results)
        run.set_status("finished", failure)
        if failure is not None:
            log.warning("this run failed: %s", failure)
        say_results(self._command, run.path, results, seconds)

    def _judged(self, loss: Loss) -> tuple[dict[str, Scores], list[Item]]:
        """Return the scores of validation and test, and what became of their examples."""
        scores, items, data = {}, [], self._parts.data
        for name in ("validation", "test"):
            if name in data.splits:
                split = data.splits[name]
                each = noting(split)
                scores[name] = self._score(loss, split, each)
                items += items_of(split, data, each)
        return scores, items

    def _failure(self) -> str | None:
        """Return why the run came to nothing, judged by its best weights; None when it did not."""
        parts = self._parts
        train = parts.data.splits["train"]
        task = parts.data.task
        if task is None or not task.can_fail:
            return None
        found = self._score(parts.losses[0], some_of(train, MOST_JUDGED))
        return task.failure(found.measures, found.tables)

    def _forgetting(
        self, logger: handlers.MetricsLogger | handlers.NoMetricsLogger
    ) -> dict[str, dict[str, float]] | None:
        """Return the pretraining measures before and after, and write them down."""
        forgetting = self._parts.forgetting
        if forgetting is None:
            return None
        after = forgetting.measure()
        logger.write("forgetting", self._progress.step, after)
        return {"before": dict(forgetting.before), "after": after}


def _without_details(measures: Mapping[str, float]) -> dict[str, float]:
    """Return a split's own measures: not those of each label, nor of further losses."""
    return {name: value for name, value in measures.items() if "/" not in name}
