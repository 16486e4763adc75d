"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 64_389,
    "files of the package": 352,
    "modules to read for engine.step": 44,
    "lines to read for engine.step": 7_649,
    "modules to read for tasks.classification": 14,
    "lines to read for tasks.classification": 2_786,
    "modules to read for report.page": 21,
    "lines to read for report.page": 4_094,
    "modules to read for assembly.blueprint": 108,
    "lines to read for assembly.blueprint": 22_625,
    "modules to read for training.train": 167,
    "lines to read for training.train": 31_999,
    "modules to read for commands.predict.predict": 93,
    "lines to read for commands.predict.predict": 19_895,
    "circles of imports": 0,
    "signatures with a config": 48,
    "lines of the example's tagger": 138,
    "lines of tests": 60_981,
    "lines of scripts": 5_810,
    "lines of documentation": 5_595,
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
