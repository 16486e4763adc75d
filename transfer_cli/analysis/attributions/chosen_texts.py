"""Which texts are explained, and what the model answers to each."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from transfer_cli.analysis.analysis import Subject, spread
from transfer_cli.analysis.attributions.explained_text import ExplainedText, Explainer, words_of
from transfer_cli.analysis.importance.judged_split import check_task
from transfer_cli.assembly.datasets import encoded_of
from transfer_cli.batch import Batch, to_device
from transfer_cli.data.labelled import INPUT
from transfer_cli.errors import ConfigError, one_of
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.regression import Regression

FEWEST_WORDS = 2
"""Of a text: those with fewer have nothing to compare."""


class ChosenTexts:
    """The texts of a split, or of a file, as a model reads and answers them.

    Args:
        subject: The model, and what it is shown.
        explainer: Asks it.
        label: The label whose score is explained; None: the one that the model says.
    """

    def __init__(self, subject: Subject, explainer: Explainer, label: str | None = None) -> None:
        self._subject, self._explainer = subject, explainer
        self._objective = subject.objective
        self._is_language_model = isinstance(self._objective, CausalLM)
        check_task(subject)
        self._texts = subject.material.texts(subject.split)
        self._label = None if label is None else self._number_of(label)

    def _number_of(self, label: str) -> int:
        labels = self._objective.info.labels
        if not labels or self._is_language_model:
            raise ConfigError("label: this model has none to choose from; leave label out")
        one_of("label", label, labels)
        return labels.index(label)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._texts)

    def spread(self, most: int) -> Iterator[ExplainedText]:
        """Yield `most` texts, evenly spread, or all; those of a single word are left out."""
        return self._explained(spread(len(self._texts), most).tolist())

    def wrong(self, most: int) -> Iterator[ExplainedText]:
        """Yield the first `most` texts that are answered wrongly."""
        if self._is_language_model or isinstance(self._objective, Regression):
            raise ConfigError(
                "only_wrong: what this model says is neither right nor wrong; leave it out"
            )
        if tuple(self._subject.material.names) == (INPUT,):
            raise ConfigError(
                "only_wrong: texts of a file have no right answers; leave it out, or name labelled "
                "data (data=)"
            )
        found = 0
        for text in self._explained(range(len(self._texts))):
            if text.prediction != text.label:
                yield text
                found += 1
            if found == most:
                return

    def _explained(self, rows: Sequence[int]) -> Iterator[ExplainedText]:
        for row in rows:
            made = self._continued(row) if self._is_language_model else self._answered(row)
            if made is not None and len(made.words) >= FEWEST_WORDS:
                yield made

    def _continued(self, row: int) -> ExplainedText | None:
        """Return a text and the token that a causal language model would go on with."""
        opened, tokenizer = self._subject.opened, self._subject.tokenizer
        tokens = opened.start.prompt_layout.encode(self._texts[row])[-opened.length :]
        if not tokens:
            return None
        batch = _one(torch.tensor(tokens), self._subject)
        with torch.inference_mode():
            token = int(self._explainer.outputs(batch).argmax())
        said = repr(tokenizer.decode([token]) or tokenizer.pieces([token])[0])  # may be a space
        words = words_of(tokens, tokenizer, [self._texts[row]])
        return ExplainedText(
            row, torch.tensor(tokens), None, None, words, token, explained=said, prediction=said,
            label=None,
        )  # fmt: skip

    def _answered(self, row: int) -> ExplainedText:
        subject, objective = self._subject, self._objective
        batch = subject.split.data.batch(np.array([row]))
        view = to_device({**batch, "padded": ~batch["mask"].all()}, subject.precision.device)
        with torch.inference_mode():
            outputs_C = self._explainer.outputs(view)[0].cpu()
            found = objective.predictions(subject.model, view, Encoding(subject.model, view))
        output = int(outputs_C.argmax()) if self._label is None else self._label
        task: Any = subject.material.task
        said = {name: each[0].cpu().tolist() for name, each in found.items()}
        answer = task.answer(encoded_of(subject.split), row, {row: said})
        return self._labelled(row, batch, output, task, str(task.cells(answer)[0]))

    def _labelled(
        self, row: int, batch: Batch, output: int, task: Task, said: str
    ) -> ExplainedText:
        example = encoded_of(self._subject.split).examples[row]
        if self._explainer.is_choice:
            # The choice alone is explained; what is said of the others stays as it is.
            said = explained = str(example.choices[output])
            batch = {name: each[:, output] for name, each in batch.items() if each.dim() > 2}
            output = 0
        else:
            labels = self._objective.info.labels
            explained = labels[output] if labels else "the value"
        mask_T = batch["mask"][0]
        tokens_T = batch["tokens"][0][mask_T]
        return ExplainedText(
            row,
            tokens_T,
            batch["segment"][0][mask_T] if "segment" in batch else None,
            int(batch["gap"][0]) if "gap" in batch else None,
            words_of(tokens_T.tolist(), self._subject.tokenizer, task.texts(example)),
            output,
            explained,
            said,
            "|".join(task.labels_of(example)) or None,
        )


def _one(tokens_T: torch.Tensor, subject: Subject) -> Batch:
    tokens_1T = tokens_T[None]
    mask = torch.ones_like(tokens_1T, dtype=torch.bool)
    batch = {"tokens": tokens_1T, "mask": mask, "index": torch.arange(1)}
    return to_device({**batch, "padded": ~mask.all()}, subject.precision.device)
