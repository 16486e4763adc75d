"""One or several runs that answer examples of a task together."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from transfer_cli.assembly.finished_run import TrainedModel
from transfer_cli.assembly.model import direction_of
from transfer_cli.batch import shard
from transfer_cli.config.build import TARGET, build
from transfer_cli.data.encoded_task import (
    EncodedRows,
    is_empty,
    warn_of_cuts,
    warn_of_empty,
    warn_of_unknown,
)
from transfer_cli.data.labelled import Submission, TaskData
from transfer_cli.engine import distributed
from transfer_cli.engine.evaluation import inference_batch_size, predictions, values_by_row
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.progress import Advance
from transfer_cli.tasks.base import EMPTY, UNKNOWN, WARNING, Answer, Task, rows_by_example


class Ensemble:
    """Runs that answer examples together, on however many processes there are.

    Attributes:
        first: The first run; its columns, and its labels in training, are those of all.
    """

    def __init__(
        self, runs: Iterable[TrainedModel], precision: Precision, batch: int | str
    ) -> None:
        self._precision = precision
        self._runs: list[tuple[TrainedModel, Task]] = []
        for trained in runs:
            task = trained.start.task
            if task is None:
                raise CheckpointError(
                    f"run: {trained.path} has learnt from text without labels; predict needs a "
                    "fine-tuned run"
                )
            self._runs.append((trained, task))
        self.batch = min(
            inference_batch_size(batch, trained.model, precision.device)
            for trained, _ in self._runs
        )
        self.first, self.task = self._runs[0]
        for trained, task in self._runs[1:]:
            self.task.check_combines(task, self.first.path, trained.path)
        self._check_tokens()
        thresholds = [task.abstain_below for _, task in self._runs]
        if thresholds[1:]:
            mean = sum(thresholds) / len(thresholds) if all(thresholds) else 0.0
            fitted = {**self.task.fitted, "abstain_below": mean}
            self.task = replace(self.task, fitted=fitted)
        self._num_cut = [0] * len(self._runs)
        self._num_texts = self._num_empty = self._num_unknown = 0

    def submission(self) -> Submission:
        """Return how the answers of the first run are handed in to a benchmark."""
        node = self.first.config.data
        source = build(node, "data", TaskData) if TARGET in node else None
        submission: Submission | None = source.submission() if source else None
        if submission is None:
            raise ConfigError(
                "output_format: glue is for runs of data=glue; take jsonl, csv or tsv"
            )
        return submission

    @property
    def num_runs(self) -> int:
        """How many runs there are."""
        return len(self._runs)

    def digest(self) -> str:
        """Return a fingerprint of all that gives the answers.

        Weights are not all: runs of the same ones may read texts by other patterns.
        """
        parts = []
        for trained, task in self._runs:
            weights = trained.start.fingerprint(trained.model.state_dict())
            read_as = json.dumps([dict(trained.start.description.objective), task.as_node()])
            parts.append(f"{weights} {task.labels} {trained.length} {read_as}")
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()

    def answers(
        self, examples: Sequence[Any], advance: Advance = lambda _: None
    ) -> list[Answer | None]:
        """Return the answer to each example; None where the numbers in it are not finite.

        Each process calls this with the same examples, and does a part of them. `advance` is told
        how many answers of a run have been found meanwhile.
        """
        # Every process has examples of all lengths, so none waits long for the others.
        by_length = np.argsort(
            [sum(map(len, self.task.texts(example))) for example in examples], kind="stable"
        )
        world = distributed.world_size()
        parts = [shard(by_length, rank, world) for rank in range(world)]
        local_examples = [examples[number] for number in parts[distributed.rank()]]
        groups = [self._runs] if self._decodes_jointly else [[run] for run in self._runs]
        tasks = [group[0][1] for group in groups]
        group_answers, cuts, known = zip(
            *(self._local_answers(local_examples, group, advance) for group in groups), strict=True
        )
        combined = [
            None if None in votes else self.task.combine(list(zip(tasks, votes, strict=True)))
            for votes in zip(*group_answers, strict=True)
        ]
        for at, example in enumerate(local_examples):
            warning = None if all(flags[at] for flags in known) else UNKNOWN
            if is_empty(self.task.texts(example)):
                warning = EMPTY
            if warning and (answer := combined[at]) is not None:
                combined[at] = {**answer, WARNING: warning}
        answers: list[Answer | None] = [None] * len(examples)
        gathered = distributed.all_gather_text(_as_json(combined, [*chain.from_iterable(cuts)]))
        for part, text in zip(parts, gathered, strict=True):
            theirs, cut = json.loads(text)
            for number, answer in zip(part, theirs, strict=True):
                answers[number] = answer
            self._num_cut = [sum(pair) for pair in zip(self._num_cut, cut, strict=True)]
        self._num_texts += len(examples)
        warnings = [answer.get(WARNING) for answer in answers if answer is not None]
        self._num_empty += warnings.count(EMPTY)
        self._num_unknown += warnings.count(UNKNOWN)
        return answers

    @property
    def _decodes_jointly(self) -> bool:
        """Whether the runs choose each token of a text together, not each its own answer."""
        return len(self._runs) > 1 and self.first.objective.search is not None

    def _check_tokens(self) -> None:
        """Refuse runs that write other tokens."""
        first, others = self.first, [trained for trained, _ in self._runs[1:]]
        for other in others if self._decodes_jointly else ():
            if other.start.tokenizer.hash != first.start.tokenizer.hash:
                raise CheckpointError(
                    f"run: {other.path} writes other tokens than {first.path}, and each token is "
                    "chosen together; give runs with the same tokenizer"
                )
            if other.model.backbone.causal != first.model.backbone.causal:
                raise CheckpointError(
                    f"run: {other.path} ends a text with another token than {first.path}, as one "
                    "model is causal and the other is not; give runs that are alike in this"
                )

    def warn_of_texts(self) -> None:
        """Say how many examples were empty, not known, or too long for a run."""
        warn_of_empty(self._num_empty, self._num_texts)
        warn_of_unknown(self._num_unknown, self._num_texts)
        for (trained, task), num_cut in zip(self._runs, self._num_cut, strict=True):
            warn_of_cuts(num_cut, self._num_texts, *task.kept(trained.length))

    def _local_answers(
        self, examples: Sequence[Any], runs: Sequence[tuple[TrainedModel, Task]], advance: Advance
    ) -> tuple[list[Answer | None], list[int], Sequence[bool]]:
        """Return answers, how many examples were cut, and whether any token is known.

        They are those of one run, or of several that write them together.
        """
        if not examples:
            return [], [0] * len(runs), ()
        data, *others = [
            task.encode(
                examples, trained.start.tokenizer, trained.length,
                direction_of(trained.start.description.shape),
            )
            for trained, task in runs
        ]  # fmt: skip
        trained, task = runs[0]
        batches = predictions(
            trained.model,
            trained.objective,
            data,
            batch=self.batch,
            precision=self._precision,
            # Long ones first: where memory is short, the first batch says so.
            order=np.argsort(-data.lengths, kind="stable"),
            beside=[
                (trained.objective, trained.model, rows)
                for (trained, _), rows in zip(runs[1:], others, strict=True)
            ],
        )
        rows: dict[int, Any] = {}
        wrong: set[int] = set()
        begun: set[int] = set()  # a long example is several rows, and one answer
        for indices, outputs in batches:
            rows |= zip(map(int, indices), values_by_row(outputs, len(indices)), strict=True)
            fresh = {*data.example_of[indices].tolist()} - begun
            begun |= fresh
            advance(len(fresh) * len(runs) * distributed.world_size())  # the others have as many
            for value in outputs.values():
                # Not infinity: it can stand for what is ruled out.
                is_nan_B = value.isnan().reshape(len(indices), -1).any(1).numpy()
                wrong.update(data.example_of[indices[is_nan_B]].tolist())
        apart = rows_by_example(data, rows)
        known: Sequence[bool] = [True] * len(examples)
        if isinstance(data, EncodedRows):
            known = data.has_known_tokens(trained.start.tokenizer.special).tolist()
        return [
            None if at in wrong else task.answer(data, at, apart[at]) for at in range(len(examples))
        ], [encoded.num_cut for encoded in (data, *others)], known  # fmt: skip


def _as_json(answers: Sequence[Answer | None], num_cut: Sequence[int]) -> str:
    """Return answers as JSON, without those that it cannot hold: their numbers are not finite."""
    texts = []
    for answer in answers:
        try:
            texts.append(json.dumps(answer, allow_nan=False))
        except ValueError:
            texts.append("null")
    return f"[[{', '.join(texts)}], {json.dumps(num_cut)}]"
