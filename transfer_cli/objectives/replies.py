"""What a language model says after texts of different lengths, many at once.

Processes that share the model's parts take equally many passes a batch, and so stay together.

Legend: R texts, N texts that go on, T positions, D width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.model.attention import SourceText
from transfer_cli.model.encoder_decoder import EncoderDecoder
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.packing import Packing
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.beam_search import BeamSearch
from transfer_cli.objectives.language_model import log_mean_softmax, token_logits

Pick = Callable[[Tensor], Tensor]
"""Returns the next token of each text, `[R]`, from logits `[R, V]`."""


def mask_special_tokens(logits_RV: Tensor, vocabulary: Tokenizer, end: int) -> Tensor:
    """Return logits with -inf at special tokens but the one that ends a text."""
    never = sorted(vocabulary.special - {end})
    index = torch.tensor(never, dtype=torch.long, device=logits_RV.device)
    return logits_RV.index_fill(1, index, -torch.inf)


def decode_until(tokens: list[int], vocabulary: Tokenizer, end: int) -> str:
    """Return the text of tokens up to the one that ends it."""
    return vocabulary.decode(tokens[: tokens.index(end)] if end in tokens else tokens)


def last_logits(model: TransferModel, states_R1D: Sequence[Tensor]) -> Tensor:
    """Return the logits of what follows, `[R, V]` in float32, from all states of one position."""
    return token_logits(model, model.readout(states_R1D)[:, 0]).float()


class Continued:
    """Texts of different lengths that a model reads at once, and goes on with token by token.

    Args:
        model: With the head of a language model.
        tokens_RT: Contexts; what stands from `begin_R` on is not read.
        begin_R: The length of each.
        max_tokens: That follow.
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
        max_tokens: int,
        prefix_R: Tensor | None = None,
        segment: int = 0,
    ) -> None:
        self._model, self._max_tokens, self._segment = model, max_tokens, segment
        self._tokens_RT, self._segment_RT, self._begin_R = tokens_RT, segment_RT, begin_R
        self._longest, self._read = int(begin_R.max()), 0
        padding_R = self._longest - begin_R
        self._padding_R = padding_R if int(begin_R.min()) < self._longest else None
        self._prefix_R = None if prefix_R is None else prefix_R + padding_R
        length = self._longest + max_tokens
        self._kv_cache = KVCache(model.backbone.shape.depth, length, self._padding_R)

    def first(self) -> Tensor:
        """Read the contexts, and return the logits of what follows, `[R, V]`."""
        begin_R, padding_R = self._begin_R, self._longest - self._begin_R
        # The texts end together, so that all go on in one place.
        place_RT = torch.arange(self._longest, device=begin_R.device) - padding_R[:, None]
        mask_RT, taken_RT = place_RT >= 0, place_RT.clamp(min=0)
        packing = None
        if self._padding_R is not None:
            packing = Packing.from_mask(mask_RT, mask_RT.flatten().nonzero().squeeze(1))
        return self._logits(
            self._tokens_RT.gather(1, taken_RT), mask_RT, self._segment_RT.gather(1, taken_RT),
            packing,
        )  # fmt: skip

    def next(self, tokens_N: Tensor, rows_N: Tensor | None = None) -> Tensor:
        """Read a token more of some texts, and return the logits of what follows, `[N, V]`.

        Args:
            rows_N: The texts, by their places in the pass before; None: all of them, in order.
        """
        self._read += 1
        if rows_N is not None:
            self._kv_cache.select(rows_N)
            self._prefix_R = None if self._prefix_R is None else self._prefix_R[rows_N]
        if self._longest + self._read > self._model.backbone.shape.positions:
            # A pass all the same, whose answer nobody reads.
            self._kv_cache = KVCache(self._model.backbone.shape.depth, self._max_tokens)
        tokens_N1 = tokens_N[:, None]
        mask_N1 = torch.ones_like(tokens_N1, dtype=torch.bool)
        return self._logits(tokens_N1, mask_N1, tokens_N1 * 0 + self._segment, None)

    def pick_tokens(self, pick: Pick, end: int = -1) -> Tensor:
        """Return one text after each, `[R, max_tokens]`; what follows its end means nothing."""
        predicted = [pick(self.first())]
        ended_R = predicted[0] == end
        while len(predicted) < self._max_tokens and (self._is_shared or not bool(ended_R.all())):
            predicted.append(pick(self.next(predicted[-1])))
            ended_R = ended_R | (predicted[-1] == end)
        picked_RT = torch.stack(predicted, dim=1)
        return functional.pad(picked_RT, (0, self._max_tokens - len(predicted)), value=end)

    def beam_search_texts(
        self,
        search: BeamSearch,
        vocabulary: Tokenizer,
        *,
        end_tokens: Sequence[int],
        allowed_V: Tensor | None,
        contexts: Sequence[Sequence[int]] | None = None,
    ) -> list[list[int]]:
        """Return the likeliest texts that are found, without a special token that begins them."""
        first = None if search.first_token is None else vocabulary.token(search.first_token)
        texts = search(
            self.first(), self.next, max_tokens=self._max_tokens, end_tokens=end_tokens,
            allowed_V=allowed_V, contexts=contexts, first=first,
        )  # fmt: skip
        return [text[1:] for text in texts] if first in vocabulary.special else texts

    def beam_search(self, search: BeamSearch, end: int, vocabulary: Tokenizer) -> Tensor:
        """Return the likeliest texts that are found, `[R, max_tokens]`, padded with their end."""
        allowed_V = mask_special_tokens(torch.zeros(1, vocabulary.size), vocabulary, end)[0] == 0
        texts = self.beam_search_texts(search, vocabulary, end_tokens=[end], allowed_V=allowed_V)
        row = torch.zeros(1, dtype=torch.long, device=self._device)
        while self._is_shared and self._read < self._max_tokens - 1:
            self.next(row, row)
        padded = [[*tokens, *[end] * (self._max_tokens - len(tokens))] for tokens in texts]
        return torch.tensor(padded, device=self._device)

    @property
    def _is_shared(self) -> bool:
        """Whether processes share the model's parts, and so take equally many passes."""
        return hasattr(self._model, "reshard")

    @property
    def _device(self) -> torch.device:
        return self._model.backbone.token_embedding.weight.device

    @torch.no_grad()
    def _logits(
        self, tokens_RT: Tensor, mask_RT: Tensor, segment_RT: Tensor, packing: Packing | None
    ) -> Tensor:
        states = self._model.backbone(
            tokens_RT, mask_RT, segment_RT, padded=packing is not None, kv_cache=self._kv_cache,
            prefix_B=self._prefix_R, packing=packing,
        )  # fmt: skip
        last_R = self._begin_R.cumsum(0) - 1
        return last_logits(
            self._model,
            [state[:, -1:] if packing is None else state[0, last_R, None] for state in states],
        )


class WrittenTargets(Continued):
    """Targets that an encoder-decoder writes token by token, from sources that it reads once.

    Args:
        model: With the head of a language model.
        source: Texts that are padded on the right.
        start: The tokens that each target stands behind.
        max_tokens: Of a target.
    """

    @torch.no_grad()
    def __init__(
        self, model: TransferModel, source: SourceText, start: Sequence[int], *, max_tokens: int
    ) -> None:
        backbone = model.backbone
        if not isinstance(backbone, EncoderDecoder):
            raise TypeError("the model has no decoder that reads a source")
        self._model, self._backbone, self._source = model, backbone, backbone.encode(source)
        self._max_tokens, self._read = max_tokens, 0
        start_T = torch.tensor(start, device=self._device)
        self._start_RT = start_T.expand(len(source.tokens), -1)
        self._kv_cache = KVCache(backbone.shape.depth, len(start) + max_tokens)

    def first(self) -> Tensor:
        return self._decode(self._start_RT)

    def next(self, tokens_N: Tensor, rows_N: Tensor | None = None) -> Tensor:
        self._read += 1
        if rows_N is not None:
            self._kv_cache.select(rows_N)
            self._source = replace(self._source, mask=self._source.mask[rows_N])
        return self._decode(tokens_N[:, None])

    @torch.no_grad()
    def _decode(self, read_RT: Tensor) -> Tensor:
        mask_RT = torch.ones_like(read_RT, dtype=torch.bool)
        states = self._backbone(
            read_RT, mask_RT, padded=False, kv_cache=self._kv_cache, source=self._source
        )
        return last_logits(self._model, [state[:, -1:] for state in states])


class Averaged(Continued):
    """Texts that several models go on with together: the mean of their distributions decides.

    Args:
        parts: The same texts, as each model reads them; the shortest room holds for all.
    """

    def __init__(self, parts: Sequence[Continued]) -> None:
        self._parts, self._read = parts, 0
        self._model, self._max_tokens = parts[0]._model, min(part._max_tokens for part in parts)

    def first(self) -> Tensor:
        """Return the logarithm of the mean, `[R, V]`."""
        return log_mean_softmax([part.first() for part in self._parts])

    def next(self, tokens_N: Tensor, rows_N: Tensor | None = None) -> Tensor:
        self._read += 1
        return log_mean_softmax([part.next(tokens_N, rows_N) for part in self._parts])
