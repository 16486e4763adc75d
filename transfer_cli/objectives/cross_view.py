"""Cross-view training: heads that see a part of a text learn what the main one says of all of it.

Legend: B batch, T positions, N texts, questions or words; C labels, choices or numbers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transfer_cli.batch import Batch, view_of
from transfer_cli.errors import ConfigError, one_of
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.beside_main_head import BesideMainHead
from transfer_cli.objectives.of_main_head import main_of
from transfer_cli.objectives.perturbations import Mask
from transfer_cli.objectives.units import UnitObjective
from transfer_cli.seeds import ExampleNoise

VIEWS = ("masked", "left", "right")


class CrossView(BesideMainHead[UnitObjective]):
    """KL(p || q) for each view: p is what the main head says of a text, q what the view's does.

    Cross-view training (Clark et al. 2018), in the form that fits Transformers. The paper restricts
    what a head reads of a recurrent network; here the states of a whole text know all of it, so
    each view is a pass of its own, which sees a part. It needs no label. No gradient flows through
    p, which comes from a pass with dropout, too.

    Args:
        views: masked: a share of the tokens is hidden; left, right: this half of them is seen.
            Special tokens always are.
        rate: The share that is hidden, in (0, 1).
    """

    def __init__(self, views: tuple[str, ...] = VIEWS, rate: float = 0.15) -> None:
        if not views:
            raise ValueError(f"views is empty; give some of {', '.join(VIEWS)}")
        for view in views:
            one_of("views", view, VIEWS, ValueError)
        if not 0 < rate < 1:
            raise ValueError(f"rate must be between 0 and 1, got {rate}")
        self.views = tuple(dict.fromkeys(views))
        self._hide = Mask(rate)

    @property
    def terms(self) -> Sequence[str]:
        """The views."""
        return self.views

    def main_of(self, info: TaskInfo) -> UnitObjective:
        """See `BesideMainHead`."""
        return main_of(info)

    def setup(self, info: TaskInfo) -> None:
        """Store the facts of the run."""
        super().setup(info)
        self.keeps_tokens = False  # its further passes need them
        self._ordinary_V = torch.ones(info.vocabulary.size, dtype=torch.bool)
        self._ordinary_V[sorted(info.vocabulary.special)] = False
        if "masked" not in self.views:
            return
        if not info.vocabulary.has_mask:
            raise ConfigError(
                f"losses.{info.name}.views: this tokenizer has no mask token of its own to hide "
                "others by; take views=[left,right]"
            )
        self._hide.setup(info)

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the batch with masks of the halves, and with tokens of which some are hidden."""
        found = dict(batch)
        if "masked" in self.views:
            found["tokens_masked"], _ = self._hide(batch, noise)
        ordinary_BT = batch["mask"] & self._ordinary_V[batch["tokens"]]
        place_BT, count_B1 = ordinary_BT.cumsum(-1), ordinary_BT.sum(-1, keepdim=True)
        half_B1 = (count_B1 + 1) // 2  # the one in the middle is in both, so that neither is empty
        hidden = {"left": place_BT > half_B1, "right": place_BT <= count_B1 - half_B1}
        for side in hidden.keys() & set(self.views):
            found[f"mask_{side}"] = batch["mask"] & ~(ordinary_BT & hidden[side])
        return found

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of texts, questions or words that each view sees."""
        return {view: int(self._units_in(view, batch).sum()) for view in self.views}

    def _units_in(self, view: str, batch: Batch) -> Tensor:
        return self.main.units_in(batch, view_of(batch, view)["mask"])

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return each view's divergence, summed over what it sees, in float32."""
        # A pass of its own without gradients: another loss may need those of `encoded`.
        with torch.no_grad():
            target_NC = self.main.scores(model, batch, Encoding(model, batch))
        found = {}
        for view, beside in self.beside_main.items():
            part = view_of(batch, view)
            each_N = self.main.divergence(
                target_NC, beside.scores(model, part, Encoding(model, part))
            )
            is_seen_N = self._units_in(view, batch)
            found[view] = torch.where(is_seen_N, each_N, 0).sum()
        return found
