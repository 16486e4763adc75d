"""Which columns of a table hold the text and the label: by their names, else by what is in them."""

import ast
import itertools
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from transfer_cli.data.records import FEW_ROWS, plain_number
from transfer_cli.data.usual_names import USUAL_LABELS, USUAL_TEXTS, usual_rank
from transfer_cli.data.wanted import LABEL, TEXT, Chosen, Wanted
from transfer_cli.errors import DataError, list_names

_SEVERAL_LABELS = ("tags", "categories", "topics", "genres", "emotions", "intents", "keywords")
_PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("premise", "hypothesis"), ("question", "passage"),
    ("question", "context"),
)  # fmt: skip
_PAIRED_COLUMNS = (
    ("anchor", "positive"), ("query", "positive"), ("query", "document"), ("query", "passage"),
    ("query", "answer"), ("question", "answer"), ("question", "positive"), *_PAIRS,
    ("text", "pair"),
)  # fmt: skip
"""Usual names of two texts that belong together, or may."""

_SCORES = ("score", "similarity_score", "similarity", "label", "is_duplicate", "value")

_SOURCES_AND_TARGETS = (
    ("source", "target"), ("input", "output"), ("input_text", "target_text"),
    ("question", "answer"), ("document", "summary"), ("article", "highlights"),
    ("article", "summary"), ("text", "summary"), ("prompt", "completion"), ("text", "target"),
    ("instruction", "output"), ("instruction", "response"), ("prompt", "response"),
)  # fmt: skip
"""Usual names of texts, and of those that people wrote to them."""

_TURN_COLUMNS = {"messages": "role and content", "conversations": "ShareGPT"}
"""Usual names of lists of turns, and what people call these."""

_PROMPT_PAIRS = (
    ("instruction", "output"), ("instruction", "response"), ("prompt", "completion"),
    ("prompt", "response"), ("question", "answer"),
)  # fmt: skip
"""Usual names of questions, and of the answers of a model."""

_SOURCE_PARTS = ("instruction", "input", "context", "prompt", "question", "system", "history")
"""What stands in columns of their own and is read before an answer, too."""

_OTHER_DATA = {
    ("messages",): "data=chat objective=sft",
    ("conversations",): "data=chat objective=sft",
    ("tokens", "tags"): "data=conll objective=tagging",
    ("text", "entities"): "data=conll objective=tagging",
    ("question", "context", "answers"): "data=squad objective=span",
    ("title", "paragraphs"): "data=squad objective=span",
    ("context", "choices"): "data=choices objective=choice",
    ("sent1", "sent2", "ending0"): "data=choices objective=choice",
    ("premise", "choice1", "choice2"): "data=choices objective=choice",
    ("article", "questions", "options"): "data=choices objective=choice",
    ("history", "candidates"): "data=dialog objective=next_utterance",
    ("text", "spans"): "data=conll objective=tagging",
    ("annotations", "data"): "Label Studio's JSON; export its CSV or CONLL2003",
}
"""What to say for columns that are no text with a label."""

_NO_TEXT = re.compile(r"[-+0-9.,:/%\s]*|https?://\S+|[0-9a-fA-F]{8}[0-9a-fA-F-]*")
"""Numbers, dates, addresses and identifiers."""

_WHOLE_NUMBER = re.compile("-?[0-9]+")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*")

_YES = frozenset((
    "1", "1.0", "true", "yes", "y", "t", "x", "wahr", "vrai", "verdadero", "vero", "ja", "oui",
    "sí", "si", "\u2713", "\u2714",
))  # fmt: skip
_NO = frozenset((
    "", "0", "0.0", "false", "no", "n", "f", "falsch", "faux", "falso", "nein", "non",
))  # fmt: skip
"""How a cell says that a text has the label that its column is called by, or has not."""

_FLAG_NAMES = ("spam", "toxic")
"""Names that are those of labels and not of what is asked."""

_MAX_EMPTY_SHARE = 0.1
_MOST_LISTED = 20
_LONGEST_SHOWN = 80

Sample = Sequence[Mapping[str, object]]
"""The first rows: column -> value."""


def other_data_hint(names: Collection[str]) -> str:
    """Return a sentence where names of columns are those of another kind of data, else ""."""
    kind = next((data for known, data in _OTHER_DATA.items() if {*known} <= {*names}), None)
    return f" Such columns are those of {kind}." if kind else ""


def source_column(names: Collection[str]) -> str | None:
    """Return the column whose name is usual for texts that people made others from, or None."""
    return next((source for source, _ in _SOURCES_AND_TARGETS if source in names), None)


def turns_column(names: Collection[str]) -> str | None:
    """Return the column that is called as turns of conversations are, or questions, or None."""
    return next((name for name in (*_TURN_COLUMNS, *dict(_PROMPT_PAIRS)) if name in names), None)


def choose_columns(columns: Sequence[str], sample: Sample, wanted: Wanted, name: str) -> Chosen:
    """Return the columns of a table to read."""
    typed = (wanted.text, wanted.pair, wanted.label)
    text, pair, label = (_column_name(name, columns) for name in typed)
    labels, texts = (
        tuple(str(_column_name(name, columns)) for name in names)
        for names in (wanted.labels, wanted.texts)
    )
    text = "+".join(texts) or text
    if wanted.labelled and {"answer", "_input_hash"} <= {*columns}:
        check_accepted([row.get("answer") for row in sample], name)
    wanted = replace(wanted, labelled=wanted.labelled and not labels)
    if not columns:  # when it is read, it is said why
        return Chosen(text or TEXT, pair, label or LABEL, (), labels, texts, wanted.join)
    search = _Search(columns, sample, wanted, name)
    if wanted.turns:
        return search.find_turns(text, label)
    if wanted.written:
        text, label = search.find_target(text, label, *texts)
    if wanted.paired:
        text, pair, label = search.find_pair(text, pair, label)
    elif label is None and wanted.labelled:
        label = search.label_by_name(text, pair, *texts)
    if text is None and pair is None:
        text, pair = _pair_columns(columns)
    if text is None:
        chosen = (label, pair, *labels)
        text = search.text_by_name(*chosen) or search.longest_texts(*chosen)
    if label is None and wanted.labelled and not wanted.paired:
        label = search.repeated_labels(text, pair, *texts)
    roles = (
        (TEXT, wanted.text or texts, text), ("pair", wanted.pair, pair),
        (LABEL, wanted.label or not wanted.labelled, label),
    )  # fmt: skip
    notes = (
        f"{what} from {str(column)[:_LONGEST_SHOWN]!r}"
        for what, is_typed, column in roles
        if not is_typed and column not in (None, what)
    )
    label = label or ("" if wanted.paired else LABEL)
    return Chosen(text, pair, label, tuple(notes), labels, texts, wanted.join)


@dataclass(frozen=True)
class _Search:
    """Finds columns of a table; each method is given those that are found already."""

    columns: Sequence[str]
    sample: Sample
    wanted: Wanted
    name: str

    def find_turns(self, text: str | None, label: str | None) -> Chosen:
        """Return the column of the turns of conversations, or those of a question and its answer.

        Both are one where each row holds a list of turns.
        """
        column = text or next((name for name in _TURN_COLUMNS if name in self.columns), None)
        pair = next((both for both in _PROMPT_PAIRS if {*both} <= {*self.columns}), (None, None))
        if column is None and label is None:
            column, label = pair
        if column is None:
            raise self._ambiguity_error(TEXT, [])
        form = _TURN_COLUMNS.get(column, "Alpaca" if column == "instruction" else "one turn each")
        note = f"{TEXT} from {column!r}" + (f" and {label!r}" if label else "") + f" ({form})"
        return Chosen(column, None, label or column, () if text else (note,))

    def find_target(self, text: str | None, label: str | None, *parts: str) -> tuple[str, str]:
        """Return the columns of a text, perhaps in parts, and of what people wrote to it."""
        for source, target in _SOURCES_AND_TARGETS:
            both = text or source, label or target
            sources = parts or both[:1]
            is_there = both[1] not in sources and {*sources, both[1]} <= {*self.columns}
            if is_there and (any(map(self._cells, sources)) or not self.sample):
                if text is None:
                    self._check_whole_source(*both)
                return both
        if text is None or label is None:
            raise self._ambiguity_error(TEXT if text is None else LABEL, [])
        return text, label

    def _check_whole_source(self, source: str, target: str) -> None:
        """Refuse to leave out in silence what else an answer was written to."""
        others = [
            name for name in self._others((source, target))
            if name.lower() in _SOURCE_PARTS and self._cells(name)
        ]  # fmt: skip
        if others:
            keys = self.wanted.keys
            raise DataError(
                f"{self.name}: {target!r} answers {list_names(map(repr, (*others, source)))}, and "
                f"one column is read. Say {keys}{TEXT}=[{','.join((*others, source))}] to join "
                f"them, or {keys}{TEXT}={others[0]} {keys}{LABEL}={target}"
            )

    def find_pair(
        self, text: str | None, pair: str | None, label: str | None
    ) -> tuple[str, str, str | None]:
        """Return the columns of two texts, and that of their score if there is one."""
        lower = {column.lower(): column for column in self.columns}
        scores = (lower[name] for name in _SCORES if name in lower)
        score = label or (next(scores, None) if self.wanted.labelled else None)
        for first, second in _PAIRED_COLUMNS:
            both = text or lower.get(first), pair or lower.get(second)
            if both[0] is not None and both[1] is not None and both[0] != both[1]:
                return both[0], both[1], score
        keys, listing = self.wanted.keys, list_names(map(repr, self.columns), _MOST_LISTED)
        raise DataError(
            f"{self.name}: which columns are the two texts? (say {keys}{TEXT}=COLUMN "
            f"{keys}pair=COLUMN). The columns are {listing}.{other_data_hint(self.columns)}"
        )

    def text_by_name(self, *taken: str | None) -> str | None:
        """Return the column whose name is most usual for texts."""
        if TEXT in self.columns:
            return TEXT
        ranks = {column: usual_rank(column, USUAL_TEXTS) for column in self._others(taken)}
        named = [column for column in ranks if ranks[column] and _is_text(self._cells(column))]
        return max(named, key=ranks.__getitem__, default=None)

    def label_by_name(self, *taken: str | None) -> str | None:
        """Return the column that is called as labels are.

        One of these names stands before one that only ends with it, and no further: which of two
        labels is to be learnt is not for us to say.
        """
        others = self._others(taken)
        if LABEL in others:
            return LABEL
        known = USUAL_LABELS if self.wanted.separator is None else (*USUAL_LABELS, *_SEVERAL_LABELS)
        ranks = {column: usual_rank(column, known) for column in others}
        may_be = _are_mostly_numbers if self.wanted.numbers else _may_be_label
        ends = [column for column in others if ranks[column] and may_be(self._labels(column))]
        named = [column for column in ends if ranks[column] > 1] or ends
        if len(named) > 1:
            raise self._ambiguity_error(LABEL, named)
        if named and named[0].lower().endswith(_FLAG_NAMES) and len(self.flag_columns(*taken)) > 1:
            raise self._ambiguity_error(LABEL, self.flag_columns(*taken))
        return named[0] if named else None

    def flag_columns(self, *taken: str | None) -> list[str]:
        """Return the columns that say yes or no of each text."""
        if self.wanted.numbers or self.wanted.written:
            return []
        rows = {
            name: [is_yes(row.get(name)) for row in self.sample] for name in self._others(taken)
        }
        return [name for name, cells in rows.items() if {*cells} == {True, False}]

    def longest_texts(self, *taken: str | None) -> str:
        """Return the column with the longest different texts."""
        if len(self.columns) == 1:
            return self.columns[0]
        lengths = {}
        for column in self._others(taken):
            cells = self._cells(column)
            if cells and _is_text(cells) and 2 * len(set(cells)) > len(cells):
                lengths[column] = sum(map(len, cells)) / len(cells)
        order = sorted(lengths, key=lambda column: -lengths[column])
        if not order or any(2 * lengths[other] > lengths[order[0]] for other in order[1:]):
            raise self._ambiguity_error(TEXT, order)
        return order[0]

    def repeated_labels(self, *taken: str | None) -> str:
        """Return the column with few values, each there several times."""
        fitting = []
        most_labels = 100  # a column of more different values is no label unless its name says so
        for column in self._others(taken):
            cells = self._labels(column)
            values = set(cells)
            is_repeated = 2 <= len(values) <= min(most_labels, len(cells) / 2)
            may_be_empty = self.wanted.separator is not None
            is_full = may_be_empty or len(cells) >= (1 - _MAX_EMPTY_SHARE) * len(self.sample)
            is_name = _is_text(values) or all(map(_WHOLE_NUMBER.fullmatch, values))
            fits = is_repeated and is_name
            if self.wanted.numbers:
                fits = _are_mostly_numbers(cells) and not _are_counted(cells)
            if fits and is_full:
                fitting.append(column)
        flags = self.flag_columns(*taken)
        if len(flags) > 1:
            fitting += [name for name in flags if name not in fitting]
        if len(fitting) != 1:
            raise self._ambiguity_error(LABEL, fitting)
        return fitting[0]

    def _others(self, taken: Collection[str | None]) -> list[str]:
        return [column for column in self.columns if column not in taken]

    def _cells(self, column: str) -> list[str]:
        """Return the values of a column that are not empty."""
        values = (row.get(column) for row in self.sample)
        cells = (value if isinstance(value, str) else json.dumps(value) for value in values)
        return [cell for cell in cells if cell.strip() and cell != "null"]

    def _labels(self, column: str) -> list[str]:
        """Return the labels in a column whose cells may hold several."""
        if self.wanted.separator is None:
            return self._cells(column)
        return [
            part
            for row in self.sample
            for part in split_labels(row.get(column), self.wanted.separator)
            if isinstance(part, str)
        ]

    def _ambiguity_error(self, what: str, may_be: Sequence[str]) -> DataError:
        flags = self.flag_columns() if what == LABEL else []
        if len(may_be) > 1 and {*may_be} <= {*flags}:
            return DataError(self._several_labels_hint(may_be))
        which = " or ".join(repr(column[:_LONGEST_SHOWN]) for column in may_be[:4])
        keys = [TEXT, LABEL] if self.wanted.labelled else [TEXT]
        typed = " ".join(f"{self.wanted.keys}{key}=COLUMN" for key in keys)
        names = list_names((repr(column[:_LONGEST_SHOWN]) for column in self.columns), _MOST_LISTED)
        asks = f"the {what} may be in {which}" if may_be else f"which column is the {what}?"
        numbers = self._number_column() if what == LABEL and not self.wanted.numbers else None
        cure = (
            f" For the numbers in {numbers!r}: data=numbers objective=regression."
            if numbers
            else other_data_hint(self.columns)
        )
        return DataError(f"{self.name}: {asks} (say {typed}). The columns are {names}.{cure}")

    def _several_labels_hint(self, flags: Sequence[str]) -> str:
        """Return what to type for labels that have a column each, or for one of them."""
        names = [
            name if _PLAIN_NAME.fullmatch(name) else str(1 + self.columns.index(name))
            for name in flags
        ]
        key = f"{self.wanted.keys}{LABEL}="
        shown = list_names((repr(name[:_LONGEST_SHOWN]) for name in flags), 4)
        data, one = "data=labels objective=multilabel ", f"; for one of them {key}{names[0]}"
        if self.wanted.separator is not None:
            data = one = ""
        return (
            f"{self.name}: {shown} say yes or no of each text. For several labels a text type "
            f"{data}{key}[{','.join(names)}]{one}"
        )

    def _number_column(self) -> str | None:
        """Return a column of decimal numbers, which are never names of classes."""
        for column in self.columns:
            cells = self._cells(column)
            if _are_mostly_numbers(cells) and any("." in cell for cell in cells):
                return column
        return None


def split_labels(value: object, separator: str) -> list[object]:
    """Return the parts of a cell that holds several labels: a list, or texts that are joined.

    A list may be written as a text, as pandas does: ['a', 'b'].
    """
    if value is None:
        return []
    if isinstance(value, str) and value.strip().startswith("["):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            listed = ast.literal_eval(value.strip())
            value = listed if isinstance(listed, list) else value
    parts = value.split(separator) if isinstance(value, str) else value
    labels = parts if isinstance(parts, list) else [parts]
    return [part for part in labels if not isinstance(part, str) or part.strip()]


def check_accepted(answers: Collection[object], name: str) -> None:
    """Refuse Prodigy's examples that people rejected or passed over."""
    if any(answer not in ("accept", None) for answer in answers):
        raise DataError(
            f"{name}: Prodigy's 'answer' says of some rows reject or ignore; keep the others: "
            f"""grep '"answer": *"accept"' {shlex.quote(name)} > accepted.jsonl"""
        )


def is_yes(cell: object) -> bool | None:
    """Return what a cell says of the label that its column is called by; None: neither."""
    word = "" if cell is None else str(cell).strip().casefold()
    return word in _YES if word in _YES | _NO else None


def _column_name(typed: str | None, columns: Sequence[str]) -> str | None:
    """Return the name of a column; a number that is none counts from 1."""
    if typed is None or typed in columns or not typed.isdecimal():
        return typed
    return columns[int(typed) - 1] if 0 < int(typed) <= len(columns) else typed


def _pair_columns(columns: Sequence[str]) -> tuple[str | None, str | None]:
    lower = {column.lower(): column for column in columns}
    there = (pair for pair in _PAIRS if {*pair} <= lower.keys())
    return next(((lower[first], lower[second]) for first, second in there), (None, None))


def _is_text(cells: Collection[str]) -> bool:
    return not cells or not all(map(_NO_TEXT.fullmatch, cells))


def _are_mostly_numbers(cells: Sequence[str]) -> bool:
    """Return whether what is no number is a fault of single rows; a comma for the point is one."""
    points = (plain_number(cell.strip()).replace(",", ".", 1) for cell in cells)
    return bool(cells) and 2 * sum(map(bool, map(_NUMBER.fullmatch, points))) > len(cells)


def _are_counted(cells: Sequence[str]) -> bool:
    """Return whether cells are numbers of rows: each is one more than the one before."""
    whole = [int(cell) for cell in cells if _WHOLE_NUMBER.fullmatch(cell)]
    return len(whole) == len(cells) and all(b - a == 1 for a, b in itertools.pairwise(whole))


def _may_be_label(cells: Sequence[str]) -> bool:
    return len(cells) < FEW_ROWS or 2 * len(set(cells)) <= len(cells)
