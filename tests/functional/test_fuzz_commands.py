"""Every command on a run or an export of which one value is of another type: used, or refused."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import altered, fuzz

SECONDS = 60
"""The longest that a command may take; the slowest that ends takes two."""

OF_RUNS = {
    "report": ["{run}", "--html", "page.html"],
    "predict": ["{run}", "texts.txt", "output=answers.csv", "output_format=csv", "device=cpu"],
    "evaluate": ["{run}", "device=cpu"],
    "export": ["run={run}", "to=exported"],
    "diff": ["{run}", "{other}"],
    "analyze": ["{run}", "analysis=attributions", "split=validation", "device=cpu"],
    "finetune": ["data=sample_questions", "init_from={run}", "device=cpu", "loop.steps=1"],
    "finetune ": ["resume={run}", "device=cpu", "loop.steps=7"],
}
OF_EXPORTS = {name: OF_RUNS[name] for name in ("predict", "evaluate", "finetune")}


@pytest.fixture(scope="module")
def run(finetuned, tmp_path_factory):
    """Return a copy of a run with an analysis."""
    run = shutil.copytree(finetuned, tmp_path_factory.mktemp("fuzzed") / "run")
    (run / "analyses").mkdir()
    analysis = {"title": "t", "summary": "s", "values": {"a": 1}}
    table = {"columns": ["a", "b"], "rows": [["c", 1.5], ["d", None]]}
    (run / "analyses" / "lengths.json").write_text(json.dumps({**analysis, "table": table}))
    return run


@pytest.fixture
def look(transfer, finetuned, tmp_path):
    """Return how to run a command on a folder: it ends soon, and without a traceback."""

    def late(*_):
        raise AssertionError(f"it takes longer than {SECONDS} seconds")

    def call(command, words, folder):
        (tmp_path / "texts.txt").write_text("where is Miryar ?\nwho is there ?\n")
        signal.signal(signal.SIGALRM, late)
        signal.alarm(SECONDS)
        try:
            places = {"run": folder, "other": finetuned}
            ended = transfer(command.strip(), *(word.format_map(places) for word in words))
        finally:
            signal.alarm(0)
        assert ended.code in (0, 2, 4), ended.err
        assert "Traceback" not in ended.err

    return call


def changed(draw, path: Path) -> None:
    """Give a JSON, JSON lines or YAML file of a folder other values."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        # YAML reads JSON, in which every text is in quotes.
        path.write_text(json.dumps(draw(altered(yaml.safe_load(text)))))
    elif path.suffix == ".jsonl":
        lines = draw(altered([json.loads(line) for line in text.splitlines()]))
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    else:
        path.write_text(json.dumps(draw(altered(json.loads(text)))))


def tried(data, folder, tmp_path, commands, look) -> None:
    """Change a file of a copy, and run a command on that."""
    copy = tmp_path / "copy"
    for entry in ("copy", "exported", "runs", "page.html", "answers.csv"):
        path = tmp_path / entry
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.copytree(folder, copy)
    kinds = {".json", ".jsonl", ".yaml"}
    files = sorted(entry.relative_to(copy) for entry in copy.rglob("*") if entry.suffix in kinds)
    file = copy / data.draw(st.sampled_from(files))
    changed(data.draw, file)
    if data.draw(st.booleans()):  # who changes a model on purpose changes its hashes, too
        (copy / "model" / "meta.json").unlink(missing_ok=True)
    command = data.draw(st.sampled_from(sorted(commands)))
    look(command, commands[command], copy)


@fuzz(6)
@given(data=st.data())
def test_fuzz_values_of_a_run(run, look, tmp_path, data):
    tried(data, run, tmp_path, OF_RUNS, look)


@pytest.mark.slow
@fuzz(1000)
@given(data=st.data())
def test_fuzz_a_thousand_values_of_a_run(run, look, tmp_path, data):
    tried(data, run, tmp_path, OF_RUNS, look)


@pytest.mark.slow
@fuzz(200)
@given(data=st.data())
def test_fuzz_values_of_an_export(exported, look, tmp_path, data):
    tried(data, exported, tmp_path, OF_EXPORTS, look)


@pytest.fixture(scope="module")
def exported(finetuned, tmp_path_factory):
    """Return an export."""
    from tests.functional.conftest import finished

    folder = tmp_path_factory.mktemp("fuzzed") / "export"
    finished("export", f"run={finetuned}", f"to={folder}")
    return folder
