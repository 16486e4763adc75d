"""The commands of the documentation, typed as they stand there."""

import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import transfer_cli
from tests.functional.conftest import TINY
from tests.unit.test_docs import quoted, table
from transfer_cli.config import compose
from transfer_cli.config.check import check_config
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.flags import Request

DOCS = conf_dir().parent / "docs"


def commands(page):
    """Return the words of each command of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [shlex.split(line) for line in re.findall(r"^\$ transfer (.+)$", text, re.MULTILINE)]


@pytest.fixture
def ended_well(transfer):
    """Return how to run a command that has to end well."""

    def call(words):
        ended = transfer(*words)
        assert ended.code == 0, (words, ended.err)

    return call


# --- tasks -------------------------------------------------------------------------------------

TASKS = {
    "choices": ("choices", "accuracy", 0.9),
    "dialog": ("dialog", "hits_at_1", 0.8),
    "multilabel": ("traits", "micro_f1", 0.95),
    "pairs": ("pairs", "accuracy", 0.75),
    "regression": ("sizes", "pearson", 0.95),
    "spans": ("names", "f1", 90),
    "tagging": ("names", "entity_f1", 0.9),
    "text_to_text": ("told", "exact_match", 0.95),
}
"""By the page of a kind: the run that its commands make, and what that exceeds on test."""

EXPORTED = {"choices": "format=onnx", "dialog": "head=false", "text_to_text": "head=false"}
"""By the page: what an export of its causal model needs."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_command_of_a_task_runs(name, ended_well, tmp_path, monkeypatch, read_json):
    run, measure, least = TASKS[name]
    page = (DOCS / "tasks" / f"{name}.md").read_text("utf-8")
    typed = [*commands("tasks/README.md"), *commands(f"tasks/{name}.md")]
    typed += [["evaluate", f"runs/{run}"], ["export", f"runs/{run}", "exported"]]
    asked = re.search(r"^\$ echo '(.+)' >", page, re.MULTILINE)
    rows = re.findall(r"^\{.+\}$", page, re.MULTILINE)
    for file in ("questions.txt", "questions.jsonl", "turns.jsonl"):
        (tmp_path / file).write_text(asked[1] if asked else "".join(rows[-1:]))
    (tmp_path / "pairs.csv").write_text("text,pair\nWhat is Kadru ?,Who is Mavazu ?\n")

    # The others are about files of one's own.
    for words in (command for command in typed if any("runs/" in word for word in command)):
        monkeypatch.setattr("sys.stdin", io.StringIO("What is Kadru ?\n"))
        last = EXPORTED.get(name, "family=null") if words[0] == "export" else "device=cpu"
        ended_well([*words, last])

    assert {"pretrain", "finetune", "predict"} <= {words[0] for words in typed}
    assert read_json(tmp_path / "runs" / run / "results.json")["measures"]["test"][measure] > least


# --- students ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_command_of_the_students_runs(ended_well):
    steps = ("device=cpu", "loop.batch=8", "loop.steps=4", "schedule=constant")
    model = (*TINY, "model.heads=4", "model.depth=4", "objective=mlm", "run.dir=teacher")
    ended_well(("pretrain", "data=sample_text", *model, *steps))

    for words in commands("students.md"):
        typed = [word.replace("TEACHER", "teacher") for word in words]
        # Blocks of the teacher's length: its student may have more positions.
        ended_well([*typed, "data=sample_text", "data.length=64", *steps])


# --- tables ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_command_on_rare_labels_runs(ended_well, pretrained, read_json):
    rows = [f"what is it {n} ?,{'urgent' if n % 10 == 0 else 'other'}" for n in range(60)]
    Path("tickets.csv").write_text("\n".join(["text,label", *rows]))
    typed = [words for words in commands("tables.md") if "class_weight" in " ".join(words)]
    small = ("device=cpu", "loop.steps=2", "run.root=runs", "sweep.isolate=false")

    for words in typed:
        ended_well([*(word.replace("MODEL", str(pretrained)) for word in words), *small])

    runs = sorted(Path("runs").rglob("results.json"))
    stored = [read_json(run.parent / "model" / "model.json")["objective"] for run in runs]
    weights = [objective["class_weight"] for objective in stored]
    assert weights.count(None) == 2
    assert all(weight["urgent"] > weight["other"] > 0 for weight in weights if weight)
    assert len(weights) == 5


# --- sweeps ------------------------------------------------------------------------------------

SMALLER = {
    "runs/schemes": ("adaptation=full,lora", "optimizer.lr=1e-3", "seed=0,1"),
    "runs/seeds": ("seed=0,1",),
    "runs/rates": ("optimizer.lr=1e-3,3e-3",),
    "runs/labels": ("data.labelled=20,null", "seed=0"),
    "runs/all": ("adaptation=full,frozen",),
    "runs/search": ("sweep.trials=2",),
}
"""What is left of each sweep, so that it takes seconds."""


def on_the_sample(words, pretrained):
    """Return a command of the page with the sample's data and model."""
    words = [word.replace("runs/wiki", str(pretrained)) for word in words]
    if words[0] == "diff":
        return [words[0], "runs/schemes/0", "runs/schemes/3"]
    if words[0] in ("evaluate", "predict"):  # after two steps nothing has learnt
        return [words[0], "runs/schemes/0", *words[2:]]
    if words[0] not in ("finetune", "lr-find"):
        return words
    words += ["data=sample_questions", "device=cpu", "loop.steps=2", "loop.log_every=1"]
    if words[0] == "lr-find":
        return [*words, "loop.batch=32", "lr_find.steps=40", "lr_find.start=1e-5"]
    folder = next(word.partition("=")[2] for word in words if word.startswith("run.dir="))
    return [*words, *SMALLER[folder], "sweep.isolate=false", "sweep.workers=1"]


@pytest.mark.slow
def test_every_command_on_sweeps_runs(ended_well, pretrained):
    pytest.importorskip("optuna", reason="needs Optuna: the extra `search`")
    typed = commands("sweeping.md")
    assert {words[0] for words in typed} == {
        "finetune", "report", "evaluate", "predict", "diff", "lr-find",
    }  # fmt: skip
    Path("questions.txt").write_text("Who wrote it ?\n")

    for words in typed:
        ended_well(on_the_sample(words, pretrained))

    for folder, jobs in {"runs/schemes": 4, "runs/labels": 2, "runs/search": 2}.items():
        assert len(list(Path(folder).glob("*/results.json"))) == jobs
        assert json.loads(Path(folder, "job-0.json").read_text())["outcome"] == "done"
    assert "<html" in Path("report.html").read_text(encoding="utf-8")


def test_every_preset_is_on_the_page():
    text = (DOCS / "sweeping.md").read_text(encoding="utf-8")

    for file in (conf_dir() / "sweep").glob("*.yaml"):
        assert f"| `{file.stem}` |" in text


# --- how do I ... ------------------------------------------------------------------------------


def test_there_are_forty_questions_with_the_noes_first():
    text = (DOCS / "how_do_i.md").read_text(encoding="utf-8")
    noes, _, questions = text.partition("\n## Data\n")
    asked = re.findall(r"^### .+$", questions, re.MULTILINE)

    assert "## What is not there" in noes
    assert len(asked) + len(re.findall(r"^\| (?!you look for|---)", noes, re.MULTILINE)) >= 40
    assert len(commands("how_do_i.md")) >= len(asked) - 1


COMPOSING = [words for words in commands("how_do_i.md") if words[0] not in ("presets", "report")]


@pytest.mark.parametrize("words", COMPOSING, ids=" ".join)
def test_every_command_that_answers_a_question_composes(words, transfer):
    Path("my.yaml").write_text("data: {train: reviews.csv}\n")
    typed = [word for word in words if word not in ("plan", "-m")]
    # Of several values the first: what is shown is the config of one run.
    typed = [re.sub(r"=([^,{(\[]+),[^={]*$|=tag\(.*\)$", r"=\1", word) for word in typed]
    typed = [word for word in typed if not word.startswith("sweep") and not word.endswith("=")]

    assert transfer(*typed, "--cfg", "job").code == 0


# --- the README --------------------------------------------------------------------------------

README = conf_dir().parent / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```bash\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_readme_opens_with_demo_and_test():
    first = [line.split("#")[0].strip() for line in blocks()[0].splitlines()]

    assert first == ["make demo", "make test"]


def test_every_training_of_the_readme_composes():
    script = "".join(blocks()[1:]).replace("\\\n", " ")
    typed = [shlex.split(line, comments=True) for line in script.splitlines()]
    trained = [words[1:] for words in typed if words[1:2] in (["pretrain"], ["finetune"])
               and not {"-m", "--help"} & {*words}]  # fmt: skip
    assert len(trained) > 2

    for command, *words in trained:
        overrides = tuple(word for word in words if "=" in word)
        check_config(compose.load_config(command, Request(overrides=overrides)), command)


@pytest.mark.slow
def test_every_command_of_the_readme_runs(tmp_path):
    tool = tmp_path / "bin" / "transfer"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m transfer_cli "$@"\n')
    tool.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tool.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(README.parent),
        "TRANSFER_DATA": str(tmp_path / "data"),
        "TRANSFER_CACHE": str(tmp_path / "cache"),
    }
    script = "set -e\n" + "".join(blocks()[1:])
    keys = tmp_path / "my.yaml"
    keys.write_text("experiment: sample/finetune\ninit_from: runs/first\nloop: {steps: 2}\n")

    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert '"label"' in done.stdout
    assert (tmp_path / "runs" / "questions" / "results.json").is_file()


# --- notebooks -----------------------------------------------------------------------------------


NOTEBOOKS = sorted((conf_dir().parent / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Return how to run a notebook of some cells, which takes the package from here."""
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(conf_dir().parent), prepend=os.pathsep)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")

    def run(notebook):
        resources = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=500, resources=resources).execute()
        return [output for cell in notebook.cells for output in cell.get("outputs", ())]

    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_ends_with_its_chart_and_prints_no_log(path, kernel):
    nbformat = pytest.importorskip("nbformat")

    outputs = kernel(nbformat.read(path, as_version=4))

    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("widgets", [True, False])
def test_what_takes_long_has_a_bar_in_a_notebook(kernel, widgets):
    v4 = pytest.importorskip("nbformat.v4")
    hidden = "" if widgets else "import sys; sys.modules['ipywidgets'] = None"
    cell = v4.new_code_cell(
        f"{hidden}\nfrom time import sleep\nfrom transfer_cli import progress\n"
        "progress.SECONDS_UNTIL_SHOWN = 0.0\n"
        "with progress.without_terminal_bars(), progress.progress('reading', 10, 'lines') as m:\n"
        "    m(3)\n    sleep(2)\n"
    )

    outputs = kernel(v4.new_notebook(cells=[cell]))

    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert ("application/vnd.jupyter.widget-view+json" in kinds) == widgets
    assert any("3 of 10" in output.get("text", "") for output in outputs) == (not widgets)


def test_notebooks_are_small():
    assert len(NOTEBOOKS) == 2
    assert all(Path(path).stat().st_size < 100_000 for path in NOTEBOOKS)


# --- the first step ------------------------------------------------------------------------------


ROOT = Path(transfer_cli.__file__).parent
FIRST_STEP = ("engine/step.py", "TrainStep.__call__")


@pytest.fixture
def called():
    """Return what is called of the package until the first step, in order: file and name."""
    calls, before = [], sys.getprofile()

    def note(frame, event, _):
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # not the body of a class
        if event == "call" and is_function and code.co_filename.startswith(f"{ROOT}/"):
            file = Path(code.co_filename).relative_to(ROOT).as_posix()
            calls.append((file, code.co_qualname))
            if calls[-1] == FIRST_STEP:
                sys.setprofile(before)

    sys.setprofile(note)
    yield calls
    sys.setprofile(before)


def test_the_page_names_what_a_fine_tuning_with_lora_calls_in_order(transfer, adapting, called):
    transfer("finetune", *adapting("lora", "loop.steps=1", "run.dir=run")).ok()

    assert called[-1] == FIRST_STEP
    stops = [tuple(quoted(cell)[0] for cell in row[:2]) for row in table("From the shell")]
    # The first call of each, by its name or by a method.
    names = [{(file, name), (file, name.partition(".")[0])} for file, name in called]
    places = [[at for at, aliases in enumerate(names) if stop in aliases][:1] for stop in stops]
    assert [] not in places
    assert places == sorted(places)
