"""Commands on two processes: what comes out, and what happens when one of them fails."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests import several
from tests.records import read_metrics
from tests.task_kinds import KINDS as TASKS
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.runs.items import read_items

pytestmark = pytest.mark.multiprocess

FAULTY = '''
import os, signal, time
from pathlib import Path
from transfer_cli.objectives.causal_lm import CausalLM

class Faulty(CausalLM):
    """Goes wrong in the second process, in its fourth batch."""

    def __init__(self, how):
        self.how, self.batches = how, 0

    def prepare(self, batch, noise):
        self.batches += 1
        if os.environ.get("RANK") == "1" and self.batches == 4:
            if self.how == "raises":
                raise ValueError("the second process has had enough")
            if self.how == "hangs":
                time.sleep(600)
            if self.how == "dies" or (self.how == "dies once" and not Path("died").exists()):
                Path("died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "preempted":
                os.kill(os.getpid(), signal.SIGUSR1)
        return super().prepare(batch, noise)
'''


@pytest.fixture
def words(corpus, tiny, loop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("faulty.py").write_text(FAULTY)
    return (
        "pretrain", "data=text", f"data.train={corpus}", *tiny, *loop, "loop.steps=6",
        "checkpoint.keep=0", "model.dropout=0", "--plugin", "faulty",
        "objective._target_=faulty.Faulty",
    )  # fmt: skip


def apart(*words):
    """Run a command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(several.ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "transfer_cli", *words],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def how(fault):
    return f"+objective.how='{fault}'"


def status(run):
    return json.loads((Path(run) / "status.json").read_text())


def files(run):
    """Return the names of all files, but for the time in some."""
    return sorted(path.name.partition(".tfevents")[0] for path in Path(run).rglob("*"))


def values(run):
    return [
        value
        for record in read_metrics(Path(run) / "metrics.jsonl")
        for value in record.values()
        if isinstance(value, float)
    ]


@pytest.mark.parametrize("starts", ["forked", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_two_processes_make_one_run_and_speak_once(words, transfer, starts):
    if starts == "forked":
        ended = several.forked(2, *words, how("never"))
    else:
        ended = several.torchrun(2, "-m", "transfer_cli", *words, how("never"))
    transfer(*words, how("never"), "run.dir=alone").ok()

    assert ended.returncode == 0, ended.stderr
    (run,) = Path("runs/pretrain").iterdir()
    assert status(run)["status"] == "finished"
    assert ended.stderr.count("stage 1 of 1") == 1
    assert ended.stdout.count("done: 6 steps") == 1
    assert files(run) == files("alone")
    assert values(run) == pytest.approx(values("alone"), rel=1e-5)


@pytest.mark.slow
def test_what_one_process_cannot_do_is_said_once_and_ends_all(words):
    ended = apart(*words, how("raises"), "run.dir=run", "devices=2")

    assert ended.returncode == 1
    assert ended.stderr.count("ValueError: the second process has had enough") == 1
    assert "Connection closed" not in ended.stderr
    assert status("run") == {"status": "failed", "reason": "another process failed or is gone"}


@pytest.mark.slow
def test_a_mistake_is_said_once(words):
    ended = apart(*words, how("never"), "run.dir=run", "devices=2", "optimizer.lr=-1")

    assert ended.returncode == 2
    assert ended.stderr.count("optimizer.lr") == 1
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_process_that_does_not_come_is_named(words):
    began = time.monotonic()
    ended = apart(*words, how("hangs"), "run.dir=run", "devices=2", "timeout_minutes=0.05")

    assert ended.returncode == 2
    assert "process 1 of 2 has not come within 3 s" in ended.stderr
    assert time.monotonic() - began < 120
    assert status("run")["status"] == "failed"


@pytest.mark.slow
def test_a_process_that_is_killed_ends_all(words):
    ended = apart(*words, how("dies"), "run.dir=run", "devices=2")

    assert ended.returncode == 137
    assert "process 1 was killed by SIGKILL, and the others were ended" in ended.stderr
    assert status("run")["status"] == "failed"


@pytest.mark.slow
def test_killed_processes_start_again_and_end_as_if_nothing_had_been(words):
    again = ("resume=auto", "restarts=2", "devices=2")
    whole = apart(*words, how("dies once"), "run.dir=run", *again)
    assert whole.returncode == 0, whole.stderr
    assert "starting all 2 again, 1 time(s) left" in whole.stderr
    assert "going on after step 2" in whole.stderr
    straight = apart(*words, how("dies once"), "run.dir=straight", *again)
    assert straight.returncode == 0, straight.stderr
    assert "again" not in straight.stderr

    for file in ("model/weights.safetensors", "metrics.jsonl", "results.json"):
        assert (Path("run") / file).read_bytes() == (Path("straight") / file).read_bytes(), file


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_the_same_step(words, transfer):
    ended = apart(*words, how("preempted"), "run.dir=run", "devices=2")

    assert ended.returncode == 75
    # In its fourth batch: that of the validation after three steps.
    assert ended.stderr.count("stopped at step 3 with a checkpoint") == 1
    assert status("run")["status"] == "stopped"
    # With another number of processes, and a fault that only a second process has.
    resumed = transfer("pretrain", "resume=run", "--plugin", "faulty").ok()
    assert "going on after step 3" in resumed.err


@pytest.mark.slow
def test_finetune_evaluate_and_predict_say_what_one_process_says(words, transfer):
    transfer(*words, how("never"), "run.dir=base").ok()
    run = ("finetune", "data=sample_questions", "init_from=base", "device=cpu", "loop.steps=8",
           "adaptation=gradual_unfreezing", "objective.dropout=0",
           "--plugin", "faulty")  # fmt: skip
    transfer(*run, "run.dir=one").ok()
    ended = apart(*run, "run.dir=two", "devices=2")
    assert ended.returncode == 0, ended.stderr
    assert values("two") == pytest.approx(values("one"), rel=1e-4, abs=1e-6)

    scored = apart("evaluate", "run=one", "devices=2", "device=cpu", "split=all")
    assert scored.stdout == transfer("evaluate", "run=one", "device=cpu", "split=all").out

    Path("in.txt").write_text("".join(f"What is number {n}?\n" for n in range(7)))
    answer = ("predict", "run=[one,two]", "input=in.txt", "device=cpu", "batch=2")
    transfer(*answer, "output=one.jsonl").ok()
    answered = apart(*answer, "output=two.jsonl", "devices=2")
    assert answered.returncode == 0, answered.stderr
    one, two = (
        [json.loads(line) for line in Path(name).read_text().splitlines()]
        for name in ("one.jsonl", "two.jsonl")
    )
    assert [row["text"] for row in two] == [row["text"] for row in one]
    for mine, theirs in zip(two, one, strict=True):
        assert mine["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)


@pytest.mark.slow
def test_a_sharded_run_goes_on_with_another_number_of_processes(words, transfer):
    # The mix has a parameter that is a single number, of which there are no parts.
    words = (*words[:-1], "objective=clm", "adaptation/edits=[scalar_mix]", "loop.average=ema")
    whole = apart(*words, "run.dir=whole", "devices=2", "parallel=fsdp")
    assert whole.returncode == 0, whole.stderr
    shutil.copytree("whole", "stopped")
    for step in (4, 6):
        shutil.rmtree(f"stopped/checkpoints/step-{step:08d}")
    Path("stopped/status.json").write_text('{"status": "stopped"}')
    for number in ("same", "one"):
        shutil.copytree("stopped", number)

    same = apart("pretrain", "resume=same", "devices=2", "parallel=fsdp")
    one = transfer("pretrain", "resume=one").ok()

    assert same.returncode == 0, same.stderr
    assert "going on after step 2" in one.err
    for file in ("model/weights.safetensors", "metrics.jsonl", "results.json"):
        assert (Path("same") / file).read_bytes() == (Path("whole") / file).read_bytes(), file
    assert values("one") == pytest.approx(values("whole"), rel=1e-4, abs=1e-6)

    shutil.rmtree("one/checkpoints/step-00000006")
    Path("one/status.json").write_text('{"status": "stopped"}')
    two = apart("pretrain", "resume=one", "devices=2", "parallel=fsdp")

    assert two.returncode == 0, two.stderr
    assert "going on after step 4" in two.stderr
    assert values("one") == pytest.approx(values("whole"), rel=1e-4, abs=1e-6)


FRESH = "model.dropout=0 model.attention_dropout=0"
START = "init_from={still}"
TASK = f"{START} objective.dropout=0"

ALIKE = {
    **dict.fromkeys(("pairs", "corrupted", "replaced tokens"), FRESH),
    **dict.fromkeys(("strided", "fixed", "relations", "ema"), FRESH),
    "last_k": TASK,
    "student": "",
    "masked words": "",
    "words": f"{START} 'objective.words={{{{place: the, person: of}}}}'",
    **dict.fromkeys(("taught tags", "unlabelled tags", *TASKS), TASK),
    **dict.fromkeys(("chat", "similarity", "span", "text_to_text"), START),
}
"""What is typed beyond for kinds of runs, so that no process draws dropout of its own."""

SHARDED = ("ema", "last_k", "replaced tokens", "student", "words", "masked words")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "parallel"), [*((k, "ddp") for k in ALIKE), *((k, "fsdp") for k in SHARDED)]
)
def test_two_processes_train_what_one_does(kind, parallel, words_of, still, transfer):
    words = (
        *words_of(kind, "loop.steps=6", "loop.micro_batch=3", "optimizer=sgd", "optimizer.lr=0.05"),
        *shlex.split(ALIKE[kind].format(still=still)),
    )
    transfer(*words, "run.dir=one").ok()

    ended = apart(*words, "run.dir=two", "devices=2", f"parallel={parallel}")

    assert ended.returncode == 0, ended.stderr
    paths = [*Path("one/model").glob("*.safetensors"), *Path("one/parts").rglob("*.safetensors")]
    assert paths
    for path in paths:
        tensors = load_file(Path("two", path.relative_to("one")))
        assert_close(tensors, load_file(path), rtol=1e-4, atol=1e-5)
    for name in ("loss", "averaged/loss"):
        assert losses("two", name) == pytest.approx(losses("one", name), rel=1e-4)
    files = [Path(run, "items.jsonl") for run in ("one", "two")]
    assert files[0].exists() == files[1].exists()
    if not files[0].exists():  # what learns from no examples has none
        return
    one, two = (list(read_items(file, "validation")) for file in files)
    for mine, theirs in zip(two, one, strict=True):
        assert (mine.index, mine.label, mine.text) == (theirs.index, theirs.label, theirs.text)
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-3, abs=1e-5)


PRESETS = sorted(
    path.stem
    for path in (conf_dir() / "adaptation").glob("*.yaml")
    if path.stem not in ("multitask", "pet")  # needs a second stream; see test_cloze
)
NEEDS_THE_WHOLE = ("l2_sp", "ewc", "source_distillation")


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_gives_the_weights_of_one_process(preset, parallel, words, transfer):
    """Fifty steps, through all stages. Batch norm is left out: it looks at each share by itself."""
    transfer(*words, how("never"), "run.dir=base").ok()
    run = ("finetune", "data=sample_questions", "init_from=base", f"adaptation={preset}",
           "device=cpu", "loop.steps=50", "loop.batch=15", "loop.micro_batch=4", "optimizer=sgd",
           "optimizer.lr=0.05", "objective.dropout=0", "objective.batch_norm=false",
           "--plugin", "faulty")  # fmt: skip
    if preset in ("lora", "dora"):
        run = (*run, f"adaptation.edits.{preset}.dropout=0")
    if preset == "top_k":
        run = (*run, "adaptation.plan.count=1")  # of one block
    if preset in ("distil", "self_training"):
        taught = ("finetune", "data=sample_questions", "init_from=base", "loop.steps=9")
        transfer(*taught, "--plugin", "faulty", "run.dir=teacher").ok()
        run = (*run, "adaptation.teachers=[teacher]")
    if preset in ("distil", "self_training", "uda", "cvt"):
        run = (*run, "data.labelled=60", "streams.rest.batch=21")
    if preset == "self_training":
        run = (*run, "losses.rest.confidence=0.1")
    transfer(*run, "run.dir=one").ok()
    ended = apart(*run, "run.dir=two", "devices=2", f"parallel={parallel}")
    if parallel == "fsdp" and preset in NEEDS_THE_WHOLE:
        assert ended.returncode == 2
        assert "with fsdp no process has the whole model" in ended.stderr
        return
    assert ended.returncode == 0, ended.stderr

    one, two = (load_file(f"{name}/model/weights.safetensors") for name in ("one", "two"))
    for name, weight in one.items():
        assert_close(two[name], weight, rtol=0, atol=1e-6, msg=name)
    assert losses("two") == pytest.approx(losses("one"), abs=1e-6)


def losses(run, name="loss"):
    return [r[name] for r in read_metrics(Path(run) / "metrics.jsonl") if name in r]
