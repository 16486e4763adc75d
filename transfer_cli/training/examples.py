"""What a run made of each single example of a split: `items.jsonl`."""

import logging
from collections.abc import Sequence

from transfer_cli.assembly.datasets import Prepared
from transfer_cli.data.encoded_task import EncodedTask
from transfer_cli.data.tasks import Example
from transfer_cli.engine.evaluate import EachExample, Outcome
from transfer_cli.engine.features.cached import CachedFeatures
from transfer_cli.engine.split import Split
from transfer_cli.runs.items import MOST_ITEMS, MOST_TEXTS, Item, shortened

log = logging.getLogger(__name__)

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
    """Return what became of each example of a split; every process calls this.

    Args:
        split: The split.
        data: The data that it belongs to.
        each: What an evaluation has noted.
    """
    outcomes = each.gathered() if each is not None else []
    examples = _examples(split)
    if outcomes and examples is not None and len(examples) > MOST_TEXTS:
        log.info(
            "items.jsonl: no texts of the %s split, which has more than %s examples",
            split.name, f"{MOST_TEXTS:,}",
        )  # fmt: skip
    return [_item(split.name, each_one, examples, data.labels) for each_one in outcomes]


def _examples(split: Split) -> Sequence[Example] | None:
    """Return what a split's examples were made of; None for blocks of text."""
    data = split.data.data if isinstance(split.data, CachedFeatures) else split.data
    return data.examples if isinstance(data, EncodedTask) else None


def _item(
    split: str, found: Outcome, examples: Sequence[Example] | None, labels: tuple[str, ...]
) -> Item:
    example = examples[found.index] if examples is not None else None
    label, predicted = (example.label if example else None), found.predicted
    with_text = examples is not None and len(examples) <= MOST_TEXTS
    return Item(
        split=split,
        index=found.index,
        label=labels[label] if label is not None and predicted is not None else "",
        predicted=labels[predicted] if predicted is not None else "",
        probability=_rounded(found.probability),
        text=shortened(_text(example)) if example is not None and with_text else "",
        loss=_rounded(found.loss),
        targets=found.targets,
    )


def _text(example: Example) -> str:
    return example.text if example.pair is None else f"{example.text} / {example.pair}"


def _rounded(value: float) -> float:
    return float(f"{value:.{TO_KEEP}g}")
