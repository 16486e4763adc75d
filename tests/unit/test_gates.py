"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 78_280,
    "files of the package": 411,
    "modules to read for engine.step": 39,
    "lines to read for engine.step": 7_046,
    "modules to read for tasks.classification": 13,
    "lines to read for tasks.classification": 3_052,
    "modules to read for reports.page": 32,
    "lines to read for reports.page": 5_652,
    "modules to read for assembly.drawing": 128,
    "lines to read for assembly.drawing": 25_336,
    "modules to read for training.train": 186,
    "lines to read for training.train": 35_740,
    "modules to read for commands.predict.predict": 108,
    "lines to read for commands.predict.predict": 23_205,
    "circles of imports": 0,
    "signatures with a config": 51,
    "lines of the example's tagger": 130,
    "lines of tests": 68_750,
    "lines of scripts": 5_519,
    "lines of documentation": 6_150,
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
