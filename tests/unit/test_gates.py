"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 64_711,
    "files of the package": 368,
    "modules to read for engine.step": 45,
    "lines to read for engine.step": 7_586,
    "modules to read for tasks.classification": 20,
    "lines to read for tasks.classification": 4_027,
    "modules to read for report.page": 21,
    "lines to read for report.page": 4_129,
    "modules to read for assembly.blueprint": 121,
    "lines to read for assembly.blueprint": 23_900,
    "modules to read for training.train": 185,
    "lines to read for training.train": 34_773,
    "modules to read for commands.predict.predict": 97,
    "lines to read for commands.predict.predict": 19_807,
    "circles of imports": 0,
    "signatures with a config": 50,
    "lines of the example's tagger": 160,
    "lines of tests": 62_985,
    "lines of scripts": 6_351,
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
