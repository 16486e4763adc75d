"""One or several runs that label texts: the mean of their probabilities."""

import base64
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from transfer_cli.assembly import datasets
from transfer_cli.assembly.finished_run import Trained, open_trained
from transfer_cli.data.encoded_task import EncodedTask, warn_of_cuts
from transfer_cli.data.sampler import shard
from transfer_cli.data.tasks import Example
from transfer_cli.engine import distributed
from transfer_cli.engine.evaluate import logits
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError

_MOST_NAMED = 5


class Member:
    """A run that labels texts, with its own tokenizer and length.

    Args:
        path: The run directory.
        trained: The run.
        precision: With the device.
        batch: Texts that pass through the model at once.
    """

    def __init__(self, path: str, trained: Trained, precision: Precision, batch: int) -> None:
        description = trained.start.description
        if not description.labels:
            raise CheckpointError(
                f"run: {path} is a language model; predict needs a fine-tuned run"
            )
        self.labels = description.labels
        # As in training: a text that was cut there is cut here.
        self.longest = datasets.block_length(
            trained.config.data.get("length"), description.shape.positions
        )
        self._causal = description.shape.direction == "causal"
        self._trained = trained
        self._precision = precision
        self._batch = batch

    def shares(self, examples: Sequence[Example]) -> tuple[npt.NDArray[np.float64], int]:
        """Return the probabilities of its labels, `[B, C]`, and how many texts were cut."""
        if not examples:
            return np.empty((0, len(self.labels))), 0
        data = EncodedTask(
            examples,
            self._trained.start.tokenizer,
            self.longest,
            "causal" if self._causal else "bidirectional",
        )
        # Long ones first: where memory is short, the first batch says so.
        order = np.argsort(-data.lengths, kind="stable")
        batches = logits(
            self._trained.model,
            self._trained.objective,
            data,
            batch=self._batch,
            precision=self._precision,
            order=order,
        )
        shares_BC = np.empty((len(examples), len(self.labels)))
        shares_BC[order] = np.concatenate([batch.softmax(1).numpy() for batch in batches])
        return shares_BC, data.num_cut


class Ensemble:
    """Runs that label texts together, on however many processes there are.

    Args:
        members: The runs, by path; all have the same labels, in any order.

    Attributes:
        labels: In the order of the first run.

    Raises:
        CheckpointError: One of the runs has other labels.
    """

    def __init__(self, members: Sequence[tuple[str, Member]]) -> None:
        first, self.labels = members[0][0], members[0][1].labels
        for path, member in members[1:]:
            _check_same(first, self.labels, path, member.labels)
        self._members = [member for _, member in members]
        # Where each label of ours stands among those of a member.
        self._places = [[m.labels.index(label) for label in self.labels] for m in self._members]
        self._num_cut = [0] * len(members)
        self._num_texts = 0

    def together(self, examples: Sequence[Example]) -> npt.NDArray[np.float64]:
        """Return the probability of each label for each text, `[B, C]`.

        Each process calls this with the same texts, and does a part of them.
        """
        # Every process has texts of all lengths, so none waits long for the others.
        sizes = [len(each.text) + len(each.pair or "") for each in examples]
        by_length = np.argsort(sizes, kind="stable")
        parts = [
            shard(by_length, rank, distributed.world_size())
            for rank in range(distributed.world_size())
        ]
        own = [examples[number] for number in parts[distributed.rank()]]
        shares_BC = np.empty((len(examples), len(self.labels)))
        for part, text in zip(parts, distributed.all_gather_text(self._answer(own)), strict=True):
            answer = json.loads(text)
            shares = np.frombuffer(base64.b64decode(answer["shares"]))
            shares_BC[part] = shares.reshape(-1, len(self.labels))
            self._num_cut = [sum(pair) for pair in zip(self._num_cut, answer["cut"], strict=True)]
        self._num_texts += len(examples)
        return shares_BC

    def say_cuts(self) -> None:
        """Say how many texts were too long for a run."""
        for member, num_cut in zip(self._members, self._num_cut, strict=True):
            warn_of_cuts(num_cut, self._num_texts, member.longest)

    def _answer(self, examples: Sequence[Example]) -> str:
        """Return the mean probabilities of some texts, in a form that can be sent."""
        mean_BC = np.zeros((len(examples), len(self.labels)))
        cut = []
        for member, places in zip(self._members, self._places, strict=True):
            shares_BC, num_cut = member.shares(examples)
            mean_BC += shares_BC[:, places] / len(self._members)
            cut.append(num_cut)
        return json.dumps({"shares": base64.b64encode(mean_BC.tobytes()).decode(), "cut": cut})


def open_ensemble(
    paths: Sequence[str], precision: Precision, *, base: str | None, batch: int
) -> Ensemble:
    """Return the runs at `paths`, on the device.

    Args:
        paths: Run directories.
        precision: With the device.
        base: Where the model lies that they refer to, if it is not where it was.
        batch: Texts that pass through a model at once.

    Raises:
        CheckpointError: One of them is not there, is not finished, has no labels, or others than
            the first.
    """
    return Ensemble(
        [
            (path, Member(path, open_trained(path, precision, base), precision, batch))
            for path in paths
        ]
    )


def _check_same(first: str, labels: Sequence[str], other: str, others: Sequence[str]) -> None:
    lacks = [label for label in labels if label not in others]
    beyond = [label for label in others if label not in labels]
    if lacks or beyond:
        parts = [f"{_listed(lacks)} only in {first}"] if lacks else []
        parts += [f"{_listed(beyond)} only in {other}"] if beyond else []
        raise CheckpointError(
            f"run: the labels differ, {' and '.join(parts)}; give runs with the same labels"
        )


def _listed(labels: Sequence[str]) -> str:
    shown = ", ".join(repr(label[:80]) for label in labels[:_MOST_NAMED])
    left = len(labels) - _MOST_NAMED
    return f"{shown} and {left:,} more" if left > 0 else shown
