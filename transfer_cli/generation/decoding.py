"""Autoregressive decoding from a causal language model.

Legend: B texts, T positions, V vocabulary.
"""

from collections.abc import Callable, Sequence

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
    on_tokens: Callable[[list[int]], bool],
) -> None:
    """Generate continuations of a prompt, token by token.

    Args:
        step: The decoder, which has not read any token yet.
        prompt: The tokens that all texts begin with.
        max_new_tokens: Maximum number of tokens after the prompt.
        sampling: Temperature and truncation.
        sampler: Draws the tokens.
        allowed_V: True at the tokens that may be generated.
        on_tokens: Receives the next token of each text; returns whether to continue.

    Raises:
        RunError: The logits are not finite.
    """
    logits_BV = step([prompt])
    for number in range(max_new_tokens):
        if not logits_BV.isfinite().all():
            raise RunError("run: its predictions are not finite; the run has diverged")
        probabilities_BV = sampling.probabilities(
            logits_BV.cpu().masked_fill(~allowed_V, -torch.inf)
        )
        tokens_B = sampler(probabilities_BV).tolist()
        if not on_tokens(tokens_B) or number + 1 == max_new_tokens:
            return
        logits_BV = step([[token] for token in tokens_B])
