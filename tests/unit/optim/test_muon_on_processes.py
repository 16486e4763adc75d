"""Muon with copies of a model on two processes, and with a part of it on each."""

import pytest
import torch
from torch.testing import assert_close

from tests import several, tiny
from transfer_cli.engine import distributed
from transfer_cli.engine.distributed.replicated import full_tensor
from transfer_cli.engine.distributed.sharded import shard_model
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.optim.muon import MuonWithAdamW

pytestmark = pytest.mark.multiprocess

STEPS = 6


def trained(*, sharded):
    objective = CausalLM()
    model = tiny.model(objective)
    if sharded:
        shard_model(model, torch.device("cpu"))
    recipe = tiny.Recipe(rate=0.02, total=STEPS, clip=0.5, optimizer=MuonWithAdamW)
    step = tiny.train_step(model, objective, recipe)
    run = tiny.Run(step, tiny.blocks(tokens=1100), recipe, batch=32).go()
    weights = {name: full_tensor(tensor) for name, tensor in tiny.weights_of(model).items()}
    return {"weights": weights, "losses": run.losses}


def both():
    return [trained(sharded=False), trained(sharded=distributed.world_size() > 1)]


@pytest.mark.slow
def test_weights_are_those_of_one_process(tmp_path):
    alone = trained(sharded=False)

    for found in several.on_processes(2, both, tmp_path):
        for case in found:
            assert case["losses"] == pytest.approx(alone["losses"], abs=1e-4)
            for name, weight in alone["weights"].items():
                assert_close(case["weights"][name], weight, rtol=0, atol=1e-3, msg=name)
