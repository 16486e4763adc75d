"""No two things have one name: whoever searches for it finds one place."""

import ast
from collections import defaultdict
from pathlib import Path

import transfer_cli

ROOT = Path(transfer_cli.__file__).parent

MIRRORS = {"testing", "tasks"}
"""Folders whose modules are called as those that they test, or as the objective they go with."""


def modules():
    found = sorted(ROOT.rglob("*.py"))
    return (path for path in found if not path.stem.startswith("__"))


def shared(places):
    """Return the names that stand in several places, with these."""
    return {name: sorted(found) for name, found in places.items() if len(found) > 1}


def test_no_class_is_called_as_another():
    places = defaultdict(list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(ROOT).as_posix())

    assert shared(places) == {}


def test_no_module_is_called_as_another():
    places = defaultdict(list)
    for path in modules():
        if path.relative_to(ROOT).parts[0] not in MIRRORS:
            places[path.stem].append(path.relative_to(ROOT).as_posix())

    assert shared(places) == {}
