"""How much each token speaks for a number that a model says: by gradients.

They take the number as a function of embeddings, and nothing else of the model.

Legend: K points, T positions, E size of an embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FIRST_STEPS, MOST_STEPS = 50, 400
TOLERANCE = 0.05
"""Of the change between baseline and text: the residue below which there are steps enough."""

OfEmbeddings = Callable[[Tensor], Tensor]
"""Returns the number for each of K texts, `[K]`, from `[K, T, E]`."""


@dataclass(frozen=True)
class PathAttribution:
    """Attributions along a path from a baseline to a text.

    Args:
        scores: One for each token, `[T]`.
        change: By how much the number changes along the path; without an error of the integral,
            the scores add up to it.
        steps: Points at which gradients were taken.
    """

    scores: Tensor
    change: float
    steps: int

    @property
    def residue(self) -> float:
        """What the scores lack of the change, signed."""
        return self.change - float(self.scores.sum())

    @property
    def is_complete(self) -> bool:
        """Whether the residue is within the tolerance."""
        return abs(self.residue) <= TOLERANCE * abs(self.change)


def gradient_times_input(function: OfEmbeddings, text_TE: Tensor) -> Tensor:
    """Return the gradient of the number by each embedding, times that embedding, `[T]`."""
    return (_gradients(function, text_TE[None])[0] * text_TE).sum(-1)


def integrated_gradients(
    function: OfEmbeddings, text_TE: Tensor, baseline_TE: Tensor, *, at_once: int = 32
) -> PathAttribution:
    """Return the mean gradient on the straight line from a baseline, times the difference.

    The integral is taken by Gauss-Legendre, with 50 points, then twice as many until the scores add
    up to the change of the number within 5 %, or there are 400. Sundararajan et al. 2017.

    Args:
        function: The number.
        text_TE: The embeddings of the text.
        baseline_TE: Where the line begins; equal to the text where that is to stay.
        at_once: Points that pass through the model together.
    """
    with torch.no_grad():
        ends = torch.cat([function(each[None]) for each in (baseline_TE, text_TE)])
    change, steps = float(ends[1] - ends[0]), FIRST_STEPS
    while True:
        scores_T = _along_line(function, text_TE, baseline_TE, steps, at_once)
        found = PathAttribution(scores_T, change, steps)
        if found.is_complete or steps >= MOST_STEPS:
            return found
        steps *= 2


def _along_line(
    function: OfEmbeddings, text_TE: Tensor, baseline_TE: Tensor, steps: int, at_once: int
) -> Tensor:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    # From [-1, 1], where they are tabulated, to [0, 1].
    share_K, weight_K = (
        torch.as_tensor(each, dtype=text_TE.dtype, device=text_TE.device)
        for each in ((nodes + 1) / 2, weights / 2)
    )
    difference_TE, mean_TE = text_TE - baseline_TE, torch.zeros_like(text_TE)
    for shares, weight in zip(share_K.split(at_once), weight_K.split(at_once), strict=True):
        points_KTE = baseline_TE + shares[:, None, None] * difference_TE
        mean_TE += torch.einsum("kte,k->te", _gradients(function, points_KTE), weight)
    return (mean_TE * difference_TE).sum(-1)


def _gradients(function: OfEmbeddings, points_KTE: Tensor) -> Tensor:
    points_KTE = points_KTE.detach().requires_grad_()
    with torch.enable_grad():
        (gradient_KTE,) = torch.autograd.grad(function(points_KTE).sum(), points_KTE)
    found: Tensor = gradient_KTE
    return found
