"""What a run has spent adds up over resumes, and what is not known of a part is not said of all."""

import json
from types import SimpleNamespace

import pytest

from transfer_cli.engine.cost import Flops
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.training.energy import Meter
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
