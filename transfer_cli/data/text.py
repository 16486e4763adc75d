"""Unlabelled text: where the lines of a corpus come from.

Lines are read anew each time, one after the other, so a text may be larger than memory.
"""

import glob
import hashlib
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, floor
from pathlib import Path
from typing import Any, Literal, get_args

from transfer_cli.data import catalog, readers, sample, sheets
from transfer_cli.data.hub_client import located
from transfer_cli.data.identity import SplitIdentity
from transfer_cli.data.split import Whole
from transfer_cli.data.tasks import TaskData
from transfer_cli.errors import DataError, at_least, listed, one_of
from transfer_cli.progress import progress
from transfer_cli.runs.directory import HUB

TITLE = "= [^=].* ="
"""The first line of an article in WikiText."""

_HOLD_OUT_LINES = 64
"""Maximum number of lines of a held-out block."""

_HOLD_OUT_BLOCKS = 8
"""Number of held-out blocks of a short text, if it has enough lines."""

_HOLD_OUT_OFFSET = 0.5
"""The held-out block of the first 1 / share: one in the middle."""


@dataclass(frozen=True)
class TextSplit:
    """One part of a corpus.

    Args:
        name: `train`, `validation` or `test`.
        lines: Yields the text anew at each call: one paragraph or heading a line, without its end.
        begins: Yields for each line whether a document begins with it; None: nobody asks.
        fingerprint: Hex digest that changes when the lines do.
        source: The name of its file, or files, in messages.
        files: The digest of each file.
        size_bytes: The size of the original, where lines lose some of it; None: that of the lines,
            with a byte for the end of each.
        about_bytes: About how many bytes the lines have, to show progress by; None: not known.
        part_of: What it is a part of; None: it is complete.
    """

    name: str
    lines: Callable[[], Iterator[str]]
    fingerprint: str
    size_bytes: int | None = None
    about_bytes: int | None = None
    part_of: Whole | None = None
    source: str = "this text"
    files: Mapping[str, str] = field(default_factory=dict)
    begins: Callable[[], Iterator[bool]] | None = None

    @property
    def identity(self) -> SplitIdentity:
        """What it is, to be compared later."""
        return SplitIdentity(self.source, self.fingerprint, files=self.files)


Documents = Literal["cross", "separate"]
Pairs = Literal["nsp", "sop"]
Units = Literal["sentence", "line"]

Only = Sequence[str] | None
"""Names of the splits to return, since a test set can be scored without the training set."""


@dataclass(kw_only=True)
class TextData(ABC):
    """A corpus.

    Args:
        length: Tokens in a block; None: as many as the model has positions.
        documents: cross: a token sees what is before it in its block; separate: of its document
            alone, in which positions count from 0. What of a document is in the next block begins
            anew there.
        pairs: Whether an example is a pair of texts of `length` tokens together, and what it is
            asked of them: nsp or sop, see `data.sentence_pairs`. None: it is a block.
        units: What pairs are made of: sentences or lines.
        copies: How often the training text is paired, each time otherwise.
    """

    length: int | None = None
    documents: Documents = "cross"
    pairs: Pairs | None = None
    units: Units = "sentence"
    copies: int = 1

    def __post_init__(self) -> None:
        if self.length is not None:
            at_least("length", self.length, 2)
        one_of("documents", self.documents, get_args(Documents), ValueError)
        one_of("units", self.units, get_args(Units), ValueError)
        at_least("copies", self.copies, 1)
        if self.pairs is None:
            return
        one_of("pairs", self.pairs, get_args(Pairs), ValueError)
        if self.documents == "separate":
            raise ValueError(
                "documents: both texts of a pair see each other, of whatever documents they are; "
                "with pairs leave it at cross"
            )

    def _told_apart(self, split: TextSplit, begins: Callable[[], Iterator[bool]]) -> TextSplit:
        """Return a split that says where documents begin, if that is asked for."""
        asks = self.documents == "separate" or self.pairs is not None
        return replace(split, begins=begins) if asks else split

    @abstractmethod
    def splits(self, data_dir: Path, seed: int, *, only: Only = None) -> dict[str, TextSplit]:
        """Find the text, or fetch it, and return its splits: `train`, and those that there are.

        Args:
            data_dir: The folder of data sets.
            seed: The run's seed.
            only: See `Only`.

        Raises:
            DataError: A file is missing, empty or not readable.
        """


@dataclass(kw_only=True)
class WikiText(TextData):
    """WikiText-103 or WikiText-2 (Merity et al. 2017).

    Args:
        name: `wikitext-103` or `wikitext-2`.
        raw: Read the form with every word; in the other one rare words are `<unk>`, as in
            published word perplexities.
    """

    name: Literal["wikitext-103", "wikitext-2"]
    raw: bool = False

    def splits(self, data_dir: Path, seed: int, *, only: Only = None) -> dict[str, TextSplit]:
        """See `TextData`; `seed` changes nothing."""
        named = catalog.WIKITEXT[self.name + ("-raw" if self.raw else "")]
        parts = {}
        for part in _wanted(catalog.SPLITS, only):
            path = catalog.find_text(named, part, data_dir)
            lines = partial(_wikitext_lines, path)
            whole = _split(part, lines, ["wikitext"], path.name, [path])
            whole = self._told_apart(whole, partial(_begins, lines, TITLE))
            parts[part] = replace(whole, size_bytes=path.stat().st_size)
        return parts


@dataclass(kw_only=True)
class TextFiles(TextData):
    """Own files: `.txt` or JSON lines, plain or packed as `.gz`, `.xz` or `.zst`, or Parquet.

    Args:
        train: Paths or globs, whose matches are sorted by name, or splits of data sets of the hub,
            see `hub_client.located`.
        validation: The same. Without it, blocks of consecutive lines all over the training text
            are held out, the same ones for every seed.
        test: The same; without it there is no test set.
        field: The column of the text in JSON lines and Parquet; `a.b` is `b` in the object `a`.
        validation_share: The held-out share of the training text, in (0, 0.5].
        heading: With `documents=separate` or `pairs`, a regular expression of the first line of a
            document of `.txt`, such as `= [^=].* =`; None: a document follows an empty line. Of
            JSON lines and Parquet each row is a document.
    """

    train: str | list[str]
    validation: str | list[str] | None = None
    test: str | list[str] | None = None
    field: str = "text"
    validation_share: float = 0.01
    heading: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.validation_share <= 0.5:
            raise ValueError(
                f"validation_share is {self.validation_share}, expected above 0 and up to 0.5."
            )
        if not self.train:
            raise ValueError("train is empty, expected a path or glob.")
        try:
            re.compile(self.heading or "")
        except re.error as error:
            raise ValueError(f"heading is no regular expression: {error}") from error
        super().__post_init__()

    def splits(self, data_dir: Path, seed: int, *, only: Only = None) -> dict[str, TextSplit]:
        """See `TextData`; neither `data_dir` nor `seed` changes anything."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        files = {name: expand(paths) for name, paths in given.items() if paths}
        _check_disjoint(files)
        if "validation" not in files:
            return self._held_out_splits(files, only)
        return {name: self._whole(files[name], name) for name in _wanted(files, only)}

    def _whole(self, paths: list[Path], name: str) -> TextSplit:
        begins = partial(_file_begins, paths, self.field, self.heading)
        return self._told_apart(_text_of(paths, name, self.field), begins)

    def _held_out_splits(self, files: dict[str, list[Path]], only: Only) -> dict[str, TextSplit]:
        whole = self._whole(files["train"], "train")
        block = _hold_out_block(whole.lines(), self.validation_share)
        if block == 0:
            raise DataError(
                f"{listed(files['train'], 1)}: validation_share={self.validation_share} of the "
                "lines is less than one line. Name data.validation or raise data.validation_share."
            )
        parts = {}
        for name in _wanted(("train", "validation", *files), only):
            if name == "test":
                parts[name] = self._whole(files[name], name)
                continue
            hold_out = _HoldOut(self.validation_share, block, name == "validation")
            lines = partial(hold_out.of, whole.lines)
            begins = whole.begins and partial(hold_out.begins, whole.lines, whole.begins)
            parts[name] = replace(
                whole,
                name=name,
                lines=lines,
                fingerprint=_digest([whole.fingerprint, repr(hold_out)]),
                about_bytes=hold_out.about(whole.about_bytes),
                part_of=hold_out.whole(files["train"]),
                begins=begins,
            )
        return parts


def whole_text(paths: str | list[str], name: str) -> TextSplit:
    """Return some files as one split, to score and not to train on.

    Raises:
        DataError: There is no such file, or it cannot be read.
    """
    return _text_of(expand(paths), name)


def _text_of(paths: list[Path], name: str, field: str = "text") -> TextSplit:
    lines = partial(_file_lines, paths, field)
    return _split(name, lines, ["text", field], listed(paths, 1), paths)


@dataclass(kw_only=True)
class SampleText(TextData):
    """The embedded, made-up encyclopedia.

    Args:
        world: Which made-up world it describes. The run's seed does not decide it, so that runs of
            several seeds, and questions about the world, agree on its facts.
    """

    world: int = 0

    def splits(self, data_dir: Path, seed: int, *, only: Only = None) -> dict[str, TextSplit]:
        """See `TextData`; neither `data_dir` nor `seed` changes anything."""
        text = sample.encyclopedia(self.world)
        return {
            name: self._told_apart(
                _split(name, partial(iter, text[name]), text[name], "sample_text"),
                partial(_begins, partial(iter, text[name]), TITLE),
            )
            for name in _wanted(text, only)
        }


@dataclass(kw_only=True)
class TaskText(TextData):
    """The texts of a labelled data set without their labels, each on a line of its own.

    Howard and Ruder (2018, section 3.2) continue pretraining on them before the labels are learnt:
    target task language-model fine-tuning. The second text of a pair is the line after the first.
    A label costs money and a text does not, so leave the task's `labelled` unset to use all texts.

    The splits are those of `finetune` with the same seed, so validation texts stay unread.

    Args:
        task: The labelled data set.
    """

    task: TaskData

    def splits(self, data_dir: Path, seed: int, *, only: Only = None) -> dict[str, TextSplit]:
        """See `TextData`; the seed decides the splits that the task draws."""
        examples = self.task.load(data_dir, seed).splits
        texts = {name: _task_lines(examples[name]) for name in _wanted(examples, only)}
        return {
            name: self._told_apart(
                _split(name, partial(iter, lines), ["task", *lines], "the task"),
                partial(itertools.repeat, True, len(lines)),  # noqa: FBT003
            )
            for name, lines in texts.items()
        }


def _split(
    name: str,
    lines: Callable[[], Iterator[str]],
    settings: Iterable[str],
    source: str,
    paths: Sequence[Path] = (),
) -> TextSplit:
    if not any(line and not line.isspace() for line in lines()):
        raise DataError(f"{source}: nothing but empty lines in the {name} text.")
    sizes = {path: path.stat().st_size for path in paths}
    with progress(f"reading {source}", sum(sizes.values()), "B") as more:
        digests = {}
        for path in sizes:
            digests[path] = _file_digest(path)
            more(sizes[path])
    is_known = bool(paths) and not any(
        readers.is_packed(path) or readers.format_of(path) == sheets.PARQUET for path in paths
    )
    files = {str(path): digest[:16] for path, digest in digests.items()}
    return TextSplit(
        name,
        lines,
        _digest(settings, digests),
        about_bytes=sum(sizes.values()) if is_known else None,
        source=source,
        files=files,
    )


def _wanted(names: Iterable[str], only: Only) -> list[str]:
    return [name for name in dict.fromkeys(names) if only is None or name in only]


def _digest(settings: Iterable[str], files: Mapping[Path, str] | None = None) -> str:
    """Return a digest of settings and the content (not the names or dates) of files."""
    total = hashlib.sha256()
    for setting in settings:
        total.update(f"{len(setting)}:{setting}".encode())
    for path, digest in (files or {}).items():
        # The suffix decides how a file is read.
        total.update(bytes.fromhex(digest) + "".join(path.suffixes[-2:]).encode())
    return total.hexdigest()


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error


# ----------------------------------------------------------------------------------- lines


def _wikitext_lines(path: Path) -> Iterator[str]:
    # Every line has one space in front and one at its end; an empty line is a single space.
    for line in readers.read_lines(path):
        yield line.removeprefix(" ").removesuffix(" ")


def _file_lines(paths: list[Path], field: str) -> Iterator[str]:
    for path in paths:
        yield from path_lines(path, field)


def path_lines(path: Path, field: str) -> Iterator[str]:
    """Yield the lines of a text file, or those of the texts in `field` of its rows."""
    texts = _row_texts(path, field)
    if texts is None:
        yield from readers.read_lines(path)
    else:
        yield from itertools.chain.from_iterable(map(readers.paragraphs, texts))


def _row_texts(path: Path, field: str) -> Iterator[str] | None:
    """Return the texts of JSON lines or Parquet; None: it is plain text."""
    if readers.format_of(path) != sheets.PARQUET:
        return readers.json_texts(path, field)
    records = sheets.parquet_records(path, field)
    return (readers.text_of(record, field, str(path)) for record in records)


def _begins(lines: Callable[[], Iterator[str]], heading: str | None) -> Iterator[bool]:
    """Yield for each line of a text whether a document begins with it."""
    is_after_empty = True
    for number, line in enumerate(lines()):
        is_empty = not line.strip()
        if heading is None:
            yield number == 0 or (is_after_empty and not is_empty)
        else:
            yield number == 0 or re.fullmatch(heading, line) is not None
        is_after_empty = is_empty


def _file_begins(paths: list[Path], field: str, heading: str | None) -> Iterator[bool]:
    for path in paths:
        texts = _row_texts(path, field)
        if texts is None:
            yield from _begins(partial(readers.read_lines, path), heading)
            continue
        for text in texts:
            yield from (number == 0 for number, _ in enumerate(readers.paragraphs(text)))


def _task_lines(examples: Sequence[Any]) -> list[str]:
    if not all(hasattr(example, "text") for example in examples):
        raise DataError(
            "data.task: its examples have no text; put their texts into a file, data=text."
        )
    texts = (text for each in examples for text in (each.text, getattr(each, "pair", None)))
    # A text of several lines becomes one line, which ends with one `sep`.
    return [" ".join(text.splitlines()) for text in texts if text is not None]


def expand(patterns: str | list[str]) -> list[Path]:
    """Return the files of paths and globs, each once."""
    paths: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = located(pattern)
        found = sorted(path.glob("*.parquet")) if pattern.startswith(HUB) else [path]
        if glob.has_magic(pattern) and not path.exists():
            # `Path.glob` takes no absolute pattern.
            names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - as said above
            found = [Path(name) for name in names if Path(name).is_file()]
            if not found:
                raise DataError(f"No file matches {pattern} (in {Path.cwd()}).")
        for path in found:
            readers.check_readable(path)
        paths += found
    return list(dict.fromkeys(paths))


def _check_disjoint(files: dict[str, list[Path]]) -> None:
    for one, other in itertools.combinations(files, 2):
        common = {path.resolve() for path in files[one]} & {path.resolve() for path in files[other]}
        if common:
            raise DataError(
                f"{min(common)} is in {one} and in {other}. Leave it out of one of them."
            )


# -------------------------------------------------------------------------------- hold-out


@dataclass(frozen=True)
class _HoldOut:
    """Holds out lines: every (1 / share)-th block of `block` lines that are not empty."""

    share: float
    block: int
    keep_held_out: bool

    def whole(self, files: list[Path]) -> Whole:
        """Return what the lines are a part of."""
        held_out = f"{100 * self.share:g} % of its lines are held out for validation"
        others = "its other lines are trained on" if self.keep_held_out else held_out
        return Whole(listed(files, 1), None, (others,))

    def about(self, size: int | None) -> int | None:
        """Return about how many bytes of `size` stay."""
        share = self.share if self.keep_held_out else 1 - self.share
        return None if size is None else round(share * size)

    def of(self, lines: Callable[[], Iterator[str]]) -> Iterator[str]:
        return (line for line, is_kept in self._marked(lines()) if is_kept)

    def begins(
        self, lines: Callable[[], Iterator[str]], begins: Callable[[], Iterator[bool]]
    ) -> Iterator[bool]:
        """Yield for each line whether a document begins with it, or the part that is kept."""
        is_kept = False
        for (_, keeps), begins_here in zip(self._marked(lines()), begins(), strict=True):
            if keeps:
                yield begins_here or not is_kept
            is_kept = keeps

    def _marked(self, lines: Iterator[str]) -> Iterator[tuple[str, bool]]:
        """Yield each line, and whether it is kept."""
        number = -1
        for line in lines:
            # An empty line goes with the line before it.
            number += bool(line.strip())
            block = max(number, 0) // self.block
            before = floor(block * self.share + _HOLD_OUT_OFFSET)
            is_held_out = floor((block + 1) * self.share + _HOLD_OUT_OFFSET) > before
            yield line, is_held_out == self.keep_held_out


def _hold_out_block(lines: Iterator[str], share: float) -> int:
    """Return the number of lines of a block: fewer in a short text, 0 if the share is no line."""
    enough = ceil(_HOLD_OUT_BLOCKS * _HOLD_OUT_LINES / share)
    count = sum(1 for _ in itertools.islice(filter(str.strip, lines), enough))
    held_out = int(count * share)
    return min(held_out, _HOLD_OUT_LINES, max(1, held_out // _HOLD_OUT_BLOCKS))
