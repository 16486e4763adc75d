"""Which module may import which, and what things are called, read from the syntax trees."""

import ast
import importlib
import inspect
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.syntax import MODULES, ROOT, name_of, parsed

FLOORS = {
    "transfer_cli": 0, "errors": 0, "batch": 0, "seeds": 0, "lengths": 0, "safe_files": 0,
    "terminal": 0, "progress": 0, "fitting": 0, "metrics": 0, "earlier_runs": 0,
    "dial": 0, "budget": 0,
    "config": 1, "runs": 1,
    "data": 2, "model": 2, "optim": 2, "sweeps": 2, "reports": 2,
    "objectives": 3, "adaptation": 3,
    "engine": 4, "generation": 4, "interop": 4, "tasks": 4,
    "assembly": 5, "testing": 5,
    "training": 6, "analysis": 6,
    "commands": 7,
    "cli": 8, "__main__": 9, "api": 9,
    "serving": 10,
}  # fmt: skip

UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def place_of(path: Path) -> str:
    """Return the folder of a module, or its own name where it lies at the top."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "transfer_cli" if parts == ("__init__",) else parts[0]


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the full name of everything that a module imports, wherever in the file."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def ours_of(path: Path) -> set[str]:
    """Return the folder or top module of every import of our own."""
    parts = (name.split(".") for name in imports_of(path))
    inside = (rest[:1] for first, *rest in parts if first == "transfer_cli")
    return {top[0] if top and top[0] in FLOORS else "transfer_cli" for top in inside}


def outside_of(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports_of(path)}


def test_every_folder_is_on_a_floor():
    missing = {place_of(path) for path in MODULES} - FLOORS.keys()

    assert not missing, "on no floor yet: add it to FLOORS and to the documentation"


def test_a_module_imports_only_from_its_own_folder_and_lower_floors():
    climbing = {
        f"{name_of(path)} imports {other}"
        for path in MODULES
        for place in [place_of(path)]
        for other in ours_of(path) - {place}
        if FLOORS[other] >= FLOORS[place] and (FLOORS[place], FLOORS[other]) != (0, 0)
    }

    assert not climbing


def test_frameworks_stay_in_their_folders():
    strangers = set()
    for path in MODULES:
        place, used = place_of(path), outside_of(path)
        forbidden = set()
        if place not in ("config", "sweeps", "assembly", "training", "commands", "cli"):
            forbidden |= {"hydra", "omegaconf"}
        if place != "engine":
            forbidden |= {"ignite"}
        if place == "config":
            forbidden |= {"torch"}
        strangers |= {f"{name_of(path)} imports {name}" for name in used & forbidden}

    assert not strangers


def test_the_testing_contracts_are_for_tests_only():
    users = {place_of(path) for path in MODULES if "testing" in ours_of(path)}

    assert users <= {"testing"}


def test_nothing_can_run_code_from_data():
    for path in MODULES:
        used = {name for name in imports_of(path) if name.partition(".")[0] in UNSAFE}
        used |= {
            f"{node.value.id}.{node.attr}"
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in UNSAFE
        }
        # The error that torch raises instead of unpickling.
        assert used <= {"pickle", "pickle.UnpicklingError"}, path


RUNS_CODE = {
    "eval", "exec", "compile", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "np.load",
    "yaml.load", "OmegaConf.load",
    "torch.jit.load", "hydra.utils.instantiate", "hydra.utils.call", "instantiate",
    "FileSystemReader",  # of torch.distributed.checkpoint, which unpickles the list of tensors
}  # fmt: skip
"""What would run code that stands in a file, or could."""


def test_what_could_run_code_or_fill_in_a_strangers_config_is_called_nowhere():
    problems = {
        f"{name_of(path)}:{node.lineno} calls {ast.unparse(node)}"
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and is_unsafe(node)
    }

    assert not problems


def is_unsafe(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name == "torch.load":
        kept = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        return kept.get("weights_only") != "True"
    return name in RUNS_CODE


MIRRORS = {"testing", "tasks"}
"""Folders whose modules are called as those that they test, or as the objective they go with."""


def test_no_class_and_no_module_is_called_as_another():
    places = defaultdict(list)
    for path in MODULES:
        if place_of(path) not in MIRRORS and not path.stem.startswith("__"):
            places[path.stem].append(name_of(path))
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name_of(path))

    assert {name: files for name, files in places.items() if len(files) > 1} == {}


# --- docstrings ----------------------------------------------------------------------------------


def classes_of(folder: str) -> Iterator[type]:
    for path in (ROOT / folder).rglob("*.py"):
        name = ".".join(("transfer_cli", *path.relative_to(ROOT).with_suffix("").parts))
        for member in vars(importlib.import_module(name)).values():
            is_ours = inspect.isclass(member) and member.__module__ == name
            if is_ours and not member.__name__.startswith("_"):
                yield member


@pytest.mark.parametrize(
    "folder",
    ["adaptation", "analysis", "commands", "data", "interop", "model", "objectives", "tasks"],
)
def test_a_method_without_a_docstring_overrides_one_that_has_one(folder):
    silent = [
        f"{one.__qualname__}.{name}"
        for one in classes_of(folder)
        for name, member in vars(one).items()
        if not name.startswith("_")
        and getattr(member, "__name__", name) == name
        and (isinstance(member, property | classmethod) or inspect.isfunction(member))
        and not any(getattr(vars(base).get(name), "__doc__", None) for base in one.__mro__)
    ]

    assert not silent
