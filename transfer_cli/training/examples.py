"""What a run made of each single example of a split: `items.jsonl`."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from transfer_cli.assembly.datasets import PreparedData
from transfer_cli.data.equal_texts import fold_text
from transfer_cli.data.split import Split
from transfer_cli.engine.evaluation import EachExample, Outcome, Scores
from transfer_cli.metrics import UNSEEN, without_details
from transfer_cli.runs.items import MOST_ITEMS, MOST_TEXTS, Item, shortened
from transfer_cli.runs.slices import Slice, scores_by_slice, slice_masks
from transfer_cli.tasks.base import Result, Task, rows_by_example

log = logging.getLogger(__name__)

BLANK = Result("", "")

MAX_BASELINE_EXAMPLES = 10_000
"""Examples that the linear model on words is fitted on, and as many that it is scored on."""


def outcome_collector(split: Split) -> EachExample | None:
    """Return where an evaluation is to note what became of each example; None: too many."""
    if len(split.data) <= MOST_ITEMS:
        return EachExample()
    log.info(
        "items.jsonl: nothing of the %s split, which has more than %s examples",
        split.name, f"{MOST_ITEMS:,}",
    )  # fmt: skip
    return None


def collect_items(split: Split, task: Task | None, collector: EachExample | None) -> list[Item]:
    """Return what became of each example of a split, as `collector` noted it; all call this."""
    outcomes = collector.gathered() if collector is not None else []
    if task is None:
        return [_item(split.name, outcome.index, [outcome], BLANK, "") for outcome in outcomes]
    encoded = split.encoded
    with_texts = len(encoded.examples) <= MOST_TEXTS
    if outcomes and not with_texts:
        log.info(
            "items.jsonl: no texts of the %s split, which has more than %s examples",
            split.name, f"{MOST_TEXTS:,}",
        )  # fmt: skip
    rows = {outcome.index: outcome for outcome in outcomes}
    items = []
    predicted = {index: outcome.predicted for index, outcome in rows.items()}
    for number, rows_of_example in rows_by_example(encoded, predicted).items():
        is_predicted = all(rows_of_example.values())
        result = task.result(encoded, number, rows_of_example) if is_predicted else BLANK
        texts = task.texts(encoded.examples[number]) if with_texts else ()
        outcome = [rows[row] for row in rows_of_example]
        items.append(_item(split.name, number, outcome, result, shortened(" / ".join(texts))))
    return items


def slice_scores(
    slices: Mapping[str, Slice], split: Split, task: Task, items: Sequence[Item], key: str
) -> dict[str, float]:
    """Return how many examples of each slice there are, and the share that is right."""
    texts = [task.texts(example) for example in split.encoded.examples]
    return scores_by_slice(slice_masks(slices, split.name, texts, split.column, key), items)


def with_unseen(scores: Scores, split: Split, score: Callable[[Split], Scores]) -> Scores:
    """Return scores of a split, beside them those of what training has not seen, if it has some.

    Args:
        score: Scores a part of it; all processes call this.
    """
    if not split.seen:
        return scores
    rows = split.rows
    examples = rows if split.example_of is None else split.example_of[rows]
    is_unseen = ~np.isin(examples, split.seen)
    measures = {**scores.measures, f"count{UNSEEN}": len(np.unique(examples[is_unseen]))}
    tables = dict(scores.tables)
    if is_unseen.any():
        part = score(replace(split, order=rows[is_unseen]))
        part_measures = without_details(part.measures)
        measures |= {f"{name}{UNSEEN}": value for name, value in part_measures.items()}
        tables |= {f"{name}{UNSEEN}": table for name, table in part.tables.items()}
    return replace(scores, measures=measures, tables=tables)


def labels_in(data: PreparedData) -> dict[str, int]:
    """Return how many training examples have each of `Task.counted`; nothing without labels."""
    if data.task is None or not data.labels:
        return {}
    examples = data.splits["train"].encoded.examples
    counts = Counter(label for example in examples for label in data.task.counted_in(example))
    return {label: counts[label] for label in data.task.counted}


def linear_baseline(data: PreparedData, split: str) -> dict[str, Any] | None:
    """Return how a linear model on words does on a split; None where there is none for the task.

    Of more than `MAX_BASELINE_EXAMPLES` it sees so many, evenly spread. What stands in training,
    too, is not scored.
    """
    if data.task is None:
        return None
    whole, others = (data.splits[name].encoded.examples for name in ("train", split))
    seen = frozenset(data.splits[split].seen)
    unseen = [example for number, example in enumerate(others) if number not in seen]
    train, scored = _evenly_spread(whole), _evenly_spread(unseen or others)
    right = data.task.right_by_words(train, scored)
    if right is None:
        return None
    counts = {"right": right, "scored": len(scored), "trained_on": len(train), "of": len(whole)}
    different = len({fold_text(data.task.equal_by(example)) for example in scored})
    if different < len(scored):
        counts["different"] = different
    return {"split": split, **counts}


def _evenly_spread(examples: Sequence[Any]) -> list[Any]:
    count = min(len(examples), MAX_BASELINE_EXAMPLES)
    return [examples[number] for number in np.linspace(0, len(examples) - 1, count).astype(int)]


def _item(split: str, index: int, rows: Sequence[Outcome], result: Result, text: str) -> Item:
    return Item(
        split=split,
        index=index,
        label=result.expected,
        predicted=result.predicted,
        probability=_rounded(result.probability),
        text=text,
        loss=_rounded(sum(row.loss for row in rows)),
        targets=sum(row.targets for row in rows),
        score=None if result.score is None else _rounded(result.score),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")  # as many digits as a float32 holds
