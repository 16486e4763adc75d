"""Pairs of texts that have the same label, to learn vectors from few labels."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transfer_cli.data.labelled import Example, LabelledData, TaskData
from transfer_cli.errors import DataError, at_least
from transfer_cli.seeds import derive
from transfer_cli.tasks.similarity.task import PairExample, SimilarityTask


@dataclass(kw_only=True)
class PairsOfClasses(TaskData):
    """Each training text with others of its label (Tunstall et al. 2022, section 3).

    Texts of other labels are told apart as those of the same step. No pairs are held out: they
    would be made of the texts that are trained on.

    Args:
        of: Texts with one label each.
        pairs: How many pairs each text begins, with another text as long as there are some.
    """

    of: TaskData
    pairs: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("pairs", self.pairs, 1)
        if self.labelled is not None:
            raise ValueError("labelled is of texts, not of pairs; type data.labelled=N")

    @property
    def kind(self) -> type[SimilarityTask]:
        return SimilarityTask

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        data = self.of.load(data_dir, seed)
        pairs = [*self._pairs(data.splits["train"], data.source("train"), seed)]
        if not pairs:
            raise DataError(
                f"{data.source('train')}: no two texts have the same label; give each label two "
                "texts or more"
            )
        return replace(
            data, labels=(), splits={"train": pairs}, task=SimilarityTask.node(), part_of={},
            rest=(), cells=None, seen={},
        )  # fmt: skip

    def _pairs(self, train: Sequence[Any], where: str, seed: int) -> Iterator[PairExample]:
        examples_by_label = defaultdict[int, list[Example]](list)
        for example in train:
            if not isinstance(example, Example) or example.label is None or example.pair:
                raise DataError(f"{where}: pairs are made of single texts with one label each")
            examples_by_label[example.label].append(example)
        # Of Python's generator, only random() is promised to stay the same in later versions.
        generator = random.Random(derive(seed, "pairs"))  # noqa: S311 - not for cryptography
        for label, examples in examples_by_label.items():
            for example in examples:
                others = [other.text for other in examples if other.text != example.text]
                order = sorted(
                    range(len(others)), key=[generator.random() for _ in others].__getitem__
                )
                for number in range(self.pairs if others else 0):
                    other = others[order[number % len(others)]]
                    yield PairExample(
                        example.text, other, topic=label, line=example.line, file=example.file
                    )
