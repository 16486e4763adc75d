"""What a resume takes up again, in one place."""

import logging
from collections.abc import Sequence

from transfer_cli.assembly.run import TrainingRun
from transfer_cli.engine import distributed, handlers
from transfer_cli.engine.loop import Progress
from transfer_cli.errors import CheckpointError, FinishedError
from transfer_cli.model.weights import read_description
from transfer_cli.runs import checkpoint
from transfer_cli.runs.atomic import write_text
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.training.checkpoints import CheckpointWriter

log = logging.getLogger(__name__)


def take_up(
    parts: TrainingRun,
    run: RunDirectory,
    checkpoints: CheckpointWriter,
    progress: Progress,
    patience: int | None,
) -> float:
    """Go on from the newest checkpoint that is whole; from the beginning where there is none.

    Five things come back to what they were then: progress; the ends of stages; model, optimizer and
    penalty; the best weights; the records. What was written after it will be written again.

    Args:
        parts: The run, built from its own config.
        run: Its directory.
        checkpoints: Reads them.
        progress: Is filled.
        patience: `loop.patience`.

    Returns:
        The seconds that training took until then.

    Raises:
        FinishedError: Nothing is left to train.
        CheckpointError: The checkpoint does not fit the run, or the run is finished without one.
    """
    newest = checkpoints.newest()
    if newest is None:
        _begin_anew(run)
        return 0.0
    state = checkpoint.read_state(newest)
    with checkpoint.fitting(newest):
        progress.load_state_dict(state["progress"])
        parts.stages.load_ends(state["step"]["stages"])
        ended = progress.has_ended(parts.total_steps, parts.stages, patience)
    if ended and run.read_status() == "finished":
        raise FinishedError(
            f"resume: {run.path} is finished after {progress.step} steps; "
            f"to go on, give it more, for example loop.steps={2 * progress.step}"
            + (" loop.patience=null" if patience is not None else "")
        )
    _check_base(run, parts.base_hash)
    with checkpoint.fitting(newest):
        checkpoints.fill(newest, state)
        if distributed.is_main():
            if progress.best is None:
                checkpoint.remove(run.best)
            else:
                checkpoint.restore_best(newest, run.best, progress.best_step)
            handlers.rewind(run, state["records"])
    log.info("going on after step %d", progress.step)
    return progress.seconds


def _begin_anew(run: RunDirectory) -> None:
    if run.read_status() == "finished":
        raise CheckpointError(
            f"resume: {run.path} is finished, and none of its checkpoints is left to go on "
            "from; start a new run, with init_from if it is to begin with these weights"
        )
    log.info("no checkpoint yet: starting from the beginning")
    if distributed.is_main():
        checkpoint.remove(run.best)
        handlers.rewind(run, {})


def _check_base(run: RunDirectory, base_hash: str | None) -> None:
    """Refuse to put a checkpoint of trained weights on another backbone than its own."""
    base = read_description(run.model).base
    if base is not None and base.hash != base_hash:
        raise CheckpointError(
            f"resume: {run.path} was trained on a backbone of hash {base.hash[:8]}, and "
            f"init_from now has {str(base_hash)[:8]}; put the original back"
        )


def note_overrides(run: RunDirectory, config: str, typed: Sequence[str]) -> None:
    """Let the next resume find what this one was given."""
    write_text(run.config, config)
    noted = run.overrides.read_text("utf-8", "replace") if run.overrides.exists() else ""
    new = [word for word in typed if word not in noted.splitlines()]
    write_text(run.overrides, noted + "".join(f"{word}\n" for word in new))
