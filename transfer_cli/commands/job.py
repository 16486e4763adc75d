"""A run at work: the engine, what is attached to it, and what is written when."""

import contextlib
import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from transfer_cli.commands import choices
from transfer_cli.commands.environment import versions
from transfer_cli.commands.parts import Parts
from transfer_cli.commands.summary import say_results, say_start
from transfer_cli.engine import handlers
from transfer_cli.engine.evaluate import Scores, Split, evaluate, samples
from transfer_cli.engine.train import Progress, Stream, build_trainer, run_trainer
from transfer_cli.errors import CheckpointError, ConfigError, RunError, StoppedError, nearest
from transfer_cli.lengths import Length
from transfer_cli.model.weights import load_strictly, read_weights, save_weights
from transfer_cli.runs import checkpoint
from transfer_cli.runs.directory import RunDirectory, write_json, write_text

log = logging.getLogger(__name__)

SAMPLES = 8
"""Predictions that TensorBoard shows at each validation."""


class Job:
    """A run at work: the engine, what is attached to it, and what is written when.

    Args:
        config: The whole config, for the files of the run alone.
        command: pretrain or finetune.
        parts: What `put_together` built.
        run: Where everything is written.
    """

    def __init__(self, config: DictConfig, command: str, parts: Parts, run: RunDirectory) -> None:
        self._config = config
        self._command = command
        self._parts = parts
        self._run = run
        self._progress = Progress()
        self._began = time.perf_counter()
        self._before = 0.0

    def go(self, *, resuming: bool) -> None:
        """Train, then score the best weights, and leave the run directory complete."""
        run, progress = self._run, self._progress
        if resuming:
            self._take_up()
            # The next resume must find what this one was given.
            write_text(run.config, choices.as_yaml(self._config))
            typed = "".join(f"{word}\n" for word in choices.typed_overrides())
            write_text(run.overrides, run.overrides.read_text(encoding="utf-8") + typed)
        start_step = progress.step
        try:
            recorder = handlers.Recorder(run.metrics, run.tensorboard, start_step)
            with contextlib.closing(recorder):
                shown = f"```yaml\n{choices.as_yaml(self._config)}```"
                recorder.writer.add_text("config", shown, start_step)
                say_start(self._command, run.path, self._parts, self._config)
                run.set_status("running")
                self._train(recorder, start_step)
                self._finish(recorder)
        except BaseException as error:
            if progress.step == 0 and not resuming:
                run.discard()
            else:
                self._say_why(error)
            raise

    def _say_why(self, error: BaseException) -> None:
        """Write into the run directory why the run ends before its end."""
        stopped = isinstance(error, KeyboardInterrupt | StoppedError)
        with contextlib.suppress(RunError):  # a full disk may be the very reason
            self._run.set_status(
                "stopped" if stopped else "failed", str(error) or type(error).__name__
            )

    def _train(self, recorder: handlers.Recorder, start_step: int) -> None:
        parts, loop = self._parts, self._config.loop
        optimizer = parts.step.optimizer
        trainer = build_trainer(parts.step, self._progress)
        handlers.attach_records(
            trainer, recorder, optimizer, lambda: parts.stages.current, every=loop.log_every
        )
        what = "tokens" if self._command == "pretrain" else "examples"
        handlers.attach_progress(trainer, optimizer, parts.total_steps, what)
        if "validation" in parts.data.splits:
            self._check_monitor(parts.data.splits["validation"])

            def on_measures(step: int, measures: dict[str, float]) -> None:
                recorder.write("validation", step, measures)
                recorder.writer.add_text("validation/samples", self._samples(), step)
                shown = {name: value for name, value in measures.items() if "/" not in name}
                listed = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
                log.info("step %d validation  %s", step, listed)

            handlers.attach_validation(
                trainer,
                self._progress,
                lambda: self._score(parts.data.splits["validation"]).measures,
                every=Length.parse(loop.evaluate_every),
                monitor=loop.monitor,
                patience=loop.patience,
                on_measures=on_measures,
                on_best=self._keep_best,
            )
        handlers.attach_checkpoints(
            trainer, self._save, Length.parse(self._config.checkpoint.every)
        )
        resume = f"transfer {self._command} resume={self._run.path}"
        with (
            handlers.speak_above_the_bar(),
            handlers.stop_on_signal(trainer, self._save, resume),
        ):
            run_trainer(
                trainer,
                {"main": Stream(parts.data.splits["train"].data, parts.order)},
                micro_batch=parts.micro_batch,
                total_steps=start_step if self._ended() else parts.total_steps,
                start_step=start_step,
            )
        self._save()

    def _check_monitor(self, validation: Split) -> None:
        """Refuse a measure that there is not before the first epoch is spent on it."""
        monitor = self._config.loop.monitor
        known = self._score(dataclasses.replace(validation, order=np.arange(1))).measures
        # What is measured of a class depends on whether the class occurs.
        if monitor not in known and "/" not in monitor:
            raise ConfigError(
                f"loop.monitor: there is no measure {monitor!r}.{nearest(monitor, known)} "
                f"This run measures {', '.join(name for name in known if '/' not in name)}"
            )

    def _ended(self) -> bool:
        """Return whether nothing is left to train: all steps are taken, or patience ran out."""
        progress, patience = self._progress, self._config.loop.patience
        gave_up = patience is not None and progress.waited >= patience
        return gave_up or progress.step >= self._parts.total_steps

    def _score(self, split: Split) -> Scores:
        parts = self._parts
        return evaluate(
            parts.model,
            parts.losses[0].objective,
            split,
            batch=parts.micro_batch,
            precision=parts.precision,
        )

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

    def _keep_best(self, step: int) -> None:
        checkpoint.write(self._run.best, step, self._write_weights, None)

    def _save(self) -> None:
        self._progress.seconds = self._before + time.perf_counter() - self._began
        state = {"step": self._parts.step.state_dict(), "progress": self._progress.state_dict()}
        folder = self._run.checkpoints / checkpoint.name(self._progress.step)
        checkpoint.write(folder, self._progress.step, self._write_weights, state)
        checkpoint.prune(self._run.checkpoints, self._config.checkpoint.keep)

    def _write_weights(self, folder: Path) -> None:
        save_weights(self._parts.model, folder)

    def _take_up(self) -> None:
        """Go on from the newest checkpoint; from the beginning where there is none."""
        found = checkpoint.find_all(self._run.checkpoints)
        if not found:
            log.info("no checkpoint yet: starting from the beginning")
            return
        newest = found[-1]
        state = checkpoint.read_state(newest)
        self._progress.load_state_dict(state["progress"])
        if self._ended() and self._run.read_status() == "finished":
            raise CheckpointError(
                f"resume: {self._run.path} is finished after {self._progress.step} steps; "
                f"to go on, give it more, for example loop.steps={2 * self._progress.step}"
                + (" loop.patience=null" if self._config.loop.patience is not None else "")
            )
        load_strictly(self._parts.model, read_weights(newest.path), newest.path)
        self._parts.step.load_state_dict(state["step"])
        self._before = self._progress.seconds
        log.info("going on after step %d", self._progress.step)

    def _finish(self, recorder: handlers.Recorder) -> None:
        """Score the best weights, once, and write `model/` and `results.json`."""
        parts, run, progress = self._parts, self._run, self._progress
        if progress.best is not None:
            load_strictly(parts.model, read_weights(run.best), run.best)
        scores = {
            name: self._score(parts.data.splits[name])
            for name in ("validation", "test")
            if name in parts.data.splits
        }
        measures = {name: found.measures for name, found in scores.items()}
        for name, found in measures.items():
            if name == "test":
                recorder.write(name, progress.step, found)
        self._write_weights(run.model)
        seconds = self._before + time.perf_counter() - self._began
        trained = sum(p.numel() for p in parts.model.parameters())
        results: dict[str, Any] = {
            "command": self._command,
            "presets": run.read_presets(),
            "seed": self._config.seed,
            "measures": measures,
            "tables": {name: found.tables for name, found in scores.items() if found.tables},
            "labels": list(parts.data.labels),
            "best_step": progress.best_step or progress.step,
            "parameters": {"total": trained, "trainable": parts.stages.ever_trained()},
            "seen": {
                "steps": progress.step,
                "tokens": progress.tokens,
                "examples": progress.examples,
                "skipped_steps": progress.skipped,
            },
            "seconds": round(seconds, 3),
            "per_second": {
                "tokens": round(progress.tokens / seconds, 1),
                "examples": round(progress.examples / seconds, 2),
            },
            "versions": versions(),
        }
        write_json(run.results, results)
        run.set_status("finished")
        say_results(self._command, run.path, results)
