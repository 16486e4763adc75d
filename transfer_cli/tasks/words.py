"""A linear model on words: what the words of a text say about its label, without any pretraining.

Multinomial logistic regression on words and pairs of neighbouring words, weighted by tf-idf. A
fine-tuned model that does no better has cost its time for nothing.

Legend: N texts, R terms of all texts, V vocabulary, C labels.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.data.labelled import Example
from transfer_cli.optim.lbfgs import TorchLBFGS

MOST_LABELS = 256
"""With more, a table of texts and labels would be large."""

MOST_CHARACTERS = 2000
"""Of a text."""

MOST_TERMS = 10_000
"""The vocabulary: the terms that most texts have."""

MOST_WEIGHTS = 500_000
"""V x C at most."""

C = 10.0
"""As in scikit-learn: a prior of this variance on each weight. Its default, 1, is too strong for
rows of length 1 that are spread over thousands of terms."""


def right_by_words(train: Sequence[Example], scored: Sequence[Example], labels: int) -> int:
    """Return how many of `scored` a model that is fitted on `train` gives the right label."""
    texts_with = Counter(term for example in train for term in set(_terms(example)))
    kept = min(MOST_TERMS, MOST_WEIGHTS // labels)
    # Sorted, so that ties do not depend on the order of the texts.
    chosen = sorted(texts_with, key=lambda term: (-texts_with[term], term))[:kept]
    numbers = {term: number for number, term in enumerate(chosen)}
    rarity = [1 + math.log((1 + len(train)) / (1 + texts_with[term])) for term in chosen]
    weight_VC, bias_C = torch.zeros(max(1, len(chosen)), labels), torch.zeros(labels)
    rows, label_N = _sparse_rows(train, numbers, rarity), _labels(train)
    columns = rows.transposed(len(weight_VC))

    decay = 1 / (C * len(train))

    def penalised() -> Tensor:
        """Torch's own backward pass through `embedding_bag` takes ten times as long."""
        logits_NC = rows.times(weight_VC) + bias_C
        gradient_NC = (logits_NC.softmax(1) - F.one_hot(label_N, labels)) / len(train)
        weight_VC.grad = columns.times(gradient_NC).add_(weight_VC, alpha=decay)
        bias_C.grad = gradient_NC.sum(0)
        return F.cross_entropy(logits_NC, label_N) + decay / 2 * weight_VC.square().sum()

    # Its answers are counted, which are the same long before the minimum.
    TorchLBFGS(
        [weight_VC, bias_C], lr=1.0, line_search_fn="strong_wolfe", history_size=5,
        max_iter=100, max_eval=100, tolerance_grad=3e-4,
    ).step(penalised)  # fmt: skip
    others = _sparse_rows(scored, numbers, rarity)
    predicted_N = (others.times(weight_VC) + bias_C).argmax(1)
    return int((predicted_N == _labels(scored)).sum())


def _labels(examples: Sequence[Example]) -> Tensor:
    return torch.tensor([example.label for example in examples])


def _terms(example: Example) -> Iterator[str]:
    """Yield words and pairs of words; those of a second text are others than those of the first."""
    for mark, text in (("", example.text), ("2 ", example.pair or "")):
        words = re.findall(r"\w+", text[:MOST_CHARACTERS].lower())
        yield from (mark + word for word in words)
        yield from (f"{mark}{first} {second}" for first, second in itertools.pairwise(words))


@dataclass(frozen=True)
class _Sparse:
    """A sparse matrix by rows: column and value of each entry, and where each row begins."""

    columns: Tensor
    values: Tensor
    starts: Tensor

    def times(self, dense: Tensor) -> Tensor:
        """Return the product with a matrix."""
        return F.embedding_bag(
            self.columns, dense, self.starts, mode="sum", per_sample_weights=self.values
        )

    def transposed(self, columns: int) -> "_Sparse":
        """Return the transpose of a matrix with so many columns."""
        ends = torch.cat([self.starts[1:], torch.tensor([len(self.columns)])])
        rows_R = torch.repeat_interleave(ends - self.starts)
        order_R = self.columns.argsort(stable=True)
        counts = torch.bincount(self.columns, minlength=columns)
        return _Sparse(rows_R[order_R], self.values[order_R], counts.cumsum(0) - counts)


def _sparse_rows(
    examples: Sequence[Example], numbers: dict[str, int], rarity: Sequence[float]
) -> _Sparse:
    """Return texts as rows of tf-idf, each of length 1.

    Args:
        examples: The texts.
        numbers: Of the terms that are known.
        rarity: Of each of these.
    """
    columns, values, starts = list[int](), list[float](), list[int]()
    for example in examples:
        counts = Counter(numbers[term] for term in _terms(example) if term in numbers)
        raw = [rarity[number] * (1 + math.log(count)) for number, count in counts.items()]
        length = math.hypot(*raw)
        starts.append(len(columns))
        columns += counts
        values += [value / length for value in raw]
    return _Sparse(
        torch.tensor(columns, dtype=torch.int64),
        torch.tensor(values, dtype=torch.float32),
        torch.tensor(starts),
    )
