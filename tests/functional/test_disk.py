"""A disk that is full, read-only or lacks a file: one line, and what was written is intact."""

import errno
import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.model.weights import backbone_hash, read_description
from transfer_cli.runs import checkpoint

LOOP = ("loop.steps=8", "checkpoint.every=3 steps", "loop.evaluate_every=2 steps", "run.dir=run",
        "resume=auto")  # fmt: skip


@pytest.fixture
def text(short_text, tmp_path):
    """Return a text that a test may remove."""
    return shutil.copy(short_text, tmp_path / "text.txt")


@pytest.fixture
def words(deep_words, text):
    """Return the command line of a run on that text, saved after 3, 6 and 8 steps."""
    return (*deep_words, f"data.train={text}", *LOOP)


@pytest.fixture
def spoilt(transfer, at_record):
    """Return how to run a command under which something happens after a step."""

    def call(step, action, *words):
        at_record("before", "train", step + 1, action)
        return transfer(*words)

    return call


@pytest.fixture
def files_up_to():
    """Return how to let no file grow larger, as on a full disk, until the test ends or says so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size or soft, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_intact(step):
    """Assert that the run's newest checkpoint is whole and of this step, and nothing is beside."""
    folder = Path("run/checkpoints")
    assert checkpoint.step_of(checkpoint.newest_good(folder)) == step
    assert not list(folder.glob(".*"))
    checkpoint.verify(folder / "best")


def assert_same(run, whole):
    for name in ("metrics.jsonl", "results.json", "model/weights.safetensors"):
        assert Path(run, name).read_bytes() == Path(whole, name).read_bytes()


@pytest.fixture
def refusal(transfer, tmp_path):
    """Return how to run what is refused and leaves nothing; gives the line that it says."""

    def call(*words):
        line = transfer(*words).refusal()
        assert [path.name for path in tmp_path.iterdir() if path.name != "in.txt"] == []
        return line

    return call


# --- at the start ------------------------------------------------------------------------------


def test_a_place_without_the_right_to_write(refusal, deep_words, monkeypatch):
    """In /proc not even root may write."""
    line = refusal(*deep_words, "run.dir=/proc/run")
    assert "run.dir: /proc/run cannot be written: " in line
    line = refusal(*deep_words, "run.root=/proc")
    assert "run.root: /proc/pretrain cannot be written: " in line
    monkeypatch.setenv("TRANSFER_CACHE", "/proc/cache")
    line = refusal(*deep_words, "run.dir=run")
    assert "Cannot write the cache in /proc/cache" in line


def test_no_space_for_the_first_files(transfer, refusal, deep_words, files_up_to):
    transfer("prepare", *deep_words[1:5], "tokenizer.size=300").ok()

    files_up_to(1000)
    line = refusal(*deep_words, "run.dir=run")

    assert "cannot be written: File too large. Free some space there" in line


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_no_space_for_the_output(refusal, finetuned, tmp_path, command):
    (tmp_path / "in.txt").write_text("Who ?\n")
    words = (f"run={finetuned}", "output=/dev/full", "device=cpu")

    line = refusal(command, *words, *(["input=in.txt"] if command == "predict" else []))

    assert "/dev/full cannot be written: No space left on device" in line
    assert Path("/dev/full").is_char_device()


# --- full --------------------------------------------------------------------------------------


def test_no_space_for_the_first_checkpoint(transfer, words, files_up_to, read_json):
    transfer(*words, "run.dir=whole").ok()

    files_up_to(Path("whole/model/weights.safetensors").stat().st_size + 1000)
    ended = transfer(*words)
    files_up_to(None)

    assert ended.refusal().startswith("transfer pretrain: run/checkpoints")
    assert not list(Path("run/checkpoints").glob("*step*"))
    assert read_json("run/status.json")["status"] == "failed"
    transfer(*words).ok()
    assert_same("run", "whole")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["train_state.pt", "weights.safetensors", "metrics.jsonl"])
def test_a_disk_that_fills_up_costs_no_more_than_the_steps_since_the_last_save(
    transfer, spoilt, words, files_up_to, what
):
    if what == "metrics.jsonl":
        words = (*words, "optimizer.lr=1e-30")  # no better weights are found, which would be larger
    transfer(*words, "run.dir=whole").ok()
    sizes = {
        "train_state.pt": Path("whole/model/weights.safetensors").stat().st_size + 1000,
        "weights.safetensors": Path("whole/metrics.jsonl").stat().st_size + 8000,
        "metrics.jsonl": Path("whole/config.yaml").stat().st_size // 4,
    }

    ended = spoilt(4, lambda: files_up_to(sizes[what]), *words)
    files_up_to(None)

    place = {"metrics.jsonl": "run/metrics.jsonl"}.get(what, "run/checkpoints")
    ended.refusal(place, "cannot be written", "Free some space there")
    assert_intact(3)
    resumed = transfer(*words).ok()
    assert "going on after step 3" in resumed.err
    assert_same("run", "whole")


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_very_end_costs_no_step(
    transfer, spoilt, words, files_up_to, monkeypatch
):
    transfer(*words, "run.dir=whole").ok()
    from transfer_cli.training.checkpoints import CheckpointWriter

    write = CheckpointWriter.write_model

    def fill(job, *args):
        files_up_to(5000)
        write(job, *args)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointWriter, "write_model", fill)
        ended = transfer(*words)
    files_up_to(None)

    ended.refusal("run/model cannot be written")
    assert_intact(8)
    assert not list(Path("run/model").glob(".*"))
    resumed = transfer(*words).ok()
    assert "going on after step 8" in resumed.err
    assert_same("run", "whole")


# --- read-only ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_that_becomes_read_only_while_a_run_trains(transfer, spoilt, words, monkeypatch):
    transfer(*words, "run.dir=whole").ok()
    mkdir = Path.mkdir

    def refuse(self, *args, **kwargs):
        if self.name.startswith(".step"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        mkdir(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        ended = spoilt(4, lambda: patch.setattr(Path, "mkdir", refuse), *words)

    assert ended.refusal() == (
        "transfer pretrain: run/checkpoints/step-00000006 cannot be written: Read-only file "
        "system. Choose another place"
    )
    assert_intact(3)
    transfer(*words).ok()
    assert_same("run", "whole")


def test_a_run_in_a_read_only_folder_is_not_resumed(transfer, words, monkeypatch):
    transfer(*words, "loop.steps=3").ok()
    before = sorted((path, path.stat().st_mtime_ns) for path in Path("run").rglob("*"))
    system = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_RDWR and Path(path).name == ".lock":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return system(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    ended = transfer(*words)

    ended.refusal("resume: run cannot be written: Read-only file system")
    assert ended.err.count("\n") == 1
    assert sorted((path, path.stat().st_mtime_ns) for path in Path("run").rglob("*")) == before


def test_a_folder_without_the_right_to_write(transfer, words):
    transfer(*words, "loop.steps=3").ok()
    Path("run/.lock").unlink()
    Path("run").chmod(0o500)
    if os.access("run", os.W_OK):
        pytest.skip("this user may write everywhere")

    ended = transfer(*words)

    Path("run").chmod(0o700)
    ended.refusal("resume: run cannot be written: Permission denied")


# --- gone --------------------------------------------------------------------------------------


def test_a_text_that_has_vanished_is_named(transfer, words, text):
    transfer(*words, "loop.steps=3").ok()
    content = text.read_bytes()
    text.unlink()

    ended = transfer(*words)

    ended.refusal(str(text))
    assert ended.err.count("\n") == 1
    assert_intact(3)
    assert json.loads(Path("run/status.json").read_text()) == {"status": "finished"}
    text.write_bytes(content)
    transfer(*words).ok()


def test_a_start_that_has_vanished_is_named(transfer, adapting, deep, tmp_path):
    base = shutil.copytree(deep, tmp_path / "base")
    words = ("finetune", *adapting("full"), *LOOP, f"init_from={base}")
    transfer(*words, "loop.steps=3").ok()
    base.rename(tmp_path / "elsewhere")

    ended = transfer(*words)

    ended.refusal(f"init_from: there is no folder {base}")
    assert ended.err.count("\n") == 1
    assert_intact(3)
    (tmp_path / "elsewhere").rename(base)
    transfer(*words).ok()


# --- storage -------------------------------------------------------------------------------------


LARGER = ("loop.steps=4", "schedule=constant", "loop.evaluate_every=2 steps")


def stored(run, part="model"):
    return load_file(Path(run) / part / "weights.safetensors")


def size(run, part="model"):
    return (Path(run) / part / "weights.safetensors").stat().st_size


@pytest.fixture
def base(deep, tmp_path):
    """Return a copy of the pretrained run that a test may change or move."""
    return shutil.copytree(deep, tmp_path / "base")


@pytest.fixture
def run_on(transfer, adapting):
    """Return how to fine-tune a few steps from a given run; gives the ended command."""

    def call(start, run, preset, *words):
        return transfer(
            "finetune", *adapting(preset), *LARGER, f"init_from={start}", f"run.dir={run}", *words
        ).ok()

    return call


@pytest.fixture
def accuracy(transfer):
    """Return how to score a run on its validation split; gives its measures."""

    def call(run, *words):
        transfer("evaluate", f"run={run}", "split=validation", "output=found.json", *words).ok()
        return json.loads(Path("found.json").read_text())["measures"]["validation"]

    return call


# --- what trained, and a reference -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["lora", "feature_extraction"])
def test_it_scores_and_predicts_as_the_same_run_that_stores_everything(
    preset, adapted, transfer, adapting, predictions, accuracy, read_json
):
    part = adapted(preset).run
    words = adapting(preset, "adaptation.store=all")
    transfer("finetune", *words, "run.dir=whole").ok()

    assert size(part) < size("whole")
    assert torch.equal(predictions(part), predictions("whole"))
    measured = read_json("whole/results.json")["measures"]["validation"]
    assert accuracy(part) == pytest.approx(measured)


@pytest.mark.slow
def test_a_moved_backbone_is_named_and_found_again(
    run_on, transfer, base, predictions, accuracy, adapting
):
    run_on(base, "run", "adapters")
    before, measured = predictions("run"), accuracy("run")
    base.rename("elsewhere")

    for words in (
        ("predict", "run=run", "input=/dev/null"),
        ("evaluate", "run=run"),
        ("finetune", *adapting(), "init_from=run"),
    ):
        ended = transfer(*words)
        assert ended.code == 2
        assert "base=RUN" in ended.err
        assert str(base) in ended.err
        assert ended.err.count("\n") == 1

    assert torch.equal(predictions("run", "base=elsewhere"), before)
    assert accuracy("run", "base=elsewhere/model") == measured


def test_a_run_and_its_backbone_may_move_together(run_on, deep, tmp_path, predictions):
    project = tmp_path / "project"
    shutil.copytree(deep, project / "base")
    run_on(project / "base", project / "run", "lora")
    before = predictions(project / "run")

    project.rename(tmp_path / "renamed")

    assert torch.equal(predictions(tmp_path / "renamed" / "run"), before)


@pytest.mark.parametrize("at", [pytest.param("where it was", marks=pytest.mark.slow), "base="])
def test_a_changed_backbone_is_refused_with_both_hashes(run_on, transfer, base, adapting, at):
    run_on(base, "run", "adapters")
    wanted = backbone_hash(stored(base))
    tensors = stored(base)
    tensors["backbone.token_embedding.weight"][3, 0] += 1e-3
    save_file(tensors, base / "model" / "weights.safetensors")
    (base / "model" / "meta.json").unlink()
    words = [f"base={base}"] if at == "base=" else []

    for command in (
        ("evaluate", "run=run", "split=validation"),
        ("predict", "run=run", "input=/dev/null"),
        ("finetune", *adapting(), "init_from=run", "run.dir=next"),
    ):
        ended = transfer(*command, *words)

        assert ended.code == 2
        assert wanted[:8] in ended.err
        assert backbone_hash(tensors)[:8] in ended.err
        assert ended.err.count("\n") == 1
    assert not Path("next").exists()


# --- one after the other -----------------------------------------------------------------------


@pytest.fixture
def other_task(tmp_path):
    """Return the words for another labelled table, with three labels."""
    rows = [f"the tower number {n},{['red', 'green', 'blue'][n % 3]}" for n in range(30)]
    (tmp_path / "other.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return (f"data.train={tmp_path / 'other.csv'}",)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["adapters", "frozen"])
def test_a_second_task_begins_where_the_first_one_ended(
    preset, run_on, deep, other_task, predictions, accuracy
):
    run_on(deep, "first", "adapters")

    ended = run_on("first", "second", preset, *other_task)

    dropped = next(line for line in ended.err.splitlines() if line.startswith("dropped: "))
    assert "heads.class.linear.weight" in dropped
    assert "heads.class.linear.bias" in dropped
    new = next(line for line in ended.err.splitlines() if line.startswith("new: "))
    assert "sites" not in new
    start, end = (open_pretrained(run).tensors() for run in ("first", "second"))
    added = [name for name in start if ".sites." in name]
    assert added
    # Adapters train with everything that was added, and stay as they are under a new head alone.
    same = [torch.equal(start[name], end[name]) for name in added]
    assert all(same) if preset == "frozen" else not any(same)
    assert read_description(Path("second/model")).labels == ("blue", "green", "red")
    assert accuracy("second")["loss"] > 0
    assert predictions("second").shape == (30, 3)


def test_a_chain_of_runs_finds_every_link(run_on, base, other_task, transfer, predictions):
    run_on(base, "first", "adapters")
    run_on("first", "second", "frozen", *other_task)
    before = predictions("second")

    assert stored("second").keys() == {"heads.class.linear.bias", "heads.class.linear.weight"}
    Path("first").rename("moved")
    ended = transfer("predict", "run=second", "input=/dev/null")
    assert ended.code == 2
    assert "base=RUN" in ended.err
    assert torch.equal(predictions("second", "base=moved"), before)


@pytest.mark.slow
def test_a_checkpoint_of_a_partly_stored_run_can_be_the_start(run_on, deep):
    run_on(deep, "first", "adapters", "checkpoint.every=2 steps", "checkpoint.keep=2")

    run_on("first/checkpoints/step-00000002", "second", "frozen")

    start = open_pretrained("first/checkpoints/step-00000002").tensors()
    end = open_pretrained("second").tensors()
    names = [name for name in start if name.startswith("backbone.")]
    assert any(".sites." in name for name in names)
    assert all(torch.equal(start[name], end[name]) for name in names)


# --- merged ------------------------------------------------------------------------------------


EVERY_TARGET = "targets=[query,key,value,output,feed_forward]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ("lora", [f"adaptation.edits.lora.{EVERY_TARGET}"]),
        ("dora", [f"adaptation.edits.dora.{EVERY_TARGET}"]),
        ("ia3", []),
    ],
)
def test_merged_edits_leave_a_plain_model_with_the_same_answers(
    preset, words, run_on, deep, predictions, accuracy
):
    run_on(deep, "apart", preset, *words)
    run_on(deep, "merged", preset, *words, "adaptation.store=merged")

    plain = {name for name in stored(deep) if name.startswith("backbone.")}
    merged = {name for name in stored("merged") if name.startswith("backbone.")}
    assert merged == plain
    description = read_description(Path("merged/model"))
    assert not description.edits
    assert description.base is None
    moved = stored("merged")["backbone.blocks.0.attention.packed.weight"]
    assert not torch.equal(moved, stored(deep)["backbone.blocks.0.attention.packed.weight"])
    assert torch.allclose(predictions("merged"), predictions("apart"), atol=1e-5)
    one, other = accuracy("merged"), accuracy("apart")
    assert one["accuracy"] == other["accuracy"]
    assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)


@pytest.mark.slow
def test_an_edit_that_cannot_be_merged_stays_beside_one_that_can(run_on, predictions, deep):
    both = "adaptation/edits=[lora,new_rows]"
    run_on(deep, "apart", "lora", both)
    run_on(deep, "merged", "lora", both, "adaptation.store=merged")

    assert read_description(Path("merged/model")).edits.keys() == {"new_rows"}
    merged = {name for name in stored("merged") if name.startswith("backbone.")}
    plain = {name for name in stored(deep) if name.startswith("backbone.")}
    assert merged - plain == {"backbone.new_rows.delta"}
    assert torch.allclose(predictions("merged"), predictions("apart"), atol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_of_a_merged_run_keeps_its_updates(run_on, deep):
    run_on(
        deep,
        "merged",
        "lora",
        "adaptation.store=merged",
        "checkpoint.every=2 steps",
        "checkpoint.keep=2",
    )
    part = "merged/checkpoints/step-00000002"

    run_on(part, "again", "frozen", "adaptation.store=all")

    start, end = open_pretrained(part).tensors(), open_pretrained("again").tensors()
    added = [name for name in start if ".lora." in name]
    plain = "backbone.blocks.0.attention.packed.weight"
    # Either as they are in the checkpoint, or folded in: they must not be lost.
    assert added
    kept = all(name in end and torch.equal(start[name], end[name]) for name in added)
    assert kept or not torch.equal(end[plain], stored(deep)[plain])


@pytest.mark.slow
def test_a_merged_run_can_be_made_longer(run_on, transfer, deep, predictions):
    words = ("adaptation.store=merged", "loop.evaluate_every=2 steps")
    run_on(deep, "long", "lora", *words, "loop.steps=6")
    run_on(deep, "run", "lora", *words)

    transfer("finetune", "resume=run", "loop.steps=6").ok()

    assert torch.equal(predictions("run"), predictions("long"))


@pytest.mark.slow
def test_the_pretraining_is_found_where_a_moved_base_lies_now(transfer, adapting, tmp_path, deep):
    here = shutil.copytree(deep, tmp_path / "here")
    words = [word for word in adapting("lora") if not word.startswith("init_from=")]
    transfer("finetune", *words, "init_from=here", "run.dir=small").ok()
    moved = here.rename(tmp_path / "there")

    again = [*words, "init_from=small", "forgetting.data=source", "run.dir=again"]
    assert "base=RUN" in transfer("finetune", *again).err
    transfer("finetune", *again, f"base={moved}").ok()
