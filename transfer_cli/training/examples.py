"""What a run made of each single example of a split: `items.jsonl`."""

import logging
from collections.abc import Sequence
from typing import Any

from transfer_cli.assembly.datasets import Prepared
from transfer_cli.data.split import Split
from transfer_cli.engine.evaluation import EachExample, Outcome
from transfer_cli.engine.features.cached import CachedFeatures
from transfer_cli.runs.items import MOST_ITEMS, MOST_TEXTS, Item, shortened
from transfer_cli.tasks.base import Result, by_example

log = logging.getLogger(__name__)

BLANK = Result("", "")

TO_KEEP = 7
"""Significant digits: as many as a float32 holds."""


def noting(split: Split) -> EachExample | None:
    """Return where an evaluation is to note what became of each example; None: too many."""
    if len(split.data) <= MOST_ITEMS:
        return EachExample()
    log.info(
        "items.jsonl: nothing of the %s split, which has more than %s examples",
        split.name, f"{MOST_ITEMS:,}",
    )  # fmt: skip
    return None


def items_of(split: Split, data: Prepared, each: EachExample | None) -> list[Item]:
    """Return what became of each example of a split, as `noting` has noted it; all call this."""
    outcomes = each.gathered() if each is not None else []
    if data.task is None:
        return [_item(split.name, found.index, [found], BLANK, "") for found in outcomes]
    encoded: Any = split.data.data if isinstance(split.data, CachedFeatures) else split.data
    with_texts = len(encoded.examples) <= MOST_TEXTS
    if outcomes and not with_texts:
        log.info(
            "items.jsonl: no texts of the %s split, which has more than %s examples",
            split.name, f"{MOST_TEXTS:,}",
        )  # fmt: skip
    rows = {found.index: found for found in outcomes}
    items = []
    predicted = {index: found.predicted for index, found in rows.items()}
    for number, own in by_example(encoded, predicted).items():
        is_predicted = all(own.values())
        result = data.task.result(encoded, number, own) if is_predicted else BLANK
        texts = data.task.texts(encoded.examples[number]) if with_texts else ()
        found = [rows[row] for row in own]
        items.append(_item(split.name, number, found, result, shortened(" / ".join(texts))))
    return items


def _item(split: str, index: int, rows: Sequence[Outcome], result: Result, text: str) -> Item:
    return Item(
        split=split,
        index=index,
        label=result.expected,
        predicted=result.predicted,
        probability=_rounded(result.probability),
        text=text,
        loss=_rounded(sum(found.loss for found in rows)),
        targets=sum(found.targets for found in rows),
        score=None if result.score is None else _rounded(result.score),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{TO_KEEP}g}")
