import pytest
from omegaconf import OmegaConf

from transfer_cli.config.schema import SweepConfig
from transfer_cli.errors import ConfigError
from transfer_cli.sweep.local import settings_of


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
