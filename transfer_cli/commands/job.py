"""A run at work: the engine, what is attached to it, and what is written when."""

import contextlib
import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from transfer_cli.commands import choices
from transfer_cli.commands.environment import versions
from transfer_cli.commands.outcome import (
    MOST_JUDGED,
    is_lora,
    layer_shares,
    majority_failure,
    peak_memory,
    weights_size,
)
from transfer_cli.commands.parts import Parts
from transfer_cli.commands.plan import plan_text
from transfer_cli.commands.summary import say_results, say_start
from transfer_cli.engine import handlers
from transfer_cli.engine.evaluate import Scores, evaluate, samples
from transfer_cli.engine.split import Split, some_of
from transfer_cli.engine.step import Loss
from transfer_cli.engine.train import Progress, build_trainer, run_trainer
from transfer_cli.errors import CheckpointError, RunError, StoppedError
from transfer_cli.lengths import Length
from transfer_cli.model.lora import merge_lora
from transfer_cli.model.weights import (
    load_strictly,
    read_description,
    read_weights,
    save_weights,
    write_description,
)
from transfer_cli.runs import checkpoint
from transfer_cli.runs.directory import TOKENIZER, RunDirectory, write_json, write_text

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
                recorder.writer.add_text("plan", self._plan(), start_step)
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
            trainer,
            recorder,
            optimizer,
            lambda: parts.stages.current,
            every=loop.log_every,
            several=len(parts.layout.losses) > 1,
        )
        what = "tokens" if self._command == "pretrain" else "examples"
        handlers.attach_progress(trainer, optimizer, parts.total_steps, what)
        if "validation" in parts.data.splits:

            def on_measures(step: int, measures: dict[str, float]) -> None:
                recorder.write("validation", step, measures)
                recorder.writer.add_text("validation/samples", self._samples(), step)
                shown = {name: value for name, value in measures.items() if "/" not in name}
                listed = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
                log.info("step %d validation  %s", step, listed)

            handlers.attach_validation(
                trainer,
                self._progress,
                lambda: self._measures("validation"),
                every=Length.parse_rhythm(loop.evaluate_every),
                monitor=loop.monitor,
                patience=loop.patience,
                stages=parts.stages,
                on_measures=on_measures,
                on_best=self._keep_best,
            )
        handlers.attach_checkpoints(
            trainer, self._save, Length.parse_rhythm(self._config.checkpoint.every)
        )
        resume = f"transfer {self._command} resume={self._run.path}"
        with (
            handlers.speak_above_the_bar(),
            handlers.stop_on_signal(trainer, self._save, resume),
        ):
            run_trainer(
                trainer,
                parts.streams,
                micro_batch=parts.micro_batch,
                total_steps=start_step if self._ended() else parts.total_steps,
                start_step=start_step,
                epoch_length=parts.layout.sizes.steps_per_epoch,
                mixture=parts.layout.sizes.mixture,
            )
        self._save()

    def _ended(self) -> bool:
        """Return whether nothing is left to train: all steps are taken, or patience ran out."""
        progress, patience = self._progress, self._config.loop.patience
        gave_up = patience is not None and progress.waited >= patience
        done = progress.step >= self._parts.total_steps or self._parts.stages.exhausted
        return gave_up or done

    def _score(self, loss: Loss, split: Split) -> Scores:
        parts = self._parts
        return evaluate(
            parts.model,
            loss.objective,
            split,
            batch=parts.micro_batch,
            precision=parts.precision,
        )

    def _measures(self, name: str) -> dict[str, float]:
        """Return the measures of a split: those of the main loss, and of others by their names."""
        main = self._score(self._parts.layout.losses[0], self._parts.data.splits[name])
        return main.measures | self._further_measures(name)

    def _further_measures(self, name: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for loss in self._parts.layout.losses[1:]:
            split = self._parts.prepared[loss.stream].splits.get(name)
            if split is not None:
                measures = self._score(loss, split).measures
                found |= {f"{loss.name}/{each}": value for each, value in measures.items()}
        return found

    def _plan(self) -> str:
        return f"```\n{plan_text(self._config, self._parts.layout)}\n```"

    def _samples(self) -> str:
        """Return a few predictions on the validation split as a table."""
        parts = self._parts
        shown = samples(
            parts.model,
            parts.layout.losses[0].objective,
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
        save_weights(self._parts.model, folder, self._parts.leave_out)

    def _read_weights(self, folder: Path) -> None:
        parts = self._parts
        load_strictly(parts.model, read_weights(folder), folder, parts.leave_out)

    def _take_up(self) -> None:
        """Go on from the newest checkpoint; from the beginning where there is none."""
        found = checkpoint.find_all(self._run.checkpoints)
        if not found:
            log.info("no checkpoint yet: starting from the beginning")
            return
        newest = found[-1]
        state = checkpoint.read_state(newest)
        self._progress.load_state_dict(state["progress"])
        self._parts.step.load_state_dict(state["step"])
        if self._ended() and self._run.read_status() == "finished":
            raise CheckpointError(
                f"resume: {self._run.path} is finished after {self._progress.step} steps; "
                f"to go on, give it more, for example loop.steps={2 * self._progress.step}"
                + (" loop.patience=null" if self._config.loop.patience is not None else "")
            )
        self._check_base()
        self._read_weights(newest.path)
        self._before = self._progress.seconds
        log.info("going on after step %d", self._progress.step)

    def _check_base(self) -> None:
        """Refuse to put a checkpoint of trained weights on another backbone than its own."""
        base = read_description(self._run.model).base
        if base is not None and base.hash != self._parts.base_hash:
            raise CheckpointError(
                f"resume: {self._run.path} was trained on a backbone of hash {base.hash[:8]}, and "
                f"init_from now has {str(self._parts.base_hash)[:8]}; put the original back"
            )

    def _finish(self, recorder: handlers.Recorder) -> None:
        """Score the best weights, once, and write `model/` and `results.json`."""
        parts, run, progress = self._parts, self._run, self._progress
        if progress.best is not None:
            self._read_weights(run.best)
        failure = self._failure()
        main = parts.layout.losses[0]
        scores = {
            name: self._score(main, parts.data.splits[name])
            for name in ("validation", "test")
            if name in parts.data.splits
        }
        measures = {
            name: found.measures | self._further_measures(name) for name, found in scores.items()
        }
        for name, found in measures.items():
            if name == "test":
                recorder.write(name, progress.step, found)
        forgetting = self._forgetting(recorder)
        trained = sum(p.numel() for p in parts.model.parameters())
        self._write_model()
        seconds = self._before + time.perf_counter() - self._began
        results: dict[str, Any] = {
            "command": self._command,
            "presets": run.read_presets(),
            "seed": self._config.seed,
            "measures": measures,
            "tables": {name: found.tables for name, found in scores.items() if found.tables},
            "labels": list(parts.data.labels),
            "failed": failure,
            "forgetting": forgetting,
            "best_step": progress.best_step or progress.step,
            "parameters": {"total": trained, "trainable": parts.stages.ever_trained()},
            "layers": layer_shares(parts.model),
            "stages": [{"begin": s.begin, "end": s.end} for s in parts.stages.spans],
            "seen": {
                "steps": progress.step,
                "tokens": progress.tokens,
                "examples": progress.examples,
                "skipped_steps": progress.skipped,
            },
            "seconds": round(seconds, 3),
            "peak_memory_bytes": peak_memory(parts.precision.device),
            "stored_bytes": weights_size(run.model),
            "per_second": {
                "tokens": round(progress.tokens / seconds, 1),
                "examples": round(progress.examples / seconds, 2),
            },
            "versions": versions(),
        }
        write_json(run.results, results)
        run.set_status("finished", failure)
        if failure is not None:
            log.warning("this run failed: %s", failure)
        say_results(self._command, run.path, results)

    def _failure(self) -> str | None:
        """Return why the run came to nothing, judged by its best weights; None when it did not."""
        parts = self._parts
        train = parts.data.splits["train"]
        if not parts.data.labels:
            return None
        found = self._score(parts.layout.losses[0], some_of(train, MOST_JUDGED))
        return majority_failure(found, parts.data.labels)

    def _forgetting(self, recorder: handlers.Recorder) -> dict[str, dict[str, float]] | None:
        """Return the pretraining measures before and after, and write them down."""
        forgetting = self._parts.forgetting
        if forgetting is None:
            return None
        after = forgetting.measure()
        recorder.write("forgetting", self._progress.step, after)
        return {"before": dict(forgetting.before), "after": after}

    def _write_model(self) -> None:
        """Write `model/`, with low-rank products folded in where that was asked for."""
        parts, folder = self._parts, self._run.model
        if self._config.adaptation.get("store") == "merged":
            merge_lora(parts.model)
            description = read_description(folder)
            # The checkpoints still hold the products by themselves.
            write_description(description, self._run.checkpoints)
            parts.tokenizer.save(self._run.checkpoints / TOKENIZER)
            kept = {n: e for n, e in description.edits.items() if not is_lora(e)}
            write_description(dataclasses.replace(description, edits=kept), folder)
        self._write_weights(folder)
