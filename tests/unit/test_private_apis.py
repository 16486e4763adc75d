"""docs/private_apis.md names every private part of a library that the package uses."""

import ast
import re
from pathlib import Path

import transfer_cli

ROOT = Path(transfer_cli.__file__).parent
PAGE = ROOT.parent / "docs" / "private_apis.md"

DOCUMENTED = {"os._exit"}


def is_private(name: str) -> bool:
    return any(re.match(r"_[a-zA-Z]", part) for part in name.split("."))


def private_names_of(path: Path) -> set[str]:
    """Return private names of libraries that a module imports, or reaches through an import."""
    tree, found, known = ast.parse(path.read_text()), set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.module.startswith("transfer_cli"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            if head in known:
                found.add(f"{known[head].split('.')[0]}.{rest}")
    private = {name for name in found if is_private(name)} - DOCUMENTED
    # Of torch._dynamo and torch._dynamo.config, the table has the longer one.
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def rows() -> list[tuple[str, str, str]]:
    """Return name, file and test of each row."""
    cells = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [
        (re.search("`(.*?)`", name)[1], file.strip(" `"), test.strip())
        for _, name, file, _, test, _ in cells
    ]


def test_every_private_name_that_the_package_uses_is_in_the_table():
    listed = {(name, file) for name, file, _ in rows()}

    used = {
        (name, path.relative_to(ROOT).as_posix())
        for path in sorted(ROOT.rglob("*.py"))
        for name in private_names_of(path)
    }

    unlisted = {
        (name, file)
        for name, file in used
        if not any(name.startswith(each) and file == there for each, there in listed)
    }
    assert unlisted == set()
    assert len(used) >= 6  # or the search itself is broken


def test_every_row_of_the_table_is_true_of_its_file():
    for name, file, test in rows():
        assert name.rpartition(".")[2] in (ROOT / file).read_text(), (name, file)
        assert (ROOT.parent / test).is_file(), test
