"""What a reader has to read has bounds, which fall and rise only with a line in the changelog."""

import pytest

from tests.scripting import imported

BOUNDS = {
    "lines of the package": 65_040,
    "files of the package": 419,
    "modules to read for engine.step": 62,
    "lines to read for engine.step": 10_501,
    "modules to read for tasks.classification": 38,
    "lines to read for tasks.classification": 8_173,
    "modules to read for report.page": 40,
    "lines to read for report.page": 6_272,
    "modules to read for assembly.blueprint": 163,
    "lines to read for assembly.blueprint": 30_168,
    "modules to read for training.train": 209,
    "lines to read for training.train": 37_943,
    "modules to read for commands.predict.predict": 173,
    "lines to read for commands.predict.predict": 32_773,
    "circles of imports": 8,
    "signatures with a config": 103,
    "lines of the example's tagger": 282,
    "lines of tests": 64_960,
    "lines of scripts": 9_530,
    "lines of documentation": 5_844,
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
