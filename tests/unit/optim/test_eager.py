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
