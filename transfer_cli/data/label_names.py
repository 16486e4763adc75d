"""Names of labels that were probably not meant as they are: a line of warning for each kind."""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from transfer_cli.errors import listed

log = logging.getLogger(__name__)

_MISSING = frozenset((
    "nan", "null", "none", "<na>", "na", "n/a", "nat", "undefined", "(null)", "(blank)",
    "(empty)", "#n/a", "#nv", "#n/d",
))  # fmt: skip
_FORMULA_ERROR = re.compile(r"#[^a-z\s]+[!?]|Err:[0-9]+")
"""What spreadsheets show for a formula that fails, `#DIV/0!` in any language."""

_NUMBER = re.compile(r"[-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][-+]?[0-9]+)?")
_BETWEEN_LETTERS = re.compile(r"(?<=[^\W\d_])[-_]+(?=[^\W\d_])")
_MARKS = re.compile("[\u0300-\u036f\ufe00-\ufe0f]")
"""Accents, and what chooses between two pictures of one character."""

_FEWEST_RARE = 20
_MOST_SHOWN = 5


def look_over(counts: Mapping[str, int], where: str) -> None:
    """Warn about names of labels that were probably not meant as they are."""
    kinds = {
        "labels that differ in no more than capitals, spaces, accents or characters without width: "
        "{}; if they are one label, write it in one way": _alike(counts),
        "{} looks like a missing label or a formula's error, and is learnt as a class; leave such "
        "rows out of the file": [
            f"{name!r} {counts[name]:,}" for name in counts if is_missing(name)
        ],
    }
    for line, names in kinds.items():
        if names:
            log.warning("%s: %s (data.label)", where, line.format(listed(names, _MOST_SHOWN)))


def say_numbers(counts: Mapping[str, int], where: str) -> None:
    """Warn about classes that are rather numbers, or names of single texts."""
    wanted = [name for name in counts if not is_missing(name)]
    numbers = [float(name.replace(",", ".")) for name in wanted if _NUMBER.fullmatch(name)]
    is_decimal = any(number % 1 for number in numbers)
    most_stars = 20  # more whole numbers than these are rather amounts than names of classes
    if len(wanted) == len(numbers) > (2 if is_decimal else most_stars):
        log.warning(
            "%s: the labels are numbers (%s) and are learnt as %d classes without an order; "
            "data=numbers objective=regression learns them as numbers",
            where, listed(wanted, _MOST_SHOWN), len(counts),
        )  # fmt: skip
        return
    once = [name for name, count in counts.items() if count == 1]
    if len(once) > max(_FEWEST_RARE, len(counts) / 2):
        log.warning(
            "%s: %d of %d labels occur once (%s); is that the column of the label (data.label)?",
            where, len(once), len(counts), listed((f"{name[:80]!r}" for name in once), 3),
        )  # fmt: skip


def is_missing(name: str) -> bool:
    """Return whether a label is what a program writes where there is none."""
    return name.lower() in _MISSING or bool(_FORMULA_ERROR.fullmatch(name))


def _alike(counts: Mapping[str, int]) -> list[str]:
    """Return labels, with how often they are there, that are one when they are folded."""
    folded = sorted(counts, key=lambda name: (_folded(name), name))
    return [
        f"{first!r} {counts[first]:,} and {second!r} {counts[second]:,}"
        for first, second in pairwise(folded)
        if _folded(first) == _folded(second)
    ]


def _folded(name: str) -> str:
    """Return a label without what people do not see or do not mind."""
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    text = _MARKS.sub("", _BETWEEN_LETTERS.sub("", text))
    return "".join(
        letter for letter in text if not letter.isspace() and unicodedata.category(letter) != "Cf"
    )


def joined_by(labels: Sequence[str]) -> str | None:
    """Return the mark that surely joins several names in labels: most names are in several."""
    for mark in "|;,":
        parts = [{part.strip() for part in label.split(mark)} for label in labels]
        in_labels = Counter(part for names in parts for part in names)
        repeated = sum(count > 1 for count in in_labels.values())
        if sum(len(names) > 1 for names in parts) > 1 and 4 * repeated >= 3 * len(in_labels):
            return mark
    return None
