"""What a language model says after texts of different lengths, many at once.

Every batch takes equally many passes, so that processes that share the model's parts stay together.

Legend: R texts, N texts that go on, T positions, D width, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.packing import Packing
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.beam_search import BeamSearch
from transfer_cli.objectives.language_model import HEAD

Pick = Callable[[Tensor], Tensor]
"""Returns the next token of each text, `[R]`, from logits `[R, V]`."""


def without_special(logits_RV: Tensor, vocabulary: Tokenizer, end: int) -> Tensor:
    """Return logits with -inf at special tokens but the one that ends a text."""
    never = sorted(vocabulary.special - {end})
    return logits_RV.index_fill(1, torch.tensor(never, device=logits_RV.device), -torch.inf)


def text_until(tokens: list[int], vocabulary: Tokenizer, end: int) -> str:
    """Return the text of tokens up to the one that ends it."""
    return vocabulary.decode(tokens[: tokens.index(end)] if end in tokens else tokens)


class Continued:
    """Texts of different lengths that a model reads at once, and goes on with token by token.

    Args:
        model: With the head of a language model.
        tokens_RT: Contexts; what stands from `begin_R` on is not read.
        segment_RT: Their segments.
        begin_R: The length of each.
        most: Tokens that follow, at most.
        prefix_R: See `Backbone.forward`.
        segment: That of what follows.
    """

    def __init__(
        self,
        model: TransferModel,
        tokens_RT: Tensor,
        segment_RT: Tensor,
        begin_R: Tensor,
        *,
        most: int,
        prefix_R: Tensor | None = None,
        segment: int = 0,
    ) -> None:
        self._model, self._most, self._segment = model, most, segment
        self._tokens_RT, self._segment_RT, self._begin_R = tokens_RT, segment_RT, begin_R
        self._longest, self._read = int(begin_R.max()), 0
        padding_R = self._longest - begin_R
        self._padding_R = padding_R if int(begin_R.min()) < self._longest else None
        self._prefix_R = None if prefix_R is None else prefix_R + padding_R
        self._kv_cache = KVCache(model.backbone.shape.depth, self._longest + most, self._padding_R)

    def first(self) -> Tensor:
        """Read the contexts, and return the logits of what follows, `[R, V]`."""
        begin_R, padding_R = self._begin_R, self._longest - self._begin_R
        # The texts end together, so that all go on in one place.
        place_RT = torch.arange(self._longest, device=begin_R.device) - padding_R[:, None]
        mask_RT, taken_RT = place_RT >= 0, place_RT.clamp(min=0)
        packing = None
        if self._padding_R is not None:
            packing = Packing.of(mask_RT, mask_RT.flatten().nonzero().squeeze(1))
        return self._logits(
            self._tokens_RT.gather(1, taken_RT), mask_RT, self._segment_RT.gather(1, taken_RT),
            packing,
        )  # fmt: skip

    def next(self, tokens_N: Tensor, rows_N: Tensor | None = None) -> Tensor:
        """Read a token more of some texts, and return the logits of what follows, `[N, V]`.

        Args:
            tokens_N: The tokens.
            rows_N: The texts, by their places in the pass before; None: all of them, in order.
        """
        self._read += 1
        if rows_N is not None:
            self._kv_cache.select(rows_N)
            self._prefix_R = None if self._prefix_R is None else self._prefix_R[rows_N]
        if self._longest + self._read > self._model.backbone.shape.positions:
            # A pass all the same, whose answer nobody reads.
            self._kv_cache = KVCache(self._model.backbone.shape.depth, self._most)
        tokens_N1 = tokens_N[:, None]
        mask_N1 = torch.ones_like(tokens_N1, dtype=torch.bool)
        return self._logits(tokens_N1, mask_N1, tokens_N1 * 0 + self._segment, None)

    def picked(self, pick: Pick) -> Tensor:
        """Return one text after each, `[R, most]`; what follows its end means nothing."""
        predicted = [pick(self.first())]
        for _ in range(self._most - 1):
            predicted.append(pick(self.next(predicted[-1])))
        return torch.stack(predicted, dim=1)

    def searched(self, search: BeamSearch, end: int, vocabulary: Tokenizer) -> Tensor:
        """Return the likeliest texts that are found, `[R, most]`, filled up with their end."""
        found = search(
            self.first(), self.next, most=self._most, ends=[end],
            allowed_V=without_special(torch.zeros(1, vocabulary.size), vocabulary, end)[0] == 0,
        )  # fmt: skip
        row = torch.zeros(1, dtype=torch.long, device=self._begin_R.device)
        # Processes that share the model's parts take equally many passes.
        while hasattr(self._model, "reshard") and self._read < self._most - 1:
            self.next(row, row)
        filled = [[*tokens, *[end] * (self._most - len(tokens))] for tokens in found]
        return torch.tensor(filled, device=self._begin_R.device)

    @torch.no_grad()
    def _logits(
        self, tokens_RT: Tensor, mask_RT: Tensor, segment_RT: Tensor, packing: Packing | None
    ) -> Tensor:
        states = self._model.backbone(
            tokens_RT, mask_RT, segment_RT, padded=packing is not None, kv_cache=self._kv_cache,
            prefix_B=self._prefix_R, packing=packing,
        )  # fmt: skip
        last_R = self._begin_R.cumsum(0) - 1
        ends = [state[:, -1:] if packing is None else state[0, last_R, None] for state in states]
        top_RD = self._model.readout(ends)[:, 0]
        logits_RV: Tensor = self._model.heads[HEAD](
            top_RD, self._model.backbone.token_embedding.weight
        )
        return logits_RV.float()


def replies(
    model: TransferModel,
    tokens_RT: Tensor,
    segment_RT: Tensor,
    begin_R: Tensor,
    *,
    most: int,
    pick: Pick,
    prefix_R: Tensor | None = None,
    segment: int = 0,
) -> Tensor:
    """Return what a model says, `[R, most]`; what follows the end of a reply means nothing.

    Args:
        pick: Chooses tokens. For the others see `Continued`.
    """
    return Continued(
        model, tokens_RT, segment_RT, begin_R, most=most, prefix_R=prefix_R, segment=segment
    ).picked(pick)
