"""The syntax trees of the package, each read once."""

import ast
from functools import cache
from pathlib import Path

import transfer_cli

ROOT = Path(transfer_cli.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
