"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 64_392,
    "files of the package": 351,
    "modules to read for engine.step": 43,
    "lines to read for engine.step": 7_445,
    "modules to read for tasks.classification": 14,
    "lines to read for tasks.classification": 2_786,
    "modules to read for report.page": 21,
    "lines to read for report.page": 4_167,
    "modules to read for assembly.blueprint": 106,
    "lines to read for assembly.blueprint": 22_417,
    "modules to read for training.train": 166,
    "lines to read for training.train": 31_994,
    "modules to read for commands.predict.predict": 92,
    "lines to read for commands.predict.predict": 19_889,
    "circles of imports": 0,
    "signatures with a config": 48,
    "lines of the example's tagger": 138,
    "lines of tests": 60_989,
    "lines of scripts": 5_471,
    "lines of documentation": 4_880,
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
