"""Penalties on the distance from the pretrained weights: L2-SP and EWC.

A penalty is computed in float32 and added once an optimizer step, not once a micro-batch. A tied
matrix is one named parameter and counts once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from transfer_cli.errors import ConfigError, at_least
from transfer_cli.model.transfer_model import TransferModel


@dataclass(frozen=True)
class Start:
    """The starting point of penalties.

    Args:
        model: At its starting weights, on its training device.
        inherited: Names of the parameters that pretrained weights filled.
        fisher: Returns the Fisher information of the pretraining objective by parameter name, given
            a number of sequences and a kind ("true" or "empirical").
    """

    model: TransferModel
    inherited: frozenset[str]
    fisher: Callable[[int, str], Mapping[str, Tensor]]


class Penalty(ABC):
    """A loss term that depends only on the weights."""

    name: ClassVar[str]
    """Its name in a run's records."""
    replaces_weight_decay: ClassVar[bool] = False
    """Whether the optimizer's weight decay must be off."""
    anchors: Mapping[str, Tensor]
    """The inherited parameters' starting values, by name."""

    def start(self, start: Start) -> None:
        """Copy the starting weights, before a resume loads others, in float32 and on their device.

        Frozen parameters are copied too: they may train in a later stage.
        """
        self.anchors = {
            name: parameter.detach().to(torch.float32, copy=True)
            for name, parameter in start.model.named_parameters()
            if name in start.inherited
        }
        self.check(self.anchors)

    def check(self, inherited: Collection[str]) -> None:
        """Raise ConfigError if there are no names of inherited parameters."""
        if not inherited:
            raise ConfigError(
                f"adaptation.penalty: {self.name} pulls towards pretrained weights, and nothing "
                "is inherited; give init_from=RUN (without init=scratch), or "
                "adaptation/penalty=null"
            )

    @abstractmethod
    def __call__(self, model: TransferModel) -> Tensor:
        """Return the penalty on the trainable parameters, a float32 scalar."""


class L2SP(Penalty):
    """(a/2) |inherited - start|^2 + (b/2) |new|^2 (Li et al. 2018).

    It replaces the optimizer's weight decay, which pulls towards 0.

    Args:
        strength: a, 0 or more.
        new_strength: b, 0 or more.
    """

    name = "l2_sp"
    replaces_weight_decay = True

    def __init__(self, strength: float = 0.01, new_strength: float = 0.01) -> None:
        at_least("strength", strength, 0)
        at_least("new_strength", new_strength, 0)
        self.strength = strength
        self.new_strength = new_strength

    def __call__(self, model: TransferModel) -> Tensor:
        terms = (
            self.strength / 2 * (parameter - self.anchors[name]).square().sum()
            if name in self.anchors
            else self.new_strength / 2 * parameter.square().sum()
            for name, parameter in _trainable(model)
        )
        return _sum_terms(model, terms)


class EWC(Penalty):
    """(strength/2) sum F (inherited - start)^2, elastic weight consolidation.

    F is the diagonal of the Fisher information of the pretraining objective: how much its
    predictions depend on each parameter (Kirkpatrick et al. 2017, equation 3). Parameters without
    an F have no penalty.

    Args:
        strength: 0 or more.
        sequences: Number of sequences of pretraining text that F is estimated on.
        fisher: "true": targets sampled from the model; "empirical": targets of the text, which is
            cheaper and noisier.
        normalise: "mean" divides F by the mean of its entries, so that a strength means the same
            for every model; "none" leaves F unchanged.
    """

    name = "ewc"
    information: Mapping[str, Tensor]
    """F after normalisation, by parameter name."""

    def __init__(
        self,
        strength: float = 1.0,
        sequences: int = 256,
        # YAML reads a bare `true` as a boolean.
        fisher: Literal["true", "empirical", True] = "true",
        normalise: Literal["mean", "none"] = "mean",
    ) -> None:
        at_least("strength", strength, 0)
        at_least("sequences", sequences, 1)
        self.fisher = "true" if fisher is True else fisher
        self.strength = strength
        self.sequences = sequences
        self.normalise = normalise

    def start(self, start: Start) -> None:
        """Copy the starting weights, and estimate F, which must not be 0 for all of them."""
        super().start(start)
        fisher = start.fisher(self.sequences, self.fisher)
        information = {
            name: fisher[name].detach().to(anchor.device, torch.float32, copy=True)
            for name, anchor in self.anchors.items()
            if name in fisher
        }
        # Most entries are tiny: a float32 sum would lose them.
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
        half = self.strength / 2
        terms = (
            half * (self.information[name] * (parameter - self.anchors[name]).square()).sum()
            for name, parameter in _trainable(model)
            if name in self.information
        )
        return _sum_terms(model, terms)


def _trainable(model: TransferModel) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter.float()


def _sum_terms(model: TransferModel, terms: Iterable[Tensor]) -> Tensor:
    """Return the sum of the scalars, or 0 without a gradient, on the model's device."""
    values = list(terms)
    device = next(model.parameters()).device
    return torch.stack(values).sum() if values else torch.zeros((), device=device)
