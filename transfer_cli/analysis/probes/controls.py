"""What the accuracy of a probe is compared with: labels that say nothing, and simple baselines."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from transfer_cli.analysis.probes.states import Parts, Probed
from transfer_cli.seeds import derive

CONTROLS = ("random", "shuffled", "types")
"""Fresh weights, labels exchanged among all, labels of word types."""

_SEEDS = 2**63
"""`derive` gives numbers below it."""


def relabelled(parts: Parts, name: str, classes: int, seed: int) -> Parts:
    """Return the same states with the labels of a control, `shuffled` or `types`."""
    if name == "shuffled":
        return {split: shuffled(part, seed, split) for split, part in parts.items()}
    shares = torch.bincount(parts["train"].label, minlength=classes).tolist()
    return {split: by_type(part, shares, seed) for split, part in parts.items()}


def shuffled(probed: Probed, seed: int, split: str) -> Probed:
    """Return the same units with their labels exchanged among them."""
    generator = torch.Generator().manual_seed(derive(seed, "shuffled labels", split))
    return probed.labelled(probed.label[torch.randperm(len(probed), generator=generator)])


def by_type(probed: Probed, shares: Sequence[int], seed: int) -> Probed:
    """Return the same words with a label for each word type (Hewitt and Liang 2019).

    The label is drawn once for a type, as often as it occurs in training, from the seed and the
    type alone: so it is the same in all splits, and can only be known by heart.

    Args:
        probed: Words.
        shares: How often each label occurs in training.
        seed: The analysis'.
    """
    ends = list(accumulate(shares))

    def label(word: str) -> int:
        drawn = derive(seed, "label of type", word) * ends[-1] // _SEEDS
        return bisect_right(ends, drawn)

    of_type = {word: label(word) for word in set(probed.words or ())}
    return probed.labelled(torch.tensor([of_type[word] for word in probed.words or ()]))


def baselines(parts: Parts, classes: int, right_by_words: float | None) -> dict[str, float]:
    """Return the accuracies of answers that ask no state, by what answers.

    `majority` is the commonest label of training; `word` is that which a word has most often, and
    `words`, of texts, a linear model on words and pairs of words.
    """
    train, scored = parts["train"], parts["scored"]
    commonest = torch.bincount(train.label, minlength=classes).argmax()
    found = {"majority": float((scored.label == commonest).double().mean())}
    if scored.words is not None:
        said_N = by_word(train, scored, int(commonest))
        found["word"] = float((scored.label == said_N).double().mean())
    return found if right_by_words is None else {**found, "words": right_by_words}


def by_word(train: Probed, scored: Probed, otherwise: int) -> Tensor:
    """Return the label that each word has most often in training; of others `otherwise`."""
    of_word: dict[str, Counter[int]] = defaultdict(Counter)
    for word, label in zip(train.words or (), train.label.tolist(), strict=True):
        of_word[word][label] += 1
    best = {
        word: min(found, key=lambda label: (-found[label], label))
        for word, found in of_word.items()
    }
    return torch.tensor([best.get(word, otherwise) for word in scored.words or ()])
