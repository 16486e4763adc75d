"""How far probabilities can be believed: a temperature, calibration error, when not to answer.

Legend: N units, C labels or choices.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from transfer_cli.batch import IGNORE
from transfer_cli.metrics import Metric, wilson_interval

Calibrate = bool | Literal["auto"]

MIN_EXAMPLES = 200
"""Validation texts from which on `calibrate=auto` fits a temperature."""

BINS = 15
"""Of equal width, as in Guo et al. 2017."""

CURVE_BINS, BINS_PER_HALVING = 80, 4
"""Bins of the curve of precision against coverage: four for each halving of what confidence lacks
of 1, where most answers are."""

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
"""Temperatures: where validation has no error, the best one would be 0."""

ROUNDING = 1e-5
"""How far the confidence of one text may differ between batches of other shapes."""

METRICS = (
    Metric("ece", higher_is_better=False, unit="fraction"),
    Metric("coverage", higher_is_better=True, unit="fraction"),
    Metric("precision_at_coverage", higher_is_better=True, unit="fraction"),
)
"""Of a finished run that is calibrated, or abstains; see `measures`."""


def judge_answers(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return how sure the likeliest answers are, and whether they are right, `[N]` each.

    Args:
        scores: `[..., C]`; -inf for what cannot be chosen.
        target: `[...]`; `IGNORE` for what is no unit.
    """
    is_unit = target != IGNORE
    share_N, predicted_N = scores[is_unit].softmax(-1).max(-1)
    return share_N, predicted_N == target[is_unit]


def fit_temperature(scores: Tensor, target: Tensor) -> float:
    """Return the temperature with the lowest negative log-likelihood (Guo et al. 2017, section 4).

    The loss is convex in 1 / T, so its slope has one root, which bisection finds between bounds.
    L-BFGS would have none where all answers are right.
    """
    is_unit = target != IGNORE
    scores_NC, target_N = scores[is_unit].double(), target[is_unit].long()
    right_N = scores_NC.gather(1, target_N[:, None]).squeeze(1)

    def slope(temperature: float) -> float:
        share_NC = (scores_NC / temperature).softmax(1)
        expected_N = torch.where(share_NC > 0, share_NC * scores_NC, 0.0).sum(1)
        return float((expected_N - right_N).mean())

    low, high = MIN_TEMPERATURE, MAX_TEMPERATURE
    for _ in range(50):
        middle = (low * high) ** 0.5
        # The slope is that in 1 / T: above 0 where the answers are too sure.
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return float(f"{middle:.7g}")


def fit_threshold(confidence_N: Tensor, right_N: Tensor, promised: float) -> float:
    """Return the lowest confidence above which a share of answers is right; 0 where none is.

    It is right by the lower bound of the 95 % Wilson interval, and halfway between two answers; by
    the same bound with those a little below it, so that rounding decides nothing.
    """
    order = confidence_N.argsort(descending=True, stable=True)
    ascending, sure = confidence_N[order].flip(0).tolist(), confidence_N[order].tolist()
    rights = right_N[order].cumsum(0).tolist()
    lowest = 0.0
    for count, (here, below) in enumerate(zip(sure, [*sure[1:], 0.0], strict=True), start=1):
        # Answers that are equally sure are given together.
        if here > below:
            threshold = (here + below) / 2
            most = len(sure) - bisect_left(ascending, threshold - ROUNDING)
            if all(wilson_interval(rights[n - 1], n)[0] >= promised for n in {count, most}):
                lowest = threshold
    return lowest


def reliability(scores: Tensor, target: Tensor) -> Tensor:
    """Return by bins of confidence, `[3, BINS]`: units, those answered rightly, confidence."""
    confidence_N, right_N = judge_answers(scores, target)
    # A bin holds its upper end, as in the paper.
    place_N = (confidence_N * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    return _sum_by_bin(place_N, (torch.ones_like(confidence_N), right_N, confidence_N), BINS)


def curve(confidence_N: Tensor, right_N: Tensor) -> Tensor:
    """Return by bins of confidence, the surest last, `[2, CURVE_BINS]`: answers, and right ones."""
    halvings_N = -BINS_PER_HALVING * (1 - confidence_N).log2()
    place_N = halvings_N.clamp(0, CURVE_BINS - 1).long()
    return _sum_by_bin(place_N, (torch.ones_like(confidence_N), right_N), CURVE_BINS)


def count_given(confidence_N: Tensor, right_N: Tensor, threshold: float) -> Tensor:
    """Return how many answers there are, how many are given, and how many of these are right."""
    is_given_N = confidence_N.double() >= threshold
    counted = (torch.ones_like(is_given_N), is_given_N, is_given_N & right_N)
    return torch.stack(counted).sum(1).double()


def measures(totals: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the measures of summed tallies, as far as they are there.

    `ece` is the expected calibration error of Guo et al. 2017, section 2: the mean distance between
    how sure answers are and how many are right, over 15 bins of equal width; `ece/before` is that
    without the temperature. `coverage` is the share of answers that are given, and
    `precision_at_coverage` the share of these that are right; of none it is 1.
    """
    scored = {}
    if "reliability" in totals:
        before, after = totals["reliability"].double()
        scored = {"ece": _calibration_error(after), "ece/before": _calibration_error(before)}
    if "given" in totals:
        whole, answered, right = totals["given"].tolist()
        scored["coverage"] = answered / max(1, whole)
        scored["precision_at_coverage"] = right / answered if answered else 1.0
    return scored


def tables(totals: Mapping[str, Tensor]) -> dict[str, list[list[int]]]:
    """Return counts: those of `curve`, and without confidence of `reliability`, before, after."""
    counts = {"curve": totals["curve"]} if "curve" in totals else {}
    if "reliability" in totals:
        counts["reliability"] = totals["reliability"][:, :2].flatten(0, 1)
    return {name: table.long().tolist() for name, table in counts.items()}


def _calibration_error(bins: Tensor) -> float:
    count, right, confidence = bins
    return float((right - confidence).abs().sum() / count.sum().clamp(min=1))


def _sum_by_bin(place_N: Tensor, values: tuple[Tensor, ...], bins: int) -> Tensor:
    rows = torch.stack([value_N.double() for value_N in values])
    return rows.new_zeros(len(values), bins).index_add_(1, place_N, rows)
