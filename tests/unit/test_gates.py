"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 77_504,
    "files of the package": 411,
    "modules to read for engine.step": 39,
    "lines to read for engine.step": 7_392,
    "modules to read for tasks.classification": 14,
    "lines to read for tasks.classification": 3_458,
    "modules to read for reports.page": 24,
    "lines to read for reports.page": 4_384,
    "modules to read for assembly.drawing": 122,
    "lines to read for assembly.drawing": 24_135,
    "modules to read for training.train": 186,
    "lines to read for training.train": 35_290,
    "modules to read for commands.predict.predict": 107,
    "lines to read for commands.predict.predict": 22_261,
    "circles of imports": 0,
    "signatures with a config": 48,
    "lines of the example's tagger": 130,
    "lines of tests": 65_897,
    "lines of scripts": 5_277,
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
