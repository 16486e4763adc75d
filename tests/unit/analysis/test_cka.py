"""Legend: L layers, N things, D width."""

import numpy as np
import pytest
import torch

from transfer_cli.analysis.similarity import cka as module
from transfer_cli.analysis.similarity.cka import cka


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
