"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 75_643,
    "files of the package": 393,
    "modules to read for engine.step": 43,
    "lines to read for engine.step": 8_014,
    "modules to read for tasks.classification": 13,
    "lines to read for tasks.classification": 3_039,
    "modules to read for reports.page": 28,
    "lines to read for reports.page": 4_959,
    "modules to read for assembly.drawing": 119,
    "lines to read for assembly.drawing": 24_831,
    "modules to read for training.train": 185,
    "lines to read for training.train": 37_203,
    "modules to read for commands.predict.predict": 104,
    "lines to read for commands.predict.predict": 23_190,
    "circles of imports": 0,
    "signatures with a config": 53,
    "lines of the example's tagger": 135,
    "lines of tests": 66_608,
    "lines of scripts": 6_043,
    "lines of documentation": 5_910,
}


@pytest.fixture(scope="module")
def numbers():
    with imported("gates") as gates:
        return gates.gates()


def test_every_gate_has_a_bound(numbers):
    assert numbers.keys() == BOUNDS.keys()


@pytest.mark.parametrize("name", BOUNDS)
def test_a_gate_stays_within_its_bound(numbers, name):
    assert numbers[name] <= BOUNDS[name]
