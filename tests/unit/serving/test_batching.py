"""What waits for a model: what goes together, what is refused, and what is given up."""

import asyncio
import threading

import pytest

from transfer_cli.serving.batching import Kind, QueueFullError, Worker


class Held:
    """A model whose first pass waits, so that what is asked meanwhile is there at once."""

    def __init__(self, most_waiting=100):
        self.seen, self.go, self.begun = [], threading.Event(), threading.Event()
        self.worker = Worker(0.0, most_waiting, lambda texts, seconds: None)
        self.kind, self.other = Kind(self.work, 4), Kind(self.work, 1)

    def work(self, texts):
        self.begun.set()
        assert self.go.wait(20)
        self.seen.append([*texts])
        if "bad" in texts:
            raise ValueError("bad")
        return [text.upper() for text in texts]

    async def first(self):
        """Ask for something, and return once the model is at it."""
        job = self.worker.ask(self.kind, ["first"])
        await asyncio.to_thread(self.begun.wait, 20)
        return job.answers

    def ask(self, *asked):
        """Return the answers to the first texts and to these, by kind, or the errors."""

        async def ask_all():
            first = await self.first()
            jobs = [self.worker.ask(kind, [*texts]) for texts, kind in asked]
            self.go.set()
            answers = (job.answers for job in jobs)
            return await asyncio.gather(first, *answers, return_exceptions=True)

        return asyncio.run(ask_all())


def test_what_waits_goes_together_up_to_a_size_and_by_kind():
    held = Held()

    answers = held.ask(("abc", held.kind), ("d", held.other), ("efg", held.kind), ("", held.kind))

    assert answers == [["FIRST"], [*"ABC"], ["D"], [*"EFG"], []]
    assert held.seen == [["first"], [*"abce"], ["d"], [*"fg"]]


def test_a_large_request_lets_others_have_their_turn_between_its_portions():
    held = Held()

    answers = held.ask(*((texts, held.kind) for texts in ("abcdefghij", "klmnop", "q")))

    assert answers == [["FIRST"], [*"ABCDEFGHIJ"], [*"KLMNOP"], ["Q"]]
    assert held.seen == [["first"], [*"abcd"], [*"klmn"], [*"qefg"], [*"ophi"], ["j"]]


def test_a_text_that_fails_fails_alone():
    held = Held()

    first, a, bad, others = held.ask(
        (["a"], held.kind), (["bad"], held.kind), (["b", "c"], held.kind)
    )

    assert (first, a, others) == (["FIRST"], ["A"], ["B", "C"])
    assert isinstance(bad, ValueError)


def test_a_full_queue_refuses_and_forgets_what_nobody_waits_for():
    async def ask(held):
        first = await held.first()
        job = held.worker.ask(held.kind, ["a", "b", "c"])
        with pytest.raises(QueueFullError):
            held.worker.ask(held.kind, ["d"])
        job.answers.cancel()
        other = held.worker.ask(held.kind, ["d"])
        held.go.set()
        return await asyncio.gather(first, other.answers)

    held = Held(most_waiting=3)

    assert asyncio.run(ask(held)) == [["FIRST"], ["D"]]
    assert held.seen == [["first"], ["d"]]
    assert held.worker.waiting == 0
