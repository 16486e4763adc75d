"""Which sentence of a minimal pair a language model finds likelier, as results and items."""

import math
from collections.abc import Sequence

from transfer_cli.commands.score.findings import Findings
from transfer_cli.data.minimal_pairs import MinimalPair
from transfer_cli.generation.sentences import (
    JudgedPair,
    SentenceScorer,
    accuracy_by_group,
    judge_pairs,
    longer_wins,
)
from transfer_cli.metrics import Metric
from transfer_cli.runs.items import Item, shortened

METRICS = (
    Metric("accuracy", higher_is_better=True, unit="fraction", headline=True, per_example=True),
    Metric("macro_accuracy", higher_is_better=True, unit="fraction"),
    Metric("longer_wins", higher_is_better=False, unit="fraction"),
)


def score_pairs(scorer: SentenceScorer, pairs: Sequence[MinimalPair]) -> Findings:
    """Return how often the good sentence of a pair is the likelier one; a tie counts half."""
    judged = judge_pairs(scorer, pairs)
    groups, longer = accuracy_by_group(judged), longer_wins(judged)
    measures = {
        "accuracy": math.fsum(each.score for each in judged) / len(judged),
        "macro_accuracy": math.fsum(each.accuracy for each in groups) / len(groups),
        **({} if longer is None else {"longer_wins": longer}),
        **{f"accuracy/{each.group}": each.accuracy for each in groups if each.group},
    }
    items = [_item(index, each) for index, each in enumerate(judged)]
    task = {"name": "minimal_pairs", "expected": "good sentence"}
    return Findings("test", measures, METRICS, items, [str(each) for each in groups], task=task)


def _item(index: int, judged: JudgedPair) -> Item:
    pair, difference = judged.pair, judged.good - judged.bad
    return Item(
        split="test",
        index=index,
        label=pair.good,
        predicted=pair.good if difference >= 0 else pair.bad,
        probability=_share(abs(difference)),
        text=shortened(f"{pair.good} / {pair.bad}"),
        loss=-math.log(max(_share(difference), 1e-300)),
        targets=1,
        score=judged.score,
    )


def _share(difference: float) -> float:
    """Return the probability of the first of two, of which it is so many nats likelier."""
    return 1 / (1 + math.exp(-difference)) if difference > -700 else 0.0
