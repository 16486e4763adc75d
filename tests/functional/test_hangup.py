"""A connection that drops: the terminal goes away, and everything begun on it gets SIGHUP."""

import contextlib
import json
import os
import pty
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.killing import CONTEXT
from transfer_cli.cli import main


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


def status(run):
    return json.loads((run / "status.json").read_text())


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
