"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 66_181,
    "files of the package": 349,
    "modules to read for engine.step": 42,
    "lines to read for engine.step": 7_505,
    "modules to read for tasks.classification": 13,
    "lines to read for tasks.classification": 2_913,
    "modules to read for reports.page": 23,
    "lines to read for reports.page": 4_306,
    "modules to read for assembly.blueprint": 109,
    "lines to read for assembly.blueprint": 21_928,
    "modules to read for training.train": 169,
    "lines to read for training.train": 32_032,
    "modules to read for commands.predict.predict": 93,
    "lines to read for commands.predict.predict": 19_782,
    "circles of imports": 0,
    "signatures with a config": 50,
    "lines of the example's tagger": 135,
    "lines of tests": 61_258,
    "lines of scripts": 5_444,
    "lines of documentation": 5_042,
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
