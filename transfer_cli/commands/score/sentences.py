"""Which sentence of a minimal pair a language model finds likelier."""

import math
from collections.abc import Iterator, Sequence

from transfer_cli.assembly.finished_run import Trained
from transfer_cli.commands.score.findings import Findings
from transfer_cli.data.minimal_pairs import MinimalPair
from transfer_cli.errors import DataError
from transfer_cli.generation.likelihood import Ending, Gap, score_endings, score_gaps
from transfer_cli.metrics import Metric, wilson_interval
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.runs.items import Item, shortened

METRICS = (
    Metric("accuracy", higher_is_better=True, unit="fraction", headline=True, per_example=True),
    Metric("macro_accuracy", higher_is_better=True, unit="fraction"),
    Metric("longer_wins", higher_is_better=False, unit="fraction"),
)


class SentenceScorer:
    """Scores sentences by the sum of their tokens' log-probabilities.

    A masked model scores each token with that token hidden (Salazar et al. 2020).

    Args:
        trained: The language model.
        batch: Sequences that pass through it at once.
        scores_first: Whether the first token counts where a model reads nothing before a text; then
            the token that ends a text stands there.
        within_word: Whether masked models see nothing of what follows a token within its word
            (Kauf and Ivanova 2023).
    """

    def __init__(
        self, trained: Trained, *, batch: int, scores_first: bool, within_word: bool
    ) -> None:
        self._trained, self._batch = trained, batch
        self._scores_first, self._within_word = scores_first, within_word

    def score(self, sentences: Sequence[str]) -> tuple[list[float], list[int]]:
        """Return the log-probability of each sentence in nats, and its number of tokens.

        Raises:
            DataError: One has no tokens, or more than the model has positions.
        """
        if isinstance(self._trained.objective, CausalLM):
            rows = [self._laid_out(text) for text in sentences]
            found = score_endings(self._trained.model, rows, self._batch)
            counts = [len(row.tokens) - row.first for row in rows]
            return [math.fsum(each.tolist()) for each in found], counts
        gaps = [list(self._gaps(text)) for text in sentences]
        tokenizer = self._trained.start.tokenizer
        flat = [gap for own in gaps for gap in own]
        said = iter(score_gaps(self._trained.model, flat, tokenizer.pad, self._batch))
        sums = [math.fsum(float(next(said)) for _ in own) for own in gaps]
        return sums, [len(own) for own in gaps]

    def _laid_out(self, text: str) -> Ending:
        """Return the tokens of a sentence as a causal model reads them."""
        trained = self._trained
        tokens, own = trained.prompt_layout.encode(text), trained.start.tokenizer.encode(text)
        if len(tokens) == len(own) and self._scores_first:
            tokens = [trained.start.tokenizer.sep, *tokens]
        self._check(text, len(tokens), least=2)
        return Ending(tokens, 1)

    def _gaps(self, text: str) -> Iterator[Gap]:
        """Yield the sentence with each of its tokens hidden in turn."""
        tokenizer = self._trained.start.tokenizer
        before = tokenizer.cls if self._trained.around == "sentence" else tokenizer.sep
        own = tokenizer.encode(text)
        tokens = [before, *own, tokenizer.sep]
        self._check(text, len(tokens), least=3)
        for place in range(1, len(own) + 1):
            hidden = tokens.copy()
            hidden[place] = tokenizer.mask
            for later in range(place + 1, len(own) + 1):
                if not self._within_word or tokenizer.starts_word[tokens[later]]:
                    break
                hidden[later] = tokenizer.mask
            yield Gap(hidden, place, [tokens[place]])

    def _check(self, text: str, count: int, least: int) -> None:
        positions = self._trained.start.description.shape.positions
        if count < least:
            raise DataError(f"The sentence {text[:80]!r} has too few tokens to be scored.")
        if count > positions:
            raise DataError(
                f"The sentence {text[:80]!r} is {count} tokens long, and the model has {positions} "
                "positions."
            )


def score_pairs(scorer: SentenceScorer, pairs: Sequence[MinimalPair]) -> Findings:
    """Return how often the good sentence of a pair is the likelier one; a tie counts half."""
    sums, counts = scorer.score([text for pair in pairs for text in (pair.good, pair.bad)])
    items, longer = [], []
    for index, pair in enumerate(pairs):
        good, bad = sums[2 * index : 2 * index + 2]
        score = 0.5 if good == bad else float(good > bad)
        difference = counts[2 * index] - counts[2 * index + 1]
        if difference:
            longer.append(score if difference > 0 else 1 - score)
        items.append(
            Item(
                split="test",
                index=index,
                label=pair.good,
                predicted=pair.good if good >= bad else pair.bad,
                probability=_share(abs(good - bad)),
                text=shortened(f"{pair.good} / {pair.bad}"),
                loss=-math.log(max(_share(good - bad), 1e-300)),
                targets=1,
                score=score,
            )
        )
    groups: dict[str, list[float]] = {}
    for pair, item in zip(pairs, items, strict=True):
        groups.setdefault(pair.group, []).append(item.score or 0.0)
    by_group = {group: math.fsum(own) / len(own) for group, own in groups.items()}
    measures = {
        "accuracy": math.fsum(item.score or 0.0 for item in items) / len(items),
        "macro_accuracy": math.fsum(by_group.values()) / len(by_group),
        **({"longer_wins": math.fsum(longer) / len(longer)} if longer else {}),
        **{f"accuracy/{group}": value for group, value in by_group.items() if group},
    }
    lines = []
    for group, own in groups.items():
        low, high = wilson_interval(round(math.fsum(own)), len(own))
        lines.append(
            f"{group or 'all'}: {100 * by_group[group]:.1f} % of {len(own):,} "
            f"({100 * low:.1f} to {100 * high:.1f})"
        )
    task = {"name": "minimal_pairs", "expected": "good sentence"}
    return Findings("test", measures, METRICS, items, lines, task=task)


def _share(difference: float) -> float:
    """Return the probability of the first of two, of which it is so many nats likelier."""
    return 1 / (1 + math.exp(-difference)) if difference > -700 else 0.0
