"""What a language model is asked about: texts with a word left out, pairs of sentences."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transfer_cli.data import readers
from transfer_cli.data.documents import expand_paths
from transfer_cli.data.json_tables import json_rows
from transfer_cli.data.records import text_of
from transfer_cli.errors import DataError

GAP = "[MASK]"
"""What stands for the word in a text."""


@dataclass(frozen=True)
class ClozeExample:
    """A text before and after a word that is left out, and the word."""

    before: str
    after: str
    answer: str


@dataclass(kw_only=True)
class ClozeTexts:
    """Own files of JSON lines.

    Where `[MASK]` stands in a text, `answer` is left out (LAMA, Petroni et al. 2019). A text
    without it is asked for its own last word (LAMBADA, Paperno et al. 2016).

    Args:
        files: Paths or globs.
        text: The field of the text, and
        answer: that of the word.
        among: A file of words, one a line, among them the answer: the vocabulary that models
            have in common. None: all that a model may say.
    """

    files: str | list[str]
    text: str = "text"
    answer: str = "answer"
    among: str | None = None

    def load(self) -> list[ClozeExample]:
        """Return the texts."""
        texts: list[ClozeExample] = []
        for path in expand_paths(self.files):
            before = len(texts)
            texts += self._read(path)
            if len(texts) == before:
                raise DataError(f"{path} has no texts.")
        return texts

    def words(self) -> list[str] | None:
        """Return the words of `among`."""
        if self.among is None:
            return None
        paths = expand_paths(self.among)
        words = [line.strip() for path in paths for line in readers.read_lines(path)]
        if not any(words):
            raise DataError(f"{self.among} has no words.")
        return [word for word in dict.fromkeys(words) if word]

    def _read(self, path: Path) -> Iterator[ClozeExample]:
        for record in json_rows(path):
            text = text_of(record, self.text, str(path)).strip()
            place = f"{path}, line {record.line}"
            if GAP not in text:
                before, _, last = text.rpartition(" ")
                if not before:
                    raise DataError(f"{place}: nothing is before the last word of {text[:80]!r}.")
                yield ClozeExample(before, "", last)
                continue
            before, *after = text.split(GAP)
            if len(after) != 1:
                raise DataError(f"{place}: the text has {len(after)} gaps {GAP}, expected one.")
            answer = text_of(record, self.answer, str(path)).strip()
            if not answer:
                raise DataError(f"{place}: {self.answer!r} is empty.")
            yield ClozeExample(before.rstrip(), after[0], answer)


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences, and the phenomenon that they are about ("" if that is not said)."""

    good: str
    bad: str
    group: str = ""


class PairsOfSentences(ABC):
    """A set of minimal pairs."""

    @abstractmethod
    def load(self) -> list[MinimalPair]:
        """Return the pairs."""
