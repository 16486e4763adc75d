"""What a run has spent adds up over resumes, and what is not known of a part is not said of all.

Energy is what a GPU's counter says; where it says nothing there is a reason in its place.
"""

import json
import sys
import types
from types import SimpleNamespace

import pytest
import torch

from transfer_cli.engine.cost import Flops
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.training.energy import Meter, meter_of
from transfer_cli.training.spending import Footprint, Spending


class Clock:
    """A clock that says what it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def life(run, *, seconds, flops, joules=None, footprint=None):
    """Let a run go on for a while, and write down what it has spent; return that."""
    clock, meter = Clock(), Meter("nobody asked")
    if joules is not None:
        readings = iter((1_000, 1_000 + int(joules * 1_000)))
        nvml = SimpleNamespace(
            NVMLError=Exception, nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(readings)
        )
        meter = Meter("told", nvml)
    spending = Spending(meter, footprint or Footprint(), clock)
    spending.go_on(run)
    clock.now = seconds
    assert spending.add(Flops(flops, 1)) == (flops, 1)
    spending.write(run)
    return json.loads(run.timing.read_text())["spent"]


def test_a_resume_adds_to_what_was_spent(run):
    life(run, seconds=10.0, flops=2**60 + 1, joules=5.0)

    found = life(run, seconds=2.5, flops=3, joules=0.5)

    assert found == {
        "device_seconds": 12.5, "flops": 2**60 + 4, "joules": 5.5, "joules_source": "told",
        "kg_co2": None,
    }  # fmt: skip


@pytest.mark.parametrize("energies", [(5.0, None), (None, 5.0)])
def test_energy_that_is_known_of_a_part_alone_is_not_told(run, energies):
    for joules in energies:
        found = life(run, seconds=1.0, flops=1, joules=joules)

    assert found["joules"] is None
    assert found["device_seconds"] == 2.0
    assert found["joules_source"] in (
        "nobody asked", "told, but not of all that came before a resume",
    )  # fmt: skip


def test_carbon_dioxide_is_by_the_users_own_numbers(run):
    found = life(run, seconds=1.0, flops=1, joules=7.2e6, footprint=Footprint(1.5, 0.4))

    assert found["kg_co2"] == pytest.approx(2 * 1.5 * 0.4)


@pytest.mark.parametrize("content", ["", "[]", '{"spent": 3}', '{"spent": {"flops": "many"}}'])
def test_what_cannot_be_read_of_earlier_counts_as_nothing(run, content):
    run.timing.write_text(content)

    found = life(run, seconds=1.0, flops=7)

    assert (found["flops"], found["device_seconds"]) == (7, 1.0)


def test_a_note_is_due_twice_a_minute_and_holds_what_was_not_added_yet(run):
    clock = Clock()
    spending = Spending(Meter("off"), Footprint(), clock)
    due = []
    for clock.now in (1.0, 29.0, 31.0, 40.0, 61.5):
        due.append(spending.is_due())

    spending.write(run, Flops(11, 11))

    assert due == [False, False, True, False, True]
    assert json.loads(run.timing.read_text())["spent"]["flops"] == 11
    assert spending.record()["flops"] == 0


# --- energy ------------------------------------------------------------------------------------

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
