"""From logits to the next token.

Everything is computed in float64 on the CPU: a seed then means the same tokens however the logits
came about, up to their own rounding.

Legend: B texts, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from transfer_cli.errors import at_least
from transfer_cli.seeds import derive


@dataclass(frozen=True)
class Sampling:
    """Which tokens may come next, and how likely each is.

    The temperature comes first, then `top_k`, then `top_p` of what that leaves.

    Args:
        temperature: What logits are divided by; 0 takes the likeliest token, of equal ones the
            first (greedy decoding).
        top_k: Keep so many of the likeliest tokens (Fan et al. 2018); None: all.
        top_p: Keep the smallest set of the likeliest tokens that has this share of the probability
            (the nucleus; Holtzman et al. 2020, section 3.1), in (0, 1].
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError where a value cannot work."""
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature: must be 0 (greedy) or more, got {self.temperature}")
        if self.top_k is not None:
            at_least("top_k:", self.top_k, 1)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: must be above 0 and up to 1, got {self.top_p}")

    def probabilities(self, logits_BV: Tensor) -> Tensor:
        """Return the probability of each token, `[B, V]`, in float64; tokens of -inf have none."""
        scores_BV = logits_BV.double().cpu()
        if self.temperature == 0:
            best_B1 = scores_BV.argmax(1, keepdim=True)
            return torch.zeros_like(scores_BV).scatter_(1, best_B1, 1.0)
        # From the largest down: however small the temperature, nothing overflows.
        scores_BV = (scores_BV - scores_BV.amax(1, keepdim=True)) / self.temperature
        shares_BV = scores_BV.softmax(1)
        if self.top_k is None and self.top_p == 1:
            return shares_BV
        return self._truncated(shares_BV)

    def _truncated(self, shares_BV: Tensor) -> Tensor:
        ranked_BV, tokens_BV = shares_BV.sort(dim=1, descending=True, stable=True)
        if self.top_k is not None:
            ranked_BV[:, self.top_k :] = 0
        if self.top_p < 1:
            reached_BV = ranked_BV.cumsum(1)
            above_BV = reached_BV.roll(1, dims=1)
            above_BV[:, 0] = 0
            ranked_BV[above_BV >= self.top_p * reached_BV[:, -1:]] = 0
        kept_BV = torch.zeros_like(shares_BV).scatter_(1, tokens_BV, ranked_BV)
        return kept_BV / kept_BV.sum(1, keepdim=True)


class Draws:
    """Draws a token for each of several texts; each text has random numbers of its own.

    So what a text becomes depends on the seed and its number, not on how many there are.

    Args:
        seed: Where all numbers come from.
        rows: B.
    """

    def __init__(self, seed: int, rows: int) -> None:
        self._generators = [
            torch.Generator().manual_seed(derive(seed, "generate", row)) for row in range(rows)
        ]

    def __call__(self, shares_BV: Tensor) -> Tensor:
        """Return a token for each row, `[B]`, drawn with these probabilities (float64, on the CPU).

        One number is used for each row, whatever the probabilities.
        """
        uniform_B1 = torch.stack(
            [torch.rand(1, generator=each, dtype=torch.float64) for each in self._generators]
        )
        reached_BV = shares_BV.cumsum(1)
        total_B1 = reached_BV[:, -1:]
        # Rounding must not reach the total, beyond which there is no token.
        below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))
        wanted_B1 = torch.minimum(uniform_B1 * total_B1, below_B1)
        return torch.searchsorted(reached_BV, wanted_B1, right=True).squeeze(1)
