"""Where the linter asks for no docstrings of methods, what is overridden has one."""

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import transfer_cli

ROOT = Path(transfer_cli.__file__).parent


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
