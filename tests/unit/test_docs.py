"""The pages about the code name what is there, and the table of what can be added is true."""

import ast
import os
import re
import runpy
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.syntax import MODULES, ROOT, name_of, parsed
from tests.unit.test_imports import FLOORS
from transfer_cli.config.commands import ALL
from transfer_cli.config.compose import load_config
from transfer_cli.config.flags import Request
from transfer_cli.interop.families import families

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
EXAMPLE = DOCS / "example"
MYLAB = sorted((EXAMPLE / "mylab").glob("*.py"))

NOT_OURS = {
    "DistributedDataParallel", "fully_shard", "weights_only", "Checkpoint", "metrics.Loss",
    "_target_",
}  # fmt: skip
"""Names of torch and Ignite that the pages speak of, and a key of YAML."""

IN_A_RUN = {
    "RUN/analyses/NAME.json", "results.json", "model.json", "speed.jsonl", "timing.json",
    "model/meta.json", "best/",
}  # fmt: skip
FILE = re.compile(r"/|\.(py|md|jsonl?)$")

FUNCTIONAL = "functional/test_example_"
ADDED = {
    "a scheme made of existing parts": (
        ["conf/adaptation/scaled_attention.yaml"],
        f"{FUNCTIONAL}package.py::"
        "test_only_the_own_edit_and_the_head_train_and_only_they_are_stored",
    ),
    "a schedule, layer scale, plan or penalty": (
        ["mylab/plans.py", "conf/adaptation/plan/bottom_up.yaml"],
        f"{FUNCTIONAL}package.py::test_every_command_of_the_readme_runs",
    ),
    "an edit": (
        ["mylab/scaled_attention.py", "conf/adaptation/edits/scaled_attention.yaml"],
        f"{FUNCTIONAL}package.py::test_the_own_edit_is_there_again_when_a_run_is_opened",
    ),
    "an objective": (
        ["mylab/swapped_neighbours.py", "conf/objective/swapped_neighbours.yaml"],
        f"{FUNCTIONAL}package.py::test_every_command_of_the_readme_runs",
    ),
    "a task: tagging, answers in a text, choices": (
        ["mylab/tagging.py", "conf/objective/tag_words.yaml", "conf/data/tagged_words.yaml"],
        f"{FUNCTIONAL}task.py::test_a_tagger_is_trained_monitored_reported_and_asked",
    ),
    **dict.fromkeys(
        ("a model size, a data set in a known format", "a question that people sweep for"),
        ([], f"{FUNCTIONAL}package.py::test_a_size_a_data_set_and_a_sweep_are_one_yaml_each"),
    ),
    "a family of published models": (
        ["mylab/published.py"],
        f"{FUNCTIONAL}family.py::test_a_run_on_it_is_exported_as_its_family_and_as_causal",
    ),
    "an analysis, with a section of the report's page": (
        ["mylab/token_lengths.py", "conf/analysis/token_lengths.yaml", "mylab/length_section.py"],
        f"{FUNCTIONAL}analysis.py::test_its_package_shows_it_in_a_section_of_its_own",
    ),
}
"""Row of the table -> what the outside package has of it, and the test that uses that."""

INSIDE = {
    "a position kind, norm, feed-forward part, residual form or attention pattern": (
        [],
        "unit/model/test_kinds.py::test_a_class_and_its_name_make_a_kind_that_learns",
    ),
    "a command": ([], "unit/test_docs.py::test_every_command_has_a_module_and_a_yaml"),
}
"""The same of what a package of one's own cannot add."""


def page(name="architecture.md"):
    return (DOCS / name).read_text(encoding="utf-8")


def table(heading):
    """Return the rows of the table below the heading that begins so, without its first one."""
    section = page().split(f"\n## {heading}")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def quoted(text):
    return re.findall(r"`([^`\n]+)`", text)


def names_of(path):
    """Return all that a module gives a name: classes, functions, arguments, values."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


# --- paths and names ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["architecture.md", "glossary.md"])
def test_every_path_of_a_page_is_there(name):
    words = {word for word in quoted(page(name)) if FILE.search(word)} - IN_A_RUN

    paths = {word for word in words if "=" not in word}
    assert len(paths) > 5
    assert [
        path for path in paths if not ((ROOT / path).exists() or (PROJECT / path).exists())
    ] == []


@pytest.mark.parametrize("name", ["architecture.md", "glossary.md"])
def test_every_class_and_function_of_a_page_is_there(name):
    known = {name for path in MODULES for name in names_of(path)} | FLOORS.keys()
    words = {word for word in quoted(page(name)) if re.fullmatch(r"[A-Za-z_.]+(\(\))?", word)}
    words = {word for word in words if re.search(r"[A-Z_(]", word) and not FILE.search(word)}

    last = {word: word.removesuffix("()").rpartition(".")[2] for word in words - NOT_OURS}
    assert {word for word, name in last.items() if name not in known} == set()


def test_the_places_to_look_and_words_of_our_own_are_few_enough_to_be_read():
    rows = [line for line in page("glossary.md").splitlines() if line.startswith("|")]

    assert len(table("Where do I find")) <= 15
    assert len(rows) - 2 <= 10


def test_the_table_of_floors_is_the_one_that_imports_are_held_to():
    written = {
        name.removesuffix(".py"): int(floor)
        for floor, folders, _ in table("Floors")
        for name in quoted(folders)
    }
    there = {path.stem for path in ROOT.glob("*.py")} | {
        path.parent.name for path in ROOT.glob("*/__init__.py")
    }

    apart = {"__init__", "__main__"}
    assert written == {name: floor for name, floor in FLOORS.items() if name in there - apart}


def test_each_stop_between_the_shell_and_the_first_step_is_where_it_is_said_to_be():
    stops = [quoted(cell)[0] for row in table("From the shell") for cell in row[:2]]
    stops = dict(zip(stops[::2], stops[1::2], strict=True))

    assert len(stops) == 10
    assert {
        path for path, name in stops.items() if name.partition(".")[0] not in names_of(ROOT / path)
    } == set()


# --- adding things -----------------------------------------------------------------------------


def test_every_row_of_what_can_be_added_is_shown_by_the_example_or_said_to_be_inside():
    tests = Path(__file__).parents[1]

    assert {row[0] for row in table("Adding things")} == ADDED.keys() | INSIDE
    for row, (files, test) in (ADDED | INSIDE).items():
        file, _, name = test.partition("::")
        assert [path for path in files if not (EXAMPLE / path).is_file()] == [], row
        assert name in names_of(tests / file), row


def test_a_row_is_shown_by_as_many_configs_as_it_says_one_writes():
    for row, write, _ in table("Adding things"):
        files = ADDED.get(row, ([], ""))[0]
        if files:
            said = re.search(r"(\d) YAML", write)
            configs = [path for path in files if path.endswith(".yaml")]
            assert len(configs) == (int(said[1]) if said else 0), row


def test_every_command_has_a_module_and_a_yaml():
    functions = {name: command.function for name, command in ALL.items() if command.function}
    modules = {name: function.rpartition(".")[0] for name, function in functions.items()}
    configs = {name for name, command in ALL.items() if command.composes}

    assert {name for name, module in modules.items() if find_spec(module) is None} == set()
    texts = {"commands", "models", "other_words"}
    assert configs == {path.stem for path in (PROJECT / "conf").glob("*.yaml")} - texts


def test_every_file_of_the_example_shows_a_row_and_is_listed():
    shown = {path for files, _ in ADDED.values() for path in files}
    there = {*EXAMPLE.glob("conf/**/*.yaml"), *MYLAB} - {EXAMPLE / "mylab" / "__init__.py"}
    (listed, *_) = re.findall(r"```\n(.*?)```", page("example/README.md"), re.DOTALL)

    assert shown == {path.relative_to(EXAMPLE).as_posix() for path in there}
    assert {line.split()[0] for line in listed.splitlines()} == shown | {"names/"}


# --- nothing of ours is edited -----------------------------------------------------------------


def ours_in(path):
    """Return the module and name of each import from the package, by what it is called there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("transfer_cli")
        for alias in node.names
    }


def test_the_example_imports_public_names_that_are_there():
    imported = {pair for path in MYLAB for pair in ours_in(path).values()}

    assert len(imported) > 20
    assert {pair for pair in imported if re.search(r"(^|\.)_", ".".join(pair))} == set()
    lost = {(place, name) for place, name in imported if not hasattr(import_module(place), name)}
    assert lost == set()


def test_the_example_changes_nothing_of_the_package():
    changed = []
    for path in MYLAB:
        ours = ours_in(path).keys()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(
                node.ctx, ast.Store | ast.Del
            ):
                inside = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
                changed += [f"{path}:{node.lineno}"] if inside & ours else []
            elif isinstance(node, ast.Import):
                whole = [
                    alias.name for alias in node.names if alias.name.startswith("transfer_cli")
                ]
                changed += [f"{path}:{node.lineno}: {name}" for name in whole]
            elif isinstance(node, ast.Name) and node.id in ("setattr", "delattr"):
                changed.append(f"{path}:{node.lineno}: {node.id}")

    assert changed == []


def test_the_package_knows_nothing_of_the_example():
    files = [*MODULES, *(PROJECT / "conf").rglob("*.yaml")]

    assert {path for path in files if "mylab" in path.read_text(encoding="utf-8")} == set()


# --- pages for users ---------------------------------------------------------------------------


PAGES = [PROJECT / "README.md", *DOCS.rglob("*.md")]


def anchors_of(path):
    """Return what the headings of a page are called in a link."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    shown = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in shown}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(PROJECT).as_posix())
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(path):
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if "://" not in target and not (
            there.exists() and (not anchor or anchor in anchors_of(there))
        ):
            lost.append(target)

    assert lost == []


def test_every_page_is_in_the_index_and_in_the_site():
    index = set(re.findall(r"\]\(([^)#]+)\)", page("README.md")))
    site = set(
        re.findall(r"- (?:\w+: )?(\S+\.md)$", (PROJECT / "mkdocs.yml").read_text(), re.MULTILINE)
    )

    assert {path.name for path in DOCS.glob("*.md")} - index == {"README.md"}
    assert {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} == site


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_nothing_of_the_network(tmp_path):
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the site needs the extra `docs`")

    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=PROJECT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert built.returncode == 0, built.stderr
    loads = re.compile(r"<(?:script|img|iframe)\b[^>]*src=.?https?:|<link\b[^>]*href=.?https?:")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES) - 1
    assert [path for path in pages if loads.search(path.read_text(encoding="utf-8"))] == []
    assert "finetune" in (tmp_path / "api.html").read_text(encoding="utf-8")
    assert (tmp_path / "search" / "search_index.js").stat().st_size > 1e5


def test_every_error_of_the_page_is_one_that_the_code_raises():
    rows = [row for row in page("runs.md").partition("| it says")[2].splitlines() if "`" in row]
    said = "".join(
        node.value
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )

    assert len(rows) > 5
    assert [row for row in rows if quoted(row)[0] not in said] == []


def test_every_key_of_the_page_for_people_with_a_trainer_is_there():
    request = Request(overrides=("data=table", "data.train=FILE", "adaptation=lora", "init_from=R"))
    config = load_config("finetune", request)
    rows = [row.split(" | ")[1] for row in page("from_trainer.md").splitlines() if " | " in row]
    words = " ".join(text for row in rows for text in quoted(row)).split()
    keys = [re.match(r"[a-z_]+(\.[a-z_]+)*(?==|$)", word) for word in words]
    dotted = {match[0] for match in keys if match and ("=" in match.string or "." in match[0])}

    assert len(dotted) > 20
    assert {key for key in dotted if not _is_key(config, key)} == {"split"}  # of `evaluate`


def _is_key(config, key):
    parent, _, name = key.rpartition(".")
    return name in (OmegaConf.select(config, parent) if parent else config)


def test_the_reference_of_keys_is_what_the_configs_say():
    made = runpy.run_path(str(PROJECT / "scripts" / "keys_page.py"))["page"]()

    assert page("keys.md") == made, "run python scripts/keys_page.py"


def test_the_table_of_published_models_lists_the_families_that_there_are():
    page = (DOCS / "published.md").read_text()
    table = page.partition("## What is read")[2].partition("\n\n")[2].partition("\n\n")[0]

    kinds = [re.search(r"\| `([\w-]+)` \|", row)[1] for row in table.splitlines()[2:]]

    ours = [
        kind for kind, family in families().items() if family.__module__.startswith("transfer_cli.")
    ]
    assert sorted(kinds) == sorted(ours)


def test_the_container_copies_what_the_package_is_built_of():
    words = [line.split() for line in (PROJECT / "Dockerfile").read_text().splitlines()]
    copied = {source for parts in words if parts[:1] == ["COPY"] for source in parts[1:-1]}
    let_through = {
        line.removeprefix("!")
        for line in (ROOT.parent / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }

    assert copied == let_through
    assert copied > {"pyproject.toml", "setup.py", "conf", "transfer_cli"}
    assert all((ROOT.parent / path).exists() for path in copied)


# --- private apis --------------------------------------------------------------------------------


DOCUMENTED = {"os._exit"}


def private_names_of(path: Path) -> set[str]:
    """Return private names of libraries that a module imports, or reaches through an import."""
    tree, names, known = parsed(path), set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.module.startswith("transfer_cli"):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            if head in known:
                names.add(f"{known[head].split('.')[0]}.{rest}")
    private = {name for name in names if re.search(r"(^|\.)_[a-zA-Z]", name)} - DOCUMENTED
    # Of torch._dynamo and torch._dynamo.config, the table has the longer one.
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def rows() -> list[tuple[str, str, str]]:
    """Return name, file and test of each row."""
    lines = page("private_apis.md").splitlines()
    cells = [line.split("|") for line in lines if line.startswith("| `")]
    return [
        (re.search("`(.*?)`", name)[1], file.strip(" `"), test.strip())
        for _, name, file, _, test, _ in cells
    ]


def test_every_private_name_that_the_package_uses_is_in_the_table():
    listed = {(name, file) for name, file, _ in rows()}

    used = {(name, name_of(path)) for path in MODULES for name in private_names_of(path)}

    unlisted = {
        (name, file)
        for name, file in used
        if not any(name.startswith(prefix) and file == there for prefix, there in listed)
    }
    assert unlisted == set()
    assert len(used) >= 6  # or the search itself is broken


def test_every_row_of_the_table_is_true_of_its_file():
    for name, file, test in rows():
        assert name.rpartition(".")[2] in (ROOT / file).read_text(), (name, file)
        assert (ROOT.parent / test).is_file(), test
