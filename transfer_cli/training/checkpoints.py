"""What a run keeps of its model: checkpoints, the best weights, and the finished model."""

import json
import logging
import os
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from transfer_cli.assembly.run import TrainingRun
from transfer_cli.data.tokenizer_file import save_tokenizer
from transfer_cli.engine import distributed
from transfer_cli.engine.distributed import full_tensor
from transfer_cli.model.added import edits_in, merge, unmergeable_edits
from transfer_cli.model.borrowing import head_as_model
from transfer_cli.model.weights import (
    DESCRIPTION,
    WEIGHTS,
    Base,
    load_strictly,
    read_weights,
    save_tensors,
    write_description,
)
from transfer_cli.runs import checkpoint
from transfer_cli.runs.atomic import as_run_error, replaced_file
from transfer_cli.runs.directory import TOKENIZER, RunDirectory
from transfer_cli.runs.environment import RECORD, numerical_environment

log = logging.getLogger(__name__)

_KEPT_WHILE_TRAINING = 2
"""Checkpoints of a run at work, if nobody says how many: if one is damaged, there is another."""

DESCRIPTION_FILES = (DESCRIPTION, TOKENIZER)
"""The files that `describe_model` writes."""


class CheckpointWriter:
    """Writes and reads the weights of a run, and the state of its training.

    The main process writes; of a sharded model every process has a part, and all of them call each
    method together.

    Of checkpoints, the newest `keep` stay; 0 keeps all, None two, and one of a finished run.
    """

    def __init__(self, run: TrainingRun, directory: RunDirectory, keep: int | None) -> None:
        self._run = run
        self._directory = directory
        self._keep = keep

    @property
    def _takes_part(self) -> bool:
        return distributed.is_main() or self._run.blueprint.sharded

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights to be stored, unsharded, on the CPU."""
        state, omitted = self._run.model.state_dict(), self._run.blueprint.omitted_weights
        return {n: full_tensor(state[n]).cpu() for n in state if n not in omitted}

    def save_best(self, step: int) -> None:
        """Keep the weights as they are now, after a step, in place of the best so far."""
        if not self._takes_part:
            return
        tensors = self.tensors()
        if distributed.is_main():
            checkpoint.write_best(
                self._directory.best, step, lambda folder: save_tensors(tensors, folder / WEIGHTS)
            )

    def load_best(self) -> None:
        """Fill the model with the best weights, which the newest checkpoint has taken along."""
        self._read_weights(checkpoint.whole_best(self._directory.checkpoints))

    def save(self, step: int, state: Mapping[str, Any], *, with_best: bool) -> None:
        """Write a checkpoint with all that a resume needs beyond the weights; remove old ones."""
        if not self._takes_part:
            return
        folder = self._directory.checkpoints / checkpoint.folder_name(step)
        best = self._directory.best if with_best else None
        if self._run.blueprint.sharded:
            self._save_parts(folder, step, state, best)
        else:
            tensors = self.tensors()

            def write(temporary: Path) -> None:
                save_tensors(tensors, temporary / WEIGHTS)
                self._write_environment(temporary)

            checkpoint.write(folder, step, write, state, best)
        if distributed.is_main():
            keep = _KEPT_WHILE_TRAINING if self._keep is None else self._keep
            checkpoint.prune(self._directory.checkpoints, keep, step)

    def prune_finished(self, step: int) -> None:
        """Leave of a run that ends after so many steps what is needed, and that once."""
        if self._keep is None:
            checkpoint.prune(self._directory.checkpoints, 1, step)
        checkpoint.link_equal_files(self._directory.model, self._directory.checkpoints)

    def _save_parts(
        self, folder: Path, step: int, state: Mapping[str, Any], best: Path | None
    ) -> None:
        """Write a checkpoint into one folder, each process its own part of it."""
        from transfer_cli.engine.distributed import sharded

        model = self._run.model
        if not distributed.is_main():
            sharded.save(Path(distributed.broadcast_text("")), model, state)
            return
        plain: dict[str, Any] = {}

        def write(temporary: Path) -> None:
            distributed.broadcast_text(str(temporary))
            plain.update(sharded.save(temporary, model, state))
            self._write_environment(temporary)

        checkpoint.write(folder, step, write, plain, best)

    def _write_environment(self, folder: Path) -> None:
        """Write what this process runs on, for a resume elsewhere."""
        device = self._run.blueprint.precision.device
        # Plainly: the folder is flushed and renamed as a whole.
        record = numerical_environment(device, distributed.world_size())
        (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")

    def newest(self) -> Path | None:
        """Return the newest complete checkpoint, as the main process has found it."""
        folder = self._directory.checkpoints
        newest = checkpoint.newest_good(folder) if distributed.is_main() else None
        name = distributed.broadcast_text(newest.name if newest is not None else "")
        return folder / name if name else None

    def fill(self, folder: Path, state: dict[str, Any]) -> None:
        """Fill model, optimizer and stages from a sharded or an unsharded checkpoint."""
        step, average, in_parts = self._run.step, self._run.average, checkpoint.is_sharded(folder)
        if in_parts or self._run.blueprint.sharded:
            from transfer_cli.engine.distributed import sharded

            if in_parts:
                state = sharded.load(folder, self._run.model, state)
            else:
                state = {**state, "step": sharded.shard_state(state["step"], step)}
                if average is not None:
                    state["average"] = sharded.shard_average(state["average"], self._run.model)
        step.load_state_dict(state["step"])
        if average is not None:
            average.load_state_dict(state["average"])
        if not in_parts:
            self._read_weights(folder)

    def write_model(self, tensors: Mapping[str, Tensor]) -> None:
        """Write `model/`; with `adaptation.store=merged` every mergeable edit is merged."""
        run, folder, checkpoints = self._run, self._directory.model, self._directory.checkpoints
        merged: set[str] = set()
        if run.blueprint.adaptation.store == "merged":
            replaced = merge(run.model).values()
            merged = merged.union(*(edits_in(layer) for layer in replaced))
            stay = unmergeable_edits(run.model).values()
            if stay:
                log.info("adaptation.store: not merged, and stored beside: %s", ", ".join(stay))
            tensors = self.tensors()
            # The checkpoints still hold the edits apart.
            with checkpoint.listing_files(checkpoints, DESCRIPTION_FILES):
                describe_model(run, checkpoints)
        with checkpoint.listing_files(folder, (*DESCRIPTION_FILES, WEIGHTS)):
            describe_model(run, folder, without=merged)
            left_out = run.blueprint.training_only_weights
            kept = {name: tensor for name, tensor in tensors.items() if name not in left_out}
            with as_run_error(folder / WEIGHTS), replaced_file(folder / WEIGHTS) as path:
                save_tensors(kept, path)
        self._write_parts(tensors)

    def _write_parts(self, tensors: Mapping[str, Tensor]) -> None:
        """Write each head that is a model itself into a folder of its own, beside `model/`."""
        plan = self._run.blueprint
        for loss in plan.network.losses:
            for name, part in loss.objective.parts_of(plan.model.backbone.shape).items():
                described = replace(
                    plan.description(), shape=part.shape, objective=part.objective, edits={}
                )
                folder = self._directory.parts / name
                folder.mkdir(parents=True, exist_ok=True)
                with checkpoint.listing_files(folder, (*DESCRIPTION_FILES, WEIGHTS)):
                    write_description(described, folder)
                    save_tokenizer(plan.data.tokenizer, folder / TOKENIZER)
                    with as_run_error(folder / WEIGHTS), replaced_file(folder / WEIGHTS) as path:
                        save_tensors(head_as_model(name, tensors), path)

    def _read_weights(self, folder: Path) -> None:
        run, tensors = self._run, read_weights(folder)
        if run.blueprint.sharded:
            from transfer_cli.engine.distributed.sharded import shard_like

            state = run.model.state_dict()
            tensors = {n: shard_like(t, state[n]) if n in state else t for n, t in tensors.items()}
        load_strictly(run.model, tensors, folder, run.blueprint.omitted_weights)


def describe_model(run: TrainingRun, folder: Path, *, without: Set[str] = frozenset()) -> None:
    """Write what builds the run's model, but for its weights, which may lack edits."""
    base = None
    start = run.blueprint.start.pretrained
    if start is not None and run.base_hash is not None:
        weights = start.weights.resolve()
        base = Base(str(weights), os.path.relpath(weights, folder.resolve()), run.base_hash)
    description = run.blueprint.description(base, without=without)
    write_description(description, folder)
    save_tokenizer(run.blueprint.data.tokenizer, folder / TOKENIZER)
