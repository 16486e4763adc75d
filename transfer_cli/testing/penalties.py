"""What any penalty must satisfy."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from transfer_cli.adaptation.penalties import Penalty, Start
from transfer_cli.errors import ConfigError
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.testing.claims import claim, randomize

VOCABULARY = 24
TOLERANCE = 1e-2
"""Of a slope measured by finite differences in float32."""
DISTANCE = 0.1
"""Standard deviation of the steps away from the start."""


@dataclass(frozen=True)
class PenaltyCase:
    """A penalty, started on a small inherited model, and a random direction by parameter."""

    penalty: Penalty
    model: TransferModel
    direction: dict[str, Tensor]

    def shift(self, distance: float) -> None:
        """Move what trains along the direction."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    parameter.add_(self.direction[name], alpha=distance)

    def value(self) -> float:
        """Return the penalty."""
        return float(self.penalty(self.model).detach())

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradient of each parameter that gets one."""
        self.model.zero_grad()
        value = self.penalty(self.model)
        if value.requires_grad:
            value.backward()
        named = self.model.named_parameters()
        return {name: p.grad.clone() for name, p in named if p.grad is not None}


def check_penalty(penalty: Penalty) -> None:
    """Check every claim of this module, with a strength above 0, which is started anew for each."""
    nothing_inherited_is_refused(penalty)
    the_start_costs_nothing(make_case(penalty))
    elsewhere_it_pulls_back(make_case(penalty))
    frozen_parameters_are_left_alone(make_case(penalty))
    what_thaws_later_is_pulled_to_where_it_started(penalty)


def make_case(penalty: Penalty, *, frozen: bool = False) -> PenaltyCase:
    """Return the penalty on a small tied language model; of `frozen`, none of it trains yet."""
    shape = BackboneShape(
        width=8, heads=2, depth=1, feedforward=16, positions=8, dropout=0.0, direction="causal"
    )
    lm_head = LanguageModelHead(shape, VOCABULARY)
    model = TransferModel(Backbone(shape, VOCABULARY), {"lm": lm_head})
    model.requires_grad_(not frozen)
    randomize(model)

    def drawn(draw: Callable[..., Tensor], seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {n: draw(p.shape, generator=generator) for n, p in model.named_parameters()}

    def fisher(sequences: int, kind: str) -> dict[str, Tensor]:
        return {name: 0.1 + value for name, value in drawn(torch.rand, sequences).items()}

    direction = {name: DISTANCE * value for name, value in drawn(torch.randn, 1).items()}
    penalty.start(Start(model, frozenset(direction), fisher))
    return PenaltyCase(penalty, model, direction)


def nothing_inherited_is_refused(penalty: Penalty) -> None:
    """Claim: without pretrained weights `start` raises a ConfigError, not a pull to random ones."""
    model = make_case(penalty).model
    try:
        penalty.start(Start(model, frozenset(), lambda _sequences, _kind: {}))
    except ConfigError:
        return
    raise AssertionError("start accepts a model that inherits nothing")


def the_start_costs_nothing(case: PenaltyCase) -> None:
    """Claim: where training starts, the penalty is a float32 scalar 0 and its gradient is 0."""
    value = case.penalty(case.model)
    claim(value.dtype == torch.float32, f"the penalty is {value.dtype}, not float32")
    claim(value.shape == (), f"the penalty has the shape {tuple(value.shape)}, and is no scalar")
    claim(case.value() == 0, f"the penalty is {case.value()} at the start")
    for name, gradient in case.gradients().items():
        claim(not gradient.any(), f"{name} has a gradient at the start")


def elsewhere_it_pulls_back(case: PenaltyCase) -> None:
    """Claim: elsewhere it is above 0, and going down its gradient leads back to the start.

    The gradient is the slope that finite differences measure along the way.
    """
    case.shift(1.0)
    value, gradients = case.value(), case.gradients()
    claim(value > 0, f"the penalty is {value} away from the start")
    slopes = {
        name: float((gradient * case.direction[name]).sum()) for name, gradient in gradients.items()
    }
    for name, along in slopes.items():
        claim(along >= 0, f"the gradient of {name} pushes it away from the start")
    slope = sum(slopes.values())
    claim(slope > 0, "the gradient does not lead back to the start")
    little = 0.05
    case.shift(little)
    above = case.value()
    case.shift(-2 * little)
    measured = (above - case.value()) / (2 * little)
    claim(
        abs(slope - measured) <= TOLERANCE * abs(measured),
        f"the gradient has the slope {slope}, and finite differences {measured}",
    )


def frozen_parameters_are_left_alone(case: PenaltyCase) -> None:
    """Claim: a frozen parameter adds nothing, wherever it is, and gets no gradient."""
    case.shift(1.0)
    everything = case.value()
    block = case.model.backbone.blocks
    block.requires_grad_(requires_grad=False)
    rest, gradients = case.value(), case.gradients()
    claim(rest < everything, "frozen parameters add to the penalty")
    randomize(block)
    claim(case.value() == rest, "the value of a frozen parameter matters")
    got = [name for name in gradients if name.startswith("backbone.blocks.")]
    claim(not got, f"{', '.join(got[:1])} is frozen and gets a gradient")
    case.model.requires_grad_(requires_grad=False)
    claim(case.value() == 0, "there is a penalty where nothing trains")


def what_thaws_later_is_pulled_to_where_it_started(penalty: Penalty) -> None:
    """Claim: a parameter that was frozen when the run began is held like the others."""
    case = make_case(penalty, frozen=True)
    case.model.requires_grad_(requires_grad=True)
    claim(case.value() == 0, "parameters that thaw where they started have a penalty")
    case.shift(1.0)
    thawed = case.value()
    whole = make_case(penalty)
    whole.shift(1.0)
    claim(thawed == whole.value(), "parameters that thaw later are held otherwise")
