"""Names of labels: which were probably not meant as they are, which are joined or left out."""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Literal

from transfer_cli.errors import DataError, list_names

log = logging.getLogger(__name__)

_MISSING = frozenset((
    "nan", "null", "none", "<na>", "na", "n/a", "nat", "undefined", "(null)", "(blank)",
    "(empty)", "#n/a", "#nv", "#n/d",
))  # fmt: skip
_FORMULA_ERROR = re.compile(r"#[^a-z\s]+[!?]|Err:[0-9]+")
"""What spreadsheets show for a formula that fails, `#DIV/0!` in any language."""

_NUMBER = re.compile(r"[-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][-+]?[0-9]+)?")
_WHOLE_NUMBER = re.compile(r"-?[0-9]+(\.0+)?")  # as a column with missing values has it, too
_BETWEEN_LETTERS = re.compile(r"(?<=[^\W\d_])[-_]+(?=[^\W\d_])")
_MARKS = re.compile("[\u0300-\u036f\ufe00-\ufe0f]")
"""Accents, and what chooses between two pictures of one character."""

_FEWEST_RARE = 20
_MOST_SHOWN = 5
_MOST_JOINED = 12

OTHER = "other"
"""What rare labels are called where they become one."""


def warn_of_unclear_labels(counts: Mapping[str, int], where: str) -> None:
    """Warn about names of labels that were probably not meant as they are."""
    kinds = {
        "labels that differ in capitals, spaces, accents, a .0 or characters without width alone: "
        "{}; if they are one label, data.merge_labels=true joins them": _alike_labels(counts),
        "{} looks like a missing label or a formula's error, and is learnt as a class; leave such "
        "rows out of the file (data.label)": [
            f"{name!r} {counts[name]:,}" for name in counts if is_missing_label(name)
        ],
    }
    for line, names in kinds.items():
        if names:
            log.warning("%s: %s", where, line.format(list_names(names, _MOST_SHOWN)))


@dataclass(frozen=True)
class LabelRules:
    """What becomes of spellings of a label, and of labels that few examples have.

    Args:
        merge: Whether to merge labels that `warn_of_unclear_labels` names, into the commonest.
        least: The fewest examples of a label that is not rare.
        rare: keep: rare labels are learnt like others; drop: they are left out; other: they are
            one label, `other`. What training did not have is then left out, or `other`, too.
    """

    merge: bool = False
    least: int = 5
    rare: Literal["keep", "drop", "other"] = "keep"

    def learnt_names(self, counts: Mapping[str, int], where: str) -> dict[str, str | None]:
        """Return what the labels of training examples are called; None: they are left out.

        Args:
            counts: How many examples have each label, in the order of their first ones.
        """
        names: dict[str, str | None] = {label: label for label in counts}
        if self.merge:
            commonest: dict[str, str] = {}
            for label in sorted(counts, key=lambda label: -counts[label]):
                commonest.setdefault(_fold(label), label)
            names = {label: commonest[_fold(label)] for label in counts}
            joined = [f"{name!r} into {to!r}" for name, to in names.items() if name != to]
            if joined:
                log.info("%s: data.merge_labels: %s", where, list_names(joined, _MOST_JOINED))
        totals = Counter[str]()
        for label, name in names.items():
            totals[str(name)] += counts[label]
        rare = [name for name, count in totals.items() if count < self.least]
        # Where most examples have such a label it is rather the file that is small.
        of_rare = sum(totals[name] for name in rare)
        if rare and (self.rare != "keep" or 2 * of_rare < totals.total()):
            self._say_rare(rare, totals, where)
        if self.rare == "keep":
            return names
        to = _other_among(name for name in totals if name not in rare)
        new = to if self.rare == "other" else None
        return {label: new if name in rare else name for label, name in names.items()}

    def _say_rare(self, rare: Sequence[str], totals: Mapping[str, int], where: str) -> None:
        if self.rare != "keep" and len(totals) - len(rare) + (self.rare == "other") < 2:
            raise DataError(
                f"{where}: {len(rare)} of its {len(totals)} labels have fewer than data.least="
                f"{self.least} examples, so that nothing is left to tell apart; set it lower, or "
                "say data.rare=keep"
            )
        done = {
            "keep": "learnt like the others; data.rare=drop or other leaves them out or joins them",
            "drop": "left out, as data.rare=drop says",
            "other": "joined, as data.rare=other says",
        }
        shown = list_names((f"{name!r} {totals[name]:,}" for name in rare), _MOST_SHOWN)
        log.warning(
            "%s: labels of fewer than data.least=%d examples: %s; %s",
            where, self.least, shown, done[self.rare],
        )  # fmt: skip

    def known_name(self, label: str, labels: Sequence[str]) -> str | None:
        """Return what a label is called among those that were learnt, by the same rules.

        One for which there is no rule stays as it is, and None is left out.
        """
        if label in labels:
            return label
        if self.merge or _WHOLE_NUMBER.fullmatch(label):
            same = next((known for known in labels if _fold(known) == _fold(label)), None)
            if same is not None:
                return same
        other = _other_among(labels)  # not learnt where no label was rare
        other = other if other in labels else label
        return {"keep": label, "drop": None, "other": other}[self.rare]


def _other_among(labels: Iterable[str]) -> str:
    """Return the label that rare ones become: one that is called so, or a new one."""
    alike = [label for label in labels if _fold(label) == _fold(OTHER)]
    return alike[0] if alike and OTHER not in alike else OTHER


def warn_of_numbers(counts: Mapping[str, int], where: str) -> None:
    """Warn about classes that are rather numbers, or names of single texts."""
    names = [name for name in counts if not is_missing_label(name)]
    numbers = [float(name.replace(",", ".")) for name in names if _NUMBER.fullmatch(name)]
    is_decimal = any(number % 1 for number in numbers)
    most_stars = 20  # more whole numbers than these are rather amounts than names of classes
    if len(names) == len(numbers) > (2 if is_decimal else most_stars):
        log.warning(
            "%s: the labels are numbers (%s) and are learnt as %d classes without an order; "
            "data=numbers objective=regression learns them as numbers",
            where, list_names(names, _MOST_SHOWN), len(counts),
        )  # fmt: skip
        return
    once = [name for name, count in counts.items() if count == 1]
    if len(once) > max(_FEWEST_RARE, len(counts) / 2):
        log.warning(
            "%s: %d of %d labels occur once (%s); is that the column of the label (data.label)?",
            where, len(once), len(counts), list_names((f"{name[:80]!r}" for name in once), 3),
        )  # fmt: skip


def log_label_differences(labels: Mapping[Any, Collection[str]]) -> None:
    """Say in one line which labels some files have and others have not; labels are by file."""
    files_of = {
        label: [path for path in labels if label in labels[path]]
        for label in dict.fromkeys(chain.from_iterable(labels.values()))
    }
    partial = [
        f"{label!r} ({f'{files[0]} alone' if len(files) == 1 else f'{len(files)} files'})"
        for label, files in files_of.items()
        if len(files) < len(labels)
    ]
    if partial:
        log.info(
            "%s: labels that not each of the %d files has: %s",
            list_names(labels, 1), len(labels), list_names(partial, _MOST_SHOWN),
        )  # fmt: skip


def is_missing_label(name: str) -> bool:
    """Return whether a label is what a program writes where there is none."""
    return name.lower() in _MISSING or bool(_FORMULA_ERROR.fullmatch(name))


def _alike_labels(counts: Mapping[str, int]) -> list[str]:
    """Return labels, with how often they are there, that are one when they are folded."""
    folded = sorted(counts, key=lambda name: (_fold(name), name))
    return [
        f"{first!r} {counts[first]:,} and {second!r} {counts[second]:,}"
        for first, second in pairwise(folded)
        if _fold(first) == _fold(second)
    ]


def _fold(name: str) -> str:
    """Return a label without what people do not see or do not mind."""
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    text = _MARKS.sub("", _BETWEEN_LETTERS.sub("", text))
    text = text.partition(".")[0] if _WHOLE_NUMBER.fullmatch(text) else text
    return "".join(
        letter for letter in text if not letter.isspace() and unicodedata.category(letter) != "Cf"
    )


def label_separator(labels: Sequence[str]) -> str | None:
    """Return the mark that surely joins several names in labels: most names are in several."""
    for mark in "|;,":
        parts = [{part.strip() for part in label.split(mark)} for label in labels]
        in_labels = Counter(part for names in parts for part in names)
        repeated = sum(count > 1 for count in in_labels.values())
        if sum(len(names) > 1 for names in parts) > 1 and 4 * repeated >= 3 * len(in_labels):
            return mark
    return None
