"""Where labelled examples come from, and how splits that are missing are drawn.

A reader turns a path into examples, and knows neither split nor seed nor task. What the examples
are, and what can be learnt from them, the task says. A source puts both together.

Missing splits are drawn from the training examples: the validation split first, then the few-label
subset, so that the number of labels does not change the validation split. What is drawn is
stratified, keeps equal texts together, and depends on nothing but the examples and the run's seed.
"""

import dataclasses
import heapq
import logging
import math
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from transfer_cli.config.build import build
from transfer_cli.data import equal_texts, readers
from transfer_cli.data.documents import TABLE_SUFFIXES, check_disjoint, files_of_one_format
from transfer_cli.data.equal_texts import Keys, fold_text, group_positions, text_keys, union_keys
from transfer_cli.data.labelled import INPUT, LabelledData, TaskData
from transfer_cli.data.split import Whole
from transfer_cli.data.wanted import ANY, Wanted
from transfer_cli.errors import DataError, check_share, list_names, raised_as
from transfer_cli.seeds import derive
from transfer_cli.tasks.base import Task

log = logging.getLogger(__name__)

Duplicates = Literal["together", "drop", "keep"]
Conflicts = Literal["refuse", "drop", "majority"]


@dataclass(kw_only=True)
class LabelledSource(TaskData):
    """Labelled examples with some splits given; the others are drawn.

    Args:
        duplicates: What becomes of training examples with equal texts (`Task.equal_by`): together:
            no drawn split parts them; drop: the first stays; keep: they are drawn like others.
        conflicts: With drop, where their labels disagree: refuse, drop them all, or keep the first
            with the majority's label.
    """

    duplicates: Duplicates = "together"
    conflicts: Conflicts = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conflicts != "refuse" and self.duplicates != "drop":
            raise ValueError(f"conflicts={self.conflicts} goes with data.duplicates=drop alone.")

    @property
    def share(self) -> float:
        """The share of the training examples to hold out where there is no validation split."""
        return 0.0

    @abstractmethod
    def given_splits(self, data_dir: Path) -> LabelledData:
        """Return the splits that there are, all of whose labels are among those of `train`."""

    def check(self, task: Task, train: Sequence[Any], where: str) -> None:
        """Raise `DataError` unless something can be learnt from the training examples."""
        task.check(train, where)

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        data = self.given_splits(data_dir)
        task: Task = build(data.task, "data", Task, labels=data.labels)
        splits = {name: tuple(examples) for name, examples in data.splits.items()}
        where, total = data.source("train"), len(splits["train"])
        keys = {
            name: text_keys(map(task.equal_by, examples), len(examples))
            for name, examples in splits.items()
        }
        train, train_keys = self._without_duplicates(task, splits["train"], keys["train"], where)
        self.check(task, train, where)
        log_overlap(splits, keys, where, task.texts)
        log_near_duplicates(splits, keys, where, task.equal_by)
        seen = {
            name: np.flatnonzero(equal_texts.are_among(of_split, keys["train"])).tolist()
            for name, of_split in keys.items()
            if name != "train"
        }
        part_of, left_out, rest = {}, list[str](), tuple[Any, ...]()
        if len(train) < total:
            left_out.append(f"{total - len(train):,} are dropped, equal to others")
        if "validation" not in splits:
            held = hold_out_groups(task, train, self.share, seed, where, train_keys)
            splits["validation"] = tuple(train[at] for at in sorted(held))
            train, train_keys = _without(train, held), train_keys and _without(train_keys, held)
            part_of["validation"] = Whole(where, total, (f"{len(train):,} are left to train on",))
            left_out.append(f"{len(splits['validation']):,} are held out for validation")
        if self.labelled is not None:
            few, cut = keep_few(task.strata(train), self.labelled, seed, where, train_keys)
            others = _without(train, few | cut)
            if others:
                left_out.append(f"{len(others):,} are beyond data.labelled")
            if cut:
                left_out.append(f"{len(cut):,} are, too, and equal to some within")
            train, rest = [train[at] for at in sorted(few)], tuple(map(task.unlabelled, others))
        if left_out:
            part_of["train"] = Whole(where, total, tuple(left_out))
        splits["train"] = tuple(task.learnt_from(train, seed))
        node = {**task.as_node(), **task.facts(train)}
        return replace(data, splits=splits, part_of=part_of, rest=rest, task=node, seen=seen)

    def _without_duplicates(
        self, task: Task, train: Sequence[Any], keys: Keys, where: str
    ) -> tuple[Sequence[Any], Sequence[Hashable] | None]:
        """Return the training examples that stay, and their keys by which they are drawn."""
        numbers = keys.tolist()
        equal = [places for places in group_positions(numbers) if len(places) > 1]
        drawn_by = None if self.duplicates == "keep" else numbers
        if not equal:
            return train, drawn_by
        answers = [[_answer_key(task, train[at]) for at in places] for places in equal]
        disagree = sum(len(set(of_text)) > 1 for of_text in answers)
        what = {
            "together": "no drawn split parts them",
            "drop": "the first of each stays",
            "keep": "they are drawn like others, and may be trained on and scored",
        }
        log.info(
            "%s: %s of the %s rows are equal to others (%s different texts, %s of them with "
            "different labels); %s (data.duplicates=%s)",
            where, f"{sum(map(len, equal)):,}", f"{len(train):,}", f"{len(equal):,}",
            f"{disagree:,}", what[self.duplicates], self.duplicates,
        )  # fmt: skip
        if self.duplicates != "drop":
            return train, drawn_by
        dropped = set[int]()
        for places, of_text in zip(equal, answers, strict=True):
            kept = places[of_text.index(Counter(of_text).most_common(1)[0][0])]
            if len(set(of_text)) > 1 and self.conflicts == "refuse":
                raise DataError(
                    f"{where}: the labels of {_shortened(task.texts(train[kept]))}, which stands "
                    f"there {len(places)} times, disagree, as do those of {disagree:,} texts in "
                    "all. Set data.conflicts to majority or drop, or data.duplicates to together"
                )
            drops_all = len(set(of_text)) > 1 and self.conflicts == "drop"
            dropped.update(at for at in places if at != kept or drops_all)
        if len(dropped) == len(train):
            raise DataError(f"{where}: data.conflicts=drop leaves nothing; say majority")
        remaining = [at for at in range(len(train)) if at not in dropped]
        return [train[at] for at in remaining], [numbers[at] for at in remaining]


def _answer_key(task: Task, example: Any) -> Hashable:
    """Return what people said of an example: its labels, or else the text that they wrote."""
    labels = tuple(task.labels_of(example))
    return labels or fold_text(task.texts(example)[len(task.equal_by(example)) :])


def hold_out_groups(
    task: Task,
    train: Sequence[Any],
    share: float,
    seed: int,
    where: str,
    keys: Sequence[Hashable] | None,
) -> set[int]:
    """Return the places of a share of the training examples; see `hold_out`.

    Of those of one `Task.group`, too, all are held out or none; it is a share of these groups then.
    """
    groups = [task.group(example) for example in train]
    if set(groups) == {None}:
        return hold_out(task.strata(train), share, seed, where, keys)
    places = group_positions(groups if keys is None else union_keys(map(fold_text, groups), keys))
    held = hold_out([0] * len(places), share, seed, where, noun="groups that stay together")
    return {at for number in held for at in places[number]}


@dataclass(kw_only=True)
class LabelledFiles(LabelledSource):
    """Own labelled files, one or several for each split.

    A kind of file is a subclass with its `task` and its reader, `read`. Its fields are keys of
    `data`; those that are called as fields of the task are the task's as well.

    Args:
        train: A file, a folder, a glob, a split of the hub (`hub_client.resolve_path`), or a list.
        validation: The same. Without it a share of the training examples is held out.
        test: The same; without it there is no test set.
        validation_share: The share of the training examples held out, in (0, 1).
    """

    task: ClassVar[type[Task]]
    """What the examples are."""
    read_as_trained: ClassVar[tuple[str, ...]] = ()
    """Options with which a run's own data were read, and with which other tables are."""

    suffixes: ClassVar[tuple[str, ...]] = TABLE_SUFFIXES
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
        given = {"train": self.train or [""], "validation": self.validation, "test": self.test}
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
            read_as = getattr(self, "format", None)
            names = [given] if isinstance(given, str) else given
            if not names or not all(names):
                raise DataError("names no file; give a file, a folder or a glob")
            return files_of_one_format(names, self.suffixes, read_as, self.is_one_file)

    def is_one_file(self, folder: Path) -> bool:
        """Return whether a folder is read as one file: by default one of Parquet files is."""
        return readers.is_parquet(folder)

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

    def examples(self, paths: Mapping[str, Sequence[Path]], columns: Wanted = ANY) -> LabelledData:
        """Return the examples in files, by split; labels are those of the first split.

        Args:
            columns: Those of the table that a run was trained on.
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
                    f"{list_names(files, 1)}: {unknown!r} is not among the labels of "
                    f"{list_names(paths[first], 1)}."
                )
        return LabelledData(paths[first][0].stem, labels, splits, task.as_node(), files=paths)

    def given_splits(self, data_dir: Path) -> LabelledData:
        return self.examples(self.paths)

    def as_input_split(self, columns: Wanted) -> LabelledData:
        """Return all examples of the training files as one split, `input`, to score a run on."""
        files = self.files_of(self.train, INPUT)
        data = self.examples({INPUT: files}, columns)
        part_of = {INPUT: Whole(list_names(files, 1), len(data.splits[INPUT]), ()), **data.part_of}
        return replace(data, files={"train": files}, part_of=part_of)


_HIGH_OVERLAP = 0.5
"""The share of the smaller split from which on it is a mistake rather than a few texts."""

_MAX_SHOWN = 60
"""Characters of a text that is named."""


class _Unit(NamedTuple):
    """The places of examples that are drawn together, and the stratum of most of them."""

    places: Sequence[int]
    stratum: int


def _units(
    strata: Sequence[int], keys: Iterable[Hashable] | None, seed: int
) -> tuple[list[_Unit], dict[int, int]]:
    """Return the units in random order, and how many examples those of each stratum have."""
    units = []
    for places in group_positions(range(len(strata)) if keys is None else keys):
        stratum = strata[places[0]]
        if len(places) > 1:
            [(stratum, _)] = Counter(strata[at] for at in places).most_common(1)
        units.append(_Unit(places, stratum))
    counts = Counter[int]()
    for unit in units:
        counts[unit.stratum] += len(unit.places)
    # Of Python's generator, only random() is promised to stay the same in later versions.
    generator = random.Random(seed)  # noqa: S311 - not for cryptography
    order = sorted(range(len(units)), key=[generator.random() for _ in units].__getitem__)
    return [units[number] for number in order], dict(sorted(counts.items()))


def hold_out(
    strata: Sequence[int],
    share: float,
    seed: int,
    where: str,
    keys: Iterable[Hashable] | None = None,
    noun: str = "examples",
) -> set[int]:
    """Return the places of a share of the training examples.

    Each stratum loses the same share, and none its last example. Examples with equal keys stay
    together, in the stratum of most of them: the share is reached as far as they fit into it.

    Args:
        strata: The number of each example's stratum, such as its label.
        share: The share to hold out, in (0, 1).
        seed: The run's; the draw depends on nothing else.
        keys: Of each example; None: all differ.
        noun: What is drawn, in messages.
    """
    units, counts = _units(strata, keys, derive(seed, "validation split"))
    room = _proportional_quotas(counts, int(share * len(strata)))
    left, staying, chosen = sum(room.values()), Counter(strata), set[int]()
    # What no unit of a stratum fits into, those of others fill.
    for is_first in (True, False):
        for unit in units if left else ():
            size = len(unit.places)
            if size > (room[unit.stratum] if is_first else left) or unit.places[0] in chosen:
                continue
            stratum_counts = Counter(strata[at] for at in unit.places)
            if all(staying[stratum] > count for stratum, count in stratum_counts.items()):
                chosen.update(unit.places)
                staying -= stratum_counts
                room[unit.stratum] -= size
                left -= size
    if not chosen:
        texts = f", {len(units)} different texts, which data.duplicates keeps together"
        enough = math.ceil(100 * len(counts) / len(strata)) / 100  # for one of each kind
        cure = f"Type data.validation_share={enough}" if share < enough < 1 else "Raise it"
        if len(units) == len(counts):  # training keeps one of each, whatever the share
            cure = "Say data.duplicates=keep" if len(units) < len(strata) else f"Give more {noun}"
        raise DataError(
            f"{where}: data.validation_share={share} leaves nothing to validate on "
            f"({len(strata)} {noun}{f' of {len(counts)} kinds' * (len(counts) > 1)}"
            f"{texts * (len(units) < len(strata))}). {cure}, or name data.validation."
        )
    return chosen


def keep_few(
    strata: Sequence[int],
    labelled: int,
    seed: int,
    where: str,
    keys: Iterable[Hashable] | None = None,
) -> tuple[set[int], set[int]]:
    """Return the places of `labelled` examples, at least one of each stratum.

    A smaller set is part of a larger. Beside it: the places of those that are beyond the number,
    and equal to some within. For the arguments see `hold_out`.
    """
    units, counts = _units(strata, keys, derive(seed, "few labels"))
    by_unit = {at: unit.stratum for unit in units for at in unit.places}
    if {strata[at] for at in _few(units, by_unit, len(counts))[0]} < {*strata}:
        # Some stand among equal ones of another stratum alone.
        by_unit, counts = dict(enumerate(strata)), Counter(strata)
    if labelled < len(counts):
        raise DataError(
            f"{where}: labelled={labelled} is fewer examples than the {len(counts)} kinds of them. "
            f"Set data.labelled to at least {len(counts)}."
        )
    if labelled > len(strata):
        raise DataError(
            f"{where}: labelled={labelled}, but there are only {len(strata)} training examples. "
            "Set data.labelled to at most that."
        )
    return _few(units, by_unit, labelled)


def _few(
    units: Sequence[_Unit], stratum_of: Mapping[int, int], labelled: int
) -> tuple[set[int], set[int]]:
    """See `keep_few`; each place counts in its own stratum."""
    room = _nested_quotas(Counter(stratum_of.values()), labelled)
    chosen, beyond = set[int](), set[int]()
    for unit in units:
        for at in unit.places:
            if room[stratum_of[at]]:
                room[stratum_of[at]] -= 1
                chosen.add(at)
        if not chosen.isdisjoint(unit.places):
            beyond.update({*unit.places} - chosen)
    return chosen, beyond


def _without(examples: Sequence[Any], places: Container[int]) -> tuple[Any, ...]:
    return tuple(example for at, example in enumerate(examples) if at not in places)


def _proportional_quotas(counts: Mapping[int, int], total: int) -> dict[int, int]:
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


def log_overlap(
    splits: Mapping[str, Sequence[Any]],
    keys: Mapping[str, Keys],
    where: str,
    texts: Callable[[Any], Sequence[str]],
) -> None:
    """Log how many texts (or pairs) of a split also stand in another, with one of them.

    It warns where these are most of the smaller split.

    Args:
        texts: Returns the texts of an example, the one to show first.
    """
    for small, large, shared in equal_texts.overlaps(keys):
        if not len(shared):
            continue
        share = len(shared) / len(keys[small])
        log.log(
            logging.WARNING if share > _HIGH_OVERLAP else logging.INFO,
            "%s: %s of the %s texts of %s (%.1f %%) are in %s, too, such as %s%s",
            where, f"{len(shared):,}", f"{len(keys[small]):,}", small, 100 * share, large,
            _shortened(texts(splits[small][int(shared[0])])),
            "; what is measured there says little about new texts" if share > _HIGH_OVERLAP else "",
        )  # fmt: skip


def log_near_duplicates(
    splits: Mapping[str, Sequence[Any]],
    keys: Mapping[str, Keys],
    where: str,
    texts: Callable[[Any], Sequence[str]],
) -> None:
    """Log how many texts are nearly equal to others, in any splits; see `log_overlap`.

    Of many texts the first are compared, those of training last.
    """
    names = sorted(splits, key="train".__eq__)
    _, first = np.unique(np.concatenate([keys[name] for name in names]), return_index=True)
    looked_at = np.sort(first)[: equal_texts.MOST_COMPARED]
    examples = list(chain.from_iterable(splits[name] for name in names))
    compared = [texts(examples[at]) for at in looked_at]
    near = equal_texts.nearly_equal([" / ".join(parts) for parts in compared])
    if near:
        one, other = near[0]
        log.info(
            "%s: %s of %s%s different texts are nearly equal to others, such as %s and %s",
            where, f"{len(near):,}", "the first " * (len(looked_at) < len(first)),
            f"{len(looked_at):,}", _shortened(compared[one]), _shortened(compared[other]),
        )  # fmt: skip


def _shortened(texts: Sequence[str]) -> str:
    text = texts[0]
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ...")
