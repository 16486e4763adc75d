"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 70_707,
    "files of the package": 370,
    "modules to read for engine.step": 42,
    "lines to read for engine.step": 7_515,
    "modules to read for tasks.classification": 13,
    "lines to read for tasks.classification": 2_974,
    "modules to read for reports.page": 28,
    "lines to read for reports.page": 4_957,
    "modules to read for assembly.blueprint": 116,
    "lines to read for assembly.blueprint": 23_562,
    "modules to read for training.train": 175,
    "lines to read for training.train": 33_802,
    "modules to read for commands.predict.predict": 99,
    "lines to read for commands.predict.predict": 21_636,
    "circles of imports": 0,
    "signatures with a config": 52,
    "lines of the example's tagger": 135,
    "lines of tests": 63_981,
    "lines of scripts": 5_816,
    "lines of documentation": 5_602,
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
