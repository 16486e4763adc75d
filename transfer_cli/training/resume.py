"""What a resume takes up again, in one place."""

import logging
from collections.abc import Sequence

from transfer_cli.assembly.init_from import verify_model
from transfer_cli.assembly.run import TrainingRun
from transfer_cli.engine import distributed, handlers
from transfer_cli.engine.loop import Progress
from transfer_cli.errors import CheckpointError, FinishedError
from transfer_cli.model.weights import DESCRIPTION, read_description
from transfer_cli.runs import checkpoint
from transfer_cli.runs.atomic import write_text
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.training.checkpoints import CheckpointWriter

log = logging.getLogger(__name__)


def take_up(
    run: TrainingRun,
    directory: RunDirectory,
    checkpoints: CheckpointWriter,
    progress: Progress,
) -> float:
    """Continue from the newest complete checkpoint; from the beginning where there is none.

    Five things come back to what they were then: progress; the ends of stages; model, optimizer and
    penalty; the best weights; the records. What was written after it will be written again.

    Returns:
        The seconds that training took until then.

    Raises:
        FinishedError: Nothing is left to train.
        CheckpointError: The checkpoint does not fit the run, or the run is finished without one.
    """
    newest = checkpoints.newest()
    if newest is None:
        _begin_anew(directory)
        return 0.0
    state = checkpoint.read_state(newest)
    patience = run.blueprint.loop.patience
    with checkpoint.fitting(newest):
        progress.load_state_dict(state["progress"])
        run.step.stages.load_ends(state["step"]["stages"])
        ended = progress.has_ended(run.blueprint.sizes.total_steps, run.step.stages, patience)
    if ended and directory.read_status() == "finished":
        raise FinishedError(
            f"resume: {directory.path} is finished after {progress.step} steps; "
            f"to go on, give it more, for example loop.steps={2 * progress.step}"
            + (" loop.patience=null" if patience is not None else "")
        )
    _check_base(directory, run.base_hash)
    with checkpoint.fitting(newest):
        checkpoints.fill(newest, state)
        if distributed.is_main():
            if progress.best is None:
                checkpoint.remove(directory.best)
            else:
                checkpoint.restore_best(newest, directory.best, progress.best_step)
            handlers.rewind(directory, state["records"])
    log.info("going on after step %d", progress.step)
    return progress.seconds


def _begin_anew(directory: RunDirectory) -> None:
    if directory.read_status() == "finished":
        raise CheckpointError(
            f"resume: {directory.path} is finished, and none of its checkpoints is left to go on "
            "from; start a new run, with init_from if it is to begin with these weights"
        )
    log.info("no checkpoint yet: starting from the beginning")
    if distributed.is_main():
        checkpoint.remove(directory.best)
        handlers.rewind(directory, {})


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
    write_text(directory.config, config)
    file = directory.overrides
    noted = file.read_text("utf-8", "replace") if file.exists() else ""
    new = [word for word in typed if word not in noted.splitlines()]
    write_text(file, noted + "".join(f"{word}\n" for word in new))
