"""What a finished run says about itself beyond its measures."""

import pytest
import torch
from omegaconf import OmegaConf

from tests import tiny
from transfer_cli.config import compose
from transfer_cli.config.flags import Request
from transfer_cli.model.readout import ScalarMix
from transfer_cli.objectives.classification import Classification
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
