"""Which texts are equal, but for capitals, white space and Unicode's form, and which nearly so."""

import itertools
import re
import unicodedata
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
"""A number for each example: those of equal texts are equal, within one process."""


def fold_text(value: Hashable) -> Hashable:
    """Return a text, or each of several, in one of the forms that count as equal."""
    if isinstance(value, tuple):
        return tuple(map(fold_text, value))
    if not isinstance(value, str):
        return value
    if not value.isascii():
        # Capitals of compatible characters come out in the first round, and are composed anew.
        value = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", value).casefold())
    return " ".join(value.casefold().split())


def text_keys(texts: Iterable[Iterable[str]], count: int) -> Keys:
    """Return the key of each of `count` examples, given the texts of each; 8 bytes an example."""
    return np.fromiter((hash(fold_text(tuple(example))) for example in texts), np.int64, count)


def are_among(wanted: Keys, among: Keys) -> npt.NDArray[np.bool_]:
    """Return which keys stand among others; `numpy.isin` takes 20 times as long."""
    ordered = np.sort(among)
    places = np.searchsorted(ordered, wanted)
    return np.asarray(ordered[np.minimum(places, len(ordered) - 1)] == wanted)


def overlaps(keys: Mapping[str, Keys]) -> Iterator[tuple[str, str, npt.NDArray[np.intp]]]:
    """Yield each two splits, the smaller first, and where in it texts of the larger one stand."""
    for names in itertools.combinations(keys, 2):
        small, large = sorted(names, key=lambda name: len(keys[name]))
        yield small, large, np.flatnonzero(are_among(keys[small], keys[large]))


def union_keys(first: Iterable[Hashable], second: Iterable[Hashable]) -> list[Hashable]:
    """Return a key for each example; those that have either of two keys in common share it."""
    parents: dict[Hashable, Hashable] = {}

    def root(key: Hashable) -> Hashable:
        while parents.setdefault(key, key) != key:
            parents[key] = parents[parents[key]]
            key = parents[key]
        return key

    sides = [(("first", one), ("second", other)) for one, other in zip(first, second, strict=True)]
    for one, other in sides:
        parents[root(one)] = root(other)
    return [root(one) for one, _ in sides]


def group_positions(keys: Iterable[Hashable]) -> list[list[int]]:
    """Return the places of each key, in the order in which keys come first."""
    places: dict[Hashable, list[int]] = {}
    for at, key in enumerate(keys):
        places.setdefault(key, []).append(at)
    return list(places.values())


# --- nearly equal --------------------------------------------------------------------------------

NEAR = 0.9
"""The share of two texts' pairs of words that both have, above which they are nearly equal."""

MOST_COMPARED, MOST_WORDS = 20_000, 200
"""Texts that are compared, and words of each that are read, which takes some seconds at most."""

_BANDS, _ROWS = 8, 8
"""Of two texts with 0.9 of their pairs in common, 99 of 100 agree on all rows of some band."""

_WORD = re.compile(r"\w+")


def nearly_equal(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of different texts that are nearly equal, the first of each text once.

    MinHash over pairs of neighbouring words (Broder 1997) proposes them, by bands (Leskovec et al.,
    Mining of Massive Datasets, section 3.4), and neighbours within a band are compared as they are.
    A language that does not part words has nearly equal texts where marks alone differ.
    """
    pairs = [_pairs_of_words(text) for text in texts]
    there = [at for at, words in enumerate(pairs) if words]
    draws = np.random.default_rng(0)
    factor_F = draws.integers(1, 2**63, _BANDS * _ROWS, dtype=np.uint64) | np.uint64(1)
    addend_F = draws.integers(1, 2**63, _BANDS * _ROWS, dtype=np.uint64)
    least_NF = np.empty((len(there), _BANDS * _ROWS), np.uint64)
    for row, at in enumerate(there):
        hash_P = np.fromiter(pairs[at], np.uint64, len(pairs[at]))
        least_NF[row] = ((hash_P[:, None] * factor_F + addend_F) >> np.uint64(32)).min(0)
    near: dict[int, int] = {}
    for band in range(0, _BANDS * _ROWS, _ROWS):
        keys = [row.tobytes() for row in least_NF[:, band : band + _ROWS]]
        for rows in group_positions(keys):
            for one, other in itertools.pairwise(rows):
                first, second = there[one], there[other]
                if second not in near and _likeness(pairs[first], pairs[second]) > NEAR:
                    near[second] = first
    return [(first, second) for second, first in sorted(near.items())]


def _pairs_of_words(text: str) -> frozenset[int]:
    longest = 20  # characters of a word and what follows it, in the mean of a long text
    words = _WORD.findall(str(fold_text(text[: longest * MOST_WORDS])))[:MOST_WORDS]
    pairs = itertools.pairwise(words) if len(words) > 1 else [tuple(words)] * len(words)
    return frozenset(zlib.crc32(" ".join(pair).encode()) for pair in pairs)


def _likeness(first: frozenset[int], second: frozenset[int]) -> float:
    both = len(first & second)
    return both / (len(first) + len(second) - both)
