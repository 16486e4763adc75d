"""What further losses share whose heads are like the main one, and end with the training."""

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import Pooling
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Objective, TaskInfo

Main = TypeVar("Main", bound=Objective)


class BesideMainHead(Objective, Generic[Main]):
    """A loss with several terms, each of a head like the main one; all count as much."""

    @property
    @abstractmethod
    def terms(self) -> Iterable[str]:
        """The names of its terms."""

    @property
    def weights(self) -> Mapping[str, float]:
        """The same for each term: one over their number."""
        names = tuple(self.terms)
        return dict.fromkeys(names, 1 / len(names))

    @property
    def training_heads(self) -> Set[str]:
        """All of its heads."""
        return {other.head for other in self.beside_main.values() if other.head is not None}

    @abstractmethod
    def main_of(self, info: TaskInfo) -> Main:
        """Return the main objective.

        Raises:
            ConfigError: There cannot be heads like its own.
        """

    def setup(self, info: TaskInfo) -> None:
        """Store the facts of the run."""
        super().setup(info)
        self.main = self.main_of(info)
        self.keeps_tokens = self.main.keeps_tokens
        self.beside_main = {term: _like(self.main, f"{info.name}_{term}") for term in self.terms}
        """The main objective with the head of each term."""
        if any(other.head in (None, self.main.head) for other in self.beside_main.values()):
            raise ConfigError(
                f"losses.{info.name}: its heads are like that of the main objective, which has "
                f"none of its own ({type(self.main).__name__}); leave this loss out"
            )

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return the heads, and what they share with the main one."""
        found: dict[str, nn.Module] = {}
        for other in self.beside_main.values():
            found |= other.modules(backbone)
        return found

    def finalize_options(self, model: TransferModel, trains: Set[str]) -> dict[str, Any]:
        """Decide as the main objective does."""
        for other in self.beside_main.values():
            other.finalize_options(model, trains)
        return {}

    def pooling_of(self, model: TransferModel) -> Pooling | None:
        """Return that of the main head."""
        return self.main.pooling_of(model)

    def compute_metrics(
        self, totals: Mapping[str, Tensor], counts: Mapping[str, int], text: TextStats
    ) -> dict[str, float]:
        """Return the mean over the terms, and each; terms that count nothing are left out."""
        means = {term: float(totals[term]) / count for term, count in counts.items() if count}
        found = {f"loss/{term}": mean for term, mean in means.items()}
        return {"loss": sum(means.values()) / max(1, len(means)), **found}


def _like(main: Main, name: str) -> Main:
    """Return the same objective, after `setup`, with the head of a further loss called so."""
    other = copy.copy(main)
    other.info = replace(main.info, name=name)
    return other
