import pytest
from omegaconf import OmegaConf

from transfer_cli.config.schema import SweepConfig
from transfer_cli.errors import ConfigError
from transfer_cli.sweep.local import settings_of, threads_each


def settings(**values):
    return settings_of(OmegaConf.merge(OmegaConf.structured(SweepConfig), values))


def test_the_defaults_are_fine():
    found = settings()

    assert found == SweepConfig()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"on_error": "stopp"}, "sweep.on_error: 'stopp' is not one of continue, stop. Did you"),
        ({"direction": "min"}, "sweep.direction: 'min' is not one of auto, minimize, maximize."),
        ({"sampler": "tpo"}, "sweep.sampler: 'tpo' is not one of tpe, random. Did you mean 'tpe'?"),
        ({"trials": 0}, "sweep.trials: must be at least 1, got 0"),
        ({"workers": "many"}, "sweep.workers: must be auto or a whole number from 1, got 'many'"),
        ({"workers": "0"}, "sweep.workers: must be auto or a whole number from 1, got '0'"),
        ({"workers": "2", "isolate": False}, "sweep.isolate: one process has one job at a time"),
    ],
)
def test_what_cannot_be_is_refused(values, said):
    with pytest.raises(ConfigError) as error:
        settings(**values)

    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("workers", "devices", "each"), [("auto", 1, 8), ("3", 1, 2), ("2", 2, 2), ("9", 1, 1)]
)
def test_jobs_share_the_cores(monkeypatch, workers, devices, each):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("transfer_cli.sweep.local.cores", lambda: 8)
    config = OmegaConf.create({"device": "cpu", "devices": devices})

    assert threads_each(settings(workers=workers), config) == each


def test_typed_threads_are_those_of_every_job(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")

    assert threads_each(settings(workers="3"), OmegaConf.create({"device": "cpu"})) == 5
