"""How a loss falls with size: a power law fitted to a few runs, and how far it can be believed.

L(C) = E + A C^-alpha over floating-point operations (Kaplan et al. 2020; the floor E by Henighan et
al. 2020), or L(N, D) = E + A N^-alpha + B D^-beta over parameters and tokens (Hoffmann et al. 2022,
section 3.3). For given exponents all else is linear: they are looked for on a grid, and the rest
follows by least squares (variable projection, Golub and Pereyra 1973). No start has to be guessed,
and a thousand resamples are fitted at once.

Legend: M runs, K sizes, S kinds of size (C alone, or N and D), R fits, G exponents, P coefficients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from transfer_cli.reports.contents import CONFIDENCE, Prediction, Rung

FEWEST_SIZES = 4
"""Different sizes below which no law is fitted: it has three parameters of its own."""

FARTHEST = 10.0
"""Times the largest run's operations up to which a law is believed."""

MOST_RESIDUAL = 0.1
"""How far runs may be from a law that holds, in parts of what the loss falls by between them: of
300 ladders whose losses were noise alone, one was as near."""

_RESAMPLES = {1: 1000, 2: 200}
_STEPS = 24
_EXPONENTS = (0.02, 2.0)
_ENDS = ((100 - CONFIDENCE) / 2, (100 + CONFIDENCE) / 2)

Floats = npt.NDArray[np.float64]


class NoLawError(ValueError):
    """Why nothing can be predicted, in one line."""


@dataclass(frozen=True)
class Laws:
    """Fits, each a law: floors `[R]`, scales and exponents `[R, S]`.

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

    @property
    def _widening(self) -> float:
        """How much wider things are than they look where few runs decide on several parameters."""
        runs, known = len(self.residuals), 1 + 2 * self.law.exponents.shape[1]
        return math.sqrt(runs / max(1, runs - known))

    @property
    def deviation(self) -> float:
        """How far runs are from the law, in nats; that they have decided on it is accounted for."""
        return self._widening * float(np.sqrt(np.square(self.residuals).mean()))

    def predict(self, operations: float, parameters: float, tokens: float) -> Prediction:
        """Return what a further run is expected to reach.

        The interval is of one run: what the law may be by other runs, and what runs differ by.

        Raises:
            NoLawError: It is larger than what the law is believed for.
        """
        sizes_S = [parameters, tokens] if len(self.law.units) > 1 else [operations]
        most = FARTHEST * float(self.operations.max())
        if operations > most:
            raise NoLawError(
                f"{operations:.2g} FLOPs are {FARTHEST * operations / most:.1f} times those of the "
                f"largest run; a law is believed up to {FARTHEST:g} times ({most:.2g})"
            )
        loss, others_R = float(self.law.at(sizes_S)[0]), self.resampled.at(sizes_S)
        noise_R = np.random.default_rng(0).choice(self.residuals, len(others_R))
        low, high = interval(loss + self._widening * (others_R - loss + noise_R))
        return Prediction(loss, min(loss, low), max(loss, high))


def interval(values_R: Floats) -> tuple[float, float]:
    """Return the ends of the 95 % interval of what resamples say."""
    low, high = np.percentile(values_R, _ENDS)
    return float(low), float(high)


def fit_law(rungs: Sequence[Rung]) -> Fit:
    """Return the law L(N, D) of runs if some differ in their tokens alone, else L(C).

    Raises:
        NoLawError: There are too few sizes, or the losses follow no such law.
    """
    both = {(rung.parameters, f"{rung.tokens:.2g}") for rung in rungs}
    has_both = len({rung.parameters for rung in rungs}) < len(both)
    sizes = [[rung.parameters, rung.tokens] if has_both else [rung.operations] for rung in rungs]
    size_of = [tuple(round(math.log(size), 2) for size in of_run) for of_run in sizes]
    kinds, different = 1 + has_both, sorted(set(size_of))
    if len(different) < FEWEST_SIZES + 2 * (kinds - 1):
        raise NoLawError(
            f"{len(different)} sizes have a loss; a law takes {FEWEST_SIZES + 2 * (kinds - 1)}"
        )
    if has_both and min(len(set(of_kind)) for of_kind in zip(*size_of, strict=True)) < 3:
        raise NoLawError("a law of parameters and tokens takes three sizes of each")
    is_of_KM = np.array([[other == size for other in size_of] for size in different], float)
    sizes_MS, loss_M = np.array(sizes), np.array([rung.loss for rung in rungs], float)
    counts_RM = np.random.default_rng(0).multinomial(
        len(loss_M), np.full(len(loss_M), 1 / len(loss_M)), 20 * _RESAMPLES[kinds]
    )
    # As many sizes as a law has parameters, else it may be any.
    enough_R = ((counts_RM @ is_of_KM.T) > 0).sum(1) > 2 * kinds
    resampled = _fit_resamples(sizes_MS, loss_M, counts_RM[enough_R][: _RESAMPLES[kinds]])
    law = _fit_resamples(sizes_MS, loss_M, np.ones((1, len(loss_M))))
    residuals_M = loss_M - np.array([law.at(sizes_S)[0] for sizes_S in sizes_MS])
    fit = Fit(law, resampled, residuals_M, np.array([rung.operations for rung in rungs]))
    fall = np.ptp((is_of_KM @ loss_M) / is_of_KM.sum(1))
    if not (law.scales > 0).all() or fit.deviation > MOST_RESIDUAL * fall:
        raise NoLawError(
            f"the losses follow no law: runs are {fit.deviation:.3f} nats from the best one, of "
            f"{fall:.3f} between their sizes; more seeds, or sizes farther apart, may tell"
        )
    return fit


def _fit_resamples(sizes_MS: Floats, loss_M: Floats, counts_RM: Floats) -> Laws:
    """Return the law of each resample; one that rises with size has a scale of 0."""
    units_S = np.exp(np.log(sizes_MS).mean(0))
    scaled_MS = sizes_MS / units_S
    coarse = np.geomspace(*_EXPONENTS, _STEPS)
    # Twice the distance of two of the coarse ones, to both sides.
    fine = np.geomspace(coarse[0] / coarse[2], coarse[2] / coarse[0], _STEPS)
    fits = []
    for counts_M in counts_RM:
        near_S, _ = _best_fit(scaled_MS, loss_M, counts_M, [coarse] * len(units_S))
        fits.append(_best_fit(scaled_MS, loss_M, counts_M, [near * fine for near in near_S]))
    exponents_RS, coefficients_RP = (np.array(column) for column in zip(*fits, strict=True))
    return Laws(coefficients_RP[:, 0], coefficients_RP[:, 1:], exponents_RS, units_S)


def _best_fit(
    scaled_MS: Floats, loss_M: Floats, counts_M: Floats, tried: Sequence[Floats]
) -> tuple[Floats, Floats]:
    """Return the exponents that fit best, and the coefficients, `[P]`, none below 0."""
    exponents_GS = np.stack(np.meshgrid(*tried, indexing="ij"), -1).reshape(-1, len(tried))
    powers_GMS = scaled_MS[None] ** -exponents_GS[:, None]
    features_GMP = np.concatenate([np.ones((*powers_GMS.shape[:2], 1)), powers_GMS], 2)
    coefficients_GP = _least_squares(features_GMP, loss_M, counts_M)
    # No text is predicted better than surely: where the floor would be below 0, it is 0.
    below_G = coefficients_GP[:, 0] < 0
    coefficients_GP[below_G, 0] = 0
    coefficients_GP[below_G, 1:] = _least_squares(features_GMP[below_G, :, 1:], loss_M, counts_M)
    residuals_GM = loss_M - np.einsum("gmp,gp->gm", features_GMP, coefficients_GP)
    squares_G = residuals_GM**2 @ counts_M
    squares_G[(coefficients_GP[:, 1:] < 0).any(1)] = np.inf
    at = int(squares_G.argmin())
    return exponents_GS[at], np.maximum(coefficients_GP[at], 0)


def _least_squares(features_GMP: Floats, loss_M: Floats, counts_M: Floats) -> Floats:
    weighted_GPM = features_GMP.transpose(0, 2, 1) * counts_M
    gram_GPP = weighted_GPM @ features_GMP + 1e-12 * np.eye(features_GMP.shape[-1])
    return np.linalg.solve(gram_GPP, (weighted_GPM @ loss_M)[..., None])[..., 0].astype(float)
