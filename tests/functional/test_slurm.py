"""The scripts for Slurm, and sweeps by submitit, with stand-ins for the commands of a cluster."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.functional.conftest import LOOP, TINY
from transfer_cli.config.conf_folder import conf_dir

SCRIPTS = conf_dir().parent / "scripts"
BOTH = ("slurm.sbatch", "slurm_per_gpu.sbatch")
STARTERS = [(BOTH[0], "torchrun"), (BOTH[1], "python")]

SCONTROL = """#!/usr/bin/env bash
if [[ $1 == show ]]; then echo 127.0.0.1; echo never-asked; else echo "$@" >> said; fi
"""

SRUN = """#!/usr/bin/env bash
# Starts $TASKS processes, numbers them as Slurm does, and ends with the highest exit code.
while [[ $1 == --* ]]; do shift; done
for ((n = 0; n < TASKS; n++)); do
    SLURM_PROCID=$n SLURM_LOCALID=$n SLURM_NTASKS=$TASKS "$@" &
    echo $! >> tasks
done
highest=0
for process in $(jobs -p); do
    wait "$process" || { code=$?; ((code > highest)) && highest=$code; }
done
exit "$highest"
"""

PRETRAIN = (
    "pretrain", "data=sample_text", "data.length=32", *TINY, *LOOP, "loop.evaluate_every=20 steps",
    "checkpoint.every=500 steps",
)  # fmt: skip


@pytest.fixture
def submit(tmp_path):
    """Return how to start a script as a job of Slurm's would be."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)

    def start(script, *words, tasks=1, **environment):
        path = [str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]
        job = {
            "PATH": os.pathsep.join(path), "PYTHONPATH": str(conf_dir().parent),
            "OMP_NUM_THREADS": "1", "TASKS": str(tasks), "SLURM_JOB_NUM_NODES": "1",
            "SLURM_JOB_ID": str(30_000 + os.getpid() % 10_000),
            "SLURM_JOB_NODELIST": "machine[1-2]",
        }  # fmt: skip
        return subprocess.Popen(
            ["bash", SCRIPTS / script, *words],
            cwd=tmp_path, env={**os.environ, **job, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    return start


def ended(job):
    out, _ = job.communicate(timeout=300)
    return job.returncode, out


@pytest.fixture
def stand_in(tmp_path):
    """Return how to make a command that leaves a status and ends with a code."""

    def make(name, status, code):
        command = tmp_path / "commands" / name
        command.write_text(
            f"#!/usr/bin/env bash\nmkdir -p run; echo '{json.dumps({'status': status})}' "
            f'> run/status.json; echo "$@"; exit {code}\n'
        )
        command.chmod(0o755)

    return make


@pytest.mark.parametrize(
    ("status", "code", "left", "said"),
    [("stopped", 1, 75, "requeue 7\n"), ("failed", 1, 1, ""), ("finished", 0, 0, "")],
)
@pytest.mark.parametrize(("script", "command"), STARTERS)
def test_a_stopped_run_alone_queues_its_job_again(
    submit, stand_in, tmp_path, script, command, status, code, left, said
):
    stand_in(command, status, code)
    (tmp_path / "said").touch()

    assert ended(submit(script, "pretrain", "run.dir=run", SLURM_JOB_ID="7"))[0] == left
    assert (tmp_path / "said").read_text() == said


def test_torchrun_meets_on_the_first_machine(submit, stand_in):
    stand_in("torchrun", "finished", 0)

    words = {"SLURM_JOB_ID": "12", "SLURM_GPUS_ON_NODE": "8", "SLURM_RESTART_COUNT": "2"}
    _, out = ended(submit("slurm.sbatch", "pretrain", "run.dir=run", "data=text", **words))

    assert "--nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:20012" in out
    assert "--rdzv-id=12-2" in out
    assert out.rstrip().endswith("-m transfer_cli pretrain run.dir=run data=text resume=auto")


def test_each_process_is_numbered_without_torchrun(submit, tmp_path):
    (tmp_path / "commands" / "python").write_text(
        '#!/usr/bin/env bash\necho "$RANK of $WORLD_SIZE, $LOCAL_RANK here, $MASTER_ADDR" "$@"\n'
    )
    (tmp_path / "commands" / "python").chmod(0o755)

    _, out = ended(submit("slurm_per_gpu.sbatch", "pretrain", "run.dir=run", tasks=2))

    said = "127.0.0.1 -m transfer_cli pretrain run.dir=run resume=auto"
    assert sorted(out.splitlines()) == [f"0 of 2, 0 here, {said}", f"1 of 2, 1 here, {said}"]


@pytest.mark.parametrize("script", BOTH)
@pytest.mark.parametrize("words", [(), ("run.dir=run", "resume=other")])
def test_a_command_line_that_cannot_be_queued_again_is_refused(submit, script, words):
    code, out = ended(submit(script, "pretrain", *words))

    assert code == 2
    assert ("run.dir=FOLDER" if not words else "leave resume=other out") in out


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(("script", "tasks"), [(BOTH[0], 1), (BOTH[1], 2)])
def test_a_job_whose_time_is_up_saves_and_goes_on(submit, tmp_path, script, tasks):
    words = (*PRETRAIN, "loop.steps=150", "run.dir=run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    job = submit(script, *words, tasks=tasks, PROCESSES_PER_NODE="2")
    while job.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < 10):
        time.sleep(0.05)
    for process in (tmp_path / "tasks").read_text().split():
        os.kill(int(process), signal.SIGUSR1)
    code, out = ended(job)
    assert code == 75, out
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "stopped"

    code, out = ended(submit(script, *words, tasks=tasks, PROCESSES_PER_NODE="2"))

    assert code == 0, out
    assert "going on after step" in out
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert sorted(set(steps)) == list(range(1, 151))


# --- sweeps ------------------------------------------------------------------------------------

SUBMITIT = """
import pickle, subprocess, sys
from pathlib import Path
from types import SimpleNamespace

PROGRAM = "import pickle, sys; function, job = pickle.load(sys.stdin.buffer); function(job)"

class AutoExecutor:
    def __init__(self, folder, cluster, **named):
        Path("asked").write_text(repr((folder, cluster, named)))

    def update_parameters(self, **named):
        Path("settings").write_text(repr(named))

    def map_array(self, function, jobs):
        for job in jobs:
            packed = pickle.dumps((function, job))
            if Path("apart").exists():
                subprocess.run([sys.executable, "-c", PROGRAM], input=packed, check=True)
            else:
                function, job = pickle.loads(packed)
                function(job)
        return [SimpleNamespace(exception=lambda: None) for _ in jobs]
"""
"""What stands in for submitit: it runs each job as it comes out of a pickle, one after the other,
and where there is a folder `apart` in a process of its own.
"""


@pytest.fixture
def _submitit(tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "submitit.py").write_text(SUBMITIT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "submitit", raising=False)
    yield
    sys.modules.pop("submitit", None)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.usefixtures("_submitit")
@pytest.mark.parametrize("place", ["here", "apart"])
def test_each_job_is_carried_to_its_process_and_leaves_word_there(transfer, tmp_path, place):
    for name in ("one", "two", place):  # which are no runs
        (tmp_path / name).mkdir()

    ended = transfer(
        "evaluate", "-m", "run=one,two", "split=test", "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=long", "hydra.sweep.dir=there",
    )  # fmt: skip

    assert ended.code == 5, ended.err
    assert [line.split()[:3] for line in ended.out.splitlines()[1:]] == [
        ["0", "run=one", "failed:"], ["1", "run=two", "failed:"],
    ]  # fmt: skip
    assert "no run directory" in json.loads((tmp_path / "there/job-1.json").read_text())["reason"]
    assert "there/.submitit" in (tmp_path / "asked").read_text()
    assert "'slurm_partition': 'long'" in (tmp_path / "settings").read_text()
