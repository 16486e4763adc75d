import copy
import subprocess
import sys

import pytest
import torch

from transfer_cli.optim.eager import AdamW

STEPS = """
import sys, torch
from transfer_cli.optim.eager import AdamW

weight = torch.nn.Parameter(torch.ones(3))
optimizer = AdamW([weight], fused=True)
weight.grad = torch.ones(3)
optimizer.step()
optimizer.zero_grad()
assert weight.grad is None
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_a_step_does_not_import_the_compiler():
    ended = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True)

    assert ended.stdout.split() == ["False"], ended.stderr


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

    for own, their in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert own["layer"] == their["layer"]
        assert own["params"][0].equal(their["params"][0])
