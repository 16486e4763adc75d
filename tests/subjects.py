"""What analyses are called with in tests: tiny models, and what they are shown."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tests import tiny
from transfer_cli.analysis.analysis import Material, Subject
from transfer_cli.assembly.finished_run import OpenedModel
from transfer_cli.data.split import Dataset, Split
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Objective
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.classification import ClassificationTask

LABELLED = ClassificationTask(tiny.LABELS)


def subject(
    model: TransferModel,
    objective: Objective,
    data: Dataset,
    task: Task | None = LABELLED,
    tokenizer: Tokenizer | None = None,
    **facts: object,
) -> Subject:
    """Return a model with examples of one split; of its start there is the tokenizer alone."""
    material = Material(
        "these examples", ("validation",), task, lambda name: Split(name, data, **facts)
    )
    layout = None if tokenizer is None else PromptLayout(tokenizer)
    start: Any = SimpleNamespace(tokenizer=tokenizer, reads_lines=True, prompt_layout=layout)
    opened = OpenedModel("tiny", None, start, objective, model.eval(), 32)
    return Subject(opened, material, ("validation",), tiny.FP32, batch=8, seed=0)


def tokenizer_of(texts: Sequence[str], size: int = tiny.VOCABULARY.size) -> Tokenizer:
    """Return a tokenizer with at most as many tokens as a tiny model has."""
    return WordPiece(size=size, lowercase=True).make(lambda: iter(texts))
