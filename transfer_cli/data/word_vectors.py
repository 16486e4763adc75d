"""Word vectors of a file, by which the embeddings of a new model begin.

Read are the text of GloVe (a word and its numbers on each line), that of word2vec and fastText's
`.vec` (which begin with a line of two numbers: how many words there are, and how many numbers each
has), and word2vec's binary, in which four bytes are a number. No more than a part of a file is in
memory at once.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transfer_cli.data import readers
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, DataError, raised_as

log = logging.getLogger(__name__)

KEY = "model.embeddings"

_PART_BYTES = 2**20
_SHOWN = 40

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WordVectors:
    """A file of vectors.

    Args:
        size: Numbers of each vector.
        count: How many words a first line says that there are; None: there is no such line.
    """

    path: Path
    size: int
    count: int | None
    is_binary: bool

    @classmethod
    def open(cls, path: Path) -> "WordVectors":
        """Return what the beginning of a file says."""
        with raised_as(DataError, f"{KEY}: ", DataError):
            file = readers.open_file(path)
        with file:
            first = readers.without_end(readers.read_line(file, str(path), 1, _PART_BYTES))
            start, _ = readers.peek(file, _PART_BYTES // 1024, str(path))
        fields = first.split()
        # Numbers in binary are not without low bytes for long.
        is_binary = path.suffix == ".bin" or min(start, default=9) < ord("\t")
        if len(fields) == 2 and all(field.isdigit() for field in fields):
            count, size = map(int, fields)
        elif is_binary or len(fields) < 3:
            raise DataError(
                f"{KEY}: {path} holds no word vectors. Its first line should be a word and its "
                "numbers, or how many words and numbers there are (of a fastText model, take the "
                ".vec file)."
            )
        else:
            count, size = None, len(fields) - 1
        return cls(path, size, count, is_binary)

    def check_size(self, wanted: int) -> None:
        """Refuse vectors of another size than a model's embeddings."""
        if self.size != wanted:
            raise ConfigError(
                f"{KEY}: {self.path} has vectors of {self.size} numbers, and the model has "
                f"embeddings of {wanted}; take other vectors, or model.embedding_width={self.size}"
            )

    def read(self, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, Vector]]:
        """Yield words that are wanted, with their vectors, in the order of the file."""
        return self._read_binary(is_wanted) if self.is_binary else self._read_text(is_wanted)

    def _read_text(self, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, Vector]]:
        for number, line in readers.numbered_lines(self.path):
            if number == 1 and self.count is not None:
                continue
            # Some words of GloVe hold spaces.
            word, *numbers = line.rstrip().rsplit(" ", self.size)
            if len(numbers) < self.size:
                actual = f"{len(numbers)} after {word[:_SHOWN]!r}"
                raise self._broken(f"line {number}", actual)
            if is_wanted(word):
                try:
                    vector = np.array(numbers, np.float32)
                except ValueError as error:
                    actual = str(error).partition(": ")[2][:_SHOWN]
                    raise self._broken(f"line {number}", actual) from error
                yield word, self._finite(vector, f"line {number}")

    def _read_binary(self, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, Vector]]:
        size = 4 * self.size
        with readers.open_file(self.path) as file:
            readers.read_line(file, str(self.path), 1, _PART_BYTES)
            part, at = b"", 0
            for number in range(1, (self.count or 0) + 1):
                while (end := part.find(b" ", at)) < 0 or len(part) < end + 1 + size:
                    try:
                        further = file.read(_PART_BYTES)
                    except readers.UNREADABLE as error:
                        raise self._broken(f"word {number}", str(error)) from error
                    if not further or (end < 0 and len(part) - at > _PART_BYTES):
                        raise self._broken(f"word {number}", "the end of the file, or no word")
                    part, at = part[at:] + further, 0
                word = part[at:end].lstrip(b"\n").decode("utf-8", "replace")
                at = end + 1 + size
                if is_wanted(word):
                    vector = np.frombuffer(part, "<f4", self.size, end + 1)
                    yield word, self._finite(vector, f"word {number}")

    def _finite(self, vector: Vector, place: str) -> Vector:
        if not np.isfinite(vector).all():
            raise self._broken(place, "one that is not finite")
        return vector

    def _broken(self, place: str, actual: str) -> DataError:
        return DataError(
            f"{KEY}: {self.path}, {place}: expected a word and {self.size} numbers, found {actual}."
        )


def token_vectors(vectors: WordVectors, tokenizer: Tokenizer) -> dict[int, Vector]:
    """Return the vectors of tokens that are words, by number.

    A token is a word if it can begin one, so that `play` is one, from which `playing` may be made,
    and `##ing` is none. A word is found as it is spelled in the file, else as the tokenizer
    normalises it: `Paris` is that of `paris` where texts are lower-cased.
    """
    spelled = defaultdict(list)
    for token in np.flatnonzero(tokenizer.starts_word).tolist():
        word = "" if token in tokenizer.special else tokenizer.decode([token]).strip()
        if word:
            spelled[word].append(token)
    rows, exact = dict[int, Vector](), set[str]()

    def is_wanted(word: str) -> bool:
        return word in spelled or tokenizer.normalized(word) in spelled

    for word, vector in vectors.read(is_wanted):
        is_exact = word in spelled
        name = word if is_exact else tokenizer.normalized(word)
        # The first of several is the most frequent one.
        if name in exact or (not is_exact and spelled[name][0] in rows):
            continue
        exact |= {word} if is_exact else set()
        rows |= dict.fromkeys(spelled[name], vector.copy())
    log.info(
        "embeddings: %s of %s tokens begin as a vector of %s, the others are drawn",
        f"{len(rows):,}", f"{tokenizer.size:,}", vectors.path,
    )  # fmt: skip
    return rows
