"""Minimal pairs: an acceptable sentence, and one that differs in what makes it unacceptable."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transfer_cli.data.cloze import MinimalPair, PairsOfSentences
from transfer_cli.data.documents import expand_paths
from transfer_cli.data.json_tables import json_rows
from transfer_cli.data.readers import format_of, numbered_lines
from transfer_cli.data.records import text_of
from transfer_cli.errors import DataError, between


@dataclass(kw_only=True)
class MinimalPairs(PairsOfSentences):
    """Own files: JSON lines as those of BLiMP (Warstadt et al. 2020), or tab-separated ones.

    JSON lines may also hold `prefix`, `right` and `wrong`: two forms of the word that goes on
    (Linzen et al. 2016). Tab-separated lines hold the good and the bad sentence.

    Args:
        files: Paths or globs.
        good: The field of the good sentence, and
        bad: of the bad one.
        group: The field that says what a pair is about.
    """

    files: str | list[str]
    good: str = "sentence_good"
    bad: str = "sentence_bad"
    group: str = "UID"

    def load(self) -> list[MinimalPair]:
        pairs: list[MinimalPair] = []
        for path in expand_paths(self.files):
            read = self._read_json_lines if format_of(path) == "jsonl" else _read_tab_separated
            before = len(pairs)
            pairs += read(path)
            if len(pairs) == before:
                raise DataError(f"{path} has no pairs.")
        return pairs

    def _read_json_lines(self, path: Path) -> Iterator[MinimalPair]:
        name = str(path)
        for record in json_rows(path):
            group = record.fields.get(self.group, "")
            about = group if isinstance(group, str) else ""
            if "prefix" in record.fields and self.good not in record.fields:
                before, right, wrong = (
                    text_of(record, field, name) for field in ("prefix", "right", "wrong")
                )
                yield MinimalPair(f"{before} {right}", f"{before} {wrong}", about)
            else:
                good, bad = (text_of(record, field, name) for field in (self.good, self.bad))
                yield MinimalPair(good, bad, about)


def _read_tab_separated(path: Path) -> Iterator[MinimalPair]:
    for number, line in numbered_lines(path):
        cells = line.split("\t")
        if not line.strip():
            continue
        if len(cells) != 2 or not all(map(str.strip, cells)):
            raise DataError(
                f"{path}, line {number} has {len(cells)} columns, expected two that a tab parts: "
                "the good sentence and the bad one. Files of JSON lines end in .jsonl."
            )
        yield MinimalPair(*cells)


_NOUNS = (
    ("author", "authors"), ("doctor", "doctors"), ("farmer", "farmers"), ("teacher", "teachers"),
    ("woman", "women"), ("child", "children"), ("king", "kings"), ("car", "cars"),
    ("house", "houses"), ("table", "tables"), ("picture", "pictures"), ("door", "doors"),
    ("river", "rivers"), ("ship", "ships"),
)  # fmt: skip
_PREPOSITIONS = ("near", "behind", "next to")
_VERBS = (("is", "are", "here."), ("was", "were", "old."), ("has", "have", "a name."))

MAX_PAIRS = 100_000
"""Pairs of each group: all are in memory."""

AGREEMENT = {"none": (0, False), "same": (1, False), "other": (1, True), "two others": (2, True)}
"""Groups of `Agreement`: how many nouns stand between subject and verb, and whether their number
is another."""


@dataclass(kw_only=True)
class Agreement(PairsOfSentences):
    """Made-up sentences whose verb has, or has not, the number of its subject.

    Nouns between them tempt a model to the number of the nearest one (Linzen et al. 2016).

    Args:
        pairs: Sentences of each group.
    """

    pairs: int = 60

    def __post_init__(self) -> None:
        between("pairs", self.pairs, 1, MAX_PAIRS)

    def load(self) -> list[MinimalPair]:
        return [
            _agreement_pair(number, group) for group in AGREEMENT for number in range(self.pairs)
        ]


def _agreement_pair(number: int, group: str) -> MinimalPair:
    """Return the pair of a number: subjects, verbs and prepositions take turns."""
    nouns_between, is_other = AGREEMENT[group]
    plural = number % 2
    subject = _NOUNS[number // 2 % len(_NOUNS)]
    words = ["The", subject[plural]]
    for place in range(1, nouns_between + 1):
        noun = _NOUNS[(number // 2 + 3 * place + number // 5) % len(_NOUNS)]
        if noun is subject:
            noun = _NOUNS[(_NOUNS.index(noun) + 1) % len(_NOUNS)]
        preposition = _PREPOSITIONS[(number // 3 + place) % len(_PREPOSITIONS)]
        words += [preposition, "the", noun[plural != is_other]]
    forms = _VERBS[number // 4 % len(_VERBS)]
    good, bad = (" ".join([*words, forms[which], forms[2]]) for which in (plural, 1 - plural))
    return MinimalPair(good, bad, f"agreement/{group}")
