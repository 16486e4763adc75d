"""Optimizers without torch's compiler, and one that goes to the minimum."""

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from tests import tiny
from transfer_cli.optim.eager import AdamW
from transfer_cli.optim.lbfgs import LBFGS


def problem(rows=120, width=5, classes=3, seed=0):
    """Return made features and labels that no line tells apart."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator) * torch.tensor([1.0, 10, 0.1, 1, 3])
    right = torch.randn(width, classes, generator=generator)
    noise = torch.randn(rows, classes, generator=generator)
    return x, (x @ right + 3 * noise).argmax(1)


def start(width=5, classes=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(width, classes, generator=generator)
    return weight.requires_grad_(), torch.zeros(classes, requires_grad=True)


def taking_steps(optimizer, weight, bias, steps, data=None):
    """Take so many steps; return how often the loss was asked for."""
    x, label = data or problem()
    calls = []

    def closure():
        calls.append(None)
        optimizer.zero_grad()
        loss = F.cross_entropy(x @ weight + bias, label)
        loss.backward()
        return loss

    for _ in range(steps):
        closure()
        optimizer.step(closure)
    return len(calls)


def made(weight, bias, weight_decay, **settings):
    groups = [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}]
    return LBFGS(groups, weight_decay=weight_decay, **settings)


def solved(weight_decay, steps=1, data=None, **settings):
    """Return the weights after so many steps, the optimizer, and how often it asked."""
    weight, bias = start()
    optimizer = made(weight, bias, weight_decay, **settings)
    calls = taking_steps(optimizer, weight, bias, steps, data)
    return weight.detach(), bias.detach(), optimizer, calls


def newton(weight_decay):
    return [parameter.float() for parameter in tiny.newton(*problem(), weight_decay)]


@pytest.mark.parametrize("weight_decay", [0.1, 0.01, 0.001])
def test_a_step_goes_to_the_minimum_that_newtons_method_finds(weight_decay):
    weight, bias, *_ = solved(weight_decay)

    expected_weight, expected_bias = newton(weight_decay)
    # A constant added to all biases changes nothing.
    assert torch.allclose(weight, expected_weight, atol=5e-3)
    assert torch.allclose(bias - bias.mean(), expected_bias - expected_bias.mean(), atol=2e-3)


@pytest.mark.parametrize("weight_decay", [1e-4, 1e-5, 1e-6])
def test_of_labels_that_a_line_parts_a_weak_decay_has_its_minimum_too(weight_decay):
    x = problem()[0]
    label = (x @ start()[0].detach()).argmax(1)

    weight, bias, *_ = solved(weight_decay, data=(x, label))

    exact, beside = tiny.newton(x, label, weight_decay)
    wanted = F.cross_entropy(x.double() @ exact + beside, label)
    loss = F.cross_entropy(x.double() @ weight.double() + bias, label)
    assert loss.item() == pytest.approx(wanted.item(), rel=0.02)


def test_each_step_takes_the_next_weight_decay_and_then_stays_at_the_last():
    several = [solved((0.1, 0.01), steps=steps)[0] for steps in (1, 2, 3)]

    for weight, weight_decay in zip(several, (0.1, 0.01, 0.01), strict=True):
        assert torch.allclose(weight, newton(weight_decay)[0], atol=2e-3)


def test_a_stored_state_goes_on_to_the_bit():
    whole = solved((0.1, 0.01), steps=2)[0]

    weight, bias, optimizer, _ = solved((0.1, 0.01), steps=1)
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    resumed = made(weight, bias, (0.1, 0.01))
    resumed.load_state_dict(optimizer.state_dict())

    taking_steps(resumed, weight, bias, 1)

    assert torch.equal(weight.detach(), whole)


def test_it_stops_after_so_many_evaluations():
    weight, _, _, calls = solved(0.001, evaluations=5)

    assert calls <= 7
    assert not torch.allclose(weight, newton(0.001)[0], atol=2e-3)


def test_it_computes_what_torch_does_and_reads_its_state():
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 6)) for _ in range(2)]
    settings = {"lr": 0.1, "weight_decay": 0.3, "fused": True}
    ours, theirs = AdamW([weights[0]], **settings), torch.optim.AdamW([weights[1]], **settings)

    for number in range(4):
        for weight, optimizer in zip(weights, (ours, theirs), strict=True):
            weight.grad = (weight.detach() * number).cos()
            optimizer.step()
        if number == 1:
            ours.load_state_dict(copy.deepcopy(theirs.state_dict()))

    assert weights[0].equal(weights[1])
    assert ours.state_dict()["state"][0]["exp_avg_sq"].equal(
        theirs.state_dict()["state"][0]["exp_avg_sq"]
    )


def test_layers_with_the_same_settings_are_stepped_at_once(monkeypatch):
    def groups():
        return [
            {"params": [torch.nn.Parameter(torch.full((3,), 1.0 + n))], "layer": str(n), "scale": 1}
            | ({"weight_decay": 0.0} if n % 2 else {})
            for n in range(6)
        ]

    calls, module = [], sys.modules["torch.optim.adam"]
    fused = module._fused_adam
    monkeypatch.setattr(
        module, "_fused_adam", lambda *a, **k: calls.append(len(a[0])) or fused(*a, **k)
    )
    settings = {"lr": 0.1, "weight_decay": 0.3, "fused": True}
    ours, theirs = AdamW(groups(), **settings), torch.optim.AdamW(groups(), **settings)
    for optimizer in (ours, theirs):
        for number in range(3):
            for group in optimizer.param_groups:
                group["lr"] = 0.2 if group["layer"] == "5" and number else 0.1
                for weight in group["params"]:
                    weight.grad = weight.detach().cos()
            optimizer.step()
        if optimizer is ours:  # decayed, not decayed, and the last layer once it has its own rate
            assert calls == [3, 3, 3, 2, 1, 3, 2, 1]

    for our, their in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert our["layer"] == their["layer"]
        assert our["params"][0].equal(their["params"][0])


STEPS = {
    "AdamW": """
import sys, torch
from transfer_cli.optim.eager import AdamW

weight = torch.nn.Parameter(torch.ones(3))
optimizer = AdamW([weight], fused=True)
weight.grad = torch.ones(3)
optimizer.step()
optimizer.zero_grad()
assert weight.grad is None
print("torch._dynamo" in sys.modules)
""",
    "LBFGS": """
import sys, torch
from transfer_cli.optim.lbfgs import LBFGS
weight = torch.ones(3, requires_grad=True)
optimizer = LBFGS([weight])
def closure():
    optimizer.zero_grad()
    loss = (weight - 2).square().sum()
    loss.backward()
    return loss
closure()
optimizer.step(closure)
assert weight.detach().allclose(torch.full((3,), 2.0)), weight
print("torch._dynamo" in sys.modules)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_step_does_not_import_the_compiler(name):
    ended = subprocess.run([sys.executable, "-c", STEPS[name]], capture_output=True, text=True)

    assert ended.stdout.split() == ["False"], ended.stderr
