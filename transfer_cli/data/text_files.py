"""Text files as the shards of a corpus: found, told apart by their content, held out of."""

import glob
import itertools
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from transfer_cli.data import readers, sheets
from transfer_cli.data.hub_client import located
from transfer_cli.data.known_files import KnownFiles
from transfer_cli.data.split import Whole
from transfer_cli.data.text_split import (
    HOLD_OUT_BLOCKS,
    HoldOut,
    Lines,
    TextSplit,
    count_texts,
    digest_of,
    file_digest,
    has_rows,
    held_out_whole,
    hold_out_block,
    lines_that_matter,
    path_begins,
    path_lines,
)
from transfer_cli.errors import DataError, listed
from transfer_cli.progress import progress
from transfer_cli.runs.directory import HUB

log = logging.getLogger(__name__)

_SUFFIXES = (".txt", ".jsonl", ".ndjson", ".json", ".parquet")
"""Of the files of a folder that are read, before the suffix of a packed one."""


def expand(patterns: str | list[str]) -> list[Path]:
    """Return the files of paths, folders and globs, each once."""
    paths: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not pattern:
            raise DataError("A name of a file is empty, expected a path, folder or glob.")
        path = located(pattern)
        if path.is_dir():
            found = _in_folder(path, pattern)
        elif glob.has_magic(pattern) and not path.exists():
            # `Path.glob` takes no absolute pattern.
            names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - as said above
            found = [Path(name) for name in names if Path(name).is_file()]
            if not found:
                raise DataError(f"No file matches {pattern} (in {Path.cwd()}).")
        else:
            found = [path]
        for each in found:
            readers.check_readable(each)
        paths += found
    return list(dict.fromkeys(paths))


def _in_folder(folder: Path, pattern: str) -> list[Path]:
    """Return the text files in a folder and those below it, without hidden ones."""
    if pattern.startswith(HUB):
        return sorted(folder.glob("*.parquet"))
    found = [
        path
        for path in _below(folder, set())
        # A link to a file that is gone is refused later: its text would be missing.
        if readers.suffix_of(path) in _SUFFIXES and (path.is_file() or path.is_symlink())
    ]
    if not found:
        raise DataError(
            f"{folder} is a folder without a file of text ({listed(_SUFFIXES, len(_SUFFIXES))}, "
            "also packed). Name the files, or a glob."
        )
    return found


def _below(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield what is no folder in one and those below it, in order; a linked folder once."""
    real = folder.resolve()
    if real in seen:
        return
    seen.add(real)
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror or error}).") from error
    for path in inside:
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _below(path, seen)
        else:
            yield path


def check_disjoint(files: Mapping[str, Sequence[Path]]) -> None:
    """Refuse a file that several splits or sources name."""
    for one, other in itertools.combinations(files, 2):
        common = {path.resolve() for path in files[one]} & {path.resolve() for path in files[other]}
        if common:
            raise DataError(
                f"{min(common)} is in {one} and in {other}. Leave it out of one of them."
            )


def file_parts(
    paths: Sequence[Path], name: str, field: str, known: KnownFiles
) -> tuple[list[TextSplit], str]:
    """Return each of some files as a split of its own, and the fingerprint of all together."""
    digests = _digests(paths, known)
    parts = []
    for path in paths:
        lines = partial(path_lines, path, field)
        if not known.of(path, f"lines 1 {field}", partial(_count, lines, 1)):
            raise DataError(f"{path}: nothing but empty lines in the {name} text.")
        is_plain = not readers.is_packed(path) and readers.format_of(path) != sheets.PARQUET
        parts.append(
            TextSplit(
                name,
                lines,
                digest_of(["text", field], {path: digests[path]}),
                about_bytes=path.stat().st_size if is_plain else None,
                source=str(path),
                files={str(path): digests[path][:16]},
                begins=partial(path_begins, path, field, None) if has_rows(path) else None,
                begins_by="a row" if has_rows(path) else "",
            )
        )
    return parts, digest_of(["text", field], digests)


def _count(lines: Lines, enough: int) -> int:
    return count_texts(lines(), enough)


def _digests(paths: Sequence[Path], known: KnownFiles) -> dict[Path, str]:
    sizes = {path: path.stat().st_size for path in paths}
    found: dict[Path, str] = {}
    same = defaultdict(list)
    with progress(f"reading {listed(paths, 1)}", sum(sizes.values()), "B") as more:
        for path, size in sizes.items():
            found[path] = known.of(path, "sha256", partial(file_digest, path))
            same[found[path]].append(path)
            more(size)
    twice = next((names for names in same.values() if len(names) > 1), None)
    if twice is not None:
        log.warning("%s hold the same text, which is read as often", listed(twice, 3))
    return found


def held_out_parts(
    parts: Sequence[TextSplit], share: float, field: str, known: KnownFiles, *, whole: bool
) -> tuple[list[TextSplit], list[TextSplit]]:
    """Return what is left of each file to train on, and what is held out of it.

    `whole` is for text whose lines go on in the next one: documents are held out where a file has
    enough, and else, of a short file, lines that follow each other.
    What is held out of a file depends on that file alone. Of several that are all too short to hold
    out a line, and of which none is drawn, each gives the line in its middle.
    """
    enough = lines_that_matter(share)

    def counted(part: TextSplit) -> tuple[int, bool]:
        """Return how many documents a file has, and True, or how many lines, and False."""
        if whole and part.begins is not None:
            begins = filter(None, (begins for _, begins in part.marked_lines()))
            count = sum(itertools.islice(begins, enough))
            if hold_out_block(count, share, 1):
                return count, True
        count = known.of(
            Path(*part.files), f"lines {enough} {field}", partial(_count, part.lines, enough)
        )
        return count, False

    counts = [counted(part) for part in parts]
    least = 1 if whole else HOLD_OUT_BLOCKS
    blocks = [hold_out_block(count, share, least) for count, _ in counts]
    drawn = [held_out_whole(part.fingerprint, share) and len(parts) > 1 for part in parts]
    from_middle = not any(blocks) and not any(drawn) and len(parts) > 1
    train: list[TextSplit] = []
    validation: list[TextSplit] = []
    for part, (count, documents), block, is_drawn in zip(parts, counts, blocks, drawn, strict=True):
        if block == 0 and is_drawn:
            validation.append(part)
        elif block == 0 and not (from_middle and count > 1):
            train.append(part)
        else:
            span = None if block else (count // 2, count // 2 + 1)
            held_out = HoldOut(share, block, keeps_held_out=True, span=span, documents=documents)
            train.append(replace(held_out, keeps_held_out=False).part(part))
            validation.append(held_out.part(part))
    if not train or not validation:
        raise DataError(
            f"{listed((part.source for part in parts), 1)}: validation_share={share} of the "
            "lines is less than one line. Name data.validation, raise data.validation_share, or "
            "break long lines: fold -s FILE > BROKEN.txt"
        )
    return train, validation


def part_of(paths: Sequence[Path], share: float, *, keeps_held_out: bool) -> Whole:
    """Return what the lines of a hold-out are a part of."""
    held_out = f"{100 * share:g} % of its lines are held out for validation"
    others = "its other lines are trained on" if keeps_held_out else held_out
    return Whole(listed(paths, 1), None, (others,))


def of_name(parts: Sequence[TextSplit], name: str) -> list[TextSplit]:
    """Return parts of a text as those of the split of this name."""
    return [replace(part, name=name) for part in parts]
