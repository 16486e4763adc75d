"""Autoregressive decoding from a causal language model.

Legend: B texts, T positions, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from transfer_cli.errors import NotFiniteError
from transfer_cli.generation.sampling import Sampling, TokenSampler
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.language_model import HEAD


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
    memory: int | None = None,
) -> Iterator[list[int]]:
    """Yield the next token of each text, `max_new_tokens` times, unless the caller stops before.

    Args:
        model: In evaluation mode.
        prompt: The tokens that all texts begin with.
        rows: B.
        max_new_tokens: Maximum number of tokens after the prompt.
        use_cache: Whether to cache keys and values instead of reading each text again.
        sampling: Temperature and truncation.
        sampler: Draws the tokens.
        allowed_V: True at the tokens that may be generated.
        prefix: How many tokens of the prompt all positions see, see `Backbone.forward`.
        segment: That of what is generated.
        memory: How many tokens before the last one are seen, of a model whose positions are
            distances: then there is no longest text, and a prompt is read block by block. Only
            with a cache. None: all are seen.
    """
    device = model.backbone.token_embedding.weight.device
    shape, most = model.backbone.shape, len(prompt) + max_new_tokens
    if memory is not None:
        most = memory + shape.positions
    kv_cache = KVCache(shape.depth, most, keep=memory) if use_cache else None
    read_BT = torch.tensor([prompt], device=device)
    if memory is not None:
        *before, read_BT = read_BT.split(shape.positions, dim=1)
        for part_BT in before:
            _next_logits(model, part_BT, kv_cache, torch.zeros_like(part_BT), None)
    for number in range(max_new_tokens):
        first = len(prompt) + number - read_BT.shape[1]
        later_T = torch.arange(first, first + read_BT.shape[1], device=device) >= len(prompt)
        segment_BT = (later_T * segment).expand_as(read_BT)
        prefix_B = None if prefix is None else read_BT.new_full((len(read_BT),), prefix)
        logits_BV = _next_logits(model, read_BT, kv_cache, segment_BT, prefix_B)
        logits_BV = logits_BV.expand(rows, -1)
        if kv_cache is not None and number == 0:
            kv_cache = kv_cache.fork(rows, most)
        # A head may rule a token out with -inf; the largest is NaN where any is.
        if not logits_BV.amax(1).isfinite().all():
            raise NotFiniteError("run: its prediction")
        probabilities_BV = sampling.probabilities(
            logits_BV.cpu().masked_fill(~allowed_V, -torch.inf)
        )
        tokens_B = sampler(probabilities_BV).tolist()
        yield tokens_B
        new_B1 = torch.tensor(tokens_B, device=device)[:, None]
        read_BT = new_B1 if use_cache else torch.cat([read_BT.expand(rows, -1), new_B1], dim=1)


def _next_logits(
    model: TransferModel,
    tokens_BT: Tensor,
    kv_cache: KVCache | None,
    segment_BT: Tensor,
    prefix_B: Tensor | None,
) -> Tensor:
    """Read tokens, and return the logits of the next token, `[B, V]`, in float32."""

    def read(model: TransferModel) -> Tensor:
        mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
        hidden_states = model.backbone(
            tokens_BT, mask_BT, segment_BT, padded=False, kv_cache=kv_cache, prefix_B=prefix_B
        )
        last_BD = model.readout([state_BTD[:, -1:] for state_BTD in hidden_states])[:, 0]
        logits_BV: Tensor = model.heads[HEAD](last_BD, model.backbone.token_embedding.weight)
        return logits_BV.float()

    logits_BV: Tensor = model(read)
    return logits_BV
