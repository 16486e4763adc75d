"""What objectives share whose head gives scores to units: texts, questions with choices, words.

Legend: B batch, T positions, N units, C labels, choices or numbers.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from transfer_cli.batch import Batch, size
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import Answering
from transfer_cli.objectives.base import Encoding


class UnitObjective(Answering):
    """A loss of what a head says of each unit; others can be about the same (`OfMainHead`).

    By default units are examples, of which one label is said.
    """

    units_are_examples: ClassVar[bool] = True
    """Whether any text has such units; else a batch says which there are, as that of its task."""

    @abstractmethod
    def scores(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the numbers that say what each unit is, in float32, `[N, C]`."""

    def num_units(self, batch: Batch) -> int:
        """Return the number of units."""
        return size(batch)

    def of_units(self, values: Tensor, batch: Batch) -> Tensor:
        """Return, `[N, C]`, the values of units that are a key of their batch."""
        return values

    def left_in(self, batch: Batch, mask: Tensor) -> Batch:
        """Return a batch without the units that another mask of its tokens takes away."""
        return batch

    def units_in(self, batch: Batch, mask: Tensor) -> Tensor:
        """Return which units another mask of the tokens leaves, `[N]` bool."""
        return torch.ones(self.num_units(batch), dtype=torch.bool, device=mask.device)

    def scores_of(self, answers_NC: Tensor) -> Tensor:
        """Return the scores of which a finished run's answers are made."""
        return answers_NC.log()

    def softened(self, scores_NC: Tensor, temperature: float) -> Tensor:
        """Return scores that say less, or more below 1."""
        return scores_NC / temperature

    def sureness(self, scores_NC: Tensor) -> Tensor:
        """Return the probability of what the scores say first, `[N]`."""
        return scores_NC.softmax(1).amax(1)

    def divergence(self, target_NC: Tensor, scores_NC: Tensor) -> Tensor:
        """Return how far scores are from others, `[N]`: KL(target || scores)."""
        first_NC, second_NC = target_NC.log_softmax(1), scores_NC.log_softmax(1)
        target_NC = first_NC.exp()
        never_NC = target_NC == 0  # such as a choice that is not there
        difference_NC = first_NC.masked_fill(never_NC, 0) - second_NC.masked_fill(never_NC, 0)
        return (target_NC * difference_NC).sum(1)
