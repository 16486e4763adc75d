"""Autoregressive decoding from a causal language model.

Legend: B texts, T positions, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from transfer_cli.errors import RunError
from transfer_cli.generation.sampling import Sampling, TokenSampler
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.language_model import HEAD


class DecoderStep:
    """Returns the logits of the next token of several texts with one common prompt.

    Args:
        model: In evaluation mode.
        rows: B.
        max_length: Maximum number of tokens of a text, prompt included.
        use_cache: Whether to cache keys and values instead of reading each text again.
    """

    def __init__(
        self, model: TransferModel, *, rows: int, max_length: int, use_cache: bool
    ) -> None:
        self._model = model
        self._rows = rows
        self._kv_cache = KVCache(len(model.backbone.blocks), max_length) if use_cache else None
        self._read_BT: Tensor | None = None

    def __call__(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Read tokens, and return the logits of the next token, `[B, V]`, in float32.

        Args:
            tokens: In the first call the prompt, `[1, T]`; later the last token of each text,
                `[B, 1]`.
        """
        device = self._model.backbone.token_embedding.weight.device
        new_BT = torch.tensor(tokens, device=device)
        if self._read_BT is None:
            self._read_BT = new_BT
            logits_BV = self._logits(new_BT).expand(self._rows, -1)
            if self._kv_cache is not None:
                self._kv_cache.repeat(self._rows)
            return logits_BV
        if self._kv_cache is not None:
            return self._logits(new_BT)
        self._read_BT = torch.cat([self._read_BT.expand(self._rows, -1), new_BT], dim=1)
        return self._logits(self._read_BT)

    def _logits(self, tokens_BT: Tensor) -> Tensor:
        def read(model: TransferModel) -> Tensor:
            mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
            hidden_states = model.backbone(
                tokens_BT, mask_BT, padded=False, kv_cache=self._kv_cache
            )
            last_BD = model.readout([state_BTD[:, -1:] for state_BTD in hidden_states])[:, 0]
            logits_BV: Tensor = model.heads[HEAD](last_BD, model.backbone.token_embedding.weight)
            return logits_BV.float()

        logits_BV: Tensor = self._model(read)
        return logits_BV


def generate(
    step: DecoderStep,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    sampler: TokenSampler,
    allowed_V: Tensor,
) -> Iterator[list[int]]:
    """Yield the next token of each text, `max_new_tokens` times, unless the caller stops before.

    Args:
        step: The decoder, which has not read any token yet.
        prompt: The tokens that all texts begin with.
        max_new_tokens: Maximum number of tokens after the prompt.
        sampling: Temperature and truncation.
        sampler: Draws the tokens.
        allowed_V: True at the tokens that may be generated.

    Raises:
        RunError: The logits are not finite.
    """
    tokens: list[Sequence[int]] = [prompt]
    for _ in range(max_new_tokens):
        logits_BV = step(tokens)
        if not logits_BV.isfinite().all():
            raise RunError("run: its predictions are not finite; the run has diverged")
        probabilities_BV = sampling.probabilities(
            logits_BV.cpu().masked_fill(~allowed_V, -torch.inf)
        )
        tokens_B = sampler(probabilities_BV).tolist()
        yield tokens_B
        tokens = [[token] for token in tokens_B]
