"""The package on a device that is none of the host's, without a GPU (`tests/stand_in.py`)."""

import importlib
import inspect
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import transfer_cli.objectives
from tests import on_stand_in, stand_in
from transfer_cli.adaptation import plans
from transfer_cli.adaptation.edit import Edit
from transfer_cli.adaptation.penalties import Penalty
from transfer_cli.objectives.base import Objective

ROOT = Path(__file__).parents[3]
CASES = on_stand_in.CASES
COMMANDS = [name for name in CASES if name.startswith("commands: ")]
PLANTED = [name for name, case in CASES.items() if case.fault]
WORKING = [name for name in CASES if name not in (*COMMANDS, *PLANTED)]

needs_hooks = pytest.mark.skipif(
    stand_in.missing() is not None, reason=f"needs a device in Python: {stand_in.missing()}"
)


def outcomes(names):
    """Return what became of cases, in a process of its own: torch never forgets a device."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.on_stand_in", json.dumps(names)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    records = map(json.loads, ended.stdout.splitlines())
    return {outcome["case"]: outcome for outcome in records}


@pytest.fixture(scope="module")
def tried():
    return outcomes(WORKING + PLANTED)


def check(outcome, name):
    assert outcome["error"] is None, outcome["detail"]
    assert outcome["waits"] == sorted(CASES[name].waits)


@pytest.mark.slow
@needs_hooks
@pytest.mark.parametrize("name", WORKING)
def test_nothing_mixes_devices_and_nothing_waits_but_what_is_listed(name, tried):
    check(tried[name], name)


@needs_hooks
@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name, tried):
    assert tried[name]["error"] == CASES[name].fault, tried[name]["detail"]


@needs_hooks
@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_whole_commands_neither_mix_devices_nor_wait_elsewhere(name):
    check(outcomes([name])[name], name)


@needs_hooks
@pytest.mark.slow
def test_a_process_of_tests_never_hears_of_the_device(tried):
    assert tried
    with pytest.raises(RuntimeError):
        torch.device(stand_in.NAME)


def test_each_listed_wait_is_one_of_a_case():
    assert set().union(*(case.waits for case in CASES.values())) == set(on_stand_in.WAITS)


def kinds(base):
    """Return the classes of the package that are a `base`, and can be made."""
    classes = set()
    for kind in base.__subclasses__():
        classes |= kinds(kind)
        if not inspect.isabstract(kind) and kind.__module__.startswith("transfer_cli."):
            classes.add(kind)
    return classes


def test_every_objective_edit_penalty_and_plan_of_the_package_is_tried():
    for module in pkgutil.iter_modules(transfer_cli.objectives.__path__):
        importlib.import_module(f"{transfer_cli.objectives.__name__}.{module.name}")
    all_plans = {
        kind
        for kind in vars(plans).values()
        if inspect.isclass(kind) and kind.__module__ == plans.__name__ and "__call__" in vars(kind)
    }

    makes = [make for make, *_ in on_stand_in.OBJECTIVES.values()]
    makes += [*on_stand_in.FURTHER.values(), *on_stand_in.STUDENTS.values()]
    makes += on_stand_in.BESIDE_MASKED.values()
    assert {type(make()) for make in makes} == kinds(Objective)
    assert {type(edit) for edit in on_stand_in.EDITS} == kinds(Edit)
    assert {type(make()) for make in on_stand_in.PENALTIES.values()} == kinds(Penalty)
    assert {type(plan) for plan in on_stand_in.PLANS} == all_plans - {plans.Plan}
