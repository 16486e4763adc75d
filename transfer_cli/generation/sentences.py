"""How likely a language model finds sentences, and which of a minimal pair it finds likelier."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from transfer_cli.data.cloze import MinimalPair
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import DataError
from transfer_cli.generation.likelihood import Ending, Gap, encode_scored, score_rows
from transfer_cli.generation.prompt_layout import Around, PromptLayout
from transfer_cli.metrics import wilson_interval
from transfer_cli.model.transfer_model import TransferModel


@dataclass(frozen=True)
class SentenceScorer:
    """Scores sentences by the sum of their tokens' log-probabilities.

    A masked model scores each token with that token hidden (Salazar et al. 2020).

    Args:
        reads: How a causal model reads a text; of a masked one, what surrounded the texts that it
            was trained on.
        batch: Sequences that pass through it at once.
        scores_first: Whether the first token counts where a model reads nothing before a text; then
            the token that ends a text stands there.
        within_word: Whether masked models see nothing of what follows a token within its word
            (Kauf and Ivanova 2023).
    """

    model: TransferModel
    tokenizer: Tokenizer
    reads: PromptLayout | Around
    _: KW_ONLY
    batch: int
    scores_first: bool
    within_word: bool

    def score(self, sentences: Sequence[str]) -> tuple[list[float], list[int]]:
        """Return the log-probability of each sentence in nats, and its number of tokens."""
        if isinstance(self.reads, PromptLayout):
            rows = [self._causal_ending(text, self.reads) for text in sentences]
            scores = score_rows(self.model, rows, self.tokenizer.pad, self.batch)
            counts = [len(row.tokens) - row.first for row in rows]
            return [math.fsum(scores_N.tolist()) for scores_N in scores], counts
        before = self.tokenizer.cls if self.reads == "sentence" else self.tokenizer.sep
        gaps = [list(self._gaps(text, before)) for text in sentences]
        flat = [gap for row in gaps for gap in row]
        scored = iter(score_rows(self.model, flat, self.tokenizer.pad, self.batch))
        sums = [math.fsum(float(next(scored)) for _ in row) for row in gaps]
        return sums, [len(row) for row in gaps]

    def _causal_ending(self, text: str, layout: PromptLayout) -> Ending:
        """Return the tokens of a sentence as a causal model reads them."""
        tokens = encode_scored(layout, text) if self.scores_first else layout.encode(text)
        self._check(text, len(tokens), least=2)
        return Ending(tokens, 1)

    def _gaps(self, text: str, before: int) -> Iterator[Gap]:
        """Yield the sentence with each of its tokens hidden in turn."""
        tokenizer = self.tokenizer
        inner = tokenizer.encode(text)
        tokens = [before, *inner, tokenizer.sep]
        self._check(text, len(tokens), least=3)
        for place in range(1, len(inner) + 1):
            hidden = tokens.copy()
            hidden[place] = tokenizer.mask
            for later in range(place + 1, len(inner) + 1):
                if not self.within_word or tokenizer.starts_word[tokens[later]]:
                    break
                hidden[later] = tokenizer.mask
            yield Gap(hidden, place, [tokens[place]])

    def _check(self, text: str, count: int, least: int) -> None:
        positions = self.model.backbone.shape.positions
        if count < least:
            raise DataError(f"The sentence {text[:80]!r} has too few tokens to be scored.")
        if count > positions:
            raise DataError(
                f"The sentence {text[:80]!r} is {count} tokens long, and the model has {positions} "
                "positions."
            )


@dataclass(frozen=True)
class JudgedPair:
    """What a model says of a minimal pair.

    Args:
        good: The log-probability of the good sentence, in nats.
        bad: That of the other.
        more_tokens: How many tokens more the good one has.
    """

    pair: MinimalPair
    good: float
    bad: float
    more_tokens: int

    @property
    def score(self) -> float:
        """1 where the good sentence is likelier, 0 where the other is; a tie counts half."""
        return 0.5 if self.good == self.bad else float(self.good > self.bad)


def judge_pairs(scorer: SentenceScorer, pairs: Sequence[MinimalPair]) -> list[JudgedPair]:
    """Return what a model says of pairs."""
    sums, counts = scorer.score([text for pair in pairs for text in (pair.good, pair.bad)])
    both = (zip(values[::2], values[1::2], strict=True) for values in (sums, counts))
    return [
        JudgedPair(pair, good, bad, tokens - others)
        for pair, (good, bad), (tokens, others) in zip(pairs, *both, strict=True)
    ]


@dataclass(frozen=True)
class GroupAccuracy:
    """How often a model is right about the pairs of a group ("": those without one).

    Args:
        low: Where the share lies, by its 95 % interval: from here
        high: to here.
    """

    group: str
    accuracy: float
    count: int
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.group or 'all'}: {100 * self.accuracy:.1f} % of {self.count:,} "
            f"({100 * self.low:.1f} to {100 * self.high:.1f})"
        )


def accuracy_by_group(judged: Sequence[JudgedPair]) -> list[GroupAccuracy]:
    """Return the accuracy of each group, in the order in which they come."""
    groups: dict[str, list[float]] = {}
    for judgement in judged:
        groups.setdefault(judgement.pair.group, []).append(judgement.score)
    accuracies = []
    for group, scores in groups.items():
        right = math.fsum(scores)
        interval = wilson_interval(right, len(scores))
        accuracies.append(GroupAccuracy(group, right / len(scores), len(scores), *interval))
    return accuracies


def longer_wins(judged: Sequence[JudgedPair]) -> float | None:
    """Return how often the sentence of more tokens is the likelier; None: all are as long."""
    scores = [
        judgement.score if judgement.more_tokens > 0 else 1 - judgement.score
        for judgement in judged
        if judgement.more_tokens
    ]
    return math.fsum(scores) / len(scores) if scores else None
