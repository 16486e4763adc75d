"""What a language model says of sentences as they stand: which of a pair, which word in a gap."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from transfer_cli.assembly.finished_run import TrainedModel
from transfer_cli.data.cloze import GAP, ClozeExample, MinimalPair
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.generation.filling import encode_with_gaps
from transfer_cli.generation.likelihood import Ending, Gap, ScoredTokens, score_and_predict
from transfer_cli.generation.prompts import encode_ending
from transfer_cli.generation.sentences import (
    JudgedPair,
    SentenceScorer,
    accuracy_by_group,
    judge_pairs,
    longer_wins,
)
from transfer_cli.metrics import Metric, wilson_interval
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.runs.items import Item, shortened


@dataclass(frozen=True)
class Findings:
    """The results of a split, in the terms of a run's `results.json` and `items.jsonl`.

    Args:
        lines: What to print besides, in words.
        task: The task's name and its word for the right answer.
    """

    split: str
    measures: Mapping[str, float]
    metrics: Sequence[Metric]
    items: Sequence[Item]
    lines: Sequence[str]
    labels: Sequence[str] = ()
    task: Mapping[str, str] | None = None
    tables: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


PAIR_METRICS = (
    Metric("accuracy", higher_is_better=True, unit="fraction", headline=True, per_example=True),
    Metric("macro_accuracy", higher_is_better=True, unit="fraction"),
    Metric("longer_wins", higher_is_better=False, unit="fraction"),
)


def score_pairs(scorer: SentenceScorer, pairs: Sequence[MinimalPair]) -> Findings:
    """Return how often the good sentence of a pair is the likelier one; a tie counts half."""
    judged = judge_pairs(scorer, pairs)
    groups, longer = accuracy_by_group(judged), longer_wins(judged)
    measures = {
        "accuracy": math.fsum(pair.score for pair in judged) / len(judged),
        "macro_accuracy": math.fsum(group.accuracy for group in groups) / len(groups),
        **({} if longer is None else {"longer_wins": longer}),
        **{f"accuracy/{group.group}": group.accuracy for group in groups if group.group},
    }
    items = [_pair_item(index, pair) for index, pair in enumerate(judged)]
    task = {"name": "minimal_pairs", "expected": "good sentence"}
    return Findings(
        "test", measures, PAIR_METRICS, items, [str(group) for group in groups], task=task
    )


def _pair_item(index: int, judged: JudgedPair) -> Item:
    pair, difference = judged.pair, judged.good - judged.bad
    return Item(
        split="test",
        index=index,
        label=pair.good,
        predicted=pair.good if difference >= 0 else pair.bad,
        probability=_probability_of_first(abs(difference)),
        text=shortened(f"{pair.good} / {pair.bad}"),
        loss=-math.log(max(_probability_of_first(difference), 1e-300)),
        targets=1,
        score=judged.score,
    )


def _probability_of_first(difference: float) -> float:
    """Return the probability of the first of two that is so many nats likelier."""
    return 1 / (1 + math.exp(-difference)) if difference > -700 else 0.0


GAP_METRICS = (
    Metric("accuracy", higher_is_better=True, unit="fraction", headline=True, per_example=True),
    Metric("answer_perplexity", higher_is_better=False),
)


class WordAsker:
    """Asks a language model for words.

    A causal model says them after what stands before them; a masked model fills the gap, with words
    of one token.

    Args:
        among: The words that an answer can be; None: all.
    """

    def __init__(self, trained: TrainedModel, batch: int, among: Sequence[str] | None) -> None:
        self._trained, self._batch = trained, batch
        self._tokenizer = trained.start.tokenizer
        self._is_causal = isinstance(trained.objective, CausalLM)
        self._among = among is not None
        self._allowed_V = trained.start.prompt_layout.allowed_tokens()
        self._allowed_V[sorted(self._tokenizer.special)] = False
        if among is not None:
            known = [self._tokenizer.encode_within(word) for word in among]
            single = [tokens[0] for tokens in known if len(tokens) == 1]
            if not single:
                raise ConfigError("data.among: no word of it is one token of this model")
            self._allowed_V = torch.zeros_like(self._allowed_V)
            self._allowed_V[single] = True

    def ask(self, rows: Sequence[Ending | Gap]) -> list[ScoredTokens]:
        """Return what the model says of each word."""
        model, padding = self._trained.model, self._tokenizer.pad
        return score_and_predict(model, rows, self._allowed_V, padding, self._batch)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return self._tokenizer.decode(list(tokens)).strip()

    def row(self, example: ClozeExample) -> Ending | Gap | None:
        """Return what the model reads for a text; None: its word is not one that it may say."""
        row: Ending | Gap
        if self._is_causal:
            if any(character.isalnum() for character in example.after):
                raise DataError(
                    f"The text {shortened(example.before)!r} goes on after {GAP} with "
                    f"{example.after[:40]!r}; a causal model says what is at the end."
                )
            answer = f" {example.answer}" if example.before else example.answer
            row = encode_ending(self._trained.start.prompt_layout, example.before, answer)
            asked = row.tokens[row.first :]
        else:
            gap = f"{example.before} {GAP}" if example.before else GAP
            text = f"{gap}{example.after}"
            tokens = encode_with_gaps(text, self._tokenizer, self._trained.start.around)
            asked = self._tokenizer.encode_within(example.answer)
            row = Gap(tokens, tokens.index(self._tokenizer.mask), asked)
        positions = self._trained.start.description.shape.positions
        if len(row.tokens) > positions:
            raise DataError(
                f"The text {shortened(example.before)!r} is {len(row.tokens)} tokens long, and the "
                f"model has {positions} positions."
            )
        needs_one = self._among or not self._is_causal
        if needs_one and (len(asked) != 1 or not self._allowed_V[asked[0]]):
            return None
        return row


def score_cloze(asker: WordAsker, examples: Sequence[ClozeExample]) -> Findings:
    """Return how often the model's first choice is the word, all its tokens."""
    rows = enumerate(map(asker.row, examples))
    kept = [(number, row) for number, row in rows if row is not None]
    if not kept:
        raise DataError("data: no answer is a word that this model may say: one of one token.")
    items = []
    for (number, row), answer in zip(kept, asker.ask([row for _, row in kept]), strict=True):
        targets = row.tokens[row.first :] if isinstance(row, Ending) else row.targets
        example = examples[number]
        items.append(
            Item(
                split="test",
                index=number,
                label=example.answer,
                predicted=asker.text_of(answer.best),
                probability=math.exp(math.fsum(answer.scores)),
                text=shortened(f"{example.before} {GAP}{example.after}"),
                loss=-math.fsum(answer.scores),
                targets=1,
                score=float(list(answer.best) == list(targets)),
            )
        )
    right = math.fsum(item.score or 0.0 for item in items)
    nats = math.fsum(item.loss or 0.0 for item in items) / len(items)
    low, high = wilson_interval(round(right), len(items))
    skipped = len(examples) - len(items)
    lines = [
        f"{len(items):,} words: {100 * right / len(items):.1f} % ({100 * low:.1f} to "
        f"{100 * high:.1f})"
        + (f"; {skipped:,} skipped, whose word is not one that may be said" if skipped else "")
    ]
    measures = {"accuracy": right / len(items), "answer_perplexity": math.exp(min(nats, 700.0))}
    task = {"name": "cloze", "expected": "word"}
    return Findings(
        "test", measures, GAP_METRICS, items, lines, task=task, details={"skipped": skipped}
    )
