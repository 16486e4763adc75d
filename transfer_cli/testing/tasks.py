"""What any task must satisfy, with the objective that trains for it."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from transfer_cli.batch import Batch
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine.evaluation import values_by_row
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective, TaskInfo
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.base import Direction, Encoded, Rows, Task, build_task, rows_by_example
from transfer_cli.testing.claims import claim
from transfer_cli.testing.objectives import TOLERANCE, ObjectiveCase, check_objective, make_case

T = TypeVar("T")

LENGTH = 64
SHORT = 6
"""Tokens of a row in which a longer example finds no place: it is cut, or becomes windows."""


@dataclass(frozen=True)
class _TaskCase:
    """Examples of a task, encoded, under an objective with a small random model."""

    task: Task
    examples: Sequence[Any]
    objective_case: ObjectiveCase
    tokenizer: Tokenizer
    direction: Direction

    def encoded(self, length: int) -> Encoded:
        return self.task.encode(self.examples, self.tokenizer, length, self.direction)

    def evaluate(self, ask: Callable[[TransferModel, Batch, Encoding], T], batch: Batch) -> T:
        with torch.no_grad():
            return ask(self.objective_case.model, batch, Encoding(self.objective_case.model, batch))


def check_task(task: type[Task], objective: Objective, tokenizer: Tokenizer) -> None:
    """Check every claim of this module, and an unbound objective on the task's own sample."""
    sample, examples = task.sample()
    claim(objective.task == task.name, f"the objective is for {objective.task}, not {task.name}")
    direction = objective.direction or "causal"
    batch = _batch(sample.encode(examples, tokenizer, LENGTH, direction))
    info = TaskInfo(tokenizer, sample.labels, task=sample)
    check_objective(objective, info, batch)
    case = _TaskCase(sample, examples, make_case(objective, info, batch), tokenizer, direction)
    it_is_built_again_from_what_is_stored(case)
    examples_survive_json(case)
    rows_belong_to_examples(case)
    every_example_gets_one_answer(case)
    answers_can_be_written(case)
    results_can_be_told(case)


def it_is_built_again_from_what_is_stored(case: _TaskCase) -> None:
    """Claim: its config node and its labels, as JSON, give an equal task."""
    task = case.task
    stored = json.loads(json.dumps(task.as_node()))
    claim(build_task(stored, task.labels, "task") == task, f"{stored} builds another task")


def examples_survive_json(case: _TaskCase) -> None:
    """Claim: processes can hand examples to each other, and each has a text and known labels."""
    task = case.task
    for example in case.examples:
        again = task.example(**json.loads(json.dumps(asdict(example))))
        claim(task.texts(again) == task.texts(example), f"{example} is another one after JSON")
        claim(bool(task.texts(example)), f"{example} has no text")
        unknown = set(task.labels_of(example)) - set(task.labels) if task.labels else ()
        claim(not unknown, f"{example} has the labels {unknown}, which the task has not")


def rows_belong_to_examples(case: _TaskCase) -> None:
    """Claim: each example has a row or more, of the length that is said, and at most that asked."""
    for length in (LENGTH, SHORT):
        data = case.encoded(length)
        owners = sorted(set(data.example_of.tolist()))
        claim(owners == list(range(len(case.examples))), f"rows belong to the examples {owners}")
        plain = case.task.makes_windows or len(data) == len(case.examples)
        claim(plain, f"there are {len(data)} rows, and makes_windows is not set")
        claim(len(data.example_of) == len(data) == len(data.lengths), "there are not as many rows")
        batch = _batch(data)
        claim(batch["mask"].sum(-1).amax().item() <= length, f"a row is longer than {length}")
        for row in range(len(data)):
            alone = data.batch(np.array([row]))
            for name, value in alone.items():
                part = batch[name][row][tuple(slice(size) for size in value.shape[1:])]
                claim(torch.equal(part, value[0]), f"{name} of row {row} is another one alone")


def every_example_gets_one_answer(case: _TaskCase) -> None:
    """Claim: an example gets one answer, whole or cut, the same whatever it is batched with."""
    for length in (LENGTH, SHORT):
        data = case.encoded(length)
        together = _answers(case, data, [np.arange(len(data))])
        apart = _answers(case, data, [np.array([row]) for row in range(len(data))])
        for at, (one, other) in enumerate(zip(together, apart, strict=True)):
            same = _equal_json(case.task.written(one), case.task.written(other))
            claim(same, f"example {at} is answered otherwise in another batch")


def answers_can_be_written(case: _TaskCase) -> None:
    """Claim: an answer is JSON, has the fields that are said, and one cell for each column."""
    task, data = case.task, case.encoded(LENGTH)
    for answer in _answers(case, data, [np.arange(len(data))]):
        again = json.loads(json.dumps(answer))
        written = task.written(again)
        claim(written == task.written(answer), "an answer is another one after JSON")
        claim(tuple(written) == task.fields, f"an answer has the keys {list(written)}")
        cells = task.cells(answer)
        claim(len(cells) == len(task.cell_names), f"there are {len(cells)} cells")
        plain = all(isinstance(cell, str | int | float) for cell in cells)
        claim(plain, f"a cell holds neither text nor number: {cells}")


def results_can_be_told(case: _TaskCase) -> None:
    """Claim: what became of an example can be told, from one row or several."""
    for length in (LENGTH, SHORT):
        data, objective = case.encoded(length), case.objective_case.objective
        prepared = objective.prepare(_batch(data), ExampleNoise(0, "contract"))
        noted = case.evaluate(objective.example_results, prepared)
        if noted is None:
            raise AssertionError("the objective has no example_results")
        rows: Rows = dict(enumerate(values_by_row(noted.predicted, len(data))))
        apart = rows_by_example(data, rows)
        for at, windows in apart.items():
            result = case.task.result(data, at, windows)
            claim(0 <= result.probability <= 1, f"a probability is {result.probability}")
            claim(result.score is None or 0 <= result.score <= 1, f"a score is {result.score}")
            claim(isinstance(result.expected, str), "what would have been right is no text")
        scores = case.task.scores(data, apart)
        numbers = all(isinstance(value, int | float) for value in scores.values())
        claim(numbers, f"scores are no numbers: {scores}")
        declared = {metric.name for metric in objective.answer_metrics()}
        names = {name.partition("/")[0] for name in scores}
        claim(names == declared, f"answer_metrics does not declare {names}")


def _answers(case: _TaskCase, data: Encoded, batches: Sequence[np.ndarray]) -> list[Any]:
    rows: dict[int, Any] = {}
    for indices in batches:
        predictions = case.evaluate(case.objective_case.objective.predictions, data.batch(indices))
        claim(bool(predictions), "the objective has no predictions")
        rows |= zip(map(int, indices), values_by_row(predictions, len(indices)), strict=True)
    apart = rows_by_example(data, rows)
    return [case.task.answer(data, at, apart[at]) for at in range(len(case.examples))]


def _equal_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, numbers up to rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal_json, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(one == other)


def _batch(data: Encoded) -> Batch:
    return data.batch(np.arange(len(data)))
