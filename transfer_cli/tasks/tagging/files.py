"""Own files with a tag for each word."""

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

from transfer_cli.data.label_names import log_label_differences
from transfer_cli.data.labelled import LabelledData
from transfer_cli.data.records import MAX_LABELS
from transfer_cli.data.wanted import ANY, Wanted
from transfer_cli.errors import DataError, did_you_mean, list_names, one_of
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.sources import LabelledFiles
from transfer_cli.tasks.tagging import schemes
from transfer_cli.tasks.tagging.readers import (
    FIELDS,
    Sentence,
    TagExample,
    format_of,
    read_conll,
    read_conllu,
    read_jsonl,
)
from transfer_cli.tasks.tagging.schemes import Scheme, split_tag
from transfer_cli.tasks.tagging.task import TaggingTask

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class TaggedFiles(LabelledFiles):
    """Own files of tagged words; see `readers` for what each format holds.

    Args:
        format: `conll`, `conllu` or `jsonl`; None: by the files' names, `conll` where they tell
            nothing.
        word: The column of the word in `conll`, from 0.
        tag: The column of the tag there, below 0 from the end; in `conllu` one of `FIELDS`.
        comments: Whether lines of `conll` that begin with `#` are left out.
        names: The tags that numbers stand for in JSON lines.
        scheme: How tags mark entities; auto: what the tags of the training file look like.
        piece: The piece of a word at which its tag is read, see `TaggingTask`; so are the others.
        label_all: Whether all pieces of a word have a target.
        stride: Words that two windows of a long text share; None: half of one.
    """

    task: ClassVar[type[Task]] = TaggingTask
    suffixes: ClassVar[tuple[str, ...]] = (
        ".conll", ".conllu", ".bio", ".iob", ".iob2", ".txt", ".tsv", ".jsonl", ".ndjson", ".json",
    )  # fmt: skip
    read_as_trained: ClassVar[tuple[str, ...]] = ("word", "tag", "comments", "names", "scheme")

    format: Literal["conll", "conllu", "jsonl"] | None = None
    word: int = 0
    tag: int | str = -1
    comments: bool = False
    names: list[str] | None = None
    scheme: Literal["auto", "bio", "iob1", "bioes", "io", "none"] = "auto"
    piece: Literal["auto", "first", "last"] = "auto"
    label_all: bool = False
    stride: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.tag, str):
            one_of("tag", self.tag, FIELDS, ValueError)

    def examples(self, paths: Mapping[str, Sequence[Path]], columns: Wanted = ANY) -> LabelledData:
        """See `LabelledFiles`; the scheme is that of the first split."""
        by_path = {path: self._sentences(path) for path in chain.from_iterable(paths.values())}
        first = next(iter(paths.values()))
        where = list_names(first, 1)
        scheme = self._scheme([*chain.from_iterable(by_path[path] for path in first)], where)
        by_path = {path: _as_bio(rows, scheme, path) for path, rows in by_path.items()}
        tags_of = {
            path: {*chain.from_iterable(sentence.tags for sentence in by_path[path])}
            for path in first
        }
        log_label_differences(
            {path: {split_tag(tag)[1] or tag for tag in tags} for path, tags in tags_of.items()}
        )
        labels = schemes.labels_of(chain.from_iterable(tags_of.values()), scheme)
        if len(labels) > MAX_LABELS:
            raise DataError(
                f"{where}: {len(labels):,} different tags, more than {MAX_LABELS:,}. Is "
                "that the column of tags?"
            )
        numbers = {tag: number for number, tag in enumerate(labels)}
        examples = {
            path: [_example(sentence, numbers, path) for sentence in rows]
            for path, rows in by_path.items()
        }
        splits = {
            split: list(chain.from_iterable(examples[path] for path in files))
            for split, files in paths.items()
        }
        has_text = any(sentence.text for path in first for sentence in by_path[path])
        layout = {"marks_entities": scheme != "none", "words": "marks" if has_text else "blanks"}
        layout["scheme"] = scheme if scheme == "iob1" else self.scheme
        node = self.task.node(**{**self.options(), **layout})
        return LabelledData(first[0].stem, labels, splits, node, files=paths)

    def _sentences(self, path: Path) -> list[Sentence]:
        file_format = self.format or format_of(path, self.tag)
        if (file_format == "conllu") != isinstance(self.tag, str) and file_format != "jsonl":
            fields = list_names(FIELDS)
            mismatch = (
                f"data.tag={self.tag} is a column of CoNLL-U; a number names one of {path}"
                if isinstance(self.tag, str)
                else f"{path} is CoNLL-U; say data=conllu data.tag=upos, or one of {fields}"
            )
            raise DataError(f"{mismatch}.")
        if file_format == "jsonl":
            sentences = [*read_jsonl(path, self.names)]
        elif isinstance(self.tag, str):
            sentences = [*read_conllu(path, self.tag)]
        else:
            sentences = [*read_conll(path, self.word, self.tag, comments=self.comments)]
        if not sentences:
            raise DataError(f"{path} has no sentences.")
        return sentences

    def _scheme(self, train: Sequence[Sentence], where: str) -> Scheme:
        if self.scheme != "auto":
            return self.scheme
        scheme, warning = schemes.detect_scheme(sentence.tags for sentence in train)
        if warning:
            log.warning("%s: %s", where, warning)
        return scheme


def _as_bio(sentences: Sequence[Sentence], scheme: Scheme, source: Path) -> list[Sentence]:
    """Return sentences with the tags of BIO; how many were changed is logged."""
    converted, num_changed = list[Sentence](), 0
    for sentence in sentences:
        fault = schemes.find_fault(sentence.tags, scheme)
        if fault is not None:
            word, problem = fault
            raise DataError(
                f"{source}, line {sentence.lines[word]}: {problem} (the scheme is {scheme}; "
                f"data.scheme sets it, to one of {list_names(schemes.SCHEMES, 10)})."
            )
        bio = schemes.to_bio(sentence.tags, scheme)
        num_changed += sum(map(operator.ne, sentence.tags, bio))
        converted.append(replace(sentence, tags=bio))
    if num_changed:
        words = sum(len(sentence.tags) for sentence in sentences)
        log.info(
            "%s: its tags are %s; %s of %s were changed to BIO",
            source, scheme.upper(), f"{num_changed:,}", f"{words:,}",
        )  # fmt: skip
    return converted


def _example(sentence: Sentence, numbers: Mapping[str, int], source: Path) -> TagExample:
    """Return the example, given the number of each tag of the training file."""
    label = list[int]()
    for tag, line in zip(sentence.tags, sentence.lines, strict=True):
        if tag not in numbers:
            raise DataError(
                f"{source}, line {line}: the tag {tag!r} is not among the {len(numbers)} of the "
                f"training file.{did_you_mean(tag, numbers)}"
            )
        label.append(numbers[tag])
    if sentence.text is None or sentence.spans is None:
        return TagExample.of_words(sentence.words, label)
    return TagExample(sentence.text, tuple(sentence.spans), tuple(label))
