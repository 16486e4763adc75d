"""Says which splits hold the same texts: a model that is tested on what it learnt shows nothing."""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

_MOST = 0.5
"""The share of the smaller split from which on it is a mistake rather than a few texts."""

_SHOWN = 60
"""Characters of the text that is named."""


def say_overlap(
    splits: Mapping[str, Sequence[Any]], where: str, texts: Callable[[Any], Sequence[str]]
) -> None:
    """Log how many texts (or pairs) of a split also stand in another, with one of them.

    It warns where these are most of the smaller split. It takes 8 bytes an example.

    Args:
        splits: Their examples.
        where: The data's name in messages.
        texts: Returns the texts of an example, the one to show first.
    """
    hashes = {
        name: np.fromiter((hash(tuple(texts(each))) for each in examples), np.int64, len(examples))
        for name, examples in splits.items()
    }
    for names in itertools.combinations(splits, 2):
        small, large = sorted(names, key=lambda name: len(hashes[name]))
        shared = np.flatnonzero(_found(hashes[small], hashes[large]))
        if not len(shared):
            continue
        share = len(shared) / len(hashes[small])
        text = texts(splits[small][int(shared[0])])[0]
        log.log(
            logging.WARNING if share > _MOST else logging.INFO,
            "%s: %s of the %s texts of %s (%.1f %%) are in %s, too, such as %r%s",
            where,
            f"{len(shared):,}",
            f"{len(hashes[small]):,}",
            small,
            100 * share,
            large,
            text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ...",
            "; what is measured there says little about new texts" if share > _MOST else "",
        )


def _found(wanted: npt.NDArray[np.int64], among: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which numbers stand among others; `numpy.isin` takes 20 times as long."""
    ordered = np.sort(among)
    places = np.searchsorted(ordered, wanted)
    return np.asarray(ordered[np.minimum(places, len(ordered) - 1)] == wanted)
