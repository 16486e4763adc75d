import pytest
from omegaconf import OmegaConf

from transfer_cli.config.schema import SweepConfig
from transfer_cli.sweep.local import Shares, settings_of


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
    monkeypatch.setattr("transfer_cli.sweep.local.cores", lambda: 8)

    assert Shares(settings(workers=workers), devices, gpus=[]).threads == each


def test_typed_threads_are_those_of_every_job(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")

    assert Shares(settings(workers="3"), 1, gpus=[]).threads == 5
