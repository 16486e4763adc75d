"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 64_660,
    "files of the package": 340,
    "modules to read for engine.step": 43,
    "lines to read for engine.step": 7_669,
    "modules to read for tasks.classification": 13,
    "lines to read for tasks.classification": 2_847,
    "modules to read for report.page": 21,
    "lines to read for report.page": 4_176,
    "modules to read for assembly.blueprint": 104,
    "lines to read for assembly.blueprint": 21_440,
    "modules to read for training.train": 166,
    "lines to read for training.train": 31_635,
    "modules to read for commands.predict.predict": 93,
    "lines to read for commands.predict.predict": 20_015,
    "circles of imports": 0,
    "signatures with a config": 50,
    "lines of the example's tagger": 137,
    "lines of tests": 61_301,
    "lines of scripts": 5_444,
    "lines of documentation": 4_945,
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
