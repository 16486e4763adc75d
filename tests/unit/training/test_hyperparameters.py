"""Which of a run's settings TensorBoard lists."""

import pytest
from omegaconf import OmegaConf

from transfer_cli.config import launch
from transfer_cli.config.flags import Request
from transfer_cli.training.hyperparameters import hyperparameters

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
    config = launch.compose(command, Request(overrides=(f"data={data}",)))

    found = hyperparameters(config, {})

    assert {key.partition(".")[0] for key in found} <= {
        "adaptation", "data", "init", "loop", "losses", "mixing", "model", "objective", "optimizer",
        "precision", "schedule", "seed", "streams", "tokenizer",
    }  # fmt: skip
    assert found["optimizer.lr"] == config.optimizer.lr
    assert all(isinstance(value, str | int | float) for value in found.values())
