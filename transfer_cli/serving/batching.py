"""A thread that runs a model, and the texts that wait for it.

Texts of several requests that wait at the same time pass through the model together, and those of a
large request in portions, between which others have their turn.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any


@dataclass(frozen=True, eq=False)
class Kind:
    """What can be asked of a model.

    Args:
        work: Answers texts, in their order; called in the model's thread alone.
        most: How many it is given at once.
    """

    work: Callable[[list[Any]], Sequence[Any]]
    most: int


class QueueFullError(Exception):
    """So many texts wait already that no others can."""


@dataclass(eq=False)
class Job:
    """The texts of a request. Once `answers` is done, by an answer or given up, none is begun."""

    kind: Kind
    texts: Sequence[Any]
    answers: "asyncio.Future[list[Any]]"
    answered: dict[int, Any] = field(default_factory=dict)

    def settle(self, answers: list[Any] | Exception) -> None:
        """Hand over the answers, or why there are none, from the thread of the model."""

        def settle() -> None:
            if self.answers.done():
                return
            if isinstance(answers, Exception):
                self.answers.set_exception(answers)
            else:
                self.answers.set_result(answers)

        with suppress(RuntimeError):  # the server has ended, and its loop is closed
            self.answers.get_loop().call_soon_threadsafe(settle)


class Worker:
    """The thread of a model.

    Args:
        wait_s: How long a text waits for others at most, while the model has nothing to do.
        on_batch: Told how many texts have been answered, and in how many seconds.
    """

    def __init__(
        self, wait_s: float, most_waiting: int, on_batch: Callable[[int, float], None]
    ) -> None:
        self._wait_s, self._most_waiting, self._on_batch = wait_s, most_waiting, on_batch
        self._waiting: deque[tuple[Job, int]] = deque()
        self._changed = threading.Condition()
        # As a daemon it keeps no process alive that has been told twice to end.
        thread = threading.Thread(target=self._run, name="model", daemon=True)
        thread.start()

    @property
    def waiting(self) -> int:
        """How many texts wait."""
        return len(self._waiting)

    def ask(self, kind: Kind, texts: Sequence[Any]) -> Job:
        """Put texts behind those that wait; called in the thread of the event loop."""
        job = Job(kind, texts, asyncio.get_running_loop().create_future())
        if not texts:
            job.answers.set_result([])
        with self._changed:
            if len(self._waiting) + len(texts) > self._most_waiting:
                self._waiting = deque(pair for pair in self._waiting if not pair[0].answers.done())
            if len(self._waiting) + len(texts) > self._most_waiting:
                raise QueueFullError
            self._waiting.extend((job, at) for at in range(len(texts)))
            self._changed.notify()
        return job

    def _run(self) -> None:
        while True:
            if batch := self._take():
                began = perf_counter()
                self._answer(batch)
                self._on_batch(len(batch), perf_counter() - began)

    def _take(self) -> list[tuple[Job, int]]:
        """Wait for texts; return those of the first one's kind that go together."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            kind = self._waiting[0][0].kind
            if kind.most > 1:
                self._changed.wait_for(lambda: len(self._waiting) >= kind.most, self._wait_s)
            batch: list[tuple[Job, int]] = []
            others: list[tuple[Job, int]] = []
            for pair in self._waiting:
                if not pair[0].answers.done():
                    fits = pair[0].kind is kind and len(batch) < kind.most
                    (batch if fits else others).append(pair)
            begun = {job for job, _ in batch}
            # What is left of a request waits behind those that have had no turn meanwhile.
            self._waiting = deque(sorted(others, key=lambda pair: pair[0] in begun))
            return batch

    def _answer(self, batch: Sequence[tuple[Job, int]]) -> None:
        jobs = list(dict.fromkeys(job for job, _ in batch))
        try:
            answers = jobs[0].kind.work([job.texts[at] for job, at in batch])
        except Exception as error:  # the process lives, and whoever asked gets the error
            if len(jobs) == 1:
                jobs[0].settle(error)
            else:  # whose text it was is found out, so that the others have their answers
                for job in jobs:
                    self._answer([pair for pair in batch if pair[0] is job])
            return
        for (job, at), answer in zip(batch, answers, strict=True):
            job.answered[at] = answer
            if len(job.answered) == len(job.texts):
                job.settle([job.answered[place] for place in range(len(job.texts))])
