"""A tiny model whose attention is looked at, with a tokenizer that knows every letter."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests import tiny
from transfer_cli.analysis.analysis import Material, Subject
from transfer_cli.assembly.finished_run import OpenedModel
from transfer_cli.assembly.init_from import Pretrained
from transfer_cli.data.labelled import INPUT, Example
from transfer_cli.data.split import Split
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_recipes import BytePairs
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.tasks.base import Task
from transfer_cli.tasks.classification import ClassificationTask

TEXTS = (
    "Where is the wall ?",
    "<script>alert(1)</script> & &lt; </script> \u202e \u00e4",
    "How many have a well ?",
    "wall",
    "the river " * 20,
)


@cache
def tokenizer() -> Tokenizer:
    return BytePairs(300).make(lambda: iter(TEXTS * 3))


def model(**changes: object) -> TransferModel:
    """Return a model without heads of its own: three places, two heads of attention."""
    made = TransferModel(Backbone(tiny.shape(positions=96, **changes), tokenizer().size), {})
    tiny.lively(made)
    return made.eval()


def subject(
    looked_at: TransferModel,
    texts: tuple[str, ...] = TEXTS,
    split: str = INPUT,
    batch: int = 8,
    shown: tuple[Task, Sequence[Any]] | None = None,
) -> Subject:
    """Return a model that is shown texts, as those of a file or of a split; or other examples."""
    start = Pretrained(Path(), Path(), None, tokenizer())
    shape = looked_at.backbone.shape
    task, examples = shown or (ClassificationTask(("one", "other")), list(map(Example, texts)))

    def encode(name: str) -> Split:
        data = task.encode(examples, tokenizer(), shape.positions, shape.direction)
        example_of = data.example_of if len(data) > len(examples) else None
        return Split(name, data, example_of=example_of)

    opened = OpenedModel("tiny", None, start, None, looked_at, shape.positions)
    material = Material("these texts", (split,), task, encode)
    return Subject(opened, material, (split,), tiny.FP32, batch=batch, seed=0)
