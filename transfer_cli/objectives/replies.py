"""What a language model says after texts of different lengths, many at once.

Every batch takes equally many passes, so that processes that share the model's parts stay together.

Legend: R texts, T positions, D width, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from transfer_cli.data.tokenizer import Tokenizer
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
    room = model.backbone.shape.positions - tokens_RT.shape[1]
    pad = (0, min(most, max(0, room)))
    tokens_RT, segment_RT = (nn.functional.pad(each, pad) for each in (tokens_RT, segment_RT))
    place_T = torch.arange(tokens_RT.shape[1], device=tokens_RT.device)
    segment_RT = torch.where(place_T < begin_R[:, None], segment_RT, segment)
    said = []
    for number in range(most):
        end_R = (begin_R + number).clamp(max=len(place_T))
        mask_RT = place_T < end_R[:, None]
        states = model.backbone(tokens_RT, mask_RT, segment_RT, prefix_B=prefix_R)
        last = end_R[:, None, None] - 1
        top_RD = model.readout(
            [each.gather(1, last.expand(-1, 1, each.shape[2])) for each in states]
        )[:, 0]
        logits_RV = model.heads[HEAD](top_RD, model.backbone.token_embedding.weight)
        said.append(pick(logits_RV.float()))
        tokens_RT = torch.where(place_T == end_R[:, None], said[-1][:, None], tokens_RT)
    return torch.stack(said, dim=1)
