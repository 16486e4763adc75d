"""Token after token from a causal language model.

Legend: B texts, T positions, V vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transfer_cli.errors import RunError
from transfer_cli.generation.sampling import Draws, Sampling
from transfer_cli.model.key_values import KeyValues
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.language_model import HEAD


class NextToken:
    """Says what a model predicts after texts that begin alike and grow by a token at a time.

    Args:
        model: In evaluation mode.
        rows: B.
        room: The longest that a text gets.
        cached: Keep the keys and values of what was read, instead of reading it again.
    """

    def __init__(self, model: TransferModel, *, rows: int, room: int, cached: bool) -> None:
        self._model = model
        self._rows = rows
        self._kv_cache = KeyValues(len(model.backbone.blocks), room) if cached else None
        self._read_BT: Tensor | None = None

    def __call__(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Read on, and return the logits of what comes next, `[B, V]`, in float32.

        Args:
            tokens: At first the one beginning of all texts, then a token of each text.
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
            states = model.backbone(tokens_BT, mask_BT, padded=False, kv_cache=self._kv_cache)
            last_BD = model.readout([state[:, -1:] for state in states])[:, 0]
            logits_BV: Tensor = model.heads[HEAD](last_BD, model.backbone.token_embedding.weight)
            return logits_BV.float()

        logits_BV: Tensor = self._model(read)
        return logits_BV


def go_on(
    following: NextToken,
    prompt: Sequence[int],
    *,
    most: int,
    sampling: Sampling,
    draws: Draws,
    allowed_V: Tensor,
    take: Callable[[list[int]], bool],
) -> None:
    """Let texts go on after a prompt, token by token.

    Args:
        following: The model, which has not read anything.
        prompt: Tokens that all texts begin with.
        most: Tokens that each gets at most.
        sampling: How a token is chosen.
        draws: Where chance comes from.
        allowed_V: True at the tokens that may be chosen.
        take: Is given the next token of each text; says whether to go on.

    Raises:
        RunError: The model predicts numbers that are not finite.
    """
    logits_BV = following([prompt])
    for number in range(most):
        if not logits_BV.isfinite().all():
            raise RunError("run: its predictions are not finite; the run has diverged")
        shares_BV = sampling.probabilities(logits_BV.cpu().masked_fill(~allowed_V, -torch.inf))
        tokens_B = draws(shares_BV).tolist()
        if not take(tokens_B) or number + 1 == most:
            return
        logits_BV = following([[token] for token in tokens_B])
