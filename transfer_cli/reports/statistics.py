"""Whether a difference between runs on the same items is more than chance.

Two single classifiers are compared by McNemar's exact test (McNemar 1947), groups of runs and
losses by a paired bootstrap (Efron and Tibshirani 1993): it resamples items, the same ones for both
groups. Seeds are too few to resample: three that agree by luck would count for certainty. The
variance over seeds, beyond what their items explain, is estimated as in an analysis of variance:
where items do not matter this is Student's t-test. It errs on the safe side; two seeds show little.

Legend: S runs, B runs of the baseline, N items, K kinds of items, R resamples.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from transfer_cli.reports.contents import CONFIDENCE

RESAMPLES = 5_000
"""Draws of a bootstrap; no p is below 2 in so many."""

_SEED = 0
_MOST_CELLS = 2**23
"""Numbers that are drawn at once."""

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Measure = Callable[[Floats], Floats]
"""From the mean over targets to a measure, element by element."""


@dataclass(frozen=True)
class Scored:
    """Errors or losses of two groups on the same items, `[S, N]` and `[B, N]`; targets, `[N]`."""

    ours: Floats
    theirs: Floats
    targets: Floats


@dataclass(frozen=True)
class Estimate:
    """A difference, its interval, and the probability of one of that size by chance."""

    difference: float
    low: float
    high: float
    p: float


def mcnemar(ours: int, theirs: int) -> float:
    """Return the two-sided p of McNemar's exact test; each run alone got so many items right."""
    both = ours + theirs
    places = range(min(ours, theirs))
    ways = accumulate(places, lambda ways, at: ways * (both - at) // (at + 1), initial=1)
    # Whole numbers, however large: Python divides them rightly rounded.
    return min(1.0, 2 * sum(ways) / (1 << both))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the same order."""
    order = np.argsort(values, kind="stable")
    scaled = np.arange(len(values), 0, -1) * np.take(values, order)
    corrected = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(p) for p in corrected[np.argsort(order)]]


def bootstrap(
    scored: Sequence[Scored],
    measure: Measure,
    *,
    same_seeds: bool,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Estimate:
    """Return the difference of two groups' mean measures, ours minus theirs, with its interval.

    Every draw of it is one between two values that the measure can have, so no interval promises
    less than no error.

    Args:
        scored: All runs on the same items; or, where each seed has items of its own, one run of
            each group a part.
        measure: What is made of a mean.
        same_seeds: Whether run number n of both groups had the same seed.
        bounds: The lowest and the highest value that the measure can have.
    """
    rng = np.random.default_rng(_SEED)
    ours_S = np.concatenate([measure(x.ours.sum(1) / x.targets.sum()) for x in scored])
    theirs_B = np.concatenate([measure(x.theirs.sum(1) / x.targets.sum()) for x in scored])
    parts = [_resample(part, measure, rng) for part in scored]
    ours_RS = np.hstack([ours for ours, _ in parts])
    theirs_RB = np.hstack([theirs for _, theirs in parts])
    if same_seeds:
        seed_noise = _seed_noise(ours_S - theirs_B, ours_RS - theirs_RB, rng)
    else:
        seed_noise = _seed_noise(ours_S, ours_RS, rng) - _seed_noise(theirs_B, theirs_RB, rng)
    theirs_R = theirs_RB.mean(1)
    difference_R = ours_RS.mean(1) - theirs_R + seed_noise
    # Means of items are within the bounds by themselves; what other seeds may add is a normal draw.
    least = min(bounds[0], ours_RS.min(), theirs_RB.min())
    most = max(bounds[1], ours_RS.max(), theirs_RB.max())
    difference_R = np.clip(difference_R, least - theirs_R, most - theirs_R)
    low, high = np.percentile(difference_R, [(100 - CONFIDENCE) / 2, (100 + CONFIDENCE) / 2])
    fewest = 1 + min(int((difference_R <= 0).sum()), int((difference_R >= 0).sum()))
    difference = float(ours_S.mean() - theirs_B.mean())
    return Estimate(difference, float(low), float(high), min(1.0, 2 * fewest / (1 + RESAMPLES)))


def _seed_noise(measure_S: Floats, measure_RS: Floats, rng: np.random.Generator) -> Floats | float:
    """Return draws of what other seeds would add to the mean, `[R]`. `_RS` is on other items."""
    runs = len(measure_S)
    if runs == 1:
        return 0.0
    cells = np.cov(measure_RS, rowvar=False)
    alone = cells.trace() / runs
    shared = (cells.sum() - cells.trace()) / (runs * (runs - 1))
    # How much seeds really vary is known no better than a few of them tell: Student's t, but that
    # what the items alone let seeds differ by is taken off, since it is in their draws already.
    variance_R = measure_S.var(ddof=1) * (runs - 1) / rng.chisquare(runs - 1, len(measure_RS))
    beyond_R = np.maximum(0.0, variance_R - (alone - shared))
    draws_R: Floats = np.sqrt(beyond_R / runs) * rng.standard_normal(len(measure_RS))
    return draws_R


def _resample(part: Scored, measure: Measure, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return each run's measure on every draw of items, `[R, S]` and `[R, B]`."""
    rows = np.vstack([part.targets, part.ours, part.theirs])
    items = rows.shape[1]
    if items * RESAMPLES <= _MOST_CELLS:
        sums = _shared_counts(items) @ rows.T
    else:
        # Classifiers agree on most items: of thousands there are a few kinds, and those are drawn.
        kinds, counts_K = np.unique(rows, axis=1, return_counts=True)
        sums = np.concatenate([draws @ kinds.T for draws in _draw_counts(counts_K, rng)])
    means = sums[:, 1:] / np.maximum(sums[:, :1], 1)
    runs = len(part.ours)
    return measure(means[:, :runs]), measure(means[:, runs:])


@lru_cache(maxsize=2)
def _shared_counts(items: int) -> Floats:
    """Return how often each item is in each resample, `[R, N]`: the same for all comparisons."""
    rng = np.random.default_rng(_SEED)
    return np.concatenate(list(_draw_counts(np.ones(items, np.int64), rng))).astype(np.float64)


def _draw_counts(counts_K: Counts, rng: np.random.Generator) -> Iterator[Counts]:
    """Yield how often each kind of item is in each resample, `[R, K]`, in portions."""
    kinds, items = len(counts_K), int(counts_K.sum())
    most = max(1, _MOST_CELLS // items)
    for begin in range(0, RESAMPLES, most):
        size = min(most, RESAMPLES - begin)
        if 4 * kinds < items:
            yield rng.multinomial(items, counts_K / items, size)
        else:
            kind_of_N = np.repeat(np.arange(kinds), counts_K)
            drawn = kind_of_N[rng.integers(items, size=(size, items))]
            places = drawn + kinds * np.arange(size)[:, None]
            yield np.bincount(places.ravel(), minlength=size * kinds).reshape(size, kinds)
