"""Which module may import which, read from the syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import transfer_cli

ROOT = Path(transfer_cli.__file__).parent

FLOORS = {
    "transfer_cli": 0, "errors": 0, "batch": 0, "seeds": 0, "lengths": 0, "safe_files": 0,
    "terminal": 0, "metrics": 0,
    "config": 1, "runs": 1,
    "data": 2, "model": 2, "optim": 2, "sweep": 2, "report": 2,
    "objectives": 3, "adaptation": 3,
    "engine": 4, "generation": 4, "probing": 4, "interop": 4,
    "assembly": 5, "testing": 5,
    "training": 6,
    "commands": 7,
    "cli": 8, "__main__": 9,
}  # fmt: skip

UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}

MODULES = sorted(ROOT.rglob("*.py"))


def place_of(path: Path) -> str:
    """Return the folder of a module, or its own name where it lies at the top."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "transfer_cli" if parts == ("__init__",) else parts[0]


def imports_of(path: Path) -> Iterator[str]:
    """Yield the full name of everything that a module imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours_of(path: Path) -> Iterator[str]:
    """Yield the folder or top module of every import of our own."""
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "transfer_cli":
            inside = len(parts) > 1 and parts[1] in FLOORS
            yield parts[1] if inside else "transfer_cli"


def outside_of(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports_of(path)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_imports_only_from_its_own_folder_and_lower_floors(path):
    place = place_of(path)
    assert place in FLOORS, f"{place} is on no floor yet: add it to FLOORS and to the documentation"

    for other in set(ours_of(path)) - {place}:
        assert FLOORS[other] < FLOORS[place] or (FLOORS[place], FLOORS[other]) == (0, 0), other


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_frameworks_stay_in_their_folders(path):
    place, used = place_of(path), outside_of(path)

    if place not in ("config", "sweep", "assembly", "training", "commands", "cli"):
        assert not used & {"hydra", "omegaconf"}
    if place != "engine":
        assert "ignite" not in used
    if place == "config":
        assert "torch" not in used


def test_the_testing_contracts_are_for_tests_only():
    users = {place_of(path) for path in MODULES if "testing" in set(ours_of(path))}

    assert users <= {"testing"}


def test_nothing_can_run_code_from_data():
    for path in MODULES:
        used = {name for name in imports_of(path) if name.partition(".")[0] in UNSAFE}
        used |= {
            f"{node.value.id}.{node.attr}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in UNSAFE
        }
        # The error that torch raises instead of unpickling.
        assert used <= {"pickle", "pickle.UnpicklingError"}, path


RUNS_CODE = {
    "eval", "exec", "compile", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "np.load",
    "torch.jit.load", "hydra.utils.instantiate", "hydra.utils.call", "instantiate",
    "FileSystemReader",  # of torch.distributed.checkpoint, which unpickles the list of tensors
}  # fmt: skip
"""What would run code that stands in a file, or could."""

ALLOWED = {
    ("config/describe.py", "OmegaConf.load"),  # of our own conf/
}


def calls_of(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_could_run_code_or_fill_in_a_strangers_config_is_called_nowhere(path):
    place = path.relative_to(ROOT).as_posix()
    for name, call in calls_of(path):
        assert name not in RUNS_CODE
        if name in ("yaml.load", "OmegaConf.load"):
            assert (place, name) in ALLOWED
        if name == "torch.load":
            kept = {each.arg: ast.unparse(each.value) for each in call.keywords}
            assert kept.get("weights_only") == "True"
