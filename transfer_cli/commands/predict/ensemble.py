"""One or several runs that answer examples of a task together."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from transfer_cli.assembly import datasets
from transfer_cli.assembly.finished_run import Trained, open_trained
from transfer_cli.data.encoded_task import warn_of_cuts
from transfer_cli.data.sampler import shard
from transfer_cli.engine import distributed
from transfer_cli.engine.evaluation import predictions, row_by_row
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError
from transfer_cli.tasks.base import Answer, Task, by_example


class Member:
    """A run that answers examples, with its own tokenizer and length."""

    def __init__(self, path: str, trained: Trained, precision: Precision, batch: int) -> None:
        found = trained.start.task
        if found is None:
            raise CheckpointError(
                f"run: {path} is a language model; predict needs a fine-tuned run"
            )
        self.task: Task = found
        self._shape = trained.start.description.shape
        # As in training: a text that was cut there is cut here.
        self.longest = datasets.block_length(
            trained.config.data.get("length"), self._shape.positions
        )
        self._trained = trained
        self._precision = precision
        self._batch = batch

    def answers(self, examples: Sequence[Any]) -> tuple[list[Answer], int]:
        """Return the answer to each example, and how many examples were cut."""
        if not examples:
            return [], 0
        tokenizer = self._trained.start.tokenizer
        direction = datasets.direction_of(self._shape)
        data = self.task.encode(examples, tokenizer, self.longest, direction)
        batches = predictions(
            self._trained.model,
            self._trained.objective,
            data,
            batch=self._batch,
            precision=self._precision,
            # Long ones first: where memory is short, the first batch says so.
            order=np.argsort(-data.lengths, kind="stable"),
        )
        rows: dict[int, Any] = {}
        for indices, found in batches:
            rows |= zip(map(int, indices), row_by_row(found, len(indices)), strict=True)
        apart = by_example(data, rows)
        found_answers = [self.task.answer(data, at, apart[at]) for at in range(len(examples))]
        return found_answers, data.num_cut


class Ensemble:
    """Runs that answer examples together, on however many processes there are.

    Raises:
        CheckpointError: One of them is not there, is not finished, was trained for no task, or its
            answers cannot be combined with those of the first.
    """

    def __init__(
        self, paths: Sequence[str], precision: Precision, base: str | None, batch: int
    ) -> None:
        self._members = [
            Member(path, open_trained(path, precision, base), precision, batch) for path in paths
        ]
        self.task = self._members[0].task
        for path, member in zip(paths[1:], self._members[1:], strict=True):
            self.task.check_combines(member.task, paths[0], path)
        self._num_cut = [0] * len(paths)
        self._num_texts = 0

    def together(self, examples: Sequence[Any]) -> list[Answer]:
        """Return the answer to each example.

        Each process calls this with the same examples, and does a part of them.
        """
        # Every process has examples of all lengths, so none waits long for the others.
        by_length = np.argsort(
            [sum(map(len, self.task.texts(each))) for each in examples], kind="stable"
        )
        world = distributed.world_size()
        parts = [shard(by_length, rank, world) for rank in range(world)]
        own = [examples[number] for number in parts[distributed.rank()]]
        tasks = [member.task for member in self._members]
        found, num_cut = zip(*(member.answers(own) for member in self._members), strict=True)
        combined = [
            self.task.combine(list(zip(tasks, each, strict=True)))
            for each in zip(*found, strict=True)
        ]
        answers: list[Answer] = [{}] * len(examples)
        gathered = distributed.all_gather_text(json.dumps([combined, num_cut]))
        for part, text in zip(parts, gathered, strict=True):
            theirs, cut = json.loads(text)
            for number, answer in zip(part, theirs, strict=True):
                answers[number] = answer
            self._num_cut = [sum(pair) for pair in zip(self._num_cut, cut, strict=True)]
        self._num_texts += len(examples)
        return answers

    def say_cuts(self) -> None:
        """Say how many examples were too long for a run."""
        for member, num_cut in zip(self._members, self._num_cut, strict=True):
            warn_of_cuts(num_cut, self._num_texts, member.longest)
