"""From logits to the next token.

Everything is computed in float64 on the CPU: a seed then gives the same tokens on every device, up
to rounding of the logits.

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
    """Temperature and truncation of the distribution of the next token.

    The temperature is applied first, then `top_k`, then `top_p`.

    Args:
        temperature: Logits are divided by it; 0 is greedy decoding, which takes the first of
            equally likely tokens.
        top_k: Keep the k most likely tokens (Fan et al. 2018); None: all.
        top_p: Keep the smallest set of most likely tokens with this total probability (nucleus
            sampling; Holtzman et al. 2020, section 3.1), in (0, 1].
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature: must be 0 (greedy) or more, got {self.temperature}")
        if self.top_k is not None:
            at_least("top_k:", self.top_k, 1)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: must be above 0 and up to 1, got {self.top_p}")

    def probabilities(self, logits_BV: Tensor) -> Tensor:
        """Return the probability of each token, `[B, V]`, in float64; a logit of -inf gives 0."""
        scores_BV = logits_BV.double().cpu()
        if self.temperature == 0:
            best_B1 = scores_BV.argmax(1, keepdim=True)
            return torch.zeros_like(scores_BV).scatter_(1, best_B1, 1.0)
        # The largest score is 0, so that no small temperature overflows.
        scores_BV = (scores_BV - scores_BV.amax(1, keepdim=True)) / self.temperature
        probabilities_BV = scores_BV.softmax(1)
        if self.top_k is None and self.top_p == 1:
            return probabilities_BV
        return self._truncated(probabilities_BV)

    def _truncated(self, probabilities_BV: Tensor) -> Tensor:
        ranked_BV, tokens_BV = probabilities_BV.sort(dim=1, descending=True, stable=True)
        if self.top_k is not None:
            ranked_BV[:, self.top_k :] = 0
        if self.top_p < 1:
            cumulative_BV = ranked_BV.cumsum(1)
            above_BV = cumulative_BV.roll(1, dims=1)
            above_BV[:, 0] = 0
            ranked_BV[above_BV >= self.top_p * cumulative_BV[:, -1:]] = 0
        kept_BV = torch.zeros_like(probabilities_BV).scatter_(1, tokens_BV, ranked_BV)
        return kept_BV / kept_BV.sum(1, keepdim=True)


class TokenSampler:
    """Draws a token for each of several texts; each text has its own random generator.

    So a text depends on the seed and its number, not on the number of texts.

    Args:
        seed: Seed of all generators.
        rows: B.
    """

    def __init__(self, seed: int, rows: int) -> None:
        self._generators = [
            torch.Generator().manual_seed(derive(seed, "generate", row)) for row in range(rows)
        ]

    def __call__(self, probabilities_BV: Tensor) -> Tensor:
        """Draw a token for each row, `[B]`, from probabilities in float64 on the CPU.

        Each row uses one random number, whatever the probabilities.
        """
        uniform_B1 = torch.stack(
            [torch.rand(1, generator=each, dtype=torch.float64) for each in self._generators]
        )
        cumulative_BV = probabilities_BV.cumsum(1)
        total_B1 = cumulative_BV[:, -1:]
        # Rounding must not reach the total: no token has a larger cumulative probability.
        below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))
        wanted_B1 = torch.minimum(uniform_B1 * total_B1, below_B1)
        return torch.searchsorted(cumulative_BV, wanted_B1, right=True).squeeze(1)
