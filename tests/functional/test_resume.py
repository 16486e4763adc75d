"""`resume=RUN`: a run that was stopped ends as one that was not."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.functional.conftest import LOOP, TINY
from tests.killing import CONTEXT
from tests.long.compare_runs import differences
from tests.origins import rows, write_table
from tests.run_kinds import KINDS
from transfer_cli.cli import main
from transfer_cli.earlier_runs import DROPOUT_DRAWN_OTHERWISE
from transfer_cli.engine import bf16_products
from transfer_cli.runs import environment
from transfer_cli.runs.environment import computing_threads
from transfer_cli.training.trainer import Trainer

ROOT = Path(__file__).parents[2]

QUICK = ("clm", "ema", "stages", "streams")
"""Kinds of runs that are stopped in the quick tests."""


@pytest.fixture
def copied(short_run, tmp_path):
    """Return a copy of the short run that a test may change."""
    return shutil.copytree(short_run, tmp_path / "copied")


def weights(run, part="model"):
    return (Path(run) / part / "weights.safetensors").read_bytes()


def records(run):
    """Return all records, to the last byte."""
    return (Path(run) / "metrics.jsonl").read_text()


def results(run):
    """Return the final measures and what became of each example, to the last byte."""
    return [(Path(run) / name).read_text() for name in ("results.json", "items.jsonl")]


def curves(run):
    """Return the points of all curves but those that depend on the clock."""
    events = EventAccumulator(str(Path(run) / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    names = [name for name in events.Tags()["scalars"] if "per_second" not in name]
    return {name: [(p.step, p.value) for p in events.Scalars(name)] for name in names}


def status(run):
    return json.loads((Path(run) / "status.json").read_text())


def wait_for_records(process, run):
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + 240
    while not (metrics.exists() and metrics.read_text().count("\n") > 3):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- stopped and resumed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        *(pytest.param(n, 3, marks=[] if n in QUICK else [pytest.mark.slow]) for n in KINDS),
        pytest.param("clm", 6, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_ends_as_one_that_was_not(transfer, stopped, words_of, kind, step):
    words = words_of(kind, "loop.steps=6")
    transfer(*words, "run.dir=whole").ok()

    ended = stopped(step, *words, "run.dir=run")
    assert ended.code == 75, ended.err
    assert f"stopped at step {step} with a checkpoint" in ended.err
    assert f"go on with transfer {words[0]} resume=run" in ended.err
    assert status("run")["status"] == "stopped"
    resumed = transfer(words[0], "resume=run").ok()

    assert f"going on after step {step}" in resumed.err
    assert status("run")["status"] == "finished"
    assert differences(Path("whole"), Path("run")) == []


@pytest.mark.slow
def test_a_run_as_long_as_its_tokens_ends_as_one_that_was_not_stopped(transfer, stopped, words_of):
    words = words_of("clm", "loop.tokens=1500")
    transfer(*words, "run.dir=whole").ok()

    assert stopped(3, *words, "run.dir=run").code == 75
    transfer("pretrain", "resume=run").ok()

    assert status("run")["status"] == "finished"
    assert differences(Path("whole"), Path("run")) == []


@pytest.fixture
def products(tmp_path, monkeypatch):
    """Return how fast products are here, which a test may change; what is kept is known to none."""
    rates = {"float32": 1.0, "bfloat16": 4.0}
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bf16_products, "measure_rates", lambda: rates)
    return rates


def test_a_run_goes_on_in_the_precision_that_the_machine_of_its_beginning_chose(
    transfer, stopped, words_of, products
):
    words = words_of("clm", "loop.steps=6", "precision=auto")
    planned = transfer("plan", *words, "plan.steps=0").ok()
    transfer(*words, "run.dir=whole").ok()
    begun = stopped(3, *words, "run.dir=run")
    shutil.rmtree("cache/machines")
    products["bfloat16"] = 0.1

    transfer(*words, "run.dir=run", "resume=auto").ok()

    assert "cpu, bf16" in planned.out
    assert "cpu, bf16" in begun.err
    assert json.loads(Path("run/results.json").read_text())["precision"] == "bf16"
    assert differences(Path("whole"), Path("run")) == []


@pytest.mark.usefixtures("products")
def test_a_run_that_stored_no_more_than_auto_goes_on_in_float32_on_every_cpu(transfer, copied):
    lines = (copied / "config.yaml").read_text().splitlines()[:-1]
    then = ["precision: auto" if line == "precision: fp32" else line for line in lines]
    (copied / "config.yaml").write_text("\n".join(then))

    resumed = transfer("pretrain", f"resume={copied}", "loop.steps=3").ok()

    assert "precision: auto" in then
    assert "cpu, fp32" in resumed.err


@pytest.mark.slow
def test_a_resumed_run_has_the_threads_that_it_had(transfer, stopped, words_of, at_record):
    with computing_threads(2):
        assert stopped(3, *words_of("clm", "loop.steps=6"), "run.dir=run").code == 75
    seen = []
    at_record("after", "validation", 6, lambda: seen.append(torch.get_num_threads()))

    with computing_threads(1):
        resumed = transfer("pretrain", "resume=run")

    assert resumed.code == 0, resumed.err
    assert "bit for bit" not in resumed.err
    assert seen == [2]


@pytest.mark.slow
def test_other_threads_in_the_environment_change_no_bit_of_a_resumed_run(tmp_path):
    """A run of a size at which the number of threads decides the last bits."""

    def run(threads, *words):
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-m", "transfer_cli", "pretrain", *words],
            cwd=tmp_path, env=environment, check=True,
        )  # fmt: skip

    words = ("experiment=sample/pretrain", "device=cpu", "schedule=constant", "loop.steps=6")
    run("2", *words, "run.dir=whole", "checkpoint.keep=0", "checkpoint.every=3 steps")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")
    (tmp_path / "run" / "status.json").write_text('{"status": "running"}')
    shutil.copytree(tmp_path / "run", tmp_path / "other")

    run("1", "resume=run")
    run("1", "resume=other", "threads=1")

    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert weights(tmp_path / "other") != weights(tmp_path / "whole")


@pytest.fixture
def stopped_on_two_threads(stopped, words_of):
    """Leave a run in `run` that was stopped after three steps."""
    with computing_threads(2):
        stopped(3, *words_of("clm", "loop.steps=4"), "run.dir=run")


@pytest.mark.usefixtures("stopped_on_two_threads")
def test_what_differs_from_before_is_said_once(transfer, monkeypatch):
    before = metadata.version("torch")  # with CUDA, torch calls itself by more than this
    monkeypatch.setattr(metadata, "version", lambda package: "9.9")
    monkeypatch.setattr(environment, "versions", environment.versions.__wrapped__)

    resumed = transfer("pretrain", "resume=run", "threads=1").ok()

    [line] = [line for line in resumed.err.splitlines() if "bit for bit" in line]
    assert "threads 1 (was 2); " in line
    assert f"torch 9.9 (was {before}); " in line


@pytest.mark.slow
@pytest.mark.usefixtures("stopped_on_two_threads")
@pytest.mark.parametrize(
    "words",
    [
        ("resume=run", "resume.strict=true", "threads=1"),
        ("threads=1", "resume.strict=true", "resume=run"),
        ("resume.strict=true", "resume=auto", "run.dir=run", "threads=1"),
    ],
)
def test_a_strict_resume_refuses_other_threads(transfer, words, words_of):
    whole = words_of("clm", "loop.steps=4") if "resume=auto" in words else ("pretrain",)

    refused = transfer(*whole, *words)
    transfer(*whole, *(word for word in words if word != "threads=1")).ok()

    assert refused.code == 2
    assert refused.err.splitlines()[-1].startswith(
        "transfer pretrain: resume.strict: threads 1 (was 2); go on where it was"
    )


@pytest.mark.usefixtures("stopped_on_two_threads")
def test_a_run_of_2841927_goes_on_and_is_said_to_draw_dropout_otherwise(transfer):
    """Its checkpoints do not say what they ran on."""
    [folder] = Path("run/checkpoints").glob("step-*3")
    (folder / "ran_on.json").unlink()
    meta = json.loads((folder / "meta.json").read_text())
    del meta["files"]["ran_on.json"]
    (folder / "meta.json").write_text(json.dumps(meta))

    refused = transfer("pretrain", "resume=run", "resume.strict=true")
    resumed = transfer("pretrain", "resume=run").ok()

    assert refused.code == 2
    assert DROPOUT_DRAWN_OTHERWISE in refused.err
    [line] = [line for line in resumed.err.splitlines() if "bit for bit" in line]
    assert DROPOUT_DRAWN_OTHERWISE in line


def test_a_killed_run_goes_on_from_its_last_checkpoint(transfer, words_of):
    words = words_of("clm", "loop.steps=7", "checkpoint.every=4 steps", "checkpoint.keep=0")
    transfer(*words, "run.dir=whole").ok()

    # What a run that was killed in step 6 has left.
    shutil.copytree("whole", "run")
    shutil.rmtree("run/checkpoints/step-00000007")
    shutil.rmtree("run/checkpoints/best")
    shutil.copytree("run/checkpoints/step-00000004", "run/checkpoints/best")
    Path("run/results.json").unlink()
    Path("run/model/weights.safetensors").unlink()
    Path("run/status.json").write_text('{"status": "running"}')
    lines = Path("whole/metrics.jsonl").read_text().splitlines(keepends=True)
    Path("run/metrics.jsonl").write_text("".join(lines[:6]) + lines[6][:20])
    resumed = transfer("pretrain", "resume=run").ok()

    assert "going on after step 4" in resumed.err
    assert differences(Path("whole"), Path("run")) == []


def test_a_run_killed_before_its_first_checkpoint_begins_again(transfer, words_of):
    words = words_of("clm", "loop.steps=2")
    transfer(*words, "run.dir=whole").ok()
    shutil.copytree("whole", "run")
    shutil.rmtree("run/checkpoints")
    Path("run/results.json").unlink()
    Path("run/status.json").write_text('{"status": "running"}')

    resumed = transfer("pretrain", "resume=run").ok()

    assert "no checkpoint yet: starting from the beginning" in resumed.err
    assert differences(Path("whole"), Path("run")) == []


def test_a_run_that_gave_up_does_not_go_on_training(transfer, stopped, words_of):
    words = words_of("clm", "loop.steps=60", "optimizer.lr=1e-30", "loop.patience=1")

    assert stopped(6, *words, "run.dir=run").code == 75
    transfer("pretrain", "resume=run").ok()
    again = transfer("pretrain", "resume=run")

    assert json.loads(results("run")[0])["seen"]["steps"] == 6
    assert again.code == 2
    assert "loop.patience" in again.err


def test_ctrl_c_saves_too(stopped, words_of):
    words = words_of("clm", "loop.steps=6", "run.dir=run")

    ended = stopped(3, *words, number=signal.SIGINT)

    assert ended.code == 130
    assert "stopped at step 3 with a checkpoint" in ended.err
    assert "Traceback" not in ended.err
    assert status("run")["status"] == "stopped"
    assert Path("run/checkpoints/step-00000003/train_state.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_from_the_shell_stops_a_run_with_a_checkpoint(
    shell, words_of, tmp_path, number, code
):
    words = words_of("clm", "loop.steps=100000", "loop.evaluate_every=10 epochs")
    run = tmp_path / "run"
    process = shell(*words, f"run.dir={run}")

    wait_for_records(process, run)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)

    assert process.returncode == code, err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("transfer pretrain: stopped at step ")
    assert status(run)["status"] == "stopped"


# --- resume=auto -------------------------------------------------------------------------------


def test_the_same_command_begins_a_run_goes_on_with_it_and_then_has_nothing_to_do(
    transfer, stopped, words_of
):
    words = words_of("clm", "loop.steps=6", "resume=auto")
    transfer(*words, "run.dir=whole").ok()

    ended = stopped(3, *words, "run.dir=run")
    resumed = transfer(*words, "run.dir=run").ok()
    before = sorted((path, path.stat().st_mtime_ns) for path in Path("run").rglob("*"))
    again = transfer(*words, "run.dir=run").ok()

    assert ended.code == 75
    assert "going on after step 3" in resumed.err
    assert differences(Path("whole"), Path("run")) == []
    assert "run is finished" in again.err
    assert again.err.count("\n") == 1
    assert sorted((path, path.stat().st_mtime_ns) for path in Path("run").rglob("*")) == before


STOPPED_AT_AN_IMPORT = """
import signal, sys
module = sys.argv[1]
class Stops:
    def find_spec(self, name, *_):
        if name == module:
            signal.raise_signal(signal.SIGTERM)
sys.meta_path.insert(0, Stops())
import transfer_cli.cli
sys.exit(transfer_cli.cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["hydra", "torch"])
def test_a_signal_while_modules_are_imported_ends_at_once_and_leaves_nothing(module, tmp_path):
    words = ("pretrain", "experiment=sample/pretrain", "run.dir=run", "loop.steps=2")

    ended = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_AN_IMPORT, module, *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGTERM, "", "")
    assert not list(tmp_path.iterdir())


def test_what_an_unchanged_command_adds_and_takes_away_is_no_contradiction(transfer, words_of):
    words = words_of("clm", "+objective@losses.second=clm", "losses.second.weight=0.5",
                     "~optimizer.betas", "schedule=linear", "run.dir=run",
                     "resume=auto")  # fmt: skip
    transfer(*words, "loop.steps=3").ok()

    planned = transfer("plan", *words, "loop.steps=4", "plan.steps=0")
    longer = transfer(*words, "loop.steps=4").ok()

    assert "going on after step 3" in longer.err
    records = map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
    rates = [record["rate/block.0"] for record in records if record["kind"] == "train"]
    course = f"the rate, {rates[2]:.3g} in step 3, is {rates[3]:.3g} in step 4"
    assert rates[2] != rates[3]
    assert course in longer.err
    assert course in planned.out
    assert len(set(Path("run/overrides.txt").read_text().splitlines())) == len(words) + 1


ANOTHER = {
    "seed=1": "seed=1 contradicts the run's seed=0",
    "objective=mlm": "objective",
    "+objective@losses.second=clm": "losses.second",
    "optimizer.lr=0.5": "optimizer.lr=0.5 contradicts the run's optimizer.lr=0.00025",
}


def test_another_command_for_the_same_directory_is_refused(transfer, words_of):
    words = words_of("clm", "loop.steps=2", "run.dir=run", "resume=auto")
    transfer(*words).ok()
    before = records("run"), status("run")

    for typed, key in ANOTHER.items():
        ended = transfer(*words, typed)

        assert ended.code == 2
        assert f"resume: {key}" in ended.err
        assert "choose another run.dir" in ended.err
        assert ended.err.count("\n") == 1
        assert (records("run"), status("run")) == before


def test_auto_goes_on_with_a_run_from_before_presets_had_rates_at_the_rate_it_had(
    transfer, stopped, words_of
):
    words = words_of("full", "adaptation=lora", "loop.steps=6", "run.dir=run", "resume=auto")
    assert stopped(3, *words, "optimizer.lr=6.5e-5").code == 75
    overrides = Path("run/overrides.txt")
    overrides.write_text(overrides.read_text().replace("optimizer.lr=6.5e-5\n", ""))

    refused = transfer(*words, "optimizer.lr=1e-3")
    resumed = transfer(*words).ok()

    assert "optimizer.lr=0.001 contradicts the run's optimizer.lr=6.5e-05" in refused.err
    assert "going on after step 3" in resumed.err
    assert yaml.safe_load(Path("run/config.yaml").read_text())["optimizer"]["lr"] == 6.5e-5
    trained = [json.loads(line) for line in records("run").splitlines() if '"train"' in line]
    rates = {record["step"]: record["rate/head.class"] for record in trained}
    assert rates == dict.fromkeys(range(1, 7), 6.5e-5)


def test_a_run_that_diverged_before_its_first_checkpoint_begins_again(transfer, words_of):
    words = words_of("clm", "loop.steps=20", "optimizer.lr=1e18", "loop.clip=null", "run.dir=run",
                     "loop.max_bad_steps=1", "checkpoint.every=20 steps", "resume=auto",
                     "loop.evaluate_every=20 steps")  # fmt: skip
    first = transfer(*words)
    lines = records("run")

    again = transfer(*words)

    assert first.code == again.code == 4
    assert "starting from the beginning" in again.err
    assert records("run") == lines
    steps = [step for step, _ in curves("run")["train/loss"]]
    assert steps == sorted(set(steps))


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_was(transfer, words_of):
    words = words_of("clm", "loop.steps=2", "seed=0,1", "-m", "run.dir=sweep", "resume=auto")
    transfer(*words).ok()
    before = json.loads(Path("sweep/job-0.json").read_text())
    shutil.rmtree("sweep/1")

    transfer(*words).ok()

    # What is done is said to be done, and only what is gone runs again.
    assert status("sweep/1")["status"] == "finished"
    assert json.loads(Path("sweep/job-0.json").read_text()) == before


def test_a_plan_is_of_the_run_that_auto_would_go_on_with(transfer, words_of):
    words = words_of("clm", "loop.steps=2", "run.dir=run", "resume=auto")
    new = transfer("plan", *words, "plan.steps=0")
    transfer(*words).ok()

    again = transfer("plan", *words, "plan.steps=0")

    assert new.code == again.code == 0, again.err
    assert new.out == again.out


# --- damaged -----------------------------------------------------------------------------------


def test_the_checkpoint_before_a_damaged_one_is_used(transfer, stopped, words_of):
    words = words_of("clm", "loop.steps=8", "checkpoint.keep=0", "loop.evaluate_every=1 steps")
    transfer(*words, "run.dir=whole").ok()
    assert stopped(6, *words, "run.dir=run").code == 75
    file = Path("run/checkpoints/step-00000006/train_state.pt")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    resumed = transfer("pretrain", "resume=run").ok()

    warning = next(line for line in resumed.err.splitlines() if line.startswith("warning"))
    assert "step-00000006/train_state.pt is damaged" in warning
    assert "step 4" in warning
    assert "going on after step 4" in resumed.err
    assert differences(Path("whole"), Path("run")) == []


def test_best_weights_found_after_the_checkpoint_are_not_the_best_yet(
    transfer, stopped, words_of, monkeypatch
):
    words = words_of("clm", "loop.steps=5", "loop.evaluate_every=1 steps", "checkpoint.keep=0",
                     "checkpoint.every=2 steps")  # fmt: skip
    assert stopped(4, *words, "run.dir=run").code == 75
    shutil.copytree("run/checkpoints/step-00000002/best", "early")
    for path in Path("run/checkpoints").glob("step-*4"):
        shutil.rmtree(path)  # killed before it was written, though after the best of step 4 was
    assert json.loads(Path("run/checkpoints/best/meta.json").read_text())["step"] == 4

    # On a machine that does not repeat its sums: nothing better is found any more.
    monkeypatch.setattr(Trainer, "_validate", lambda trainer: {"loss": 1e9})
    transfer("pretrain", "resume=run").ok()

    assert json.loads(results("run")[0])["best_step"] == 2
    assert weights("run") == Path("early/weights.safetensors").read_bytes()


# --- extended ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_made_longer_ends_as_one_that_was_long_from_the_start(transfer, words_of):
    words = words_of("clm", "checkpoint.keep=0")
    transfer(*words, "loop.steps=9", "run.dir=long").ok()
    transfer(*words, "loop.steps=3", "run.dir=run").ok()

    transfer("pretrain", "resume=run", "loop.steps=9").ok()

    assert weights("run") == weights("long")
    last = "checkpoints/step-00000009"
    assert weights("run", last) == weights("long", last)
    assert results("run") == results("long")
    assert yaml.safe_load(Path("run/config.yaml").read_text())["loop"]["steps"] == 9
    assert transfer("pretrain", "resume=run").code == 2


def test_what_was_typed_for_the_run_may_be_typed_again(transfer, copied):
    words = ("objective=clm", "model=tiny", "model.width=32", "seed=0", "schedule=constant")

    transfer("pretrain", f"resume={copied}", *words, "loop.steps=3").ok()


# --- data that have changed ----------------------------------------------------------------------


@pytest.fixture
def here(begun, tmp_path, transfer):
    """Put a copy of all that into the test's folder."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    return tmp_path


def go_on(transfer, *words):
    return transfer("finetune", "resume=questions", "loop.steps=4", *words)


# --- labelled data -----------------------------------------------------------------------------


def test_changed_data_can_be_accepted_once_and_are_said(here, transfer, read_json):
    write_table("train.csv", [row for row in rows() if row[1] != "amount"])
    write_table("test.csv", [row for row in rows()[:12] if row[1] != "amount"])

    accepted = go_on(transfer, "data.changed=accept")

    assert accepted.code == 0, accepted.err
    results = read_json("questions/results.json")
    assert len(results["data_changed"]) == 1
    assert "the label 'amount' is gone" in results["data_changed"][0]
    assert results["labels"] == ["amount", "person", "place"]
    (confusion,) = results["tables"]["test"].values()
    assert [sum(row) for row in confusion] == [0, 4, 4]
    # What was accepted is the run's from then on, and other changes are not.
    transfer("finetune", "resume=questions", "loop.steps=5").ok()
    write_table("train.csv", rows())
    assert transfer("finetune", "resume=questions", "loop.steps=6").code == 2
    assert read_json("questions/results.json")["data_changed"] == results["data_changed"]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_an_evaluation_scores_the_run_s_own_examples_or_says_so(here, transfer, read_json, split):
    transfer("evaluate", "run=questions", f"split={split}").ok()
    write_table("train.csv", rows()[:48])
    write_table("test.csv", rows()[1:13])

    refused = transfer("evaluate", "run=questions", f"split={split}")
    words = ("data.changed=accept", "output=out.json")
    transfer("evaluate", "run=questions", f"split={split}", *words).ok()

    assert refused.code == 2
    named = "train.csv: validation has 4" if split == "validation" else "test.csv: test has other"
    assert f"data: {named}" in refused.err
    assert named in read_json("out.json")["data_changed"][0]


def test_other_data_are_not_compared(here, transfer):
    write_table("new.csv", rows()[5:30])

    words = ("data=table", "data.train=new.csv", "split=train")
    transfer("evaluate", "run=questions", *words).ok()


def test_the_same_command_again_finds_the_change(here, transfer):
    write_table("train.csv", rows()[:48])

    words = json.loads(json.dumps(Path("questions/overrides.txt").read_text().split("\n")[:-1]))
    ended = transfer("finetune", *words, "resume=auto", "loop.steps=4")

    assert ended.code == 2
    assert "train has 44 examples and not 54" in ended.err


# --- text --------------------------------------------------------------------------------------


def test_an_accepted_text_keeps_the_run_s_tokenizer(here, transfer, read_json):
    tokenizer = Path("language/model/tokenizer.json").read_bytes()
    Path("a.txt").write_text("Entirely other words stand here now .\n" * 200)

    transfer("pretrain", "resume=language", "loop.steps=4", "data.changed=accept").ok()

    assert Path("language/model/tokenizer.json").read_bytes() == tokenizer
    assert "other content" in read_json("language/results.json")["data_changed"][0]


# --- weights and tokenizer ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "validation", "steps", "said"),
    [
        (
            "a.txt",
            "held_out.txt",
            3,
            "the weights in language/model are not those that the run beg",
        ),
        ("held_out.txt", "a.txt", 2, "this is not the tokenizer that the run began with"),
    ],
)
def test_another_model_to_start_from_is_refused(here, transfer, train, validation, steps, said):
    text = ("data=text", f"data.train={train}", f"data.validation={validation}", "data.length=16")
    shutil.rmtree("language")
    usual = (*LOOP, "schedule=constant", f"loop.steps={steps}", "run.dir=language")
    transfer("pretrain", *text, *TINY, *usual).ok()

    ended = go_on(transfer)

    assert ended.code == 2
    assert f"init_from: {said}" in ended.err


# --- the record --------------------------------------------------------------------------------


def test_a_run_without_a_record_goes_on_and_gets_one(here, transfer):
    Path("questions/origins.json").unlink()

    ended = go_on(transfer)

    assert ended.code == 0, ended.err
    assert "no record of what it was made from" in ended.err
    write_table("train.csv", rows()[:48])
    assert transfer("finetune", "resume=questions", "loop.steps=5").code == 2


# --- a terminal that goes away -------------------------------------------------------------------


@pytest.fixture
def words(corpus, tiny, loop):
    """Return a run that takes longer than any test waits."""
    return ("pretrain", "data=text", f"data.train={corpus}", *tiny, *loop, "loop.steps=100000")


@pytest.fixture
def hung_up(tmp_path):
    """Return how to run a command on a terminal that goes away once a text was shown there.

    With `log` it is looked for in that file.
    """

    def call(sign, *words, ignores=False, log=None):
        master, slave = pty.openpty()
        # In this place, since the server of processes keeps the variables of its own start.
        variables = {name: os.environ[name] for name in ("TRANSFER_CACHE", "TRANSFER_DATA")}
        arguments = (os.ttyname(slave), tmp_path, words, variables, ignores)
        process = CONTEXT.Process(target=_on_terminal, args=arguments)
        process.start()
        if log is None:
            _read_until(master, sign)
        while log is not None and not (log.is_file() and sign in log.read_text()):
            time.sleep(0.1)
        os.close(slave)
        os.close(master)
        process.join(60)
        code = process.exitcode
        process.kill()
        return code

    return call


def _on_terminal(terminal, folder, words, variables, ignores):
    os.environ.update(variables, OMP_NUM_THREADS="1")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    os.chdir(folder)
    os.setsid()  # without a terminal: the one that is opened next becomes its own
    opened = os.open(terminal, os.O_RDWR)
    for stream in range(3):
        os.dup2(opened, stream)
    if ignores:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main([str(word) for word in words]))


def _read_until(master, sign):
    shown = b""
    while sign.encode() not in shown:
        with contextlib.suppress(InterruptedError):
            shown += os.read(master, 4096)


@pytest.mark.slow
def test_a_run_saves_and_ends_when_its_terminal_goes_away(hung_up, words, tmp_path):
    code = hung_up("step 3 validation", *words, "run.dir=run")

    assert code == 75
    assert status(tmp_path / "run")["status"] == "stopped"
    assert "with a checkpoint; go on with" in status(tmp_path / "run")["reason"]
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_a_run_that_ignores_the_signal_goes_on_without_its_terminal(hung_up, words, tmp_path):
    """As `nohup` has it."""
    code = hung_up("step 3 validation", *words, "loop.steps=12", "run.dir=run", ignores=True)

    assert code == 0
    assert status(tmp_path / "run")["status"] == "finished"


@pytest.mark.slow
def test_a_sweep_and_its_jobs_end_when_their_terminal_goes_away(hung_up, words, tmp_path):
    log = tmp_path / "sweep" / "job-0.log"
    code = hung_up("step 3 validation", *words, "run.dir=sweep", "seed=1,2", "-m", log=log)

    assert code == 75
    assert status(tmp_path / "sweep" / "0")["status"] == "stopped"
    jobs = [json.loads((tmp_path / "sweep" / f"job-{n}.json").read_text()) for n in (0, 1)]
    assert [job["outcome"] for job in jobs] == ["stopped", "left"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_save_and_end_when_their_terminal_goes_away(hung_up, words, tmp_path):
    code = hung_up("step 3 validation", *words, "run.dir=run", "devices=2")

    assert code == 75
    assert "with a checkpoint; go on with" in status(tmp_path / "run")["reason"]
