"""How much there is to read: lines, files, and what one module makes a reader open.

python scripts/gates.py

`tests/unit/test_gates.py` holds each number to a bound, which only falls.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "transfer_cli"

CLOSURES = (
    "engine.step",
    "tasks.classification",
    "reports.page",
    "assembly.drawing",
    "training.train",
    "commands.predict.predict",
)
"""Modules that people open to change something."""


def gates() -> dict[str, int]:
    """Return each number by its name."""
    modules = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    sizes = {name: count_lines(path) for name, path in modules.items()}
    numbers = {"lines of the package": sum(sizes.values()), "files of the package": len(sizes)}
    for start in CLOSURES:
        closure = import_closure(start)
        numbers[f"modules to read for {start}"] = len(closure)
        numbers[f"lines to read for {start}"] = sum(sizes[name] for name in closure)
    tests = [path for path in (PROJECT / "tests").rglob("*.py") if "long" not in path.parts]
    pages = [path for path in (PROJECT / "docs").rglob("*.md") if path.name != "keys.md"]
    scripts = [path for path in (PROJECT / "scripts").rglob("*") if path.suffix in (".py", ".sh")]
    example = PROJECT / "docs" / "example" / "mylab" / "tagging.py"
    return {
        **numbers,
        "circles of imports": len(import_cycles()),
        "signatures with a config": sum(map(count_config_signatures, modules.values())),
        "lines of the example's tagger": count_lines(example),
        "lines of tests": sum(map(count_lines, tests)),
        "lines of scripts": sum(map(count_lines, scripts)),
        "lines of documentation": sum(map(count_lines, [*pages, PROJECT / "README.md"])),
    }


def count_lines(path: Path) -> int:
    """Return how many lines a file has."""
    return len(path.read_text(encoding="utf-8").splitlines())


def module_name(path: Path) -> str:
    """Return a module's name inside the package; that of a folder for its `__init__`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(name: str) -> frozenset[str]:
    """Return the modules of ours that one imports, wherever in its file, for types too."""
    file = PACKAGE.joinpath(*name.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    return frozenset(_imported(syntax_tree(file))) - {name}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(source), names=names):
                imported = [f"{source}.{alias.name}" for alias in names]
            case ast.Import(names=names):
                imported = [alias.name for alias in names]
            case _:
                continue
        for full in imported:
            parts = full.split(".")
            if parts[0] == PACKAGE.name:
                yield from _module(parts[1:])


def _module(parts: list[str]) -> Iterator[str]:
    """Yield the module that a name is in: itself, or the one above."""
    for length in (len(parts), len(parts) - 1):
        path = PACKAGE.joinpath(*parts[:length])
        if length and (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()):
            yield ".".join(parts[:length])
            return


def import_closure(start: str) -> set[str]:
    """Return what is imported from a module on, itself included."""
    reached, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += imports_of(name)
    return reached


def import_cycles() -> list[list[str]]:
    """Return the groups of modules that import one another, those inside a folder too."""
    closures = {name: import_closure(name) for name in map(module_name, PACKAGE.rglob("*.py"))}
    groups = {
        tuple(sorted(other for other in closure if name in closures[other]))
        for name, closure in closures.items()
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def count_config_signatures(path: Path) -> int:
    """Return how many functions of a file take or give a `DictConfig`."""
    functions = (
        node
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sum(
        "DictConfig" in ast.unparse(node.args) + (ast.unparse(node.returns) if node.returns else "")
        for node in functions
    )


if __name__ == "__main__":
    for name, number in gates().items():
        print(f"{number:7,}  {name}")
    for circle in import_cycles():
        print("circle:", " ".join(circle))
