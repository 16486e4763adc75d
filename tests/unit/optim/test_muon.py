"""Muon for the blocks' matrices, AdamW for the rest; on two processes as on one."""

import copy

import pytest
import torch
from torch.testing import assert_close

from tests import several, tiny
from transfer_cli.assembly.optimizer import parameter_groups
from transfer_cli.engine import distributed
from transfer_cli.engine.distributed import full_tensor
from transfer_cli.engine.distributed.sharded import shard_model
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import Uniform
from transfer_cli.optim.muon import MuonWithAdamW, orthogonalize, uses_muon

SHAPES = ((24, 8), (8, 24), (8, 8))


def grouped(model):
    return parameter_groups(model, layer_groups(model, set()), Uniform())


def drawn(seed=0):
    """Return three matrices of a block, a vector of it, and a table of embeddings."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (*SHAPES, (8,), (5, 8))
    return [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_a_gradient_that_the_device_finds_not_finite_changes_nothing(found_inf):
    told, plain = drawn(), drawn()
    ours, theirs = (MuonWithAdamW(groups_of(weights), lr=0.1) for weights in (told, plain))

    def step(optimizer, weights, gradient):
        for weight in weights:
            weight.grad = torch.full_like(weight, gradient)
        optimizer.step()

    step(ours, told, 0.5)
    ours.found_inf = torch.tensor(found_inf)
    step(ours, told, torch.nan if found_inf else 0.25)
    for gradient in (0.5,) if found_inf else (0.5, 0.25):
        step(theirs, plain, gradient)

    assert all(torch.equal(one, other) for one, other in zip(told, plain, strict=True))
    expected = theirs.state_dict()["state"]
    for number, kept in ours.state_dict()["state"].items():
        assert tiny.same(kept, expected[number])


def groups_of(parameters):
    *matrices, vector, table = parameters
    return [
        {"params": matrices, "layer": "block.0"},
        {"params": [vector], "layer": "block.0", "weight_decay": 0.0},
        {"params": [table], "layer": "embeddings"},
    ]


def stepped(optimizers, parameters, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (32, 32)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_all_singular_values_become_about_1_and_the_directions_stay(shape, scale):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * scale

    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.T @ orthogonalize([matrix])[0] @ right.T

    # Those below a hundredth of the largest need more rounds than there are.
    values = turned.diagonal()[sizes > 0.02 * sizes[0]]
    assert 0.6 < values.min() <= values.max() < 1.3
    assert (turned - turned.diagonal().diag()).abs().max() < 1e-3


def test_a_matrix_of_zeros_stays():
    assert_close(orthogonalize([torch.zeros(4, 6)]), torch.zeros(1, 4, 6))


def test_matrices_of_blocks_are_turned_and_nothing_else_is():
    model = tiny.model(CausalLM(), Classification(), segments=2)
    model.backbone.blocks[0].sites["after_attention"] = tiny.AddedLinear(16, 16)
    names = {parameter: name for name, parameter in model.named_parameters()}

    turned = {names[p] for group in grouped(model) for p in group["params"] if uses_muon(p, group)}

    parts = ("attention.packed", "attention.output", "feed_forward.inner", "feed_forward.output")
    expected = {f"backbone.blocks.{n}.{part}.weight" for n in range(3) for part in parts}
    assert turned == expected | {"backbone.blocks.0.sites.after_attention.weight"}


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_matrices_go_as_with_torchs_muon():
    ours, theirs = drawn(), drawn()
    optimizer = MuonWithAdamW(groups_of(ours), lr=0.01, weight_decay=0.1)
    muon = torch.optim.Muon(
        theirs[:3], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )

    stepped([optimizer], ours, steps=5)
    stepped([muon], theirs, steps=5)

    for mine, other, start in zip(ours[:3], theirs, drawn(), strict=False):
        # It computes in bfloat16, which has 8 bits.
        assert (mine - other).norm() < 0.03 * (start - other).norm()


def test_matrices_that_go_together_go_as_each_alone():
    together, apart = drawn(), drawn()

    stepped([MuonWithAdamW(together[:3], lr=0.01)], together, steps=5)
    stepped([MuonWithAdamW([matrix], lr=0.01) for matrix in apart[:3]], apart, steps=5)

    for mine, other, start in zip(together[:3], apart, drawn(), strict=False):
        assert (mine - other).norm() < 1e-5 * (start - other).norm()


def test_the_rest_goes_as_with_torchs_adamw():
    ours, theirs = drawn(), drawn()
    optimizer = MuonWithAdamW(groups_of(ours), lr=0.01, weight_decay=0.1, betas=(0.8, 0.9))
    adamw = torch.optim.AdamW(
        groups_of(theirs), lr=0.01, weight_decay=0.1, betas=(0.8, 0.9), fused=True
    )

    stepped([optimizer], ours, steps=5)
    stepped([adamw], theirs, steps=5)

    for mine, other in zip(ours[3:], theirs[3:], strict=True):
        assert torch.equal(mine, other)


def test_matrices_may_have_a_rate_of_their_own():
    ours, theirs = drawn(), drawn()
    stepped([MuonWithAdamW(groups_of(ours), lr=0.01, matrix_rate=3.0)], ours, steps=2)
    optimizer = MuonWithAdamW(groups_of(theirs), lr=0.01)
    optimizer.param_groups[0]["lr"] = 0.03
    stepped([optimizer], theirs, steps=2)

    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine, other)


def test_the_rate_and_the_decay_are_those_of_the_group():
    parameters = drawn()
    before = [p.detach().clone() for p in parameters]
    optimizer = MuonWithAdamW(groups_of(parameters), lr=0.01, weight_decay=0.5)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)

    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()

    factors = (0.95, 0.95, 0.95, 1.0, 0.995)
    for parameter, start, factor in zip(parameters, before, factors, strict=True):
        assert_close(parameter.detach(), factor * start)


def test_what_has_no_gradient_stays_and_keeps_nothing():
    parameters = drawn()
    optimizer = MuonWithAdamW(groups_of(parameters), lr=0.01, weight_decay=0.1)
    for parameter in parameters[:1]:
        parameter.grad = torch.ones_like(parameter)

    optimizer.step()

    assert [torch.equal(p, q) for p, q in zip(parameters, drawn(), strict=True)] == [
        False, True, True, True, True,
    ]  # fmt: skip
    assert list(optimizer.state) == parameters[:1]


def test_a_training_step_takes_a_state_up_and_refuses_one_that_lacks_something():
    recipe = tiny.Recipe(total=4, optimizer=MuonWithAdamW)
    run = tiny.run(CausalLM(), tiny.blocks(), recipe).go()
    state = copy.deepcopy(run.step.state_dict())
    other = tiny.run(CausalLM(), tiny.blocks(), recipe)

    other.step.load_state_dict(state)

    saved = other.step.optimizer.state_dict()["state"]
    assert {frozenset(averages) for averages in saved.values()} == {
        frozenset({"momentum_buffer"}), frozenset({"step", "exp_avg", "exp_avg_sq"}),
    }  # fmt: skip
    of_adamw = next(n for n, averages in saved.items() if "exp_avg" in averages)
    state["optimizer"]["state"][of_adamw] = {"momentum_buffer": saved[of_adamw]["exp_avg"]}
    with pytest.raises(ValueError, match="lacks something of some parameters"):
        other.step.load_state_dict(state)


def test_a_training_step_takes_up_what_adafactor_keeps_of_matrices_and_vectors():
    recipe = tiny.Recipe(total=4, optimizer=torch.optim.Adafactor)
    run = tiny.run(CausalLM(), tiny.blocks(), recipe).go()
    state = run.step.state_dict()

    tiny.run(CausalLM(), tiny.blocks(), recipe).step.load_state_dict(copy.deepcopy(state))

    averages = state["optimizer"]["state"]
    del next(kept for kept in averages.values() if "row_var" in kept)["row_var"]
    with pytest.raises(ValueError, match="lacks something of some parameters"):
        run.step.load_state_dict(state)


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


@pytest.mark.multiprocess
@pytest.mark.slow
def test_weights_are_those_of_one_process(tmp_path):
    alone = trained(sharded=False)

    for cases in several.on_processes(2, both, tmp_path):
        for case in cases:
            assert case["losses"] == pytest.approx(alone["losses"], abs=1e-4)
            for name, weight in alone["weights"].items():
                assert_close(case["weights"][name], weight, rtol=0, atol=1e-3, msg=name)
