"""No command writes or removes where a link in a folder of ours leads."""

import ast
import os
from pathlib import Path

import pytest

from tests.syntax import MODULES, name_of, parsed
from transfer_cli.errors import RunError
from transfer_cli.runs.atomic import remove
from transfer_cli.runs.directory import LOCK, RunDirectory
from transfer_cli.runs.locks import Lock
from transfer_cli.runs.sweep import SweepDirectory, SweepRequest

PLACES = sorted(
    path.relative_to("run").as_posix()
    for path in {*RunDirectory(Path("run"))._contents(), Path("run", LOCK), Path("run/status.json")}
)

A_RUN = "in a run that is locked: `RunDirectory.lock` asks `check_inside`"
A_SWEEP = "in a sweep: `SweepDirectory.write_request` asks `check_inside`"
NEW = "in a folder or a file that the command has just made under a name that was drawn"
OWN = "in the user's own cache or folder of data, where a link is the user's own"
WRITERS = {
    "assembly/teacher_answers.py": NEW,
    "assembly/pretraining_task.py": NEW,
    "cli.py": "the reason of a job, in a sweep; a temporary folder",
    "commands/embed.py": NEW,
    "commands/export/export.py": NEW,
    "commands/presets.py": NEW,
    "commands/lr_find.py": NEW,
    "commands/predict/predict.py": "beside what was typed: `_open_output` asks `check_inside`",
    "commands/push.py": "an export in a folder for temporary files, which goes with the command",
    "data/fetch.py": OWN,
    "data/known_files.py": OWN,
    "data/tokenizer_file.py": NEW,
    "data/shards.py": NEW,
    "engine/bf16_products.py": OWN,
    "engine/features/shared_states.py": OWN,
    "engine/metrics_logger.py": A_RUN,
    "interop/files.py": NEW,
    "interop/gguf_file.py": NEW,
    "interop/onnx_graph.py": NEW,
    "interop/peft_folder.py": NEW,
    "interop/saving.py": NEW,
    "interop/sentence_folder.py": NEW,
    "model/weights.py": NEW,
    "runs/analyses.py": "in the analyses of a run: `write_analysis` asks `check_inside`",
    "runs/atomic.py": "the place that all others go through",
    "runs/cache.py": OWN,
    "runs/checkpoint.py": A_RUN,
    "runs/directory.py": A_RUN,
    "runs/locks.py": "a lock is never a link",
    "runs/sweep.py": A_SWEEP,
    "runs/tensorboard.py": A_RUN,
    "sweeps/cluster.py": A_SWEEP,
    "sweeps/multirun.py": NEW,
    "sweeps/jobs.py": A_SWEEP,
    "sweeps/processes.py": A_SWEEP,
    "sweeps/search.py": A_SWEEP,
    "terminal.py": "the null device",
    "training/budgeted.py": OWN,
    "training/checkpoints.py": A_RUN,
    "training/train.py": A_RUN,
}

METHODS = {
    "write_text", "write_bytes", "unlink", "rmtree", "rename", "mkdir", "rmdir", "symlink_to",
    "hardlink_to", "touch", "copyfile", "copytree", "move", "truncate", "makedirs", "mkdtemp",
    "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "save_file",
}  # fmt: skip
OF_MODULES = {("os", "open"), ("os", "remove"), ("torch", "save"), ("shutil", "copy")}


def writes(call: ast.Call) -> bool:
    """Return whether a call makes, changes or removes a file or a folder."""
    match call.func:
        case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in OF_MODULES:
            return True
        case ast.Attribute(attr="replace"):
            return len(call.args) == 1 and not call.keywords  # of a text it has two arguments
        case ast.Attribute(attr="open") | ast.Name(id="open"):
            constants = (node.value for node in ast.walk(call) if isinstance(node, ast.Constant))
            return any(isinstance(mode, str) and mode.rstrip("b+") in "wax" for mode in constants)
        case ast.Attribute(attr=name):
            return name in METHODS
        case ast.Name(id=name):
            return name in {"save_file", "TemporaryDirectory"}
    return False


def test_every_writer_goes_through_one_place_or_says_why_not():
    writers = {
        name_of(path)
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and writes(node)
    }

    assert writers == WRITERS.keys()


@pytest.fixture
def elsewhere(tmp_path):
    """Return a folder of somebody's, with a file in it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "mine").write_text("keep")
    return folder


@pytest.fixture
def run(tmp_path):
    """Return a run directory with a folder of each kind."""
    run = RunDirectory(tmp_path / "run")
    for folder in (run.model, run.best, run.parts / "generator", run.analyses, run.tensorboard):
        folder.mkdir(parents=True)
    run.config.write_text("seed: 0\n")
    return run


@pytest.mark.parametrize("target", ["elsewhere", "elsewhere/mine", "elsewhere/none", "run-2"])
def test_a_run_of_which_a_part_leads_out_is_not_locked(run, elsewhere, target):
    for inside in (*PLACES, "parts/generator", "checkpoints/best", "model/x/y"):
        place = run.path / inside
        remove(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(run.path.parent / target)

        with pytest.raises(RunError, match=rf"resume: .*{inside}.* is a link that leads out of "):
            run.lock("resume")
        place.unlink()

    assert [path.name for path in elsewhere.iterdir()] == ["mine"]


def test_a_run_that_is_reached_through_a_link_is_locked_and_so_are_links_within(run, tmp_path):
    (tmp_path / "typed").symlink_to(run.path)
    (run.checkpoints / "latest").symlink_to("best")
    through = RunDirectory(tmp_path / "typed")

    through.lock("resume")

    through.unlock()


@pytest.mark.parametrize("inside", ["metrics.jsonl", ".lock", "model/model.json"])
def test_a_pipe_in_a_run_is_refused(run, inside):
    os.mkfifo(run.path / inside)

    with pytest.raises(RunError, match="is a device or a pipe"):
        run.lock("resume")


@pytest.mark.parametrize(
    "inside", ["sweep.json", "job-0.json", "job-0.log", ".job-0.lock", "study.db", "0"]
)
def test_a_sweep_of_which_a_part_leads_out_is_not_begun(tmp_path, elsewhere, inside):
    sweep = SweepDirectory(tmp_path / "sweep")
    sweep.path.mkdir()
    (sweep.path / inside).symlink_to(elsewhere / "mine")

    with pytest.raises(RunError, match=r"run.dir: .* is a link that leads out"):
        sweep.write_request(SweepRequest("finetune", (), "2026-01-01T00:00:00+00:00"))

    assert (elsewhere / "mine").read_text() == "keep"


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path, elsewhere):
    (tmp_path / "link").symlink_to(elsewhere)

    remove(tmp_path / "link")

    assert (elsewhere / "mine").exists()
    assert not (tmp_path / "link").is_symlink()


def test_a_lock_is_never_a_link(tmp_path, elsewhere):
    (tmp_path / ".lock").symlink_to(elsewhere / "new")

    with pytest.raises(OSError, match="symbolic link"):
        Lock(tmp_path / ".lock").take()

    assert not (elsewhere / "new").exists()
