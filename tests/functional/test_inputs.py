"""Inputs as people have them: each row of `tests/inputs/*.yaml` is typed, what comes is checked.

A row has these keys:

- `case`: what it is, once in its file.
- `files`: by name, each a text, or `{hex: ...}`, or `{text: ..., encoding: ..., before: ...,
  times: N}`: the text so many times after what stands before it, or `{make: NAME, ...}`: a function
  of the Python file beside the table, which gets the path and the other keys.
- `command`: what is typed in the folder of these files. `{run}` is a fine-tuned run, `{model}` a
  pretrained one, `{tiny}` the words of a fine-tuning of two steps from fresh weights.
- `code`: the exit code, 2 unless it is given.
- `says`, `lacks`: words that stand or do not stand in what is printed: keys, names and figures, no
  sentences. Of a refusal that is its one line.
- `slow`: whether it is left out of the quick tests.
- `cure`: what is typed in addition, after which the command ends with 0 and `cured` is printed.

A refusal is one line without a traceback, and leaves nothing behind.
"""

import importlib.util
import shlex
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.functional

TABLES = Path(__file__).parents[1] / "inputs"

KEYS = {"case", "files", "command", "code", "says", "lacks", "cure", "cured"}


def rows():
    """Yield each row with the name of its table."""
    for table in sorted(TABLES.glob("*.yaml")):
        for row in yaml.safe_load(table.read_text(encoding="utf-8")):
            marks = [pytest.mark.slow] if row.pop("slow", False) else []
            yield pytest.param(table.stem, row, id=f"{table.stem}: {row['case']}", marks=marks)


def write(path, content, makers):
    """Write a file of a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_bytes(content.encode())
    elif "hex" in content:
        path.write_bytes(bytes.fromhex(content["hex"]))
    elif "make" in content:
        getattr(makers(), content["make"])(
            path, **{key: value for key, value in content.items() if key != "make"}
        )
    else:
        text = content.get("before", "") + content["text"] * content.get("times", 1)
        path.write_bytes(text.encode(content.get("encoding", "utf-8")))


def maker_of(table):
    """Return the module beside a table."""
    spec = importlib.util.spec_from_file_location(f"inputs_{table}", TABLES / f"{table}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Places(dict):
    """What stands for the words in braces, made when it is asked for."""

    def __init__(self, request):
        self.request = request

    def __missing__(self, name):
        fixtures = {"run": "finetuned", "model": "pretrained"}
        if name in fixtures:
            return str(self.request.getfixturevalue(fixtures[name]))
        sizes = [word for name in ("tiny", "loop") for word in self.request.getfixturevalue(name)]
        own = ("init=scratch", "tokenizer=wordpiece", "loop.steps=2", "run.dir=run")
        return shlex.join([*sizes, *own])


@pytest.mark.parametrize(("table", "row"), list(rows()))
def test_an_input_is_read_as_it_was_meant_or_refused_in_one_line(
    request, transfer, tmp_path, table, row
):
    assert row.keys() <= KEYS, "a key that the runner does not know"
    for name, content in row.get("files", {}).items():
        write(tmp_path / name, content, lambda: maker_of(table))
    given = sorted(path.name for path in tmp_path.iterdir())
    typed = shlex.split(row["command"].format_map(Places(request)))

    ended = transfer(*typed)

    printed = ended.out + ended.err
    assert ended.code == row.get("code", 2), printed
    assert "Traceback" not in printed
    if ended.code == 2:
        printed = ended.err.splitlines()[-1]
        lines = [line for line in ended.err.splitlines() if line.startswith("transfer ")]
        assert lines == [printed]
        assert sorted(path.name for path in tmp_path.iterdir()) == given
    for word in row.get("says", ()):
        assert str(word) in printed, f"{word!r} is not in {printed!r}"
    for word in row.get("lacks", ()):
        assert str(word) not in printed
    if "cure" in row:
        cured = transfer(*typed, *shlex.split(row["cure"]))
        assert cured.code == 0, cured.err
        for word in row.get("cured", ()):
            assert str(word) in cured.out + cured.err, f"{word!r} is not in {cured.out!r}"
