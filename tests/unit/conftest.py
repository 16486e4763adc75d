"""Tiny runs that others begin with: made once, without Hydra."""

import pytest

from tests import configs


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch):
    """Let each run keep its cache beside its data, whatever tests of commands share."""
    monkeypatch.delenv("TRANSFER_CACHE", raising=False)


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """Return the run directory of a tiny causal language model."""
    folder = tmp_path_factory.mktemp("pretrained")
    return configs.run(configs.config("pretrain", folder), "pretrain", folder / "run").path


@pytest.fixture(scope="session")
def classifier(tmp_path_factory, pretrained):
    """Return the run directory of what was fine-tuned from `pretrained`: number or place."""
    folder = tmp_path_factory.mktemp("classifier")
    chosen = configs.following(pretrained, folder, objective__pooling="max")
    return configs.run(chosen, "finetune", folder / "run").path
