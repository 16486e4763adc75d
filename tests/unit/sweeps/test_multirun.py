import json

import pytest
from omegaconf import OmegaConf

from transfer_cli.config.schema import SweepConfig
from transfer_cli.runs.sweep import SweepDirectory, SweepRequest
from transfer_cli.sweeps.local import Shares, settings_of
from transfer_cli.sweeps.multirun import latest


def settings(**values):
    return settings_of(OmegaConf.merge(OmegaConf.structured(SweepConfig), values))


def test_the_defaults_are_fine():
    found = settings()

    assert found == SweepConfig()


@pytest.mark.parametrize(
    ("workers", "devices", "each"), [("auto", 1, 8), ("3", 1, 2), ("2", 2, 2), ("9", 1, 1)]
)
def test_jobs_share_the_cores(monkeypatch, workers, devices, each):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("transfer_cli.sweeps.local.cores", lambda: 8)

    assert Shares(settings(workers=workers), devices, gpus=[]).threads == each


def test_typed_threads_are_those_of_every_job(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")

    assert Shares(settings(workers="3"), 1, gpus=[]).threads == 5


@pytest.fixture
def _sweeps(tmp_path):
    for name, began, words in (
        ("old", "2026-01-01T10:00:00+00:00", ("seed=0,1", "adaptation=lora")),
        ("new", "2026-01-02T10:00:00+02:00", ("adaptation=lora", "seed=0,1")),
        ("other", "2026-01-03T10:00:00+00:00", ("adaptation=full", "seed=0,1")),
    ):
        SweepDirectory(tmp_path / name).write_request(SweepRequest("finetune", words, began))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "sweep.json").write_text("{")
    (tmp_path / "undated").mkdir()
    (tmp_path / "undated" / "sweep.json").write_text(
        json.dumps({"command": "finetune", "words": ["seed=0,1"], "began": "soon"})
    )


@pytest.mark.usefixtures("_sweeps")
def test_the_latest_sweep_of_the_same_words_goes_on(tmp_path):
    words = ("seed=0,1", "adaptation=lora")

    assert latest(tmp_path, "finetune", words) == tmp_path / "new"
    assert latest(tmp_path, "pretrain", words) is None
    assert latest(tmp_path, "finetune", ("seed=0,1",)) is None
    assert latest(tmp_path / "nowhere", "finetune", words) is None
