"""Unlabelled text: where the lines of a corpus come from.

Lines are read anew each time, one after the other, so a text may be larger than memory.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from transfer_cli.data.documents import (
    Begins,
    TextSplit,
    check_disjoint,
    digest_of,
    expand_paths,
    file_parts,
    held_out_parts,
    join_splits,
    path_begins,
)
from transfer_cli.data.folders import cache_folder
from transfer_cli.data.known_files import KnownFiles
from transfer_cli.data.labelled import INPUT
from transfer_cli.data.split import LineRule, WeightedSource, Whole
from transfer_cli.errors import DataError, above_zero, at_least, list_names, raised_as
from transfer_cli.runs.environment import available_cores

Documents = Literal["cross", "separate"]
Pairs = Literal["nsp", "sop", "translation"]
Units = Literal["sentence", "line"]

Only = Sequence[str] | None
"""Names of the splits to return, since a test set can be scored without the training set.

Of own files the split `input` is all of the training text, to score it.
"""


@dataclass(kw_only=True)
class TextData(ABC):
    """A corpus.

    Args:
        length: Tokens in a block; None: as many as the model has positions.
        documents: cross: a token sees what is before it in its block; separate: of its document
            alone, in which positions count from 0. What of a document is in the next block begins
            anew there.
        pairs: Whether an example is a pair of texts of `length` tokens together, and what it is
            asked of them: nsp or sop, see `data.sentence_pairs`; translation: nothing, they are the
            two lines of a document, or two columns of a row. None: it is a block.
        units: What pairs are made of: sentences or lines.
        copies: How often the training text is paired, each time otherwise.
        lines: What becomes of line breaks. keep: they are text, and the model's end-of-text token
            ends each document, which is a file, a row, or what `documents` and `heading` say;
            end: the separator stands for each; join: as keep, with spaces for them. None: what
            the model was trained with, see `assembly.datasets`.
    """

    length: int | None = None
    documents: Documents = "cross"
    pairs: Pairs | None = None
    units: Units = "sentence"
    copies: int = 1
    lines: LineRule | None = None

    def __post_init__(self) -> None:
        if self.length is not None:
            at_least("length", self.length, 2)
        at_least("copies", self.copies, 1)
        if self.pairs is None:
            if self.copies > 1:
                raise ValueError("copies: without pairs each text is read once; set data.pairs too")
            return
        if self.pairs == "translation":
            if self.copies > 1:
                raise ValueError("copies: a text has one translation; with that leave it out")
            self.units = "line"
        if self.lines not in (None, "end"):
            raise ValueError(
                f"lines: pairs are made of lines, whose ends {self.lines} leaves out; leave out "
                "one of lines, pairs"
            )
        if self.documents == "separate":
            raise ValueError(
                "documents: both texts of a pair see each other, of whatever documents they are; "
                "with pairs leave it at cross"
            )

    def _mark_documents(self, split: TextSplit, begins: Begins, by: str) -> TextSplit:
        """Return a split that says where documents begin, if that is asked for; see `TextSplit`."""
        if not self._separates_documents:
            return split
        return replace(split, begins=begins, begins_by=by, apart=True)

    @property
    def _separates_documents(self) -> bool:
        """Whether documents are told apart in the tokens."""
        return self.documents == "separate" or self.pairs is not None

    @abstractmethod
    def splits(self, data_dir: Path, seed: int, *, only: Only = None) -> dict[str, TextSplit]:
        """Find the text, or fetch it, and return its splits: `train`, and those that there are.

        Raises:
            DataError: A file is missing, empty or not readable.
        """


@dataclass(kw_only=True)
class TextFiles(TextData):
    """Own files: `.txt` or JSON lines, plain or packed as `.gz`, `.xz` or `.zst`, or Parquet.

    Each file is a *shard*, which is encoded and kept alone: of a corpus that grows, what is new is
    all that is encoded. Blocks go on from one file into the next, documents do not.

    Args:
        train: Paths, folders or globs, whose files are sorted by name, or splits of data sets of
            the hub, see `hub_client.resolve_path`.
        validation: The same. Without it, blocks of consecutive lines all over each training file
            are held out, the same ones for every seed; of several files, one of fewer than
            1 / `validation_share` lines is now and then held out as a whole.
        test: The same; without it there is no test set.
        field: The column of the text in JSON lines and Parquet; `a.b` is `b` in the object `a`. A
            list of two with `pairs=translation`.
        validation_share: The held-out share of the training text, in (0, 0.5].
        weights: A number for each of the list `train`. In proportion to it blocks come of each in
            an epoch, which has as many blocks as all have together: some are repeated, or wait for
            a later epoch. None: each block comes once.
        workers: Processes that encode files at once; None: as many as there are cores.
        heading: A regular expression of the first line of a document of `.txt`, such as
            `= [^=].* =`; None: a file is one, and with `documents=separate` or `pairs` what follows
            an empty line. Of JSON lines and Parquet each row is a document.
    """

    train: str | list[str]
    validation: str | list[str] | None = None
    test: str | list[str] | None = None
    field: str | list[str] = "text"
    validation_share: float = 0.01
    weights: list[float] | None = None
    workers: int | None = None
    heading: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.validation_share <= 0.5:
            raise ValueError(
                f"validation_share is {self.validation_share}, expected above 0 and up to 0.5."
            )
        if not self.train:
            raise ValueError("train is empty, expected a path, folder or glob.")
        with raised_as(ValueError, "heading is no regular expression: ", re.error):
            re.compile(self.heading or "")
        if not isinstance(self.field, str) and (self.pairs, len(self.field)) != ("translation", 2):
            raise ValueError(
                "field: several columns are the two texts of pairs=translation; give one, or two "
                "with that"
            )
        if self.workers is not None:
            at_least("workers", self.workers, 1)
        if self.weights is not None:
            self._check_weights(self.weights)
        super().__post_init__()

    def _check_weights(self, weights: Sequence[float]) -> None:
        for weight in weights:
            above_zero("weights: each", weight)
        count = len(self._sources)
        if len({*self._sources}) < count:
            raise ValueError("weights: a part of train is named twice; name it once")
        if len(weights) != count:
            raise ValueError(
                f"weights: {len(weights)} for {count} of train; give one for each path, folder or "
                "glob in the list data.train"
            )
        if self.pairs is not None:
            raise ValueError("weights: pairs are drawn from all of the text; leave one of both out")

    @property
    def _sources(self) -> list[str]:
        return [self.train] if isinstance(self.train, str) else self.train

    def splits(self, data_dir: Path, seed: int, *, only: Only = None) -> dict[str, TextSplit]:
        """See `TextData`; `seed` changes nothing, and of `data_dir` the cache alone is used."""
        patterns = {"train": self.train, "validation": self.validation, "test": self.test}
        if only == (INPUT,):
            with raised_as(DataError, f"{INPUT}: ", DataError):
                paths = expand_paths(self.train)
                whole = self._whole_split(paths, INPUT, KnownFiles(None))
            return {INPUT: replace(whole, part_of=Whole(list_names(paths, 1), None, ()))}
        files: dict[str, list[Path]] = {}
        for name, named in patterns.items():
            with raised_as(DataError, f"data.{name}: ", DataError):
                files |= {name: expand_paths(named)} if named else {}
        check_disjoint(files)
        if self.weights is not None:
            check_disjoint({source: expand_paths(source) for source in self._sources})
        with KnownFiles(cache_folder(str(data_dir)) / "files") as known:
            if "validation" not in files:
                return self._held_out_splits(files, only, known)
            names = select_names(files, only)
            return {name: self._whole_split(files[name], name, known) for name in names}

    def _whole_split(self, paths: list[Path], name: str, known: KnownFiles) -> TextSplit:
        parts, fingerprint = self._parts(paths, name, known)
        return self._join_parts(parts, paths, fingerprint)

    def _parts(
        self, paths: list[Path], name: str, known: KnownFiles
    ) -> tuple[list[TextSplit], str]:
        parts, fingerprint = file_parts(paths, name, self.field, known)
        if self._separates_documents or self.heading is not None:
            by = "a row" if self.heading is None else self.heading
            parts = [
                replace(
                    part, begins=partial(path_begins, path, self.field, self.heading),
                    begins_by=by, apart=self._separates_documents,
                )
                for path, part in zip(paths, parts, strict=True)
            ]  # fmt: skip
        return parts, fingerprint

    def _join_parts(self, parts: list[TextSplit], paths: list[Path], fingerprint: str) -> TextSplit:
        workers = self.workers or available_cores()
        whole = join_splits(parts, fingerprint, list_names(paths, 1), workers)
        if self.weights is None or whole.name != "train":
            return whole
        return replace(whole, sources=self._weighted_sources(self.weights, whole))

    def _weighted_sources(self, weights: Sequence[float], whole: TextSplit) -> list[WeightedSource]:
        weighted = []
        for source, weight in zip(self._sources, weights, strict=True):
            names = set(map(str, expand_paths(source)))
            count = sum(names.issuperset(part.files) for part in whole.shards)
            if count == 0:
                raise DataError(
                    f"data.weights: all of {source} is held out for validation; name "
                    "data.validation, or leave it out of data.train"
                )
            weighted.append(WeightedSource(source, count, weight))
        return weighted

    def _held_out_splits(
        self, files: dict[str, list[Path]], only: Only, known: KnownFiles
    ) -> dict[str, TextSplit]:
        parts, _ = self._parts(files["train"], "train", known)
        train, validation = held_out_parts(
            parts, self.validation_share, self.field, known,
            whole=self.lines in ("keep", "join") or self.pairs == "translation",
        )  # fmt: skip
        held_out = f"{100 * self.validation_share:g} % of its lines are held out for validation"
        left_out = {"train": held_out, "validation": "its other lines are trained on"}
        splits = {}
        for name in select_names(("train", "validation", *files), only):
            if name == "test":
                splits[name] = self._whole_split(files[name], name, known)
                continue
            kept = [replace(part, name=name) for part in (train if name == "train" else validation)]
            fingerprint = digest_of(part.fingerprint for part in kept)
            splits[name] = replace(
                self._join_parts(kept, files["train"], fingerprint),
                part_of=Whole(list_names(files["train"], 1), None, (left_out[name],)),
            )
        return splits


def whole_text(paths: str | list[str], name: str) -> TextSplit:
    """Return some files as one split, to score and not to train on."""
    return TextFiles(train=paths)._whole_split(expand_paths(paths), name, KnownFiles(None))


def split_of_lines(
    name: str,
    lines: Callable[[], Iterator[str]],
    settings: Iterable[str],
    source: str,
    files: Mapping[Path, str] | None = None,
) -> TextSplit:
    """Return a split of lines, which `settings` and the digests of `files` tell from others."""
    if not any(line and not line.isspace() for line in lines()):
        raise DataError(f"{source}: nothing but empty lines in the {name} text.")
    return TextSplit(
        name,
        lines,
        digest_of(settings, files),
        source=source,
        files={str(path): digest[:16] for path, digest in (files or {}).items()},
    )


def select_names(names: Iterable[str], only: Only) -> list[str]:
    """Return those of the names that are wanted, once each."""
    return [name for name in dict.fromkeys(names) if only is None or name in only]
