"""What a finished run says about itself beyond its measures."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from tests import tiny
from transfer_cli.assembly.datasets import Prepared
from transfer_cli.config import compose
from transfer_cli.config.flags import Request
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.split import Split
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.engine.evaluation import Portion
from transfer_cli.engine.features.cached import CachedFeatures
from transfer_cli.model.readout import ScalarMix
from transfer_cli.objectives.base import ExampleResults
from transfer_cli.objectives.classification import Classification
from transfer_cli.runs.items import Item
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.training import examples as items
from transfer_cli.training.measurements import hyperparameters, layer_shares, peak_memory

CONFIG = {
    "seed": 3,
    "data_dir": "/somewhere",
    "data": {"_target_": "a.B", "train": "few.csv", "text": "question", "validation": 0.1},
    "tokenizer": None,
    "optimizer": {"lr": 1e-3, "betas": [0.9, 0.999], "fused": True},
    "adaptation": {"plan": {"every": "1 epoch"}},
    "loop": {"cache": "far/away", "monitor": "x" * 300},
    "run": {"dir": "here"},
    "init_from": "there",
}


def test_plain_values_and_presets_are_listed_and_paths_are_not():
    found = hyperparameters(OmegaConf.create(CONFIG), {"adaptation": "ulmfit"})

    assert found == {
        "seed": 3, "data.text": "question", "data.validation": 0.1, "tokenizer": "none",
        "optimizer.lr": 1e-3, "optimizer.fused": "true", "adaptation.plan.every": "1 epoch",
        "loop.monitor": "x" * 100, "adaptation": "ulmfit",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_nothing_that_moves_a_run_is_listed(command):
    data = "sample_text" if command == "pretrain" else "sample_questions"
    config = compose.compose(command, Request(overrides=(f"data={data}",)))

    found = hyperparameters(config, {})

    assert {key.partition(".")[0] for key in found} <= {
        "adaptation", "data", "init", "loop", "losses", "mixing", "model", "objective", "optimizer",
        "precision", "schedule", "seed", "streams", "tokenizer",
    }  # fmt: skip
    assert found["loop.batch"] == config.loop.batch
    assert all(isinstance(value, str | int | float) for value in found.values())


def test_a_learnt_mix_tells_how_much_each_layer_counts():
    model = tiny.model(Classification())
    assert layer_shares(model) is None

    mix = ScalarMix(4, norm=False)
    model.readout = mix
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([0.0, 0.0, 0.0, 100.0]))

    assert layer_shares(model) == [0, 0, 0, 1]


def test_memory_is_in_bytes():
    assert peak_memory(torch.device("cpu")) > 50 * 2**20


# --- examples ------------------------------------------------------------------------------------


EXAMPLES = (
    Example("Where is it ?", label=1),
    Example("How many ?", label=0, pair="Some of them"),
    Example("a " * 300, label=1),
)
LABELS = ("number", "place")


def found(split, outcomes, data=None):
    each = items.noting(split)
    each.note([(Portion.of(np.arange(len(split.data))), outcomes)])
    return items.items_of(split, data or Prepared({}, ClassificationTask(LABELS)), each)


@pytest.fixture
def split():
    lines = ["Where is it ?", "How many ? Some of them", "a"]
    tokenizer = WordPiece(size=40).make(lambda: iter(lines))
    return Split("test", encode_texts(EXAMPLES, tokenizer, 32, "causal"))


CLASSES = ExampleResults(
    torch.tensor([0.1, 1 / 3, 2.0]), torch.ones(3),
    {"label": torch.tensor([1, 1, 0]), "probability": torch.tensor([0.9, 0.8, 0.7])},
)  # fmt: skip


def test_an_item_says_what_was_right_what_was_said_and_of_which_text(split):
    first, second, third = found(split, CLASSES)

    assert first == Item("test", 0, "place", "place", 0.9, "Where is it ?", 0.1, 1)
    assert second == Item(
        "test", 1, "number", "place", 0.8, "How many ? / Some of them", 0.3333333, 1
    )
    assert len(third.text) == 500
    assert third.text.endswith(" ...")


def test_texts_whose_states_are_kept_are_found_too(split):
    model = tiny.model(Classification())
    features = CachedFeatures(split.data, model, tiny.FP32, batch=2, layers=(-1,))

    shown = found(Split("test", features, without_states=split.data), CLASSES)

    assert [item.text[:5] for item in shown] == ["Where", "How m", "a a a"]


def test_a_language_model_has_no_labels(split):
    outcomes = ExampleResults(torch.tensor([3.0, 4.0, 5.0]), torch.tensor([2, 3, 4]))

    labelled, block = found(split, outcomes), found(blocks(), outcomes, Prepared({}))

    for item in (*labelled, *block):
        assert (item.label, item.predicted, item.probability) == ("", "", 0.0)
    assert block[2] == Item("test", 2, "", "", 0.0, "", 5.0, 4)


def test_of_many_examples_no_texts_are_kept_and_of_very_many_nothing(split, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(items, "MOST_TEXTS", 2)
    assert {item.text for item in found(split, CLASSES)} == {""}
    assert "no texts of the test split, which has more than 2 examples" in caplog.text

    monkeypatch.setattr(items, "MOST_ITEMS", 2)
    assert items.noting(split) is None
    assert items.items_of(split, Prepared({}, ClassificationTask(LABELS)), None) == []
    assert "nothing of the test split, which has more than 2 examples" in caplog.text


def blocks():
    data = tiny.blocks(tokens=48)
    assert len(data) == 3
    return Split("test", data, order=np.arange(3))


def test_words_are_compared_on_so_many_examples_at_most(split, monkeypatch):
    data = Prepared({"train": split, "test": split}, ClassificationTask(LABELS))
    whole = items.by_words(data, "test")
    monkeypatch.setattr(items, "MOST_IN_WORDS", 2)
    some = items.by_words(data, "test")

    assert whole == {"split": "test", "right": 3, "scored": 3, "trained_on": 3, "of": 3}
    assert some == {"split": "test", "right": 2, "scored": 2, "trained_on": 2, "of": 3}
    assert items.by_words(Prepared({"train": split}), "train") is None
