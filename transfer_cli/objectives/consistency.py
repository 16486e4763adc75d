"""Consistency: say the same of a text and of a perturbed copy (UDA; Xie et al. 2019).

Legend: N texts, questions or words; C labels, choices or numbers.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transfer_cli.batch import Batch, view_of
from transfer_cli.data.split import Dataset
from transfer_cli.errors import above_zero, one_of
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.of_main_head import OfMainHead
from transfer_cli.objectives.perturbations import PERTURBATIONS
from transfer_cli.seeds import ExampleNoise

_UNCHANGED = ("none", "dropout")
"""The copy has the same tokens; in training, dropout draws anew."""


@dataclass(eq=False, repr=False)
class Consistency(OfMainHead):
    """KL(p || q) of what the main head says of a text, p, and of a perturbed copy, q.

    It needs no label. No gradient flows through p, which comes from a pass with dropout, too. Of
    words p and q are compared one by one; a word that the copy lacks is left out.

    Args:
        perturb: dropout: the copy differs by dropout alone; mask, delete, unigram or tfidf: see
            `objectives.perturbations`; none, for a test: not even by that, without training.
        rate: The share of tokens that is perturbed, in (0, 1).
        temperature: Sharpens p, below 1.
        confidence: Where p, not sharpened, is not surer than this, it counts as 0, in [0, 1). The
            mean is over all.
        symmetric: Whether KL(q || p) is added, with gradients through both, and halved: with
            perturb=dropout that is R-Drop (Wu et al. 2021).
    """

    perturb: str = "mask"
    rate: float = 0.15
    temperature: float = 1.0
    confidence: float = 0.0
    symmetric: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        one_of("perturb", self.perturb, (*_UNCHANGED, *PERTURBATIONS), ValueError)
        if not 0 < self.rate < 1:
            raise ValueError(f"rate must be between 0 and 1, got {self.rate}")
        if not 0 <= self.confidence < 1:
            raise ValueError(f"confidence must be in [0, 1), got {self.confidence}")
        above_zero("temperature", self.temperature)
        is_changed = self.perturb not in _UNCHANGED
        self._perturb = PERTURBATIONS[self.perturb](self.rate) if is_changed else None
        self.keeps_tokens = False  # its second pass needs them

    def setup(self, info: TaskInfo) -> None:
        """Store the facts of the run; for errors see `OfMainHead` and `Perturbation`."""
        super().setup(info)
        if self._perturb is not None:
            self._perturb.setup(info)

    def on_data(self, data: Dataset) -> None:
        """Let the perturbation count tokens."""
        if self._perturb is not None:
            self._perturb.on_data(data)

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the batch with a further view: the perturbed copy."""
        if self._perturb is None:
            return batch
        tokens, mask = self._perturb(batch, noise)
        left = self.main.left_in(batch, mask)
        return {**left, "tokens_copy": tokens, "mask_copy": mask}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the divergence, summed over texts, questions or words, in float32."""
        main = self.main
        # A pass of its own without gradients: another loss may need those of `encoded`.
        with nullcontext() if self.symmetric else torch.no_grad():
            first = encoded if self.symmetric else Encoding(model, batch)
            scores_NC = main.scores(model, batch, first)
            target_NC = main.softened(scores_NC, self.temperature)
        copy = view_of(batch, "copy")
        other_NC = main.scores(model, copy, Encoding(model, copy))
        each_N = main.divergence(target_NC, other_NC)
        if self.symmetric:
            back_N = main.divergence(other_NC, scores_NC)
            each_N = (each_N + back_N) / 2
        if self.confidence:
            each_N = torch.where(main.sureness(scores_NC) > self.confidence, each_N, 0)
        return {"loss": each_N.sum()}
