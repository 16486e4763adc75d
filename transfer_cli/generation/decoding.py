"""Autoregressive decoding from a causal language model.

From logits on, everything is computed in float64 on the CPU: a seed then gives the same tokens on
every device, up to rounding of the logits.

Legend: B texts, T positions, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from transfer_cli.errors import NotFiniteError, at_least
from transfer_cli.generation.token_graph import TokenGraph, graph_length, takes_graph
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.replies import Continued, last_logits
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
            [torch.rand(1, generator=source, dtype=torch.float64) for source in self._generators]
        )
        cumulative_BV = probabilities_BV.cumsum(1)
        total_B1 = cumulative_BV[:, -1:]
        # Rounding must not reach the total: no token has a larger cumulative probability.
        below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))
        wanted_B1 = torch.minimum(uniform_B1 * total_B1, below_B1)
        return torch.searchsorted(cumulative_BV, wanted_B1, right=True).squeeze(1)


def generate(  # noqa: PLR0913 - everything that what is generated depends on
    model: TransferModel,
    prompt: Sequence[int],
    *,
    rows: int,
    max_new_tokens: int,
    use_cache: bool,
    sampling: Sampling,
    sampler: TokenSampler,
    allowed_V: Tensor,
    prefix: int | None = None,
    segment: int = 0,
    segments: Sequence[int] = (),
    memory: int | None = None,
) -> Iterator[list[int]]:
    """Yield the next token of each text, `max_new_tokens` times, unless the caller stops before.

    Args:
        rows: B.
        use_cache: Whether to cache keys and values instead of reading each text again.
        allowed_V: True at the tokens that may be generated.
        prefix: How many tokens of the prompt all positions see, see `Backbone.forward`.
        segment: That of what is generated.
        segments: Those of the prompt's tokens; none: 0 for all.
        memory: How many tokens before the last one are seen, of a model whose positions are
            distances: then there is no longest text, and a prompt is read block by block. Only
            with a cache. None: all are seen.
    """
    device = model.backbone.token_embedding.weight.device
    shape, most = model.backbone.shape, len(prompt) + max_new_tokens
    if memory is not None:
        most = memory + shape.positions
    kv_cache = KVCache(shape.depth, most, keep=memory) if use_cache else None
    graph: TokenGraph | None = None
    read_BT = torch.tensor([prompt], device=device)
    known = [*segments] or [0] * len(prompt)
    segment_T = torch.tensor([*known, *[segment] * max_new_tokens], device=device)
    if memory is not None:
        *before, read_BT = read_BT.split(shape.positions, dim=1)
        for part_BT in before:
            _next_logits(model, kv_cache, torch.zeros_like(part_BT), None, part_BT)
    for number in range(max_new_tokens):
        if graph is not None:
            logits_BV = graph(read_BT)
        else:
            first = len(prompt) + number - read_BT.shape[1]
            segment_BT = segment_T[first : first + read_BT.shape[1]].expand_as(read_BT)
            prefix_B = None if prefix is None else read_BT.new_full((len(read_BT),), prefix)
            logits_BV = _next_logits(model, kv_cache, segment_BT, prefix_B, read_BT)
        logits_BV = logits_BV.expand(rows, -1)
        if kv_cache is not None and number == 0:
            uses_graph = memory is None and takes_graph(model.backbone, max_new_tokens, device)
            most = graph_length(model.backbone, most) if uses_graph else most
            kv_cache = kv_cache.fork(rows, most)
            if uses_graph:
                segment_B1 = torch.full((rows, 1), segment, device=device)
                prefix_B = None if prefix is None else torch.full((rows,), prefix, device=device)
                read = partial(_next_logits, model, kv_cache, segment_B1, prefix_B)
                graph = TokenGraph(read, kv_cache, rows, device)
        tokens_B = draw_tokens(logits_BV, sampling, sampler, allowed_V).tolist()
        yield tokens_B
        new_B1 = torch.tensor(tokens_B, device=device)[:, None]
        read_BT = new_B1 if use_cache else torch.cat([read_BT.expand(rows, -1), new_B1], dim=1)


def continue_texts(
    texts: Continued,
    *,
    rows: int,
    max_new_tokens: int,
    sampling: Sampling,
    sampler: TokenSampler,
    allowed_V: Tensor,
) -> Iterator[list[int]]:
    """Yield the next token of each of `rows` texts that begin as the only one of `texts` does."""
    logits_BV = texts.first().expand(rows, -1)
    rows_B: Tensor | None = torch.zeros(rows, dtype=torch.long, device=logits_BV.device)
    for _ in range(max_new_tokens):
        tokens_B = draw_tokens(logits_BV, sampling, sampler, allowed_V)
        yield tokens_B.tolist()
        logits_BV, rows_B = texts.next(tokens_B.to(logits_BV.device), rows_B), None


def draw_tokens(
    logits_BV: Tensor, sampling: Sampling, sampler: TokenSampler, allowed_V: Tensor
) -> Tensor:
    """Draw the next token of each text, `[B]`, from those where `allowed_V` is True."""
    # A head may rule a token out with -inf; the largest is NaN where any is.
    if not logits_BV.amax(1).isfinite().all():
        raise NotFiniteError("run: its prediction")
    logits_BV = logits_BV.cpu().masked_fill(~allowed_V, -torch.inf)
    return sampler(sampling.probabilities(logits_BV))


def _next_logits(
    model: TransferModel,
    kv_cache: KVCache | None,
    segment_BT: Tensor,
    prefix_B: Tensor | None,
    tokens_BT: Tensor,
) -> Tensor:
    """Read tokens, and return the logits of the next token, `[B, V]`, in float32."""

    def read(model: TransferModel) -> Tensor:
        mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
        hidden_states = model.backbone(
            tokens_BT, mask_BT, segment_BT, padded=False, kv_cache=kv_cache, prefix_B=prefix_B
        )
        return last_logits(model, [state_BTD[:, -1:] for state_BTD in hidden_states])

    logits_BV: Tensor = model(read)
    return logits_BV
