"""Legend: L layers, N things, D width."""

import copy

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.adaptation.edit import make_edit
from transfer_cli.adaptation.edits import Adapters, LoRA
from transfer_cli.analysis import cka as module
from transfer_cli.analysis.cka import cka
from transfer_cli.analysis.moved_weights import ALL, moved_weights
from transfer_cli.model.added import merge
from transfer_cli.objectives.causal_lm import CausalLM


def drawn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def alike(first_ND, second_ND, *, debiased=False):
    return cka(first_ND[None], second_ND[None], debiased=debiased).item()


def by_definition(first_ND, second_ND):
    one, two = (each.double() - each.double().mean(0) for each in (first_ND, second_ND))
    both = (two.T @ one).norm() ** 2
    return float(both / ((one.T @ one).norm() * (two.T @ two).norm()))


@pytest.mark.parametrize("debiased", [False, True])
def test_rotated_scaled_and_shifted_vectors_are_the_same(debiased):
    vectors_ND = drawn(40, 6)
    rotation = torch.linalg.qr(drawn(6, 6, seed=1).double()).Q.float()

    assert alike(vectors_ND, vectors_ND @ rotation, debiased=debiased) == pytest.approx(1, abs=1e-6)
    assert alike(vectors_ND, 3 * vectors_ND + 5, debiased=debiased) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("most", [1, 1000, 2**23])
def test_it_is_the_definition_however_many_rows_are_held(most, monkeypatch):
    monkeypatch.setattr(module, "_MOST_ELEMENTS", most)
    first_LND, second_MND = drawn(2, 30, 5), drawn(3, 30, 7, seed=1)
    second_MND[0, :, :5] += first_LND[1]

    found = cka(first_LND, second_MND, debiased=False)

    wanted = [[by_definition(one, two) for two in second_MND] for one in first_LND]
    assert np.allclose(found, wanted, atol=1e-12)


def test_the_debiased_estimate_is_that_of_kernels_without_diagonals():
    first_ND, second_ND = drawn(12, 20), drawn(12, 9, seed=1)
    count = 12

    def hsic(one_ND, two_ND):
        kernels = [each.double() @ each.double().T for each in (one_ND, two_ND)]
        one, two = (kernel - torch.diag(kernel.diag()) for kernel in kernels)
        sums = one.sum() * two.sum() / ((count - 1) * (count - 2))
        return (one @ two).trace() + sums - 2 / (count - 2) * (one @ two).sum()

    wanted = (
        hsic(first_ND, second_ND) / (hsic(first_ND, first_ND) * hsic(second_ND, second_ND)).sqrt()
    )
    assert alike(first_ND, second_ND, debiased=True) == pytest.approx(float(wanted), abs=1e-6)


def test_independent_vectors_are_unlike_by_the_debiased_estimate_alone():
    first_ND, second_ND = drawn(100, 1000), drawn(100, 1000, seed=1)

    assert alike(first_ND, second_ND) == pytest.approx(0.91, abs=0.01)
    assert alike(first_ND, second_ND, debiased=True) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("debiased", [False, True])
def test_of_vectors_that_do_not_vary_there_is_no_number(debiased):
    assert np.isnan(alike(torch.ones(8, 3), drawn(8, 3), debiased=debiased))


def pair(**changes):
    start = tiny.model(CausalLM(), **changes)
    tiny.lively(start)
    return start, copy.deepcopy(start)


def found(model, start):
    return {(each.group, each.kind): each for each in moved_weights(model, start)}


def test_the_same_weights_have_not_moved():
    start, model = pair()

    assert {each.relative for each in found(model, start).values()} == {0.0}


@torch.no_grad()
def test_a_group_moves_by_the_norm_of_its_change():
    start, model = pair()
    for name, weight in model.named_parameters():
        if ".blocks.1.attention." in name:
            weight *= 1.1

    moved = found(model, start)
    assert moved["block.1", "attention"].relative == pytest.approx(0.1, rel=1e-5)
    assert 0 < moved["block.1", ALL].relative < 0.1
    assert 0 < moved[ALL, "attention"].relative < moved["block.1", "attention"].relative
    assert moved["block.1", "feed_forward"].relative == 0
    assert moved["block.0", ALL].relative == moved["embeddings", ALL].relative == 0


def test_groups_and_kinds_hold_every_parameter_once():
    start, model = pair(**tiny.MODERN)

    moved = found(model, start)
    total = sum(each.numel() for each in model.parameters())
    assert moved[ALL, ALL].parameters == moved[ALL, ALL].compared == total
    for place in (0, 1):
        parts = [each for key, each in moved.items() if key[1 - place] == ALL != key[place]]
        assert sum(each.parameters for each in parts) == total
    assert {kind for _, kind in moved} == {
        ALL, "embeddings", "attention", "feed_forward", "norms", "head",
    }  # fmt: skip


def test_low_rank_updates_are_in_what_they_change_and_stand_apart():
    start, model = pair()
    make_edit(LoRA(rank=2, targets=["query"]), "lora", model, {})
    tiny.lively(model)
    merged = copy.deepcopy(model)
    merge(merged)

    moved, wanted = found(model, start), found(merged, start)
    assert moved["block.0", "attention"].relative == wanted["block.0", "attention"].relative > 0
    assert moved["added.0", "added"].relative is None
    assert moved["added.0", "added"].parameters > 0
    assert moved[ALL, ALL].parameters == wanted[ALL, ALL].parameters


def test_what_cannot_be_compared_is_counted_and_not_measured():
    start, _ = pair()
    other, _ = pair(feedforward=48)
    make_edit(Adapters(2), "bottleneck", other, {})

    moved = found(other, start)
    assert moved["block.0", "attention"].relative == 0
    assert moved["block.0", "feed_forward"].compared < moved["block.0", "feed_forward"].parameters
    assert moved["added.0", "added"].compared == 0


def test_the_model_that_is_looked_at_stays_as_it_was():
    start, model = pair()
    make_edit(LoRA(rank=2, targets=["query"]), "lora", model, {})
    before, names = tiny.weights_of(model), [name for name, _ in model.named_modules()]

    moved_weights(model, start)

    assert tiny.same(before, tiny.weights_of(model))
    assert names == [name for name, _ in model.named_modules()]
