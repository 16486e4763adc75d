"""What a language model says after texts of different lengths, many at once.

Every batch takes equally many passes, so that processes that share the model's parts stay together.

Legend: R texts, T positions, D width, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.packing import Packing
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.language_model import HEAD

Pick = Callable[[Tensor], Tensor]
"""Returns the next token of each text, `[R]`, from logits `[R, V]`."""


def without_special(logits_RV: Tensor, vocabulary: Tokenizer, end: int) -> Tensor:
    """Return logits with -inf at special tokens but the one that ends a text."""
    never = sorted(vocabulary.special - {end})
    index = torch.tensor(never, dtype=torch.long, device=logits_RV.device)
    return logits_RV.index_fill(1, index, -torch.inf)


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
