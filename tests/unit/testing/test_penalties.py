import pytest
import torch

from transfer_cli.adaptation.penalties import EWC, L2SP
from transfer_cli.testing.penalties import check_penalty


class Lenient(L2SP):
    def start(self, start):
        if start.inherited:
            super().start(start)


class PullsToZero(L2SP):
    def __call__(self, model):
        return sum((p.square().sum() for p in model.parameters()), start=torch.zeros(()))


class KeepsNoCopy(L2SP):
    def start(self, start):
        super().start(start)
        self.anchors = dict(start.model.named_parameters())


class WithoutAGradient(L2SP):
    def __call__(self, model):
        return super().__call__(model).detach()


class PushesAway(L2SP):
    def __call__(self, model):
        value = super().__call__(model)
        return 2 * value.detach() - value


class OfAnotherSlope(L2SP):
    def __call__(self, model):
        value = super().__call__(model)
        return value + 0.2 * (value - value.detach())


class CountsTheFrozen(L2SP):
    def __call__(self, model):
        pulls = [(p - self.anchors[name]).square().sum() for name, p in model.named_parameters()]
        return torch.stack(pulls).sum()


class ForgetsTheFrozen(L2SP):
    def start(self, start):
        super().start(start)
        named = start.model.named_parameters()
        self.anchors = {name: self.anchors[name] for name, p in named if p.requires_grad}


class InDouble(L2SP):
    def __call__(self, model):
        return super().__call__(model).double()


class OnePerParameter(L2SP):
    def __call__(self, model):
        return super().__call__(model)[None]


@pytest.mark.parametrize(
    ("penalty", "message"),
    [
        (Lenient(), "nothing is inherited"),
        (PullsToZero(), "at the start"),
        (KeepsNoCopy(), "is 0.0 away from the start"),
        (WithoutAGradient(), "does not lead back"),
        (PushesAway(), "pushes it away"),
        (OfAnotherSlope(), "finite differences"),
        (CountsTheFrozen(), "frozen parameters add"),
        (ForgetsTheFrozen(), "thaw where they started"),
        (InDouble(), "not float32"),
        (OnePerParameter(), "no scalar"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_contract_of_penalties_catches(penalty, message):
    with pytest.raises(AssertionError, match=message):
        check_penalty(penalty)


@pytest.mark.parametrize("penalty", [L2SP(), EWC()], ids=lambda value: value.name)
def test_the_contract_of_penalties_lets_ours_pass(penalty):
    check_penalty(penalty)
