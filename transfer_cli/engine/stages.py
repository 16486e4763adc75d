"""Enter a stage: set what moves; leave one: put its best weights back."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from transfer_cli.adaptation.adaptation import StagePlan
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import TransferModel

log = logging.getLogger(__name__)


class Stages:
    """Which weights train at which step.

    What a step belongs to is a function of its number, and of the steps at which stages with
    patience ended early: those few numbers are the only memory.

    Args:
        model: The model.
        spans: The run's stages as planned, in order and without gaps.
        frozen_eval: Whether parts of which nothing trains run without dropout.
    """

    def __init__(
        self, model: TransferModel, spans: Sequence[StagePlan], *, frozen_eval: bool
    ) -> None:
        self._model = model
        self._planned = tuple(spans)
        self._frozen_eval = frozen_eval
        self._early: dict[int, int] = {}
        self._best: float | None = None
        self._waited = 0
        self._kept: dict[str, Tensor] = {}
        self.spans = self._planned
        """The stages as they are now: after an early end, those that follow begin earlier."""
        self.current: int | None = None
        self.ever_trains = frozenset[str]().union(*(span.trains for span in self._planned))

    @property
    def exhausted(self) -> bool:
        """Whether the last stage has run out of patience."""
        return len(self._planned) - 1 in self._early

    def at(self, step: int) -> int:
        """Return the number of the stage that a step belongs to; the last one has no end."""
        reached = [number for number, span in enumerate(self.spans) if span.begin <= step]
        return reached[-1]

    def clock(self, step: int) -> StagePlan:
        """Return the stage that a step belongs to."""
        return self.spans[self.at(step)]

    def enter(self, step: int) -> frozenset[str]:
        """Make the step's weights, and only those, train; nothing happens within a stage.

        A frozen parameter has no gradient at all: with one of zero, an optimizer's running averages
        and weight decay would still move it.

        Returns:
            Parameters whose running averages an optimizer must forget: they begin to train, or
            went back to earlier values.
        """
        number = self.at(step)
        entered, before = number != self.current, self.current
        forget: frozenset[str] = frozenset()
        if entered:
            if before is not None:
                restored = self._restore()
                forget = (self._planned[number].trains - self._planned[before].trains) | restored
            self._best, self._waited, self._kept = None, 0, {}
            self._apply(number)
            self._report(number, step)
        # An evaluation switches all of the model; a new stage, what is frozen in it.
        if entered or not self._model.training:
            self.training_mode()
        return forget

    def observe(self, step: int, value: float) -> None:
        """Take a validation measure, the lower the better, after `step` steps.

        A stage with patience keeps the weights that did best, and ends when nothing better comes.
        """
        if self.current is None:
            return
        patience = self._planned[self.current].patience
        if patience is None:
            return
        if self._best is None or value < self._best:
            self._best, self._waited = value, 0
            self._kept = {name: tensor.detach().clone() for name, tensor in self._moving()}
            return
        self._waited += 1
        if self._waited >= patience:
            log.info("stage %d: nothing better for %d validations", self.current + 1, patience)
            self._early[self.current] = step
            self._lay_out()

    def ends_with_choice(self, step: int) -> bool:
        """Return whether a stage that puts its best weights back ends after `step` steps."""
        return any(span.end == step and span.patience is not None for span in self.spans)

    def training_mode(self) -> None:
        """Switch dropout on, where something trains or frozen parts keep theirs."""
        self._model.train()
        if not self._frozen_eval:
            return
        for module in self._model.modules():
            own = list(module.parameters())
            if own and not any(parameter.requires_grad for parameter in own):
                module.eval()

    def trainable(self) -> int:
        """Return how many parameters train now."""
        return sum(p.numel() for p in self._model.parameters() if p.requires_grad)

    def ever_trained(self) -> int:
        """Return how many parameters train in any stage."""
        named = self._model.named_parameters()
        return sum(p.numel() for name, p in named if name in self.ever_trains)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: plain values, and the best weights of this stage."""
        return {
            "current": self.current,
            "begins": [span.begin for span in self.spans],
            "early": dict(self._early),
            "best": self._best,
            "waited": self._waited,
            "kept": dict(self._kept),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off, in the middle of a stage or at its end.

        Raises:
            ConfigError: A stage that has begun would have begun at another step: the run has
                another length now, and its stages are shares of it.
        """
        self.load_ends(state)
        begun = [span.begin for span in self.spans][: (self.current or 0) + 1]
        if begun != state["begins"][: len(begun)]:
            raise ConfigError(
                "resume: with another length, stages that are over would have begun at other "
                "steps, since adaptation.plan gives them as shares of the run; keep loop.steps "
                "and loop.epochs as they were, or start a new run"
            )
        best = state["best"]
        self._best, self._waited = best if best is None else float(best), int(state["waited"])
        device = next(self._model.parameters()).device
        self._kept = {name: tensor.to(device) for name, tensor in state["kept"].items()}
        if self.current is not None:
            self._apply(self.current)
            self.training_mode()

    def load_ends(self, state: Mapping[str, Any]) -> None:
        """Take up which stage it is and which ended early, and leave the weights alone."""
        self.current = state["current"]
        self._early = dict(state["early"])
        self._lay_out()

    def _lay_out(self) -> None:
        found: list[StagePlan] = []
        begin, last = 0, len(self._planned) - 1
        for number, planned in enumerate(self._planned):
            # The last stage takes what early ends have left.
            own = planned.end if number == last else begin + planned.end - planned.begin
            end = self._early.get(number, own)
            found.append(dataclasses.replace(planned, begin=begin, end=end))
            begin = end
        self.spans = tuple(found)

    def _apply(self, number: int) -> None:
        self.current = number
        trains = self._planned[number].trains
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(name in trains)
            if name not in trains:
                parameter.grad = None

    def _restore(self) -> frozenset[str]:
        """Put the best weights of the stage back; return their names."""
        with torch.no_grad():
            for name, tensor in self._moving():
                if name in self._kept:
                    tensor.copy_(self._kept[name])
        # Running statistics go back too, but no optimizer knows them.
        return frozenset(name for name, _ in self._model.named_parameters()) & self._kept.keys()

    def _moving(self) -> Iterable[tuple[str, Tensor]]:
        """Yield what this stage changes: parameters that train, and running statistics."""
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                yield name, parameter
        yield from self._model.named_buffers()

    def _report(self, number: int, step: int) -> None:
        total = sum(p.numel() for p in self._model.parameters())
        moving = self.trainable()
        log.info(
            "stage %d of %d, from step %d: %s of %s parameters train (%.1f %%)",
            number + 1, len(self._planned), step + 1, f"{moving:,}", f"{total:,}",
            100 * moving / total,
        )  # fmt: skip
