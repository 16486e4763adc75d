"""Enter a stage: set what moves; leave one: put its best weights back."""

import bisect
import dataclasses
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.optim.schedules import StagePlan

log = logging.getLogger(__name__)


class Stages:
    """Which weights train at which step.

    The stage of a step is a function of its number and of the steps at which stages with patience
    ended early: those few numbers are the only state.

    Args:
        spans: The run's stages as planned, in order and without gaps.
        frozen_eval: Whether modules without trainable parameters run in evaluation mode.
    """

    def __init__(
        self, model: TransferModel, spans: Sequence[StagePlan], *, frozen_eval: bool
    ) -> None:
        self._model = model
        self._planned = tuple(spans)
        self._frozen_eval = frozen_eval
        self._early_ends: dict[int, int] = {}
        self._best: tuple[float, ...] | None = None
        self._validations_waited = 0
        self._best_weights: dict[str, Tensor] = {}
        self.spans = self._planned
        """The stages as they are now: after an early end, those that follow begin earlier."""
        self.current: int | None = None
        self.ever_trains = frozenset[str]().union(*(span.trains for span in self._planned))

    @property
    def is_exhausted(self) -> bool:
        """Whether the last stage has run out of patience."""
        return len(self._planned) - 1 in self._early_ends

    def stage_at(self, step: int) -> int:
        """Return the number of a step's stage; the last stage has no end."""
        return bisect.bisect(self.spans, step, key=lambda span: span.begin) - 1

    def enter(self, step: int) -> frozenset[str]:
        """Let the step's weights train, and only those; does nothing within a stage.

        A frozen parameter has no gradient: with one of zero, an optimizer's running averages and
        weight decay would still move it.

        Returns:
            Names of the parameters whose optimizer state must be dropped: they begin to train, or
            went back to earlier values.
        """
        number, before = self.stage_at(step), self.current
        forget: frozenset[str] = frozenset()
        if number != before:
            if before is not None:
                restored = self._restore_best()
                forget = (self._planned[number].trains - self._planned[before].trains) | restored
            self._best, self._validations_waited, self._best_weights = None, 0, {}
            self._set_trainable(number)
            self._log_stage(number, step)
        # An evaluation switches the whole model; a new stage freezes other modules.
        if number != before or not self._model.training:
            self.set_training_mode()
        return forget

    def observe_validation(self, step: int, place: tuple[float, ...]) -> None:
        """Take the place of a validation among others, the lower the better, after `step` steps.

        A stage with patience keeps its best weights, and ends when there is no improvement.
        """
        if self.current is None:
            return
        patience = self._planned[self.current].patience
        if patience is None:
            return
        if self._best is None or place < self._best:
            self._best, self._validations_waited = place, 0
            self._best_weights = {n: tensor.detach().clone() for n, tensor in self._changing()}
            return
        self._validations_waited += 1
        if self._validations_waited >= patience:
            log.info("stage %d: nothing better for %d validations", self.current + 1, patience)
            self._early_ends[self.current] = step
            self._set_spans()

    def ends_patient_stage(self, step: int) -> bool:
        """Return whether a stage with patience ends after `step` steps."""
        return any(span.end == step and span.patience is not None for span in self.spans)

    def set_training_mode(self) -> None:
        """Switch to training mode; with `frozen_eval`, only where something trains."""
        self._model.train()
        if not self._frozen_eval:
            return
        for module in self._model.modules():
            parameters = list(module.parameters())
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                module.eval()

    def num_ever_trained(self) -> int:
        """Return how many parameters train in any stage."""
        named = self._model.named_parameters()
        return sum(p.numel() for name, p in named if name in self.ever_trains)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: plain values, and the best weights of this stage."""
        return {
            "current": self.current,
            "begins": [span.begin for span in self.spans],
            "early": dict(self._early_ends),
            "best": self._best,
            "waited": self._validations_waited,
            "kept": dict(self._best_weights),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off, in the middle of a stage or at its end."""
        self.load_ends(state)
        begun = [span.begin for span in self.spans][: (self.current or 0) + 1]
        if begun != state["begins"][: len(begun)]:
            raise ConfigError(
                "resume: with another length, stages that are over would have begun at other "
                "steps, since adaptation.plan gives them as shares of the run; keep loop.steps "
                "and loop.epochs as they were, or start a new run"
            )
        self._best = None if state["best"] is None else tuple(state["best"])  # shards hold lists
        self._validations_waited = int(state["waited"])
        device = next(self._model.parameters()).device
        self._best_weights = {name: tensor.to(device) for name, tensor in state["kept"].items()}
        if self.current is not None:
            self._set_trainable(self.current)
            self.set_training_mode()

    def load_ends(self, state: Mapping[str, Any]) -> None:
        """Restore which stage it is and which ended early, but no weights."""
        self.current = state["current"]
        self._early_ends = dict(state["early"])
        self._set_spans()

    def _set_spans(self) -> None:
        spans: list[StagePlan] = []
        begin, last = 0, len(self._planned) - 1
        for number, planned in enumerate(self._planned):
            # The last stage takes the steps that early ends have left.
            full_end = planned.end if number == last else begin + planned.end - planned.begin
            end = self._early_ends.get(number, full_end)
            spans.append(dataclasses.replace(planned, begin=begin, end=end))
            begin = end
        self.spans = tuple(spans)

    def _set_trainable(self, number: int) -> None:
        self.current = number
        trains = self._planned[number].trains
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(name in trains)
            if name not in trains:
                parameter.grad = None

    def _restore_best(self) -> frozenset[str]:
        """Restore the best weights of the stage; return their names."""
        with torch.no_grad():
            for name, tensor in self._changing():
                if name in self._best_weights:
                    tensor.copy_(self._best_weights[name])
        # Running statistics are restored too, but have no optimizer state.
        return frozenset(self._best_weights.keys() & dict(self._model.named_parameters()))

    def _changing(self) -> Iterable[tuple[str, Tensor]]:
        """Return the tensors that this stage changes: trainable parameters, running statistics."""
        trains = ((name, p) for name, p in self._model.named_parameters() if p.requires_grad)
        return itertools.chain(trains, self._model.named_buffers())

    def _log_stage(self, number: int, step: int) -> None:
        total = sum(p.numel() for p in self._model.parameters())
        moving = sum(p.numel() for p in self._model.parameters() if p.requires_grad)
        log.info(
            "stage %d of %d, from step %d: %s of %s parameters train (%.1f %%)",
            number + 1, len(self._planned), step + 1, f"{moving:,}", f"{total:,}",
            100 * moving / total,
        )  # fmt: skip
