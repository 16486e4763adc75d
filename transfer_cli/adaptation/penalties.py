"""Stay close to where training started: penalties on the distance from the pretrained weights.

A penalty is computed in float32 and added once an optimizer step, never once a micro-batch. It
knows parameters by name, so a tied matrix, which is one parameter here, counts once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from transfer_cli.errors import ConfigError, at_least, one_of
from transfer_cli.model.transfer_model import TransferModel


@dataclass(frozen=True)
class Start:
    """Where a run begins.

    Args:
        model: At its starting weights, on the device that it trains on.
        inherited: Names of the parameters that pretrained weights filled.
        fisher: From a number of sequences and a kind ("true" or "empirical") to the Fisher
            information of the pretraining objective, by parameter name.
    """

    model: TransferModel
    inherited: frozenset[str]
    fisher: Callable[[int, str], Mapping[str, Tensor]]


class Penalty(ABC):
    """A term of the loss that depends on the weights alone.

    `start` keeps a copy of every inherited parameter, in float32 and on its device: one that is
    frozen now may train in a later stage.
    """

    name: ClassVar[str]
    """What it is called in a run's records."""
    replaces_weight_decay: ClassVar[bool] = False
    """Whether the optimizer's own weight decay has to be off."""
    anchors: Mapping[str, Tensor]
    """The inherited parameters' starting values, by name."""

    def start(self, start: Start) -> None:
        """Keep what the weights are pulled towards; before a resume loads other ones.

        Raises:
            ConfigError: Nothing is inherited, so there is nothing to stay close to.
        """
        self.anchors = {
            name: parameter.detach().to(torch.float32, copy=True)
            for name, parameter in start.model.named_parameters()
            if name in start.inherited
        }
        self.check(self.anchors)

    def check(self, inherited: Collection[str]) -> None:
        """Refuse to pull towards nothing.

        Args:
            inherited: Names of the parameters that pretrained weights filled.

        Raises:
            ConfigError: There are none.
        """
        if not inherited:
            raise ConfigError(
                f"adaptation.penalty: {self.name} pulls towards pretrained weights, and nothing "
                "is inherited; give init_from=RUN (without init=scratch), or "
                "adaptation/penalty=null"
            )

    @abstractmethod
    def __call__(self, model: TransferModel) -> Tensor:
        """Return the penalty on the parameters that train now, a float32 scalar."""


class L2SP(Penalty):
    """(a/2) |inherited - start|^2 + (b/2) |new|^2 (Li et al. 2018).

    It stands in place of the optimizer's weight decay, which pulls towards 0.

    Args:
        strength: a, 0 or more.
        new_strength: b, 0 or more.
    """

    name = "l2_sp"
    replaces_weight_decay = True

    def __init__(self, strength: float = 0.01, new_strength: float = 0.01) -> None:
        self.strength = _strength("strength", strength)
        self.new_strength = _strength("new_strength", new_strength)

    def __call__(self, model: TransferModel) -> Tensor:
        """Return the penalty on the parameters that train now, a float32 scalar."""
        return _total(
            model,
            (
                self.strength / 2 * (parameter - self.anchors[name]).square().sum()
                if name in self.anchors
                else self.new_strength / 2 * parameter.square().sum()
                for name, parameter in _trainable(model)
            ),
        )


class EWC(Penalty):
    """(strength/2) sum F (inherited - start)^2, elastic weight consolidation.

    F is the diagonal of the Fisher information of the pretraining objective: how much its
    predictions depend on each parameter (Kirkpatrick et al. 2017, equation 3). Parameters of which
    it says nothing are free.

    Args:
        strength: 0 or more.
        sequences: How many sequences of pretraining text to estimate F on.
        fisher: "true", the definition: targets drawn from the model; "empirical": those of the
            text, which is cheaper and noisier.
        normalise: "mean" divides F by the mean over all its entries, so that a strength means the
            same for every model; "none" takes it as it is.
    """

    name = "ewc"
    information: Mapping[str, Tensor]
    """F as it is used, by name."""

    def __init__(
        self,
        strength: float = 1.0,
        sequences: int = 256,
        # A bare `true` is no text in YAML.
        fisher: Literal["true", "empirical", True] = "true",
        normalise: Literal["mean", "none"] = "mean",
    ) -> None:
        at_least("sequences", sequences, 1)
        self.fisher = "true" if fisher is True else fisher
        one_of("fisher", self.fisher, ("true", "empirical"), ValueError)
        one_of("normalise", normalise, ("mean", "none"), ValueError)
        self.strength = _strength("strength", strength)
        self.sequences = sequences
        self.normalise = normalise

    def start(self, start: Start) -> None:
        """Keep the starting weights and F.

        Raises:
            ConfigError: Nothing is inherited, or F is 0 for all of it.
        """
        super().start(start)
        found = start.fisher(self.sequences, self.fisher)
        information = {
            name: found[name].detach().to(anchor.device, torch.float32, copy=True)
            for name, anchor in self.anchors.items()
            if name in found
        }
        # Most entries are tiny: a sum in float32 would lose them.
        total = sum(float(value.sum(dtype=torch.float64)) for value in information.values())
        if not 0 < total < math.inf:
            raise ConfigError(
                "adaptation.penalty: the Fisher information of the pretraining objective is "
                f"{'0' if total == 0 else 'not finite'} over the inherited parameters, so it "
                "holds none of them; take other pretraining text, or adaptation/penalty=l2_sp"
            )
        if self.normalise == "mean":
            mean = total / sum(value.numel() for value in information.values())
            information = {name: value / mean for name, value in information.items()}
        self.information = information

    def __call__(self, model: TransferModel) -> Tensor:
        """Return the penalty on the parameters that train now, a float32 scalar."""
        return _total(
            model,
            (
                self.strength
                / 2
                * (self.information[name] * (parameter - self.anchors[name]).square()).sum()
                for name, parameter in _trainable(model)
                if name in self.information
            ),
        )


def _trainable(model: TransferModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters that train now, in float32, by name."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter.float()


def _total(model: TransferModel, terms: Iterable[Tensor]) -> Tensor:
    """Return the sum of scalars; of none 0 without a gradient, on the model's device."""
    found = list(terms)
    device = next(model.parameters()).device
    return torch.stack(found).sum() if found else torch.zeros((), device=device)


def _strength(name: str, value: float) -> float:
    at_least(name, value, 0)
    return value
