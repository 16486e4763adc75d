"""Tagged sentences as files hold them: CoNLL's columns, CoNLL-U, JSON lines.

Each reader yields sentences with their tags as texts and with the line where each began.
"""

import bisect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from transfer_cli.data import readers
from transfer_cli.errors import DataError, listed
from transfer_cli.tasks.tagging.schemes import OUTSIDE

Column = Literal["upos", "xpos", "deprel", "feats"]
"""The columns of CoNLL-U that hold a tag."""

COLUMNS: Mapping[Column, int] = {"upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
assert {*COLUMNS} == {*get_args(Column)}  # noqa: S101 - both lists are here

_CONLLU_COLUMNS = 10
_NOT_A_WORD = re.compile(r"[0-9]+[-.][0-9]+")
"""The identifier of several words in one (`3-4`), or of one that is not written (`8.1`)."""
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence as a file holds it.

    Args:
        words: Its words.
        tags: Their tags.
        line: The line where it begins.
        given: See `task.TaggedSentence`; so `starts`.
    """

    words: Sequence[str]
    tags: Sequence[str]
    line: int
    given: str | None = None
    starts: Sequence[int] | None = None


def read_conll(path: Path, word: int, tag: int, *, comments: bool) -> Iterator[Sentence]:
    """Yield the sentences of a file with a word a line and a blank line behind each sentence.

    Lines that begin with `-DOCSTART-` are left out.

    Args:
        path: The file.
        word: The column of the word, from 0; below 0 from the last one.
        tag: The column of its tag.
        comments: Whether lines that begin with `#` are left out.

    Raises:
        DataError: A line lacks a column.
    """

    def rows() -> Iterator[tuple[int, list[str]]]:
        for line, text in readers.numbered_lines(path):
            is_left_out = text.startswith("-DOCSTART-") or (comments and text.startswith("#"))
            yield line, [] if is_left_out else text.split()

    yield from _sentences(rows(), path, word, tag, "columns parted by blanks or tabs")


def read_conllu(path: Path, column: Column) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL-U file (Universal Dependencies), with one column as tags.

    Lines of several words in one and of words that are not written are left out.

    Raises:
        DataError: A line has not ten columns.
    """

    def rows() -> Iterator[tuple[int, list[str]]]:
        for line, text in readers.numbered_lines(path):
            if text.startswith("#"):
                continue
            cells = text.split("\t") if text.strip() else []
            if cells and len(cells) != _CONLLU_COLUMNS:
                raise DataError(
                    f"{path}, line {line}: {len(cells)} columns parted by tabs, CoNLL-U has "
                    f"{_CONLLU_COLUMNS}; is the file data=conll?"
                )
            if not (cells and _NOT_A_WORD.fullmatch(cells[0])):
                yield line, cells

    yield from _sentences(rows(), path, 1, COLUMNS[column], "columns parted by tabs")


def _sentences(
    rows: Iterator[tuple[int, list[str]]], path: Path, word: int, tag: int, columns: str
) -> Iterator[Sentence]:
    words, tags, begun = list[str](), list[str](), 0
    for line, cells in rows:
        if not cells:
            if words:
                yield Sentence(words, tags, begun)
            words, tags = [], []
            continue
        count = len(cells)
        if not all(-count <= column < count for column in (word, tag)) or (
            word % count == tag % count
        ):
            raise DataError(
                f"{path}, line {line}: {count} of the {columns}, too few for a word in column "
                f"{word} and a tag in column {tag}; say data.word= and data.tag=, or mend the line"
            )
        begun = begun if words else line
        words.append(cells[word])
        tags.append(cells[tag])
    if words:
        yield Sentence(words, tags, begun)


def read_json(path: Path, names: Sequence[str] | None) -> Iterator[Sentence]:
    """Yield the sentences of JSON lines with `tokens` and `tags`, or `text` and `entities`.

    Entities are objects with `start`, `end` (characters) and `label`; words are runs of letters and
    digits, and single marks. Tags may be numbers of `names`.

    Raises:
        DataError: A line holds neither, or what does not fit together.
    """
    for line, text in readers.numbered_lines(path):
        if not text.strip():
            continue
        where = f"{path}, line {line}"
        (record,) = readers.json_records(iter([(line, text)]), str(path), readers.refuse)
        fields = record.fields
        if "tokens" in fields:
            yield _of_tokens(fields, names, line, where)
        elif "text" in fields and "entities" in fields:
            yield _of_entities(fields, line, where)
        else:
            raise DataError(
                f"{where}: expected 'tokens' and 'tags', or 'text' and 'entities'; there is "
                f"{listed(map(repr, fields), 5)}"
            )


def _of_tokens(
    fields: Mapping[str, Any], names: Sequence[str] | None, line: int, where: str
) -> Sentence:
    words, tags = fields["tokens"], fields.get("tags", [])
    if not _is_list_of(words, str) or not (_is_list_of(tags, str) or _is_list_of(tags, int)):
        raise DataError(f"{where}: 'tokens' must be a list of texts, and 'tags' one of tags")
    if len(words) != len(tags):
        raise DataError(f"{where}: {len(words)} tokens, but {len(tags)} tags")
    if not all(word.strip() for word in words):
        raise DataError(f"{where}: a token is blank")
    if _is_list_of(tags, int) and tags:
        if names is None:
            raise DataError(
                f"{where}: the tags are numbers; name them: data.tag_names=[O,B-PER,...]"
            )
        if wrong := [each for each in tags if not 0 <= each < len(names)]:
            raise DataError(f"{where}: tag {wrong[0]}, but data.tag_names has {len(names)} names")
        tags = [names[each] for each in tags]
    return Sentence(words, tags, line)


def _of_entities(fields: Mapping[str, Any], line: int, where: str) -> Sentence:
    text, found = fields["text"], fields["entities"]
    if not isinstance(text, str) or not _is_list_of(found, dict):
        raise DataError(f"{where}: 'text' must be a text, and 'entities' a list of objects")
    words = list(_WORD.finditer(text))
    starts, ends = [each.start() for each in words], [each.end() for each in words]
    tags = [OUTSIDE] * len(words)
    for entity in found:
        start, end, label = (entity.get(name) for name in ("start", "end", "label"))
        if not (type(start) is type(end) is int and isinstance(label, str) and label):
            raise DataError(f"{where}: an entity needs 'start', 'end' and 'label': {entity!r:.80}")
        if not 0 <= start < end <= len(text):
            raise DataError(
                f"{where}: characters {start} to {end} are not in a text of {len(text)}"
            )
        first, last = bisect.bisect_left(starts, start), bisect.bisect_left(ends, end)
        if first >= len(starts) or last >= len(ends) or (starts[first], ends[last]) != (start, end):
            within = (each[0] for each in words for at in (start, end)
                      if each.start() < at < each.end())  # fmt: skip
            cut = next((f"; it cuts the word {word!r:.40}" for word in within), "")
            raise DataError(
                f"{where}: the entity {text[start:end]!r:.60} ({start} to {end}) does not begin "
                f"and end with a word{cut}"
            )
        if any(tag != OUTSIDE for tag in tags[first : last + 1]):
            raise DataError(f"{where}: the entity {text[start:end]!r:.60} overlaps another one")
        tags[first : last + 1] = [f"B-{label}", *[f"I-{label}"] * (last - first)]
    return Sentence([each[0] for each in words], tags, line, text, starts)


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)
