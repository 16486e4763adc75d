"""GLUE's own files (Wang et al. 2019): nine data sets of sentences and pairs of them.

They are parted by tabs and nothing in them is quoted, so a quotation mark is a character like any
other. The development set is the validation split; the test sets that are given out have no labels.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transfer_cli.data import readers
from transfer_cli.data.encoded_task import Truncate
from transfer_cli.data.labelled import Example, LabelledData, Submission
from transfer_cli.errors import DataError, did_you_mean, list_names, one_of
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.regression import NumberExample, RegressionTask, number_problem
from transfer_cli.tasks.sources import LabelledSource

log = logging.getLogger(__name__)

_ENTAILED = ("entailment", "not_entailment")


@dataclass(frozen=True)
class _Files:
    """How the files of a data set are read.

    Args:
        answers: The name of the file of answers to its test set; see `Submission.files`.
        texts: The columns of the texts, by name; by number where there is no header.
        labels: All labels; none: the label is a number.
        judged_by: The measure that the benchmark takes, see `ClassificationTask`.
        left_out: A label whose rows are left out: its annotators did not agree.
        may_be_short: Whether rows that lack columns are left out, and not refused.
    """

    answers: str | Mapping[str, str]
    texts: tuple[str | int, ...]
    label: str | int
    labels: tuple[str, ...] = ("0", "1")
    judged_by: str = "error_rate"
    splits: Mapping[str, str] = field(
        default_factory=lambda: {"train": "train.tsv", "validation": "dev.tsv"}
    )
    left_out: str | None = None
    may_be_short: bool = False


_SENTENCES = ("sentence1", "sentence2")
_MNLI = {"train": "train.tsv", "validation": "dev_matched.tsv", "mismatched": "dev_mismatched.tsv"}

TASKS: Mapping[str, _Files] = {
    "cola": _Files("CoLA.tsv", (3,), 1, judged_by="matthews"),
    "sst2": _Files("SST-2.tsv", ("sentence",), "label"),
    "mrpc": _Files("MRPC.tsv", ("#1 String", "#2 String"), "Quality", judged_by="f1"),
    "stsb": _Files("STS-B.tsv", _SENTENCES, "score", ()),
    "qqp": _Files(
        "QQP.tsv", ("question1", "question2"), "is_duplicate", judged_by="f1", may_be_short=True,
    ),
    "mnli": _Files(
        {"mismatched": "MNLI-mm.tsv", "matched": "MNLI-m.tsv", "diagnostic": "AX.tsv"},
        _SENTENCES, "gold_label", ("contradiction", "entailment", "neutral"),
        splits=_MNLI, left_out="-",
    ),
    "qnli": _Files("QNLI.tsv", ("question", "sentence"), "label", _ENTAILED),
    "rte": _Files("RTE.tsv", _SENTENCES, "label", _ENTAILED),
    "wnli": _Files("WNLI.tsv", _SENTENCES, "label"),
}  # fmt: skip
"""The data sets by the names that GLUE's folders have, in lower case and without a hyphen."""


@dataclass(kw_only=True)
class Glue(LabelledSource):
    """A data set of GLUE: labels for sentences or pairs, of STS-B numbers.

    Args:
        task: One of `TASKS`.
        folder: Where its files lie, as GLUE gives them out.
        truncate: Which of two texts is cut where they are too long together.
    """

    task: str
    folder: str
    truncate: Truncate = "longest_first"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task", self.task, TASKS, ValueError)
        self._files = TASKS[self.task]

    def submission(self) -> Submission:
        """See `TaskData`; test sets have a header, that of CoLA as well."""
        files = self._files.answers
        texts = tuple(
            "sentence" if isinstance(column, int) else column for column in self._files.texts
        )
        bounds = None if self._files.labels else (0.0, 5.0)
        return Submission({"": files} if isinstance(files, str) else files, texts, bounds)

    @property
    def kind(self) -> type[Task]:
        return ClassificationTask if self._files.labels else RegressionTask

    def given_splits(self, data_dir: Path) -> LabelledData:
        folder = Path(self.folder).expanduser()
        paths = {split: folder / file for split, file in self._files.splits.items()}
        splits = {split: tuple(self._examples(path)) for split, path in paths.items()}
        empty = next((split for split, examples in splits.items() if not examples), None)
        if empty is not None:
            raise DataError(f"{paths[empty]} has no rows.")
        labels, judge = self._files.labels, self._files.judged_by
        if labels:
            node = ClassificationTask.node(judged_by=judge, truncate=self.truncate)
        else:
            node = RegressionTask.node(truncate=self.truncate)
        files = {split: [path] for split, path in paths.items()}
        return LabelledData(self.task, labels, splits, node, files=files)

    def _examples(self, path: Path) -> Iterator[Example | NumberExample]:
        """Yield the examples of a file; how many rows were left out is logged."""
        files, short, disputed = self._files, 0, 0
        rows = self._rows(path)
        header = [] if isinstance(files.label, int) else next(rows, (1, []))[1]
        *texts, label = (
            self._column_index(column, header, path) for column in (*files.texts, files.label)
        )
        for line, cells in rows:
            if len(cells) <= max(*texts, label):
                if not files.may_be_short:
                    raise DataError(
                        f"{path}, line {line}: {len(cells)} columns parted by tabs, expected at "
                        f"least {max(*texts, label) + 1}."
                    )
                short += 1
                continue
            if cells[label] == files.left_out:
                disputed += 1
                continue
            yield self._example([cells[place] for place in texts], cells[label], path, line)
        for count, reason in ((short, "lack columns"), (disputed, f"are {files.left_out!r}")):
            if count:
                log.warning("%s: left out %s rows that %s", path, f"{count:,}", reason)

    @staticmethod
    def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
        for line, text in readers.numbered_lines(path):
            yield line, text.removeprefix("\ufeff" if line == 1 else "").split("\t")

    @staticmethod
    def _column_index(column: str | int, header: Sequence[str], path: Path) -> int:
        if isinstance(column, int):
            return column
        if column not in header:
            raise DataError(
                f"{path}, line 1: no column {column!r}; there is {list_names(map(repr, header), 8)}"
                ". Is it the file of another task?"
            )
        return header.index(column)

    def _example(
        self, texts: Sequence[str], label: str, path: Path, line: int
    ) -> Example | NumberExample:
        text, pair = texts[0], texts[1] if len(texts) > 1 else None
        labels = self._files.labels
        if not labels:
            problem = number_problem(label)
            if problem is not None:
                raise DataError(f"{path}, line {line}: {label!r:.80} {problem}.")
            return NumberExample(text, float(label), pair, line)
        if label not in labels:
            raise DataError(
                f"{path}, line {line}: the label {label!r:.80} is not one of {list_names(labels)}."
                f"{did_you_mean(label, labels)}"
            )
        return Example(text, labels.index(label), pair, line)
