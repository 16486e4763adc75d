"""Enter a stage: set what moves."""

import logging
from collections.abc import Sequence

from transfer_cli.adaptation.adaptation import Span
from transfer_cli.model.transfer_model import TransferModel

log = logging.getLogger(__name__)


class Stages:
    """Which weights train at which step.

    Args:
        model: The model.
        spans: The run's stages, in order and without gaps.
        frozen_eval: Whether parts of which nothing trains run without dropout.
    """

    def __init__(self, model: TransferModel, spans: Sequence[Span], *, frozen_eval: bool) -> None:
        self._model = model
        self._spans = tuple(spans)
        self._frozen_eval = frozen_eval
        self.current: int | None = None
        self.ever_trains = frozenset[str]().union(*(span.trains for span in self._spans))

    def at(self, step: int) -> int:
        """Return the number of the stage that a step belongs to; the last one has no end."""
        reached = [number for number, span in enumerate(self._spans) if span.begin <= step]
        return reached[-1]

    def enter(self, step: int) -> None:
        """Make the step's weights, and only those, train; nothing happens within a stage.

        A frozen parameter has no gradient at all: with one of zero, an optimizer's running averages
        and weight decay would still move it.
        """
        number = self.at(step)
        entered = number != self.current
        if entered:
            self.current = number
            trains = self._spans[number].trains
            for name, parameter in self._model.named_parameters():
                parameter.requires_grad_(name in trains)
                if name not in trains:
                    parameter.grad = None
            self._report(number)
        # An evaluation switches all of the model; a new stage, what is frozen in it.
        if entered or not self._model.training:
            self.training_mode()

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

    def _report(self, number: int) -> None:
        total = sum(p.numel() for p in self._model.parameters())
        moving = self.trainable()
        log.info(
            "stage %d of %d: %s of %s parameters train (%.1f %%)",
            number + 1, len(self._spans), f"{moving:,}", f"{total:,}", 100 * moving / total,
        )  # fmt: skip
