"""A plan of our own: unfreeze from the bottom up, the other way round than ULMFiT."""

from collections.abc import Sequence
from dataclasses import dataclass

from transfer_cli.adaptation.plans import REMAINDER, Stage, new_groups, old_groups
from transfer_cli.lengths import Length
from transfer_cli.model.transfer_model import LayerGroup


@dataclass(frozen=True)
class BottomUp:
    """First what is new, then in each stage one pretrained layer more, the embeddings first.

    Args:
        every: A stage's length. auto: an equal share of the run.
    """

    every: str = "auto"

    def __post_init__(self) -> None:
        """Raise ValueError where the length is none."""
        Length.parse(self.every)

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return the stages; the last one takes the rest of the run."""
        train = [tuple(group.name for group in new_groups(groups))]
        for group in old_groups(groups):
            train.append((*train[-1], group.name))
        length = Length.parse(self.every)
        return [*(Stage(names, length) for names in train[:-1]), Stage(train[-1], REMAINDER)]
