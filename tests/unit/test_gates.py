"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 65_275,
    "files of the package": 420,
    "modules to read for engine.step": 51,
    "lines to read for engine.step": 9_014,
    "modules to read for tasks.classification": 20,
    "lines to read for tasks.classification": 4_229,
    "modules to read for report.page": 27,
    "lines to read for report.page": 4_092,
    "modules to read for assembly.blueprint": 165,
    "lines to read for assembly.blueprint": 30_608,
    "modules to read for training.train": 213,
    "lines to read for training.train": 38_755,
    "modules to read for commands.predict.predict": 171,
    "lines to read for commands.predict.predict": 33_029,
    "circles of imports": 1,
    "signatures with a config": 101,
    "lines of the example's tagger": 160,
    "lines of tests": 63_319,
    "lines of scripts": 6_311,
    "lines of documentation": 5_672,
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
