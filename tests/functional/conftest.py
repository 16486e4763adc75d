"""How functional tests call a command, and the tiny runs that they share."""

import contextlib
import dataclasses
import importlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.origins import rows, write_table
from tests.run_kinds import KINDS as KINDS_OF_RUNS
from tests.task_kinds import CITIES, KINDS, THINGS
from transfer_cli.cli import main
from transfer_cli.config.conf_folder import conf_dir

TINY = (
    "model=tiny", "model.width=32", "model.heads=2", "model.depth=1", "model.feedforward=64",
    "model.positions=64", "tokenizer.size=600",
)  # fmt: skip

LOOP = ("device=cpu", "loop.batch=8", "loop.log_every=1", "loop.evaluate_every=3 steps",
        "checkpoint.every=2 steps", "checkpoint.keep=2")  # fmt: skip

FIXTURES = {"run": "finetuned", "model": "pretrained", "short": "short_run"}
"""What words in braces are called that stand for a fixture of another name."""

SMALL = (*TINY, *LOOP, "loop.steps=2", "run.dir=run")

WORDS = {
    "loop": (*LOOP, "loop.steps=2", "run.dir=run"),
    "small": SMALL,
    "tiny": ("init=scratch", "tokenizer=wordpiece", *SMALL),
}
"""What stands for words in braces: of any run, of one on text, of one on labelled data."""

EXAMPLE = Path(__file__).parents[2] / "docs" / "example"


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items):
    """Mark the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.functional)


@dataclasses.dataclass(frozen=True)
class Ended:
    """What is left of a command: its exit code and all that it wrote."""

    code: int
    out: str
    err: str

    def ok(self):
        """Return it, which has ended well."""
        assert self.code == 0, self.err
        return self

    def refusal(self, *parts):
        """Return the line in which it was refused, which has all of these parts."""
        assert self.code == 2, self.err
        assert "Traceback" not in self.err
        line = self.err.splitlines()[-1]
        assert line.startswith("transfer ")
        assert all(part in line for part in parts), line
        return line


class Places(dict):
    """What stands for the words in braces, made when it is asked for."""

    def __init__(self, request):
        self.request = request

    def __missing__(self, name):
        name, _, argument = FIXTURES.get(name, name).partition(" ")
        if name in WORDS:
            return shlex.join(WORDS[name])
        value = self.request.getfixturevalue(name)
        if callable(value):
            value = value(argument) if argument else value()
        return shlex.join(value) if isinstance(value, tuple) else str(value)


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory):
    """Keep every data set and cache out of the home, and inside one folder for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSFER_DATA", str(tmp_path_factory.mktemp("data")))
        patch.setenv("TRANSFER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny():
    """Return the overrides of a model and a tokenizer that are made in no time."""
    return TINY


@pytest.fixture(scope="session")
def loop():
    """Return the overrides of a loop that records, validates and saves every few steps."""
    return LOOP


@pytest.fixture
def transfer(capsys, tmp_path, monkeypatch):
    """Return how to run a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Ended(code, *capsys.readouterr())

    return call


@pytest.fixture
def type_in(monkeypatch):
    """Return how to set what stands in standard input."""
    return lambda text: monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()))
    )


@pytest.fixture(scope="module")
def chromium():
    """Return a browser; what needs one is skipped without it, since a package cannot bring it."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip(f"looked for a browser: {', '.join(BROWSERS)}")
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def at_record(monkeypatch):
    """Return how to have something done after the record of a kind and step, or before it."""
    from transfer_cli.engine.handlers import MetricsLogger

    write, asked = MetricsLogger.write, {}

    def recording(self, kind, step, values):
        asked.pop(("before", kind, step), lambda: None)()
        write(self, kind, step, values)
        asked.pop(("after", kind, step), lambda: None)()

    def at(when, kind, step, action):
        asked[when, kind, step] = action
        monkeypatch.setattr(MetricsLogger, "write", recording)

    return at


@pytest.fixture
def mylab(tmp_path, monkeypatch):
    """Put a copy of the example into the test's folder, and know no other one, nor its family."""
    _forget_mylab()
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    importlib.invalidate_caches()
    yield tmp_path
    _forget_mylab()


def _forget_mylab():
    from transfer_cli.interop.families import families

    families.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


@pytest.fixture
def shell(tmp_path):
    """Return how to start a command in a process of its own, in an empty folder."""
    project = str(conf_dir().parent)
    path = os.pathsep.join([project, os.environ.get("PYTHONPATH", "")])

    def start(*words):
        return subprocess.Popen(
            [sys.executable, "-m", "transfer_cli", *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, text=True,
        )  # fmt: skip

    return start


def finished(*words):
    """Run a command for a fixture that outlives a test; return what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main([str(word) for word in words])
    assert code == 0, out.getvalue()
    return out.getvalue()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Return a text of 300 lines, which an epoch of 8 sequences a step takes about 20 steps for."""
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    lines = [
        f"The {THINGS[n % 5]} of {CITIES[n % 6]} is {n} years older than the {THINGS[n % 3]} ."
        for n in range(300)
    ]
    file.write_text("\n".join(lines) + "\n")
    return file


def table_of_questions(file, count, person):
    """Write so many questions about places and persons in turn; return the file."""
    rows = [
        f'"Where is the {THINGS[n % 5]}, number {n} ?",place'
        if n % 2
        else f"{person.format(CITIES[n % 6], n)},person"
        for n in range(count)
    ]
    file.write_text("\n".join(["text,label", *rows]) + "\n")
    return file


@pytest.fixture(scope="session")
def questions(tmp_path_factory):
    """Return a table of 60 questions with two labels."""
    file = tmp_path_factory.mktemp("questions") / "questions.csv"
    return table_of_questions(file, 60, "Who built the one in {} numbered {} ?")


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """Return a run directory of `pretrain` on the embedded sample."""
    run = tmp_path_factory.mktemp("runs") / "pretrained"
    words = ("data=sample_text", "data.length=32", *TINY, *LOOP, "loop.steps=6")
    finished("pretrain", *words, f"run.dir={run}")
    return run


@pytest.fixture(scope="session")
def masked(tmp_path_factory, corpus):
    """Return a run directory of a masked language model of four blocks."""
    run = tmp_path_factory.mktemp("masked") / "run"
    finished(
        "pretrain", "data=text", f"data.train={corpus}", *TINY, "model.depth=4", "model.dropout=0",
        "device=cpu", "loop.batch=8", "loop.steps=4", "schedule=constant", "objective=mlm",
        "optimizer.lr=1e-2", f"run.dir={run}",
    )  # fmt: skip
    return run


@pytest.fixture(scope="session")
def still(tmp_path_factory):
    """Return a run directory of `pretrain` whose model has no dropout."""
    run = tmp_path_factory.mktemp("still") / "run"
    words = ("data=sample_text", "data.length=32", *TINY, *LOOP, "loop.steps=1", "model.dropout=0")
    finished("pretrain", *words, f"run.dir={run}")
    return run


@pytest.fixture(scope="session")
def language_model(tmp_path_factory):
    """Return runs of `pretrain` by objective, to which the words of the sample are tokens."""
    folder = tmp_path_factory.mktemp("language_models")

    def of(objective):
        run = folder / objective
        if not run.exists():
            words = ("data=sample_text", "data.length=32", *TINY, *LOOP, "tokenizer.size=2000")
            more = ("model.dropout=0", f"objective={objective}", "loop.steps=6")
            finished("pretrain", *words, *more, f"run.dir={run}")
        return run

    return of


@pytest.fixture(scope="session")
def finetuned(pretrained):
    """Return a run directory of `finetune` from `pretrained`, on the embedded sample."""
    run = pretrained.with_name("finetuned")
    words = ("data=sample_questions", f"init_from={pretrained}", *LOOP, "loop.steps=6")
    finished("finetune", *words, f"run.dir={run}")
    return run


@pytest.fixture(scope="session")
def short_run(tmp_path_factory, corpus):
    """Return a run directory of `pretrain` on own text: two steps, at a rate that stays."""
    run = tmp_path_factory.mktemp("runs") / "short"
    words = ("data=text", f"data.train={corpus}", "schedule=constant", *TINY, *LOOP)
    finished("pretrain", *words, "loop.steps=2", f"run.dir={run}")
    return run


@pytest.fixture(scope="session")
def begun(tmp_path_factory):
    """Return a folder with data, a run that read them, and one that adapts that run."""
    folder = tmp_path_factory.mktemp("begun")
    with contextlib.chdir(folder):
        write_table("train.csv", rows())
        write_table("test.csv", rows()[:12])
        lines = [f"{text}\n" for text, _ in rows()]
        Path("a.txt").write_text("".join(lines * 4))
        Path("held_out.txt").write_text("".join(lines[:20]))
        usual = (*LOOP, "schedule=constant", "loop.steps=2")
        text = ("data=text", "data.train=[a.txt]", "data.validation=held_out.txt", "data.length=16")
        finished("pretrain", *text, *TINY, *usual, "run.dir=language")
        table = ("data=table", "data.train=train.csv", "data.test=test.csv")
        more = ("adaptation=full", "adaptation/penalty=l2_sp", "forgetting.data=source")
        finished("finetune", "init_from=language", *table, *usual, *more, "run.dir=questions")
    return folder


@pytest.fixture(scope="session")
def read_json():
    """Return how to read a JSON file."""
    return lambda path: json.loads(Path(path).read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def task_file(tmp_path_factory):
    """Return where the file of a kind of task lies."""
    folder = tmp_path_factory.mktemp("tasks")

    def file_of(name):
        file = folder / name / KINDS[name].file
        if not file.exists():
            file.parent.mkdir()
            file.write_text(KINDS[name].text())
        return file

    return file_of


@pytest.fixture(scope="session")
def task_words(pretrained, task_file):
    """Return how to write the words that fine-tune a model for a kind of task."""
    return lambda name: KINDS[name].typed(task_file(name), pretrained)


@pytest.fixture(scope="session")
def task_run(task_file, task_words):
    """Return how to have a finished run of a kind of task; each is trained once."""

    def run_of(name):
        run = task_file(name).with_name("run")
        if not run.exists():
            finished(*task_words(name), f"run.dir={run}")
        return run

    return run_of


@pytest.fixture
def words_of(request):
    """Return how to write the words of a kind of run."""

    def words(kind, *more):
        typed = shlex.split(KINDS_OF_RUNS[kind].format_map(Places(request)))
        command = "pretrain" if "pretrain" in typed else "finetune"
        typed.remove(command)
        is_fresh = command == "pretrain" and not any(w.startswith("init_from=") for w in typed)
        return (command, *(TINY if is_fresh else ()), *LOOP, "schedule=constant", *typed, *more)

    return words


@pytest.fixture
def stopped(transfer, at_record):
    """Return how to run a command that gets a signal once a step is validated, as a cluster's."""

    def call(step, *words, number=signal.SIGTERM):
        at_record("after", "validation", step, lambda: signal.raise_signal(number))
        return transfer(*words)

    return call


# --- adaptation --------------------------------------------------------------------------------

DEEP = (
    "model=tiny", "model.width=16", "model.heads=2", "model.depth=2", "model.feedforward=32",
    "model.positions=32", "tokenizer.size=300",
)  # fmt: skip

STEADY = (
    "device=cpu", "loop.batch=8", "loop.log_every=1", "loop.evaluate_every=3 steps",
    "checkpoint.every=4 steps", "loop.steps=12", "optimizer.lr=0.02",
)  # fmt: skip


@dataclasses.dataclass
class Watched:
    """A run that was looked at while it trained.

    Args:
        run: Its directory.
        out: What it wrote, standard error included.
        start: Every parameter before the first step.
        inherited: Names of those that came from the checkpoint.
        spans: The stages, as planned.
        moved: The parameters that had a gradient, at each step.
    """

    run: Path
    out: str = ""
    start: dict = dataclasses.field(default_factory=dict)
    inherited: frozenset = frozenset()
    spans: tuple = ()
    moved: list = dataclasses.field(default_factory=list)

    @property
    def ever(self):
        """The names of what trains in any stage."""
        return frozenset().union(*(span.trains for span in self.spans))


@contextlib.contextmanager
def _watching(watched):
    """Note down what a run trains, from hooks of its step and of its optimizer."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from transfer_cli.engine.step import TrainStep
    from transfer_cli.training import train

    names, build_run, call = {}, train.build_run, TrainStep.__call__

    def made(*args):
        parts = build_run(*args)
        watched.inherited, watched.spans = (
            parts.blueprint.network.inherited,
            parts.blueprint.course.stage_plans,
        )
        return parts

    def step(self, batches, number):
        if not watched.start:
            for name, parameter in self.model.named_parameters():
                watched.start[name] = parameter.detach().clone()
                names[parameter] = name
        return call(self, batches, number)

    def hook(optimizer, args, kwargs):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if parameters[0] in names:  # others belong to the linear model on words
            watched.moved.append({names[p] for p in parameters if p.grad is not None})

    handle = register_optimizer_step_pre_hook(hook)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "build_run", made)
        patch.setattr(TrainStep, "__call__", step)
        try:
            yield
        finally:
            handle.remove()


def read_terminal(terminal):
    """Return all that was written at the other end of a terminal, until it was closed."""
    parts = []
    with contextlib.suppress(OSError):  # by which Linux says so
        while part := os.read(terminal, 65536):
            parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode().replace("\r\n", "\n")


def files_below(folder):
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture
def untouched(tmp_path, tmp_path_factory):
    """Fail where a test has changed a file of any other test, or left one in its own folder."""
    before = files_below(tmp_path_factory.getbasetemp())
    yield
    assert not list(tmp_path.iterdir())
    assert files_below(tmp_path_factory.getbasetemp()) == before


@pytest.fixture(scope="session")
def short_text(tmp_path_factory):
    """Return a text of 80 lines."""
    file = tmp_path_factory.mktemp("text") / "short.txt"
    lines = [
        f"The {THINGS[n % 5]} of {CITIES[n % 6]} is {n} years older ; who built it , and where ?"
        for n in range(80)
    ]
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="session")
def deep_words(short_text):
    """Return the command line of `deep`, without its run directory."""
    data = ("data=text", f"data.train={short_text}", "data.validation_share=0.1", "data.length=16")
    return ("pretrain", *data, *DEEP, *STEADY, "loop.steps=3", "schedule=constant")


@pytest.fixture(scope="session")
def deep(tmp_path_factory, deep_words):
    """Return a run directory of `pretrain`: two blocks of width 16."""
    run = tmp_path_factory.mktemp("deep") / "deep"
    finished(*deep_words, f"run.dir={run}")
    return run


@pytest.fixture(scope="session")
def few_questions(tmp_path_factory):
    """Return a table of 30 questions with two labels, of which 6 are held out."""
    file = tmp_path_factory.mktemp("few") / "few.csv"
    return table_of_questions(file, 30, "Who built the one in {} numbered {} ?")


@pytest.fixture(scope="session")
def teacher(deep, few_questions, tmp_path_factory):
    """Return a run that was fine-tuned from `deep`, for others to learn from."""
    run = tmp_path_factory.mktemp("teacher") / "teacher"
    words = (f"data.train={few_questions}", "data.validation_share=0.2", f"init_from={deep}")
    finished("finetune", "data=table", *words, *STEADY, "loop.steps=6", f"run.dir={run}")
    return run


@pytest.fixture(scope="session")
def adapting(deep, few_questions, short_text, teacher):
    """Return how to write the words that fine-tune `deep`, with what a preset needs beyond."""
    few = ("data.labelled=12", "streams.rest.batch=8")
    beyond = {
        "adapters": ("adaptation.edits.adapters_houlsby.size=2",),
        "adapters_tutorial": ("adaptation.edits.adapters.size=2",),
        "parallel_adapters": ("adaptation.edits.parallel_adapters.size=2",),
        "lora": ("adaptation.edits.lora.rank=2",),
        "dora": ("adaptation.edits.dora.rank=2",),
        "ewc": ("adaptation.penalty.sequences=4",),
        "multitask": (
            "data@streams.second.data=text", f"streams.second.data.train={short_text}",
            "streams.second.data.validation_share=0.1",
        ),
        "distil": (*few, f"adaptation.teachers=[{teacher}]"),
        "self_training": (*few, f"adaptation.teachers=[{teacher}]", "losses.rest.confidence=0"),
        "uda": (*few, "losses.rest.perturb=delete"),
        "cvt": few,
        "slices": (
            "losses.slices.parts.short.word=where", "losses.slices.parts.long.word=who",
            "losses.slices.parts.long.length=[0,9]",
        ),
        "pet": ("objective.words={place: where, person: who}",),
    }  # fmt: skip

    def words(preset="full", *more):
        data = ("data=table", f"data.train={few_questions}", "data.validation_share=0.2")
        chosen = (f"adaptation={preset}", *beyond.get(preset, ()))
        return (*data, f"init_from={deep}", *STEADY, *chosen, *more)

    return words


@pytest.fixture(scope="session")
def adapted(tmp_path_factory, adapting):
    """Return how to have a watched run of a preset; each is trained once."""
    folder, made = tmp_path_factory.mktemp("adapted"), {}

    def run_of(preset):
        if preset not in made:
            watched = Watched(folder / preset)
            with _watching(watched):
                watched.out = finished("finetune", *adapting(preset), f"run.dir={watched.run}")
            made[preset] = watched
        return made[preset]

    return run_of


@pytest.fixture
def adapt(transfer, adapting):
    """Return how to fine-tune with a preset; gives the ended command."""

    def call(preset, *words, ends=0, run="run"):
        ended = transfer("finetune", *adapting(preset), f"run.dir={run}", *words)
        assert ended.code == ends, ended.err
        return ended

    return call


@pytest.fixture
def predictions(transfer, few_questions):
    """Return how to label the questions with a run; gives the probabilities."""
    import torch  # which most tests do without

    def call(run, *words):
        ended = transfer("predict", *words, f"run={run}", f"input={few_questions}").ok()
        rows = [json.loads(line) for line in ended.out.splitlines()]
        return torch.tensor([list(row["probabilities"].values()) for row in rows])

    return call
