"""Inputs as people have them: each row of `tests/inputs/*.yaml` is typed, what comes is checked.

A row has these keys:

- `case`: what it is, once in its file.
- `files`: by name, in this order, each a text, or `{hex: ...}`, or `{text: ..., encoding: ...,
  before: ..., times: N}`: the text so many times after what stands before it, or
  `{make: NAME, ...}`: a function of the Python file beside the table, which gets the path and the
  other keys, or `{copy: PLACE, without: [...]}`: a copy of a run less some of it, which a function
  may change further, or `{set: {KEY: VALUE}}`: other values in a YAML or JSON file that is there,
  or `{remove: true}`, or `{link: PLACE}`.
- `command`: what is typed in the folder of these files. `{run}` is a fine-tuned run, `{model}` a
  pretrained one, `{tiny}` the words of a fine-tuning of two steps from fresh weights, `{small}`
  those of a pretraining, `{loop}` those of either, less its model, `{adapting PRESET}` those of a
  fine-tuning by a preset, and any other the fixture of that name, called with what follows.
- `rows`: more rows, which have what this one has, and more: by the words that are typed beyond,
  what is said, or a mapping of keys; or a list of mappings with a case each. The first of them is
  a quick test; the others are of its kind, and slow.
- `code`: the exit code, 2 unless it is given.
- `says`, `lacks`: words that stand or do not stand in what is printed: keys, names and figures, no
  sentences. Of a refusal that is its one line.
- `environment`: variables that are set.
- `input`: what stands in standard input, said as a file is.
- `slow`: whether it is left out of the quick tests, though it is the first of its kind.
- `cure`: what is typed in addition, after which the command ends with 0 and `cured` is printed.

A refusal is one line without a traceback, and leaves nothing behind, nor anything changed.
"""

import importlib.util
import io
import json
import re
import shlex
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from tests.functional.conftest import Places

TABLES = Path(__file__).parents[1] / "inputs"

KEYS = {
    "case", "files", "command", "code", "says", "lacks", "environment", "input", "cure", "cured",
}  # fmt: skip


def rows():
    """Yield each row with the name of its table."""
    for table in sorted(TABLES.glob("*.yaml")):
        for written in yaml.safe_load(table.read_text(encoding="utf-8")):
            for number, row in enumerate(spread(written)):
                marks = [pytest.mark.slow] if row.pop("slow", False) or number else []
                yield pytest.param(table.stem, row, id=f"{table.stem}: {row['case']}", marks=marks)


def spread(row):
    """Yield a row, or those that it stands for."""
    more = row.pop("rows", None)
    if more is None:
        yield row
    elif isinstance(more, list):
        for variant in more:
            yield from spread(joined(row, variant, variant["case"], variant.get("command", "")))
    else:
        for words, variant in more.items():
            variant = {"says": variant} if isinstance(variant, list) else variant
            yield joined(row, variant, words, words)


def joined(row, variant, case, words):
    """Return a row with what a variant of it has beyond it."""
    return {
        **row,
        **variant,
        "case": f"{row['case']}: {case}",
        "command": f"{row['command']} {words}",
        "files": {**row.get("files", {}), **variant.get("files", {})},
        "says": [*row.get("says", ()), *variant.get("says", ())],
    }


def write(path, content, makers, places):
    """Write a file of a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"text": content} if isinstance(content, str) else dict(content)
    if "copy" in content:
        shutil.copytree(places[content.pop("copy")], path, dirs_exist_ok=True)
        for name in content.pop("without", ()):
            remove(path / name)
    if "make" in content:
        getattr(makers(), content.pop("make"))(path, **content)
    elif "remove" in content:
        remove(path)
    elif "link" in content:
        remove(path)
        path.symlink_to(Path(content["link"]).absolute())
    elif "set" in content:
        set_values(path, content["set"])
    elif content:
        path.write_bytes(bytes_of(content))


def bytes_of(content):
    """Return what is written of a text."""
    content = {"text": content} if isinstance(content, str) else content
    if "hex" in content:
        return bytes.fromhex(content["hex"])
    text = content.get("before", "") + content["text"] * content.get("times", 1)
    return text.encode(content.get("encoding", "utf-8"))


def remove(path):
    """Remove a file or a folder, or nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def set_values(path, values):
    """Change values of a YAML or JSON file, by dotted keys."""
    reads, writes = (
        (json.loads, json.dumps) if path.suffix == ".json" else (yaml.safe_load, yaml.safe_dump)
    )
    content = reads(path.read_text())
    for key, value in values.items():
        *parents, name = key.split(".")
        node = content
        for parent in parents:
            node = node[parent]
        node[name] = value
    path.write_text(writes(content))


def maker_of(table):
    """Return the module beside a table."""
    spec = importlib.util.spec_from_file_location(f"inputs_{table}", TABLES / f"{table}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def standing(folder):
    """Return what lies in a folder: each path, with what stands in a file."""
    return {
        path.relative_to(folder): path.is_file() and sha256(path.read_bytes()).digest()
        for path in folder.rglob("*")
    }


@pytest.fixture
def strangers(tmp_path, monkeypatch):
    """Let modules in the test's folder be found, and forget them with the names of plugins."""
    before = set(sys.modules)
    monkeypatch.setattr("transfer_cli.config.build._plugins", set())
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize(("table", "row"), list(rows()))
def test_an_input_is_read_as_it_was_meant_or_refused_in_one_line(
    request, transfer, tmp_path, monkeypatch, table, row
):
    assert row.keys() <= KEYS, "a key that the runner does not know"
    places = Places(request)
    typed = shlex.split(row["command"].format_map(places))
    for name, content in row.get("files", {}).items():
        write(tmp_path / name, content, lambda: maker_of(table), places)
    for name, value in row.get("environment", {}).items():
        monkeypatch.setenv(name, value)
    if "input" in row:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bytes_of(row["input"]))))
    given = standing(tmp_path)

    ended = transfer(*typed)

    printed = ended.out + ended.err
    assert ended.code == row.get("code", 2), printed
    assert "Traceback" not in printed
    assert "\x1b" not in printed
    if ended.code == 2:
        printed = ended.err.splitlines()[-1]
        lines = [line for line in ended.err.splitlines() if re.match("transfer[ :]", line)]
        assert lines == [printed]
        assert standing(tmp_path) == given
    for word in row.get("says", ()):
        assert str(word) in printed, f"{word!r} is not in {printed!r}"
    for word in row.get("lacks", ()):
        assert str(word) not in printed
    if "cure" in row:
        cured = transfer(*typed, *shlex.split(row["cure"])).ok()
        for word in row.get("cured", ()):
            assert str(word) in cured.out + cured.err, f"{word!r} is not in {cured.out!r}"
