"""Splits of labelled examples: a validation split, the subset of few labels, and what they share.

What is drawn is stratified, and depends on nothing but the examples and the run's seed.
"""

import heapq
import itertools
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from transfer_cli.errors import DataError
from transfer_cli.seeds import derive

log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST = 0.5
"""The share of the smaller split from which on it is a mistake rather than a few texts."""

_SHOWN = 60
"""Characters of the text that is named."""


def hold_out(
    examples: Sequence[T], share: float, seed: int, where: str, strata: Sequence[int]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return training examples without a share of them, and that share.

    Each stratum loses the same share, and none its last example.

    Args:
        examples: The training examples.
        share: The share to hold out, in (0, 1).
        seed: The run's; the draw depends on nothing else.
        where: The data's name in messages.
        strata: The number of each example's stratum, such as its label.
    """
    counts = dict(sorted(Counter(strata).items()))
    quotas = _proportional(counts, int(share * len(examples)))
    if not any(quotas.values()):
        raise DataError(
            f"{where}: a validation share of {share} leaves nothing to validate on "
            f"({len(examples)} examples of {len(counts)} classes). Raise it or name a validation "
            "file."
        )
    chosen = _draw(strata, quotas, derive(seed, "validation split"))
    return (
        tuple(example for at, example in enumerate(examples) if at not in chosen),
        tuple(examples[at] for at in sorted(chosen)),
    )


def keep_few(
    examples: Sequence[T], labelled: int, seed: int, where: str, strata: Sequence[int]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return `labelled` examples, at least one of each stratum, and the others.

    A smaller set is part of a larger.
    """
    counts = dict(sorted(Counter(strata).items()))
    if labelled < len(counts):
        raise DataError(
            f"{where}: labelled={labelled} is fewer examples than the {len(counts)} classes. "
            f"Set data.labelled to at least {len(counts)}."
        )
    if labelled > len(examples):
        raise DataError(
            f"{where}: labelled={labelled}, but there are only {len(examples)} training examples. "
            f"Set data.labelled to at most that."
        )
    chosen = _draw(strata, _nested_quotas(counts, labelled), derive(seed, "few labels"))
    return (
        tuple(examples[at] for at in sorted(chosen)),
        tuple(example for at, example in enumerate(examples) if at not in chosen),
    )


def _proportional(counts: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` by largest remainder, leaving at least one of each class behind."""
    whole = sum(counts.values())
    exact = {number: total * count / whole for number, count in counts.items()}
    quotas = {number: min(int(share), counts[number] - 1) for number, share in exact.items()}
    order = sorted(counts, key=lambda number: quotas[number] - exact[number])
    left = min(total, whole - len(counts)) - sum(quotas.values())
    # Once round the classes is enough for the remainders, unless a class is used up.
    while left > 0:
        for number in order:
            if left > 0 and quotas[number] < counts[number] - 1:
                quotas[number] += 1
                left -= 1
    return quotas


def _nested_quotas(counts: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` so that a larger total never takes an example away from a class.

    One for each class first; then each goes to the class that is furthest behind its share, by the
    divisor method of Webster (largest remainders would not be nested).
    """
    quotas = dict.fromkeys(counts, 1)
    behind = [(-count / 3, number) for number, count in counts.items() if count > 1]
    heapq.heapify(behind)
    for _ in range(total - len(counts)):
        _, number = behind[0]
        quotas[number] += 1
        if quotas[number] < counts[number]:
            share = counts[number] / (2 * quotas[number] + 1)
            heapq.heapreplace(behind, (-share, number))
        else:
            heapq.heappop(behind)
    return quotas


def _draw(strata: Sequence[int], quotas: Mapping[int, int], seed: int) -> set[int]:
    """Return the places of `quotas[c]` examples of each stratum c; smaller quotas give subsets."""
    # Of Python's generator, only random() is promised to stay the same in later versions.
    generator = random.Random(seed)  # noqa: S311 - not for cryptography
    order = sorted(range(len(strata)), key=[generator.random() for _ in strata].__getitem__)
    of_class: dict[int, list[int]] = defaultdict(list)
    for at in order:
        of_class[strata[at]].append(at)
    return {at for number, quota in quotas.items() for at in of_class[number][:quota]}


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
        name: np.fromiter(
            (hash(tuple(texts(example))) for example in examples), np.int64, len(examples)
        )
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
