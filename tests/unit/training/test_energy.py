"""Energy is what counters say, and where they say nothing there is a reason in its place."""

import sys
import types

import pytest
import torch

from transfer_cli.training.energy import EnergyError, GpuCounter, RaplZone, meter_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")
RANGE = 262_143_328_850
"""Millionths of a joule after which a common processor begins again at 0."""


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


def zone(folder, name="package-0", energy=0, most=RANGE):
    """Make a counter as Linux has it; return its folder."""
    folder.mkdir(parents=True)
    for file, value in {"name": name, "energy_uj": energy, "max_energy_range_uj": most}.items():
        (folder / file).write_text(f"{value}\n")
    return folder


def tell(folder, energy):
    (folder / "energy_uj").write_text(f"{energy}\n")


def test_a_counter_that_begins_again_at_0_goes_on(tmp_path):
    folder = zone(tmp_path / "zone", energy=RANGE - 3_000_000)
    counter = RaplZone(folder)

    found = []
    for energy in (RANGE - 1_000_000, 4_000_000, 5_000_000, RANGE - 500_000, 500_000):
        tell(folder, energy)
        found.append(counter.joules())

    assert found == pytest.approx([2, 7, 8, RANGE / 1e6 + 2.5, RANGE / 1e6 + 3.5])


def test_a_counter_that_may_have_wrapped_twice_tells_nothing(tmp_path):
    clock = Clock()
    counter = RaplZone(zone(tmp_path / "zone", most=60_000_000_000), clock)
    clock.seconds = 59.0
    counter.joules()

    clock.seconds += 61.0

    with pytest.raises(EnergyError, match="not read for 61 s, in which it may have wrapped"):
        counter.joules()


def test_sockets_and_memory_count_once_and_their_parts_not_at_all(tmp_path):
    for number, name in enumerate(("package-0", "package-1", "psys")):
        zone(tmp_path / f"intel-rapl:{number}", name, energy=number)
    zone(tmp_path / "intel-rapl:0:0", "core")
    zone(tmp_path / "intel-rapl:0:1", "dram")
    meter = meter_of(CPU, first_of_machine=True, powercap=tmp_path)

    for folder in tmp_path.iterdir():
        tell(folder, 5_000_000)

    assert meter.joules() == pytest.approx(15, abs=1e-5)
    assert (meter.tells, meter.source) == (True, "rapl")


def test_one_process_of_a_machine_reads_what_all_of_it_share(tmp_path):
    folder = zone(tmp_path / "intel-rapl:0")
    meters = [
        meter_of(CPU, first_of_machine=is_first, powercap=tmp_path) for is_first in (True, False)
    ]

    tell(folder, 7_000_000)

    assert [meter.joules() for meter in meters] == [7.0, 0.0]
    assert all(meter.tells for meter in meters)


def test_without_a_counter_there_is_no_number_but_a_reason(tmp_path):
    meter = meter_of(CPU, first_of_machine=True, powercap=tmp_path)

    assert (meter.tells, meter.joules()) == (False, 0.0)
    assert meter.source.startswith("there is no counter of the processor in ")


def test_a_counter_without_a_number_is_named(tmp_path):
    tell(zone(tmp_path / "intel-rapl:0"), "none")

    meter = meter_of(CPU, first_of_machine=True, powercap=tmp_path)

    assert "intel-rapl:0/energy_uj holds no number" in meter.source


def test_a_counter_that_goes_away_ends_all_numbers(tmp_path):
    folder = zone(tmp_path / "intel-rapl:0")
    meter = meter_of(CPU, first_of_machine=True, powercap=tmp_path)

    (folder / "energy_uj").unlink()

    assert meter.joules() == 0.0
    assert not meter.tells
    assert "energy_uj cannot be read" in meter.source


class NVMLError(Exception):
    pass


def nvml(*millijoules):
    """Return a stand-in for the package that reads a GPU's counter."""
    left = iter(millijoules)
    found = types.ModuleType("pynvml")
    found.NVMLError = NVMLError
    found.nvmlInit = lambda: None
    found.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    found.nvmlDeviceGetTotalEnergyConsumption = lambda handle: next(left)
    return found


def test_a_gpu_counts_millijoules_from_when_it_was_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(500_000, 500_500, 502_000))

    counter = GpuCounter("12-34")

    assert [counter.joules(), counter.joules()] == [0.5, 2.0]


def test_a_gpu_without_a_counter_says_so(monkeypatch):
    package = nvml()

    def refuse(handle):
        raise NVMLError("Not Supported")

    package.nvmlDeviceGetTotalEnergyConsumption = refuse
    monkeypatch.setitem(sys.modules, "pynvml", package)

    with pytest.raises(EnergyError, match="NVML: Not Supported"):
        GpuCounter("12-34")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    with pytest.raises(EnergyError, match="pip install nvidia-ml-py"):
        GpuCounter("12-34")
