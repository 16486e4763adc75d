"""How a loss falls with size: a power law fitted to a few runs, and how far it can be believed.

L(C) = E + A C^-alpha over floating-point operations (Kaplan et al. 2020; the floor E by Henighan et
al. 2020), or L(N, D) = E + A N^-alpha + B D^-beta over parameters and tokens (Hoffmann et al. 2022,
section 3.3). For given exponents all else is linear: they are looked for on a grid, and the rest
follows by least squares (variable projection, Golub and Pereyra 1973). No start has to be guessed,
and a thousand resamples are fitted at once.

Legend: M runs, S kinds of size (C alone, or N and D), R fits, G exponents, P = 1 + S coefficients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from transfer_cli.reports.contents import CONFIDENCE, Prediction

FEWEST_SIZES = 4
"""Different sizes below which no law is fitted: it has three parameters of its own."""

FARTHEST = 10.0
"""Times the largest run's operations up to which a law is believed."""

MOST_RESIDUAL = 0.1
"""The deviation of the runs from the law, in parts of what the loss fell by, up to which it holds.

The law of a ladder without any law in it, a straight line of noise, is above it.
"""

_RESAMPLES = {1: 1000, 2: 200}
_STEPS = 24
_EXPONENTS = (0.02, 2.0)
_ENDS = ((100 - CONFIDENCE) / 2, (100 + CONFIDENCE) / 2)

Floats = npt.NDArray[np.float64]


class NoLawError(ValueError):
    """Why nothing can be predicted, in one line."""


@dataclass(frozen=True)
class Laws:
    """Fits, of which each is a law: floors `[R]`, scales and exponents `[R, S]`.

    The loss at some sizes is the floor, and for each kind of size its scale times
    `(size / unit) ** -exponent`; units, `[S]`, are the geometric means of the runs.
    """

    floors: Floats
    scales: Floats
    exponents: Floats
    units: Floats

    def at(self, sizes_S: Sequence[float]) -> Floats:
        """Return the loss by each law, `[R]`."""
        powers_RS = (np.asarray(sizes_S, float) / self.units) ** -self.exponents
        loss_R: Floats = self.floors + (self.scales * powers_RS).sum(1)
        return loss_R


@dataclass(frozen=True)
class Fit:
    """The law of some runs, those of resamples of the runs, and how far runs are from the first."""

    law: Laws
    resampled: Laws
    residuals: Floats
    operations: Floats

    @cached_property
    def _widened(self) -> float:
        """How much wider things are than they look where few runs decide on several parameters."""
        runs, known = len(self.residuals), 1 + 2 * self.law.exponents.shape[1]
        return math.sqrt(runs / max(1, runs - known))

    @property
    def deviation(self) -> float:
        """How far runs are from the law, in nats; that they have decided on it is accounted for."""
        return self._widened * float(np.sqrt(np.square(self.residuals).mean()))

    def predict(self, operations: float, sizes_S: Sequence[float]) -> Prediction:
        """Return what a new run is expected to reach.

        The interval is of one run: what the law may be by other runs, and what runs differ by.

        Raises:
            NoLawError: It is larger than what the law is believed for.
        """
        most = FARTHEST * float(self.operations.max())
        if operations > most:
            raise NoLawError(
                f"{operations:.2g} FLOPs are {FARTHEST * operations / most:.1f} times those of the "
                f"largest run; a law is believed up to {FARTHEST:g} times ({most:.2g})"
            )
        loss, others_R = float(self.law.at(sizes_S)[0]), self.resampled.at(sizes_S)
        noise_R = np.random.default_rng(0).choice(self.residuals, len(others_R))
        low, high = interval(loss + self._widened * (others_R - loss + noise_R))
        return Prediction(loss, min(loss, low), max(loss, high))


def interval(values_R: Floats) -> tuple[float, float]:
    """Return the ends of the 95 % interval of what resamples say."""
    low, high = np.percentile(values_R, _ENDS)
    return float(low), float(high)


def fitted(
    operations: Sequence[float], sizes: Sequence[Sequence[float]], losses: Sequence[float]
) -> Fit:
    """Return the law of some runs, each with its operations, its sizes and its loss.

    Raises:
        NoLawError: There are too few sizes, or the losses follow no such law.
    """
    if len(losses) < FEWEST_SIZES:
        raise NoLawError(f"{len(losses)} runs have a loss; a law takes {FEWEST_SIZES} or more")
    sizes_MS, loss_M = np.array(sizes, float), np.array(losses, float)
    kinds = sizes_MS.shape[1]
    _, size_of_M = np.unique(np.round(np.log(sizes_MS), 2), axis=0, return_inverse=True)
    size_of_M = size_of_M.ravel()
    different, least = len(set(size_of_M)), FEWEST_SIZES + 2 * (kinds - 1)
    if different < least:
        raise NoLawError(f"{different} sizes have a loss; a law takes {least} or more")
    units_S = np.exp(np.log(sizes_MS).mean(0))
    law = _fits(sizes_MS / units_S, loss_M, np.ones((1, len(loss_M))), units_S)
    residuals_M = loss_M - np.array([law.at(sizes_S)[0] for sizes_S in sizes_MS])
    counts_RM = _draws(size_of_M, 1 + 2 * kinds, _RESAMPLES[kinds])
    resampled = _fits(sizes_MS / units_S, loss_M, counts_RM, units_S)
    fit = Fit(law, resampled, residuals_M, np.array(operations, float))
    of_size = [loss_M[size_of_M == size].mean() for size in range(different)]
    fell = max(of_size) - min(of_size)
    if not (law.scales > 0).all() or fit.deviation > MOST_RESIDUAL * fell:
        raise NoLawError(
            f"the losses follow no law: runs are {fit.deviation:.3f} nats from the best one, and "
            f"{fell:.3f} is all that lies between their sizes; more seeds, or sizes farther "
            "apart, may tell"
        )
    return fit


def _draws(size_of_M: npt.NDArray[np.int64], least: int, resamples: int) -> Floats:
    """Return how often each run is in each resample, `[R, M]`; each resample has enough sizes."""
    rng, runs = np.random.default_rng(0), len(size_of_M)
    counts = rng.multinomial(runs, np.full(runs, 1 / runs), 20 * resamples)
    sizes = np.stack([counts[:, size_of_M == size].sum(1) for size in np.unique(size_of_M)], 1)
    return counts[(sizes > 0).sum(1) >= least][:resamples].astype(float)


def _fits(scaled_MS: Floats, loss_M: Floats, counts_RM: Floats, units_S: Floats) -> Laws:
    """Return the law of each resample; one that rises with size has a scale of 0."""
    coarse = np.geomspace(*_EXPONENTS, _STEPS)
    # Twice the distance of two of the coarse ones, to both sides.
    fine = np.geomspace(coarse[0] / coarse[2], coarse[2] / coarse[0], _STEPS)
    found = []
    for counts_M in counts_RM:
        near_S, _ = _best(scaled_MS, loss_M, counts_M, [coarse] * scaled_MS.shape[1])
        around = [near * fine for near in near_S]
        found.append(np.concatenate(_best(scaled_MS, loss_M, counts_M, around)))
    kinds, found_RX = len(units_S), np.array(found)
    return Laws(found_RX[:, kinds], found_RX[:, kinds + 1 :], found_RX[:, :kinds], units_S)


def _best(
    scaled_MS: Floats, loss_M: Floats, counts_M: Floats, tried: Sequence[Floats]
) -> tuple[Floats, Floats]:
    """Return the exponents that fit best, and the coefficients, `[P]`, none below 0."""
    exponents_GS = np.stack(np.meshgrid(*tried, indexing="ij"), -1).reshape(-1, len(tried))
    powers_GMS = scaled_MS[None] ** -exponents_GS[:, None]
    features_GMP = np.concatenate([np.ones((*powers_GMS.shape[:2], 1)), powers_GMS], 2)
    found_GP = _solved(features_GMP, loss_M, counts_M)
    # No text is predicted better than surely: where the floor would be below 0, it is 0.
    below_G = found_GP[:, 0] < 0
    found_GP[below_G, 0] = 0
    found_GP[below_G, 1:] = _solved(features_GMP[below_G, :, 1:], loss_M, counts_M)
    residuals_GM = loss_M - np.einsum("gmp,gp->gm", features_GMP, found_GP)
    squares_G = residuals_GM**2 @ counts_M
    squares_G[(found_GP[:, 1:] < 0).any(1)] = np.inf
    at = int(squares_G.argmin())
    return exponents_GS[at], np.maximum(found_GP[at], 0)


def _solved(features_GMP: Floats, loss_M: Floats, counts_M: Floats) -> Floats:
    weighted_GPM = features_GMP.transpose(0, 2, 1) * counts_M
    gram_GPP = weighted_GPM @ features_GMP
    ridge = 1e-12 * np.eye(gram_GPP.shape[-1])
    solved_GP: Floats = np.linalg.solve(gram_GPP + ridge, (weighted_GPM @ loss_M)[..., None])[
        ..., 0
    ]
    return solved_GP
