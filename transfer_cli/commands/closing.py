"""What is asked after all answers: how they are shared out, how sure they are, which are least so.

Shares are compared with those of the labels in training. Whoever labels other texts than were
learnt from sees it there first.
"""

import heapq
import logging
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from statistics import NormalDist, quantiles

from transfer_cli.engine.evaluation import SHOWN_CHARACTERS
from transfer_cli.errors import list_names
from transfer_cli.metrics import wilson_interval
from transfer_cli.safe_files import in_one_line
from transfer_cli.tasks.base import Task

log = logging.getLogger(__name__)

FEWEST_ANSWERS = 20
"""Answers below which there is nothing to count."""

LEAST_SURE = 10

MOST_VALUES = 2**17
"""Numbers that are kept, for their quartiles."""

MOST_LABELS = 20
"""Labels whose shares are told, the most frequent ones."""

USUAL_THRESHOLD = 0.5
"""The probability below which answers are unsure, where no threshold was fitted."""


class AnswerSummary:
    """Counts answers as they come, in the memory of a few, and tells of them at the end.

    Args:
        trained: How many training examples have each label; empty where nobody knows.
        texts: How many training examples there are.
    """

    def __init__(self, task: Task, trained: Mapping[str, int], texts: int) -> None:
        self._task = task
        self._training_counts = {
            label: n for label, n in trained.items() if texts and label in task.counted
        }
        self._num_training_texts = texts
        self._counts: Counter[str] = Counter()
        self._values, self._step = array("d"), 1
        self._num_answers = self._num_unsure = 0
        self._least_sure: list[tuple[float, int, str]] = []

    def add(
        self, answer: str, probability: float, text: str, line: int | None, file: str | None = None
    ) -> None:
        """Count an answer, as `Task.said` says it, to the text on a line."""
        self._num_answers += 1
        value = self._task.said_value(answer)
        if value is not None:
            self._add_value(value)
            return
        self._counts.update(self._task.said_labels(answer))
        self._num_unsure += probability < (self._task.abstain_below or USUAL_THRESHOLD)
        place = "" if line is None else f"{file}, line {line:,}" if file else f"line {line:,}"
        shown = f"  {place:10} {probability:.3f}  {_short(answer) or '(none)'}  {_short(text)}"
        # The surest falls out; among equally sure ones the last.
        heapq.heappush(self._least_sure, (-probability, -self._num_answers, shown))
        if len(self._least_sure) > LEAST_SURE:
            heapq.heappop(self._least_sure)

    def _add_value(self, value: float) -> None:
        """Keep every value, of many every second one, of more every fourth, and so on."""
        if self._num_answers % self._step == 0:
            self._values.append(value)
        if len(self._values) == MOST_VALUES:
            self._values, self._step = self._values[::2], 2 * self._step

    def log_summary(self) -> None:
        """Log what there is to tell of the answers; nothing of few."""
        if self._num_answers < FEWEST_ANSWERS:
            return
        if self._values:
            self._log_quartiles()
            return
        for line in self._share_lines():
            log.info("%s", line)
        drifted = [*self._drifted_labels()]
        if drifted:
            log.warning(
                "the answers are shared out otherwise than the labels in training, by more than "
                "chance: %s", list_names(drifted, 5),
            )  # fmt: skip
        below = self._task.abstain_below
        log.info(
            "unsure: %s of %s answers (%.1f %%) have a probability below %.3g%s",
            f"{self._num_unsure:,}", f"{self._num_answers:,}",
            100 * self._num_unsure / self._num_answers, below or USUAL_THRESHOLD,
            ", objective.abstain's threshold, and are null" if below else "",
        )  # fmt: skip
        log.info("least sure:")
        for _, _, shown in sorted(self._least_sure, reverse=True):
            log.info("%s", shown)

    def _log_quartiles(self) -> None:
        """Log the quartiles of numbers, which have no probability and so are not sure or unsure."""
        before = getattr(self._task, "quartiles", ())
        log.info(
            "the quartiles of %s answers: %s%s", f"{self._num_answers:,}",
            _joined_numbers(quantiles(self._values, method="inclusive")),
            f"; those of the numbers in training: {_joined_numbers(before)}" if before else "",
        )  # fmt: skip

    def _share_lines(self) -> Iterator[str]:
        if not self._counts:
            return
        whole = self._num_answers
        beside = ", and that of the labels in training" if self._training_counts else ""
        yield f"the shares of {whole:,} answers in percent, with a 95 % interval{beside}:"
        names = {label: _short(label) for label, _ in self._counts.most_common(MOST_LABELS)}
        wide = max(map(len, names.values()))
        for label, name in names.items():
            low, high = wilson_interval(self._counts[label], whole)
            share, *interval = (100 * part for part in (self._counts[label] / whole, low, high))
            line = f"  {name:{wide}}  {share:5.1f} ({interval[0]:.1f} to {interval[1]:.1f})"
            before = 100 * self._training_counts.get(label, 0) / max(1, self._num_training_texts)
            yield f"{line}  {before:.1f}" if self._training_counts else line

    def _drifted_labels(self) -> Iterator[str]:
        """Yield the labels whose share is another one, in words.

        The 95 % interval of the difference of two shares (Newcombe 1998, method 10), corrected for
        the number of labels (Bonferroni), does not hold 0 then.
        """
        if not self._counts or not self._training_counts:
            return
        z = NormalDist().inv_cdf(1 - 0.025 / len(self._training_counts))
        for label, before in self._training_counts.items():
            here, there = self._counts[label] / self._num_answers, before / self._num_training_texts
            low, high = wilson_interval(self._counts[label], self._num_answers, z)
            least, most = wilson_interval(before, self._num_training_texts, z)
            parts = (here - low, most - there) if here > there else (high - here, there - least)
            if abs(here - there) > math.hypot(*parts):
                yield f"{_short(label)} {100 * here:.0f} % instead of {100 * there:.0f} %"


def _joined_numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _short(text: str) -> str:
    return in_one_line(text)[:SHOWN_CHARACTERS]
