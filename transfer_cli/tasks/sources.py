"""Where labelled examples come from, and how splits that are missing are drawn.

A reader turns a path into examples, and knows neither split nor seed nor task. What the examples
are, and what can be learnt from them, the task says. A source puts both together.

Missing splits are drawn from the training examples: the validation split first, then the few-label
subset, so that the number of labels does not change the validation split. What is drawn is
stratified, and depends on nothing but the examples and the run's seed.
"""

import dataclasses
import heapq
import itertools
import logging
import random
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from transfer_cli.config.build import build
from transfer_cli.data import readers
from transfer_cli.data.documents import check_disjoint, expand
from transfer_cli.data.labelled import INPUT, LabelledData, TaskData
from transfer_cli.data.split import Whole
from transfer_cli.data.wanted import ANY, Wanted
from transfer_cli.errors import DataError, listed, raised_as
from transfer_cli.seeds import derive
from transfer_cli.tasks.base import Task

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class LabelledSource(TaskData):
    """Labelled examples of which some splits are given; the others are drawn."""

    @property
    def share(self) -> float:
        """The share of the training examples to hold out where there is no validation split."""
        return 0.0

    @abstractmethod
    def given(self, data_dir: Path) -> LabelledData:
        """Return the splits that there are, all of whose labels are among those of `train`."""

    def check(self, task: Task, train: Sequence[Any], where: str) -> None:
        """Raise `DataError` unless something can be learnt from the training examples."""
        task.check(train, where)

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        data = self.given(data_dir)
        task: Task = build(data.task, "data", Task, labels=data.labels)
        splits = {name: tuple(examples) for name, examples in data.splits.items()}
        train, where = splits["train"], data.source("train")
        self.check(task, train, where)
        say_overlap(splits, where, task.texts)
        whole, part_of, left_out = len(train), {}, []
        rest: Sequence[Any] = ()
        if "validation" not in splits:
            train, splits["validation"] = held_out(task, train, self.share, seed, where)
            part_of["validation"] = Whole(where, whole, (f"{len(train):,} are left to train on",))
            left_out.append(f"{len(splits['validation']):,} are held out for validation")
        if self.labelled is not None:
            train, others = keep_few(train, self.labelled, seed, where, task.strata(train))
            if others:
                left_out.append(f"{len(others):,} are beyond data.labelled")
            rest = tuple(map(task.unlabelled, others))
        if left_out:
            part_of["train"] = Whole(where, whole, tuple(left_out))
        splits["train"] = tuple(task.learnt_from(train, seed))
        node = {**task.as_node(), **task.facts(train)}
        return replace(data, splits=splits, part_of=part_of, rest=rest, task=node)


def held_out(
    task: Task, train: Sequence[Any], share: float, seed: int, where: str
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the training examples without a share of them, and that share; see `hold_out`.

    Of examples in groups, all of a group are held out or none.
    """
    groups = [task.group(example) for example in train]
    distinct = tuple(dict.fromkeys(groups))
    if distinct == (None,):
        return hold_out(train, share, seed, where, task.strata(train))
    _, held = hold_out(distinct, share, seed, where, [0] * len(distinct))
    is_held = set(held)
    both = list(zip(train, groups, strict=True))
    return (
        tuple(example for example, group in both if group not in is_held),
        tuple(example for example, group in both if group in is_held),
    )


@dataclass(kw_only=True)
class LabelledFiles(LabelledSource):
    """Own labelled files, one or several for each split.

    A kind of file is a subclass with its `task` and its reader, `read`. Its fields are keys of
    `data`; those that are called as fields of the task are the task's as well.

    Args:
        train: A file, a folder, a glob, a split of the hub (`hub_client.located`), or a list.
        validation: The same. Without it a share of the training examples is held out.
        test: The same; without it there is no test set.
        validation_share: The share of the training examples held out, in (0, 1).
    """

    task: ClassVar[type[Task]]
    """What the examples are."""
    read_as_trained: ClassVar[tuple[str, ...]] = ()
    """Options with which a run's own data were read, and with which other tables are."""

    suffixes: ClassVar[tuple[str, ...]] = (
        ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".xlsx",
    )  # fmt: skip
    """Of the files of a folder that are read."""

    train: str | list[str]
    validation: str | list[str] | None = None
    test: str | list[str] | None = None
    validation_share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("validation_share", self.validation_share)
        self.task(**self.options())  # which looks at them

    @property
    def kind(self) -> type[Task]:
        return self.task

    @property
    def share(self) -> float:
        return self.validation_share

    @property
    def paths(self) -> dict[str, list[Path]]:
        """The files of each split that has some."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        paths = {
            name: self.files_of(files, f"data.{name}") for name, files in given.items() if files
        }
        if any(len(files) > 1 for files in paths.values()):
            check_disjoint(paths)
        return paths

    def files_of(self, given: str | list[str], key: str) -> list[Path]:
        """Return the files of a split, which are of one format, each once.

        Args:
            given: As `train`.
            key: The key that names them in messages.
        """
        with raised_as(DataError, f"{key}: ", DataError):
            names = [given] if isinstance(given, str) else given
            files = [
                path for name in names for path in expand(name, self.suffixes, self.is_one_file)
            ]
            twice = [path for path, count in Counter(files).items() if count > 1]
            if twice:
                raise DataError(f"{twice[0]} is named twice; name it once.")
            kinds = {str(readers.format_of(path)): path for path in files}
            if len(kinds) > 1 and getattr(self, "format", None) in (None, "auto"):
                raise DataError(
                    f"its files are of different formats ({listed(kinds.values(), 4)}); name those "
                    "of one, or a glob such as '*.csv'."
                )
        return files

    def is_one_file(self, folder: Path) -> bool:
        """Return whether a folder is read as one file: by default one of Parquet files is."""
        return any(folder.glob("*.parquet"))

    def options(self) -> dict[str, Any]:
        """Return the options that the task has as well."""
        names = {field.name for field in dataclasses.fields(self.task)}
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name in names
        }

    def read(self, path: Path) -> Sequence[Any]:
        """Return the examples in a file."""
        raise NotImplementedError

    def labels(self, train: Sequence[Any]) -> tuple[str, ...]:
        """Return the labels of training examples, in the order of their numbers."""
        return ()

    def examples(self, paths: Mapping[str, Sequence[Path]], own: Wanted = ANY) -> LabelledData:
        """Return the examples in files, by split; labels are those of the first split.

        Args:
            paths: The files of each split.
            own: The columns of the table that a run was trained on.
        """
        splits = {
            name: list(chain.from_iterable(map(self.read, files))) for name, files in paths.items()
        }
        first = next(iter(paths))
        labels = self.labels(splits[first])
        task = self.task(labels, **self.options())
        for name, files in paths.items():
            answers = chain.from_iterable(map(task.labels_of, splits[name]))
            unknown = next((label for label in answers if label not in labels), None)
            if labels and unknown is not None:
                raise DataError(
                    f"{listed(files, 1)}: {unknown!r} is not among the labels of "
                    f"{listed(paths[first], 1)}."
                )
        return LabelledData(paths[first][0].stem, labels, splits, task.as_node(), files=paths)

    def given(self, data_dir: Path) -> LabelledData:
        return self.examples(self.paths)

    def whole(self, own: Wanted) -> LabelledData:
        """Return all examples of the training files as one split, `input`, to score a run on.

        Args:
            own: The columns of the table that the run was trained on.
        """
        files = self.files_of(self.train, INPUT)
        data = self.examples({INPUT: files}, own)
        part_of = {INPUT: Whole(listed(files, 1), len(data.splits[INPUT]), ()), **data.part_of}
        return replace(data, files={"train": files}, part_of=part_of)


def check_share(key: str, share: float) -> None:
    """Raise `ValueError` unless an option is a share, between 0 and 1."""
    if not 0 < share < 1:
        raise ValueError(f"{key} is {share}, expected between 0 and 1.")


T = TypeVar("T")

_MOST = 0.5
"""The share of the smaller split from which on it is a mistake rather than a few texts."""

_SHOWN = 60
"""Characters of the text that is named."""


def hold_out(
    examples: Sequence[T], share: float, seed: int, where: str, strata: Sequence[int]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return training examples without a share of them, and that share.

    Each stratum loses the same share, and none its last example.

    Args:
        examples: The training examples.
        share: The share to hold out, in (0, 1).
        seed: The run's; the draw depends on nothing else.
        where: The data's name in messages.
        strata: The number of each example's stratum, such as its label.
    """
    counts = dict(sorted(Counter(strata).items()))
    quotas = _proportional(counts, int(share * len(examples)))
    if not any(quotas.values()):
        raise DataError(
            f"{where}: a validation share of {share} leaves nothing to validate on "
            f"({len(examples)} examples of {len(counts)} classes). Raise it or name a validation "
            "file."
        )
    chosen = _draw(strata, quotas, derive(seed, "validation split"))
    return (
        tuple(example for at, example in enumerate(examples) if at not in chosen),
        tuple(examples[at] for at in sorted(chosen)),
    )


def keep_few(
    examples: Sequence[T], labelled: int, seed: int, where: str, strata: Sequence[int]
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return `labelled` examples, at least one of each stratum, and the others.

    A smaller set is part of a larger.
    """
    counts = dict(sorted(Counter(strata).items()))
    if labelled < len(counts):
        raise DataError(
            f"{where}: labelled={labelled} is fewer examples than the {len(counts)} classes. "
            f"Set data.labelled to at least {len(counts)}."
        )
    if labelled > len(examples):
        raise DataError(
            f"{where}: labelled={labelled}, but there are only {len(examples)} training examples. "
            f"Set data.labelled to at most that."
        )
    chosen = _draw(strata, _nested_quotas(counts, labelled), derive(seed, "few labels"))
    return (
        tuple(examples[at] for at in sorted(chosen)),
        tuple(example for at, example in enumerate(examples) if at not in chosen),
    )


def _proportional(counts: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` by largest remainder, leaving at least one of each class behind."""
    whole = sum(counts.values())
    exact = {number: total * count / whole for number, count in counts.items()}
    quotas = {number: min(int(share), counts[number] - 1) for number, share in exact.items()}
    order = sorted(counts, key=lambda number: quotas[number] - exact[number])
    left = min(total, whole - len(counts)) - sum(quotas.values())
    # Once round the classes is enough for the remainders, unless a class is used up.
    while left > 0:
        for number in order:
            if left > 0 and quotas[number] < counts[number] - 1:
                quotas[number] += 1
                left -= 1
    return quotas


def _nested_quotas(counts: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` so that a larger total never takes an example away from a class.

    One for each class first; then each goes to the class that is furthest behind its share, by the
    divisor method of Webster (largest remainders would not be nested).
    """
    quotas = dict.fromkeys(counts, 1)
    behind = [(-count / 3, number) for number, count in counts.items() if count > 1]
    heapq.heapify(behind)
    for _ in range(total - len(counts)):
        _, number = behind[0]
        quotas[number] += 1
        if quotas[number] < counts[number]:
            share = counts[number] / (2 * quotas[number] + 1)
            heapq.heapreplace(behind, (-share, number))
        else:
            heapq.heappop(behind)
    return quotas


def _draw(strata: Sequence[int], quotas: Mapping[int, int], seed: int) -> set[int]:
    """Return the places of `quotas[c]` examples of each stratum c; smaller quotas give subsets."""
    # Of Python's generator, only random() is promised to stay the same in later versions.
    generator = random.Random(seed)  # noqa: S311 - not for cryptography
    order = sorted(range(len(strata)), key=[generator.random() for _ in strata].__getitem__)
    of_class: dict[int, list[int]] = defaultdict(list)
    for at in order:
        of_class[strata[at]].append(at)
    return {at for number, quota in quotas.items() for at in of_class[number][:quota]}


def say_overlap(
    splits: Mapping[str, Sequence[Any]], where: str, texts: Callable[[Any], Sequence[str]]
) -> None:
    """Log how many texts (or pairs) of a split also stand in another, with one of them.

    It warns where these are most of the smaller split. It takes 8 bytes an example.

    Args:
        splits: Their examples.
        where: The data's name in messages.
        texts: Returns the texts of an example, the one to show first.
    """
    hashes = {
        name: np.fromiter(
            (hash(tuple(texts(example))) for example in examples), np.int64, len(examples)
        )
        for name, examples in splits.items()
    }
    for names in itertools.combinations(splits, 2):
        small, large = sorted(names, key=lambda name: len(hashes[name]))
        shared = np.flatnonzero(_found(hashes[small], hashes[large]))
        if not len(shared):
            continue
        share = len(shared) / len(hashes[small])
        text = texts(splits[small][int(shared[0])])[0]
        log.log(
            logging.WARNING if share > _MOST else logging.INFO,
            "%s: %s of the %s texts of %s (%.1f %%) are in %s, too, such as %r%s",
            where,
            f"{len(shared):,}",
            f"{len(hashes[small]):,}",
            small,
            100 * share,
            large,
            text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ...",
            "; what is measured there says little about new texts" if share > _MOST else "",
        )


def _found(wanted: npt.NDArray[np.int64], among: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which numbers stand among others; `numpy.isin` takes 20 times as long."""
    ordered = np.sort(among)
    places = np.searchsorted(ordered, wanted)
    return np.asarray(ordered[np.minimum(places, len(ordered) - 1)] == wanted)
