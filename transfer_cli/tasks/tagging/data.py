"""Data sets with a tag for each word: own files, and an embedded sample."""

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal, get_args

from transfer_cli.data import readers, sample
from transfer_cli.data.columns import Wanted
from transfer_cli.data.split import Whole
from transfer_cli.data.tasks import INPUT, MAX_LABELS, Drawn, LabelledData, LabelledFiles
from transfer_cli.errors import DataError, at_least, listed, one_of
from transfer_cli.tasks.tagging import schemes
from transfer_cli.tasks.tagging.encoding import Piece
from transfer_cli.tasks.tagging.readers import (
    COLUMNS,
    Column,
    Sentence,
    read_conll,
    read_conllu,
    read_json,
)
from transfer_cli.tasks.tagging.schemes import SCHEMES, Scheme
from transfer_cli.tasks.tagging.task import TaggedSentence, TaggingTask

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Tagged(Drawn):
    """Sentences with a tag for each word.

    Args:
        piece: The piece of a word at which its tag is read; see `encoding.encode_tags`.
        label_all: Whether all pieces of a word learn its tag.
        overlap: How many words two windows of a long sentence share; None: half of a window.
    """

    piece: Piece = "auto"
    label_all: bool = False
    overlap: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("piece", self.piece, get_args(Piece), ValueError)
        if self.overlap is not None:
            at_least("overlap", self.overlap, 0)

    def strata(self, examples: Sequence[TaggedSentence]) -> Sequence[int]:
        """Return whether each sentence has more than one tag, such as an entity."""
        return [int(len(set(each.label or ())) > 1) for each in examples]

    def check(self, train: Sequence[TaggedSentence], labels: Sequence[str], where: str) -> None:
        """See `Drawn`."""
        if len({*chain.from_iterable(each.label or () for each in train)}) < 2:
            raise DataError(
                f"{where}: all words have the same tag, {listed(labels) or 'none'}; there is "
                "nothing to learn. Name another column."
            )

    def tagged(
        self, splits: Mapping[str, Sequence[Sentence]], paths: Mapping[str, Path], name: str,
        scheme: Literal["auto"] | Scheme,
    ) -> LabelledData:  # fmt: skip
        """Return sentences with their tags in BIO, as numbers.

        Raises:
            DataError: A split has a tag that the first one has not.
        """
        first, *others = splits
        where = str(paths.get(first, name))
        found = _scheme(splits[first], where) if scheme == "auto" else scheme
        converted = {
            split: [schemes.to_bio(each.tags, found) for each in sentences]
            for split, sentences in splits.items()
        }
        _say_changes(splits[first], converted[first], found, where)
        labels = schemes.sorted_tags(chain.from_iterable(converted[first]), found)
        if len(labels) > MAX_LABELS:
            raise DataError(
                f"{where}: {len(labels):,} different tags, such as {listed(labels, 5)}; is that "
                "the column of the tags?"
            )
        number_of = {label: number for number, label in enumerate(labels)}
        for split in others:
            for sentence, tags in zip(splits[split], converted[split], strict=True):
                if new := [tag for tag in tags if tag not in number_of]:
                    raise DataError(
                        f"{paths.get(split, name)}, sentence at line {sentence.line}: the tag "
                        f"{new[0]!r} is not in {where}; there is {listed(labels, 10)}"
                    )
        examples = {
            split: tuple(
                TaggedSentence(
                    each.words, tuple(number_of[tag] for tag in tags), each.given, each.starts
                )
                for each, tags in zip(sentences, converted[split], strict=True)
            )
            for split, sentences in splits.items()
        }
        return LabelledData(name, labels, examples, TaggingTask.node(), files=paths)

    def _with_task(self, data: LabelledData) -> LabelledData:
        count = Counter(chain.from_iterable(each.label for each in data.splits["train"]))
        task = TaggingTask.node(
            commonest=max(count.values()) / count.total(),
            piece=self.piece,
            label_all=self.label_all,
            overlap=self.overlap,
        )
        return replace(data, task=task)


@dataclass(kw_only=True)
class _TagFiles(_Tagged, LabelledFiles):
    """Own files of tagged sentences."""

    scheme: Literal["auto", "bio", "iob1", "bioes", "none"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("scheme", self.scheme, ("auto", *SCHEMES), ValueError)

    @abstractmethod
    def sentences(self, path: Path) -> Iterator[Sentence]:
        """Yield the sentences of a file."""

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        paths = self.paths
        splits = {name: self._read(path) for name, path in paths.items()}
        data = self.tagged(splits, paths, paths["train"].stem, self.scheme)
        return self._with_task(self._drawn(data, seed, self.validation_share))

    def whole(self, own: Wanted) -> LabelledData:
        """See `LabelledFiles`."""
        path = self.paths["train"]
        found = self._read(path)
        data = self.tagged({INPUT: found}, {INPUT: path, "train": path}, path.stem, self.scheme)
        return replace(data, part_of={INPUT: Whole(str(path), len(found), ())})

    def _read(self, path: Path) -> list[Sentence]:
        found = list(self.sentences(path))
        if not found:
            raise DataError(f"{path} has no sentences.")
        return found


@dataclass(kw_only=True)
class Conll(_TagFiles):
    """Sentences in columns, a word a line, or in JSON lines.

    Args:
        word: The column of the word, from 0; below 0 from the last one.
        tag: The column of its tag.
        comments: Whether lines that begin with `#` are left out.
        format: `columns` or `jsonl`; auto: by the file's name.
        tag_names: Of JSON lines whose tags are numbers, what they are called.
        scheme: How tags mark entities, see `schemes`; auto: as the training file does.
    """

    word: int = 0
    tag: int = -1
    comments: bool = False
    format: Literal["auto", "columns", "jsonl"] = "auto"
    tag_names: tuple[str, ...] | None = None

    read_as_trained: ClassVar[tuple[str, ...]] = ("word", "tag", "comments", "tag_names", "scheme")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("format", self.format, ("auto", "columns", "jsonl"), ValueError)

    def sentences(self, path: Path) -> Iterator[Sentence]:
        """See `_TagFiles`."""
        is_json = readers.format_of(path) == "jsonl" if self.format == "auto" else (
            self.format == "jsonl"
        )  # fmt: skip
        if is_json:
            return read_json(path, self.tag_names)
        return read_conll(path, self.word, self.tag, comments=self.comments)


@dataclass(kw_only=True)
class Conllu(_TagFiles):
    """Sentences in CoNLL-U, as Universal Dependencies has them.

    Args:
        tag: The column of the tag.
        scheme: How tags mark entities, see `schemes`; parts of speech do not.
    """

    tag: Column = "upos"
    scheme: Literal["auto", "bio", "iob1", "bioes", "none"] = "none"

    read_as_trained: ClassVar[tuple[str, ...]] = ("tag", "scheme")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("tag", self.tag, COLUMNS, ValueError)

    def sentences(self, path: Path) -> Iterator[Sentence]:
        """See `_TagFiles`."""
        return read_conllu(path, self.tag)


@dataclass(kw_only=True)
class SampleTags(_Tagged):
    """Names in sentences about the made-up encyclopedia, tagged by their kinds.

    Which kind of thing a name belongs to, only the encyclopedia tells; see `data.sample`.

    Args:
        world: Which made-up world they speak of: the one of the encyclopedia read before.
    """

    world: int = 0

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        splits = {
            split: [Sentence(words, tags, number) for number, (words, tags) in enumerate(rows, 1)]
            for split, rows in sample.tags(self.world).items()
        }
        data = self.tagged(splits, {}, "sample_tags", "bio")
        return self._with_task(self._drawn(data, seed))


def _scheme(sentences: Sequence[Sentence], where: str) -> Scheme:
    """Return the scheme of a file, and warn of chunks that do not fit it."""
    found, begun, chunks = schemes.recognised(each.tags for each in sentences)
    if found == "bio" and begun:
        log.warning(
            "%s: %s of %s entities begin with I- and not with B-; they count as they stand",
            where, f"{begun:,}", f"{chunks:,}",
        )  # fmt: skip
    return found


def _say_changes(
    sentences: Sequence[Sentence], bio: Sequence[Sequence[str]], scheme: Scheme, where: str
) -> None:
    changed = sum(
        tag != other
        for sentence, tags in zip(sentences, bio, strict=True)
        for tag, other in zip(sentence.tags, tags, strict=True)
    )
    if changed:
        log.info("%s: tags are %s; %s became BIO", where, scheme.upper(), f"{changed:,}")
