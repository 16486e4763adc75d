"""How many bits labels take, told to somebody who sees the states (Voita and Titov 2020).

Portions of the units are sent one after the other, each with the code of a probe that was fitted to
the portions before it. What is easy to find takes few bits, and so does what few examples show.
"""

import math
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor

from transfer_cli.analysis.probes.linear import Given

PERCENT = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25.0, 50.0, 100.0)
"""Where the portions end, in percent of the units."""

LogShares = Callable[[Tensor], Tensor]
"""Returns the log-probability of each label, in nats."""


def portion_ends(units: int, classes: int) -> list[int]:
    """Return how many units have been sent after each portion; the first has one for a label."""
    ends = {min(units, max(classes, math.ceil(units * share / 100))) for share in PERCENT}
    return sorted(ends)


def codelength(given: Given, classes: int, fit: Callable[[Given], LogShares]) -> float:
    """Return the bits of all labels, sent in the order given.

    The first portion has a uniform code, t_1 log2 C bits.

    Args:
        given: States `[N, D]` and labels.
        classes: C.
        fit: Returns the probe of some of them.
    """
    first, *_ = ends = portion_ends(len(given.label), classes)
    bits = first * math.log2(classes)
    for known, past in pairwise(ends):
        log_shares = fit(Given(given.states[:known], given.label[:known]))
        log_NC = log_shares(given.states[known:past])
        own_N = log_NC.gather(1, given.label[known:past, None])
        bits -= float(own_N.sum()) / math.log(2)
    return bits


def compression(bits: float, units: int, classes: int) -> float:
    """Return how many times shorter that is than the uniform code, N log2 C bits."""
    return units * math.log2(classes) / bits
