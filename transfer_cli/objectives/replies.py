"""What a language model says after texts of different lengths, many at once.

Every batch takes equally many passes, so that processes that share the model's parts stay together.

Legend: R texts, T positions, D width, V vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.model.attention import SourceText
from transfer_cli.model.encoder_decoder import EncoderDecoder
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.packing import Packing
from transfer_cli.model.transfer_model import TransferModel
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


@torch.no_grad()
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
        model: With the head of a language model.
        tokens_RT: Contexts; what stands from `begin_R` on is not read.
        segment_RT: Their segments.
        begin_R: The length of each.
        most: Tokens of a reply.
        pick: Chooses tokens.
        prefix_R: See `Backbone.forward`.
        segment: That of what the model says.
    """
    longest, positions = int(begin_R.max()), model.backbone.shape.positions
    padding_R = longest - begin_R
    # The texts end together, so that all go on in one place.
    place_RT = torch.arange(longest, device=tokens_RT.device) - padding_R[:, None]
    mask_RT, taken_RT = place_RT >= 0, place_RT.clamp(min=0)
    read_RT, kind_RT = tokens_RT.gather(1, taken_RT), segment_RT.gather(1, taken_RT)
    is_padded = int(begin_R.min()) < longest
    kv_cache = KVCache(model.backbone.shape.depth, longest + most, padding_R if is_padded else None)
    prefix_R = None if prefix_R is None else prefix_R + padding_R
    packing = None
    if is_padded:
        packing = Packing.of(mask_RT, mask_RT.flatten().nonzero().squeeze(1))
    last_R = begin_R.cumsum(0) - 1
    predicted = list[Tensor]()
    for number in range(most):
        if longest + number > positions:  # a pass all the same, whose answer nobody reads
            kv_cache = KVCache(model.backbone.shape.depth, most)
        states = model.backbone(
            read_RT, mask_RT, kind_RT, padded=packing is not None, kv_cache=kv_cache,
            prefix_B=prefix_R, packing=packing,
        )  # fmt: skip
        ends = [state[:, -1:] if packing is None else state[0, last_R, None] for state in states]
        top_RD, packing = model.readout(ends)[:, 0], None
        logits_RV = model.heads[HEAD](top_RD, model.backbone.token_embedding.weight)
        predicted.append(pick(logits_RV.float()))
        read_RT = predicted[-1][:, None]
        mask_RT, kind_RT = torch.ones_like(read_RT, dtype=torch.bool), read_RT * 0 + segment
    return torch.stack(predicted, dim=1)


class Written:
    """Targets that an encoder-decoder writes token by token, from sources that it reads once.

    Args:
        model: With the head of a language model.
        source: Texts that are padded on the right.
        start: The tokens that each target stands behind.
        most: Tokens of a target, at most.
    """

    def __init__(
        self, model: TransferModel, source: SourceText, start: Sequence[int], *, most: int
    ) -> None:
        backbone = model.backbone
        if not isinstance(backbone, EncoderDecoder):
            raise TypeError("the model has no decoder that reads a source")
        self._model, self._backbone, self._source = model, backbone, backbone.encode(source)
        rows, device = len(source.tokens), source.tokens.device
        self._start_RT = torch.tensor(start, device=device).expand(rows, -1)
        self._kv_cache = KVCache(backbone.shape.depth, len(start) + most)

    def first(self) -> Tensor:
        """Return the logits of the first tokens, `[R, V]`."""
        return self._logits(self._start_RT)

    def next(self, tokens_R: Tensor) -> Tensor:
        """Read a token more of each target, and return the logits of what follows, `[R, V]`."""
        return self._logits(tokens_R[:, None])

    def _logits(self, read_RT: Tensor) -> Tensor:
        states = self._backbone(
            read_RT, torch.ones_like(read_RT, dtype=torch.bool), padded=False,
            kv_cache=self._kv_cache, source=self._source,
        )  # fmt: skip
        top_RD = self._model.readout([state[:, -1:] for state in states])[:, 0]
        logits_RV: Tensor = self._model.heads[HEAD](top_RD, self._backbone.token_embedding.weight)
        return logits_RV.float()


@torch.no_grad()
def likeliest(written: Written, *, most: int, pick: Pick, end: int) -> Tensor:
    """Return targets of which each token is picked, `[R, most]`; after an end they mean nothing.

    Where no other process waits for its passes, it stops when all targets have ended.
    """
    waits = torch.distributed.is_initialized()
    predicted = [pick(written.first())]
    ended_R = predicted[0] == end
    while len(predicted) < most and (waits or not bool(ended_R.all())):
        predicted.append(pick(written.next(predicted[-1])))
        ended_R = ended_R | (predicted[-1] == end)
    written_RT = torch.stack(predicted, dim=1)
    return torch.nn.functional.pad(written_RT, (0, most - written_RT.shape[1]), value=end)
