"""What a resume takes up again, in one place."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.drawing import sizes_of, total_steps_of
from transfer_cli.assembly.init_from import verify_model
from transfer_cli.assembly.run import TrainingRun
from transfer_cli.config.build import build
from transfer_cli.config.schema import LoopConfig, MixingConfig
from transfer_cli.config.stored import read_stored
from transfer_cli.config.variables import MOST_THREADS
from transfer_cli.earlier_runs import DROPOUT_DRAWN_OTHERWISE, upgrade_state
from transfer_cli.engine import distributed
from transfer_cli.engine.loop import Progress
from transfer_cli.engine.metrics_logger import rewind
from transfer_cli.engine.stages import Stages
from transfer_cli.errors import CheckpointError, FinishedError, RunError, between
from transfer_cli.model.weights import DESCRIPTION, read_description
from transfer_cli.runs import checkpoint
from transfer_cli.runs.atomic import write_text
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.environment import (
    RECORD,
    available_cores,
    computing_threads,
    differences,
    numerical_environment,
)
from transfer_cli.safe_files import UnreadableError, read_json, read_text
from transfer_cli.training.checkpoints import CheckpointWriter

log = logging.getLogger(__name__)


@contextmanager
def same_threads(
    directory: RunDirectory, threads: int | None, device: torch.device, *, strict: bool
) -> Iterator[None]:
    """Compute with as many threads as the newest checkpoint, unless `threads` says otherwise.

    What else differs from then is said in one line: the run goes on, and is no longer bit for bit
    the one without a break.
    """
    record = json.dumps(_read_environment(directory)) if distributed.is_main() else ""
    then: dict[str, Any] | None = json.loads(distributed.broadcast_text(record))
    threads = threads or (then or {}).get("threads")
    with computing_threads(threads):
        if distributed.is_main():
            _compare(then, numerical_environment(device, distributed.world_size()), strict=strict)
        if threads is not None and threads * distributed.local_world_size() > available_cores():
            log.info(
                "threads: %d as before, though there are %d cores here; another number is faster, "
                "and no longer computes the same bits", threads, available_cores(),
            )  # fmt: skip
        yield


def _read_environment(directory: RunDirectory) -> dict[str, Any] | None:
    """Return what the newest checkpoint was computed on; None: it does not say so.

    Where there is no checkpoint it is empty.
    """
    for folder in reversed(checkpoint.find_all(directory.checkpoints)):
        try:
            record: dict[str, Any] = read_json(folder / RECORD)
            between("threads", int(record["threads"]), 1, MOST_THREADS)
        except FileNotFoundError:
            return None
        except (OSError, UnreadableError, KeyError, TypeError, ValueError):
            continue  # damaged, as the whole checkpoint then is
        return record
    return {}


def _compare(then: dict[str, Any] | None, now: dict[str, Any], *, strict: bool) -> None:
    if then == {}:
        return
    changed = [DROPOUT_DRAWN_OTHERWISE] if then is None else differences(then, now)
    if changed and strict:
        raise RunError(
            f"resume.strict: {'; '.join(changed)}; go on where it was, or without resume.strict"
        )
    if changed:
        log.warning(
            "resume: not bit for bit the run without a break any more: %s; resume.strict=true "
            "refuses this", "; ".join(changed),
        )  # fmt: skip


def restore(
    run: TrainingRun, directory: RunDirectory, checkpoints: CheckpointWriter, progress: Progress
) -> float:
    """Continue from the newest complete checkpoint; from the beginning where there is none.

    Five things come back to what they were then: progress; the ends of stages; model and optimizer;
    the best weights; the records. What was written after it will be written again.

    Returns:
        The seconds that training took until then.
    """
    newest = checkpoints.newest()
    if newest is None:
        _begin_anew(directory)
        return 0.0
    state = checkpoint.read_state(newest)
    loop, total = run.blueprint.course.loop, run.blueprint.course.sizes.total_steps
    with checkpoint.as_checkpoint_error(newest):
        state = upgrade_state(state)
        progress.load_state_dict(state["progress"])
        run.step.stages.load_ends(state["step"]["stages"])
        ended = progress.has_ended(total, run.step.stages, loop.patience, loop.minutes)
    if ended and directory.read_status() == "finished":
        lengths = {"tokens": loop.tokens, "flops": loop.flops, "steps": float(progress.step)}
        name, length = next((name, value) for name, value in lengths.items() if value is not None)
        more = [] if progress.step < total else [f"loop.{name}={2 * length:.12g}"]
        more += [] if loop.minutes is None else [f"loop.minutes={2 * loop.minutes:g}"]
        more += [] if loop.patience is None else ["loop.patience=null"]
        stages, anew = state["step"]["stages"], "; to go on, start a new run with init_from"
        cure = f"to go on, give it more, for example {' '.join(more)}"
        if run.step.stages.is_exhausted:
            cure = f"its last stage ran out of patience{anew}"
        elif progress.step >= total and _begin_elsewhere(run, stages, 2 * progress.step):
            cure = f"its stages are shares of its length{anew}"
        raise FinishedError(
            f"resume: {directory.path} is finished after {progress.step} steps; {cure}"
        )
    _check_base(directory, run.base_hash)
    with checkpoint.as_checkpoint_error(newest):
        checkpoints.fill(newest, state)
        if distributed.is_main():
            if progress.best is None:
                checkpoint.remove(directory.best)
            else:
                checkpoint.restore_best(newest, directory.best, progress.best_step)
            rewind(directory, state["records"])
        if course := course_change_text(directory, run.blueprint):
            log.info("resume: %s", course)
    log.info("going on after step %d", progress.step)
    return progress.seconds


def _begin_elsewhere(run: TrainingRun, stages: Mapping[str, Any], total: int) -> bool:
    """Return whether these stages would have begun at other steps of a run of `total`."""
    plan, epoch = run.blueprint, run.blueprint.course.sizes.steps_per_epoch
    spans = plan.adaptation.plan_stages(plan.network.groups, total, epoch)
    longer = Stages(run.step.model, spans, frozen_eval=False)
    longer.load_ends(stages)
    return bool([span.begin for span in longer.spans] != stages["begins"])


def course_change_text(directory: RunDirectory, blueprint: Blueprint) -> str:
    """Return what changes in a run that goes on with other steps than it was planned for.

    "" where there is nothing to say: no step was taken, or there are as many as before. A schedule
    is a function of the step and of how many there are, so the rate may jump. So may a mixture be:
    it then has other examples behind it than were seen.
    """
    reached = [checkpoint.step_of(folder) for folder in checkpoint.find_all(directory.checkpoints)]
    step, sizes = max(reached, default=0), blueprint.course.sizes
    loop = build(read_stored(directory.config, directory.read_command(), "resume").loop,
                 "loop", LoopConfig)  # fmt: skip
    now, total = blueprint.course.loop, sizes.total_steps
    counted = loop.tokens or loop.flops
    planned = total if counted else total_steps_of(loop, sizes.steps_per_epoch)
    for before, after in ((loop.tokens, now.tokens), (loop.flops, now.flops)):
        if before and after:
            planned = round(total * before / after)
    planned = max(planned, step)  # rounded, or given fewer steps than it had taken
    if not 0 < step < total or planned == total:
        return ""

    def rate_at(number: int, steps: int) -> float:
        stages = blueprint.adaptation.plan_stages(
            blueprint.network.groups, steps, sizes.steps_per_epoch
        )
        stage = next(stage for stage in stages if number < stage.end)
        scheduler = replace(blueprint.course.lr_scheduler, total=steps)
        return scheduler.get_lr(number, stage)

    config, mixed = blueprint.config, ""
    mixing, then = build(config.mixing, "mixing", MixingConfig), replace(now, steps=planned)
    as_planned = sizes_of(blueprint.data.drawn_counts, then, mixing, config.seed)
    mixtures = [of.mixture for of in (as_planned, sizes) if of.mixture is not None]
    if len({tuple(map(mixture.draw, range(step))) for mixture in mixtures}) > 1:
        mixed = "; mixing follows from the length: some examples come again, some are left out"
    return (
        f"planned for {planned:,} steps and now for {total:,}: the rate, "
        f"{rate_at(step - 1, planned):.3g} in step {step:,}, is {rate_at(step, total):.3g} in step "
        f"{step + 1:,} and {rate_at(total - 1, total):.3g} in the last{mixed}"
    )


def _begin_anew(directory: RunDirectory) -> None:
    if directory.read_status() == "finished":
        raise CheckpointError(
            f"resume: {directory.path} is finished, and none of its checkpoints is left to go on "
            "from; start a new run, with init_from if it is to begin with these weights"
        )
    log.info("no checkpoint yet: starting from the beginning")
    if distributed.is_main():
        checkpoint.remove(directory.best)
        rewind(directory, {})


def _check_base(directory: RunDirectory, base_hash: str | None) -> None:
    """Refuse to put a checkpoint of trained weights on another backbone than its own."""
    verify_model(directory.model, DESCRIPTION)
    base = read_description(directory.model).base
    if base is not None and base.hash != base_hash:
        raise CheckpointError(
            f"resume: {directory.path} was trained on a backbone of hash {base.hash[:8]}, and "
            f"init_from now has {str(base_hash)[:8]}; put the original back"
        )


def note_overrides(directory: RunDirectory, config: str, typed: Sequence[str]) -> None:
    """Let the next resume find what this one was given."""
    file = directory.overrides
    try:
        noted = read_text(file) if file.exists() else ""
    except (OSError, UnreadableError) as error:
        raise RunError(f"resume: {file} cannot be read: {error}; remove it") from error
    write_text(directory.config, config)
    new = [word for word in typed if word not in noted.splitlines()]
    write_text(file, noted + "".join(f"{word}\n" for word in new))
