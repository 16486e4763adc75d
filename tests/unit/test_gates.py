"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 68_131,
    "files of the package": 357,
    "modules to read for engine.step": 42,
    "lines to read for engine.step": 7_505,
    "modules to read for tasks.classification": 13,
    "lines to read for tasks.classification": 2_958,
    "modules to read for reports.page": 28,
    "lines to read for reports.page": 4_943,
    "modules to read for assembly.blueprint": 115,
    "lines to read for assembly.blueprint": 23_168,
    "modules to read for training.train": 172,
    "lines to read for training.train": 32_898,
    "modules to read for commands.predict.predict": 97,
    "lines to read for commands.predict.predict": 21_134,
    "circles of imports": 0,
    "signatures with a config": 51,
    "lines of the example's tagger": 135,
    "lines of tests": 62_238,
    "lines of scripts": 5_587,
    "lines of documentation": 5_377,
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
