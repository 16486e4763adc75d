"""Energy is what a GPU's counter says, and where it says nothing there is a reason in its place."""

import sys
import types
from types import SimpleNamespace

import pytest
import torch

from transfer_cli.training.energy import meter_of

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class NVMLError(Exception):
    pass


@pytest.fixture
def count(monkeypatch):
    """Return a function that puts a counter with these readings in the place of a GPU's."""

    def put(*readings):
        left = iter(readings)

        def read(handle):
            assert handle == "GPU-12-34"
            reading = next(left)
            if isinstance(reading, Exception):
                raise reading
            return reading

        package = types.ModuleType("pynvml")
        package.NVMLError = NVMLError
        package.nvmlInit = lambda: None
        package.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
        package.nvmlDeviceGetTotalEnergyConsumption = read
        monkeypatch.setitem(sys.modules, "pynvml", package)

    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34")
    )
    return put


def test_a_gpu_counts_from_when_the_run_began(count):
    count(500_000, 500_500, 502_000)

    meter = meter_of(GPU)

    assert [meter.joules(), meter.joules()] == [0.5, 2.0]
    assert (meter.tells, meter.source) == (True, "nvml")


def test_a_gpu_without_a_counter_says_so(count):
    count(NVMLError("Not Supported"))

    meter = meter_of(GPU)

    assert (meter.tells, meter.joules(), meter.source) == (False, 0.0, "NVML: Not Supported")


def test_a_counter_that_goes_away_ends_all_numbers(count):
    count(5_000, 6_000, NVMLError("GPU is lost"))
    meter = meter_of(GPU)

    assert [meter.joules() for _ in range(3)] == [1.0, 0.0, 0.0]
    assert (meter.tells, meter.source) == (False, "NVML: GPU is lost")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    meter = meter_of(GPU)

    assert not meter.tells
    assert "pip install nvidia-ml-py" in meter.source


def test_a_processor_counts_nothing():
    meter = meter_of(CPU)

    assert (meter.tells, meter.joules()) == (False, 0.0)
    assert "GPU" in meter.source
