"""Data sets with a tag for each word: own files, and an embedded sample."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

from transfer_cli.data import sample
from transfer_cli.data.columns import Wanted
from transfer_cli.data.labelled import INPUT, Drawn, LabelledData, LabelledFiles
from transfer_cli.data.split import Whole
from transfer_cli.data.tasks import MAX_LABELS
from transfer_cli.errors import DataError, at_least, listed, nearest, one_of
from transfer_cli.tasks.tagging import schemes
from transfer_cli.tasks.tagging.readers import FIELDS, Sentence, TagColumns, format_of, sentences
from transfer_cli.tasks.tagging.schemes import Scheme
from transfer_cli.tasks.tagging.task import TagExample, TaggingTask

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Tagged(Drawn):
    """Texts with a tag for each word.

    Args:
        piece: The piece of a word at which its tag is read, see `TaggingTask`; so are the others.
        label_all: Whether all pieces of a word have a target.
        stride: Words that two windows of a long text share; None: half of one.
    """

    kind: ClassVar[str | None] = "tagging"

    piece: Literal["auto", "first", "last"] = "auto"
    label_all: bool = False
    stride: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("piece", self.piece, ("auto", "first", "last"), ValueError)
        if self.stride is not None:
            at_least("stride", self.stride, 0)

    def texts(self, example: TagExample) -> Sequence[str]:
        """See `Drawn`."""
        return (example.text,)

    def strata(self, examples: Sequence[TagExample]) -> Sequence[int]:
        """Return the rarest tag of each, so that a share has entities of each type."""
        count = Counter(chain.from_iterable(each.label or () for each in examples))
        return [
            min(each.label or (), key=lambda number: (count[number], number)) for each in examples
        ]

    def check(self, train: Sequence[TagExample], labels: Sequence[str], where: str) -> None:
        """See `Drawn`."""
        if len(labels) < 2:
            raise DataError(
                f"{where}: all words have the tag {labels[0]!r}; there is nothing to learn. Name "
                "another column of tags."
            )

    def _of(
        self,
        name: str,
        found: Mapping[str, Sequence[Sentence]],
        scheme: Scheme,
        sources: Mapping[str, str],
    ) -> LabelledData:
        """Return sentences whose tags are of a scheme, with the labels of the first split."""
        first = next(iter(found))
        bio = {
            split: [_in_bio(each, scheme, sources[split]) for each in own]
            for split, own in found.items()
        }
        for split, tags in bio.items():
            _say_changes(found[split], tags, scheme, sources[split])
        labels = schemes.labels_of(chain.from_iterable(bio[first]), scheme)
        if len(labels) > MAX_LABELS:
            raise DataError(
                f"{sources[first]}: {len(labels):,} different tags, more than {MAX_LABELS:,}. Is "
                "that the column of tags?"
            )
        numbers = {tag: number for number, tag in enumerate(labels)}
        splits = {}
        for split, own in found.items():
            _check_known(own, bio[split], labels, sources[split])
            splits[split] = [
                _example(each, [numbers[tag] for tag in tags])
                for each, tags in zip(own, bio[split], strict=True)
            ]
        task = TaggingTask.node(
            marks_entities=scheme != "none",
            piece=self.piece,
            label_all=self.label_all,
            stride=self.stride,
        )
        return LabelledData(name, labels, splits, task)


@dataclass(kw_only=True)
class TaggedFiles(_Tagged, LabelledFiles):
    """Own files of tagged words; see `readers` for what each format holds.

    Args:
        format: `conll`, `conllu` or `jsonl`; None: by the files' names, `conll` where they tell
            nothing.
        word: The column of the word in `conll`, from 0.
        tag: The column of the tag there, below 0 from the end; in `conllu` one of `FIELDS`.
        comments: Whether lines of `conll` that begin with `#` are left out.
        names: The tags that numbers stand for in JSON lines.
        scheme: How tags mark entities; auto: what the tags of the training file look like.
    """

    read_as_trained: ClassVar[tuple[str, ...]] = ("word", "tag", "comments", "names", "scheme")

    format: Literal["conll", "conllu", "jsonl"] | None = None
    word: int = 0
    tag: int | str = -1
    comments: bool = False
    names: list[str] | None = None
    scheme: Literal["auto", "bio", "iob1", "bioes", "io", "none"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("format", self.format or "conll", ("conll", "conllu", "jsonl"), ValueError)
        one_of("scheme", self.scheme, schemes.SCHEMES, ValueError)
        if isinstance(self.tag, str):
            one_of("tag", self.tag, FIELDS, ValueError)
        self._columns = TagColumns(self.word, self.tag, self.comments, self.names)

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        paths = self.paths
        found = {name: self._sentences(path) for name, path in paths.items()}
        scheme = self._scheme(found["train"], paths["train"])
        sources = {name: str(path) for name, path in paths.items()}
        data = self._of(paths["train"].stem, found, scheme, sources)
        return self._drawn(replace(data, files=paths), seed, self.validation_share)

    def whole(self, own: Wanted) -> LabelledData:
        """See `LabelledFiles`."""
        path = self.paths["train"]
        found = self._sentences(path)
        data = self._of(path.stem, {INPUT: found}, self._scheme(found, path), {INPUT: str(path)})
        part_of = {INPUT: Whole(str(path), len(found), ())}
        return replace(data, files={"train": path}, part_of=part_of)

    def _sentences(self, path: Path) -> list[Sentence]:
        file_format = self.format or format_of(path)
        if (file_format == "conllu") != isinstance(self.tag, str) and file_format != "jsonl":
            said = (
                f"data.tag={self.tag} is a column of CoNLL-U; a number names one of {path}"
                if isinstance(self.tag, str)
                else f"{path} is CoNLL-U; say data=conllu data.tag=upos, or one of {listed(FIELDS)}"
            )
            raise DataError(f"{said}.")
        return sentences(path, file_format, self._columns)

    def _scheme(self, train: Sequence[Sentence], path: Path) -> Scheme:
        if self.scheme != "auto":
            return self.scheme
        scheme, warning = schemes.scheme_of(each.tags for each in train)
        if warning:
            log.warning("%s: %s", path, warning)
        return scheme


@dataclass(kw_only=True)
class SampleTags(_Tagged):
    """The embedded questions about the made-up encyclopedia, whose names are to be tagged.

    A name is an entity of the type that it has in the encyclopedia; see `data.sample`.

    Args:
        world: Which made-up world they ask about: the one of the encyclopedia read before.
    """

    world: int = 0

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        found = {
            name: [Sentence(words, tags, [0] * len(words)) for words, tags in rows]
            for name, rows in sample.tags(self.world).items()
        }
        data = self._of("sample_tags", found, "bio", dict.fromkeys(found, "sample_tags"))
        return self._drawn(data, seed)


def _in_bio(sentence: Sentence, scheme: Scheme, source: str) -> list[str]:
    found = schemes.fault(sentence.tags, scheme)
    if found is not None:
        word, said = found
        raise DataError(
            f"{source}, line {sentence.lines[word]}: {said} (the scheme is {scheme}; data.scheme "
            f"sets it, to one of {listed(schemes.SCHEMES, 10)})."
        )
    return schemes.to_bio(sentence.tags, scheme)


def _say_changes(
    found: Sequence[Sentence], bio: Sequence[list[str]], scheme: Scheme, source: str
) -> None:
    changed = sum(
        one != other
        for sentence, tags in zip(found, bio, strict=True)
        for one, other in zip(sentence.tags, tags, strict=True)
    )
    if changed:
        log.info(
            "%s: its tags are %s; %s of %s were changed to BIO",
            source, scheme.upper(), f"{changed:,}", f"{sum(map(len, bio)):,}",
        )  # fmt: skip


def _check_known(
    found: Sequence[Sentence], bio: Sequence[list[str]], labels: Sequence[str], source: str
) -> None:
    known = set(labels)
    for sentence, tags in zip(found, bio, strict=True):
        for tag, line in zip(tags, sentence.lines, strict=True):
            if tag not in known:
                raise DataError(
                    f"{source}, line {line}: the tag {tag!r} is not among the {len(labels)} of the "
                    f"training file.{nearest(tag, labels)}"
                )


def _example(sentence: Sentence, label: Sequence[int]) -> TagExample:
    if sentence.text is None or sentence.spans is None:
        return TagExample.of_words(sentence.words, label)
    return TagExample(sentence.text, tuple(sentence.spans), tuple(label))
