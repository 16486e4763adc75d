"""Span corruption: parts of a text are hidden, and written in its target (Raffel et al. 2020).

Legend: N tokens, B texts, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Draws = npt.NDArray[np.floating]


@dataclass(frozen=True)
class SpanCorruption:
    """Which spans of a text are hidden, and what source and target they make.

    In the source a sentinel stands for each hidden span. In the target each span stands behind its
    sentinel, and one more sentinel behind the last one. A text begins with what is shown and ends
    with what is hidden. How many tokens and spans that are depends on its length alone.

    Args:
        rate: The share of the tokens that is hidden, in (0, 1).
        mean_length: Tokens of a span in the mean.

    Source: Raffel et al. 2020, section 3.3.4; rounded and drawn as their released code does.
    """

    rate: float = 0.15
    mean_length: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"corrupt is {self.rate}, expected between 0 and 1")
        if not 1 <= self.mean_length < np.inf:
            raise ValueError(f"corrupt_length is {self.mean_length}, expected 1 or more")

    def counts(self, length: int) -> tuple[int, int]:
        """Return how many tokens of a text are hidden, in how many spans; of a single one, none."""
        if length < 2:
            return 0, 0
        hidden = min(max(round(length * self.rate), 1), length - 1)
        return hidden, min(max(round(hidden / self.mean_length), 1), length - hidden)

    def grown(self, length: int) -> int:
        """Return how many tokens source and target of a text have together."""
        _, spans = self.counts(length)
        return length + 2 * spans + (spans > 0)

    def longest(self, room: int) -> int:
        """Return the length of the longest text whose source and target have room."""
        return next((length for length in range(room, 0, -1) if self.grown(length) <= room), 0)

    def source_and_target(
        self, tokens: Sequence[int], sentinels: Sequence[int], draws_N2: Draws
    ) -> tuple[list[int], list[int]]:
        """Return what is read and what is written; no target where nothing is hidden.

        Args:
            tokens: A text.
            sentinels: One more at least than there are spans.
            draws_N2: Uniform numbers, two for each token; further ones change nothing.
        """
        hidden, spans = self.counts(len(tokens))
        if not spans:
            return list(tokens), []
        shown = partition(len(tokens) - hidden, spans, draws_N2[:, 0])
        covered = partition(hidden, spans, draws_N2[:, 1])
        source, target, at = list[int](), list[int](), 0
        for sentinel, seen, unseen in zip(sentinels, shown, covered, strict=False):
            source += [*tokens[at : at + seen], sentinel]
            target += [sentinel, *tokens[at + seen : at + seen + unseen]]
            at += seen + unseen
        return source, [*target, sentinels[spans]]


def partition(total: int, parts: int, draws_N: Draws) -> list[int]:
    """Return `parts` numbers of 1 or more whose sum is `total`, every such list equally likely."""
    cuts = np.sort(np.argsort(draws_N[: total - 1], kind="stable")[: parts - 1]) + 1
    return [int(size) for size in np.diff([0, *cuts, total])]
