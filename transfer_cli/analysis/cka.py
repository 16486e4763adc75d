"""Centred kernel alignment: how alike two sets of vectors for the same things are.

With linear kernels (Kornblith et al. 2019, section 3), 0 to 1, and the same for rotated, scaled and
shifted vectors.

Legend: L, M layers, N things, D width, R rows of a kernel.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_MOST_ELEMENTS = 2**23
"""Of the kernels that are held at a time: 64 MiB."""

MIN_VECTORS = 4
"""Things that the debiased estimate needs."""


def cka(first_LND: Tensor, second_MND: Tensor, *, debiased: bool) -> npt.NDArray[np.float64]:
    """Return `[L, M]`, in float64; NaN where vectors do not vary.

    Kernels are computed a few rows at a time, so memory holds no N x N matrix; nor the D x D sums
    of all pairs of layers, which would be larger for deep models.

    Args:
        first_LND: Vectors of N things in each layer.
        second_MND: Others of the same things; their width may be another.
        debiased: Whether the estimate is Song et al.'s (2012, equation 5), which is near 0 for
            vectors that are independent, and may be a little below; it needs `MIN_VECTORS`. The
            plain one is far above 0 unless there are many more things than dimensions.
    """
    first, second = _Kernels(first_LND), _Kernels(second_MND)
    layers, count = len(first_LND) + len(second_MND), first_LND.shape[1]
    both_LM = torch.zeros(len(first_LND), len(second_MND), dtype=torch.float64)
    own_L, own_M = (torch.zeros(size, dtype=torch.float64) for size in both_LM.shape)
    rows = max(1, _MOST_ELEMENTS // (layers * count))
    for begin in range(0, count, rows):
        first_LE, second_ME = first.rows(begin, rows), second.rows(begin, rows)
        both_LM += first_LE @ second_ME.T
        own_L += first_LE.square().sum(1)
        own_M += second_ME.square().sum(1)
    if debiased:
        first_LN, second_MN = first.diagonals(), second.diagonals()
        both_LM = _debiased(both_LM, first_LN[:, None], second_MN[None])
        own_L = _debiased(own_L, first_LN, first_LN)
        own_M = _debiased(own_M, second_MN, second_MN)
    scale_LM = (own_L[:, None].clamp(min=0) * own_M.clamp(min=0)).sqrt()
    return torch.where(scale_LM > 0, both_LM / scale_LM, torch.nan).numpy()


def _debiased(inner: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return N (N - 3) times HSIC_1 of two kernels.

    Vectors are centred, so each row of a kernel without its diagonal sums to minus that.

    Args:
        first: The diagonal of the first, `[..., N]`.
        second: The diagonal of the second.
    """
    count = first.shape[-1]
    of_diagonals, traces = (first * second).sum(-1), first.sum(-1) * second.sum(-1)
    return inner - of_diagonals * count / (count - 2) + traces / ((count - 1) * (count - 2))


class _Kernels:
    """The kernels of some layers, in float64, of centred vectors `[L, N, D]`."""

    def __init__(self, vectors_LND: Tensor) -> None:
        self._vectors_LND = vectors_LND
        self._mean_LD = vectors_LND.mean(1, dtype=torch.float64)

    def _centred(self, begin: int) -> list[Tensor]:
        """Return `[N, D]` of each layer, from the thing `begin` on."""
        pairs = zip(self._vectors_LND, self._mean_LD, strict=True)
        return [layer_ND[begin:].double() - mean_D for layer_ND, mean_D in pairs]

    def rows(self, begin: int, count: int) -> Tensor:
        """Return `count` rows of each kernel from their diagonal on, flat: `[L, E]`.

        A kernel is symmetric, so what is right of these rows counts twice in an inner product.
        """
        rows = []
        for later_ND in self._centred(begin):
            kernel_RN = later_ND[:count] @ later_ND.T
            kernel_RN[:, count:] *= 2**0.5
            rows.append(kernel_RN.flatten())
        return torch.stack(rows)

    def diagonals(self) -> Tensor:
        """Return the diagonals, `[L, N]`."""
        return torch.stack([each_ND.square().sum(1) for each_ND in self._centred(0)])
