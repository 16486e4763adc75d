"""The best valid tags of words: Viterbi's algorithm, with rules in the place of learnt scores.

Legend: B rows, T positions, C tags.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transfer_cli.tasks.tagging.schemes import follows, has_entities


def decode(scores_BTC: Tensor, is_word_BT: Tensor, labels: Sequence[str]) -> Tensor:
    """Return the number of the best tag of each word, `[B, T]`, 0 where there is none.

    Of entities, the tags of a row are those with the highest sum of scores among all in which I-X
    follows B-X or I-X alone; without entities each word has its own best tag.

    Args:
        scores_BTC: Log-probabilities, or logits.
        is_word_BT: Where words are scored; other positions count for nothing.
        labels: The tags by number.
    """
    if not has_entities(labels):
        return scores_BTC.argmax(2) * is_word_BT
    minus = -torch.inf
    device = scores_BTC.device
    rules_CC = torch.tensor(
        [[0.0 if follows(label, before) else minus for label in labels] for before in labels]
    ).to(device)
    first_C = torch.tensor([0.0 if follows(label, None) else minus for label in labels]).to(device)
    places_C = torch.arange(len(labels), device=device)

    best_BC = torch.zeros_like(scores_BTC[:, 0])
    begun_B1 = torch.zeros_like(is_word_BT[:, :1])
    came_from: list[Tensor] = []
    for place in range(scores_BTC.shape[1]):
        scores_BC, is_word_B1 = scores_BTC[:, place], is_word_BT[:, place, None]
        before_BC, pointer_BC = (best_BC[:, :, None] + rules_CC).max(1)
        next_BC = torch.where(begun_B1, before_BC, first_C) + scores_BC
        best_BC = torch.where(is_word_B1, next_BC, best_BC)
        # A position without a word keeps the tag of the word before it.
        came_from.append(torch.where(is_word_B1 & begun_B1, pointer_BC, places_C))
        begun_B1 = begun_B1 | is_word_B1
    tag_B = best_BC.argmax(1)
    found = []
    for pointer_BC in reversed(came_from):
        found.append(tag_B)
        tag_B = pointer_BC.gather(1, tag_B[:, None]).squeeze(1)
    return torch.stack(found[::-1], 1) * is_word_BT
