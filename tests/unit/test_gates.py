"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 67_793,
    "files of the package": 425,
    "modules to read for engine.step": 62,
    "lines to read for engine.step": 10_711,
    "modules to read for tasks.classification": 42,
    "lines to read for tasks.classification": 9_692,
    "modules to read for report.page": 40,
    "lines to read for report.page": 6_482,
    "modules to read for assembly.blueprint": 172,
    "lines to read for assembly.blueprint": 33_230,
    "modules to read for training.train": 218,
    "lines to read for training.train": 41_169,
    "modules to read for commands.predict.predict": 183,
    "lines to read for commands.predict.predict": 35_761,
    "circles of imports": 8,
    "signatures with a config": 105,
    "lines of the example's tagger": 282,
    "lines of tests": 67_189,
    "lines of scripts": 9_401,
    "lines of documentation": 6_019,
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
