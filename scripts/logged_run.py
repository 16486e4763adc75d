"""Run a command of `transfer` for another script: its output goes to a file, its time is noted."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CPU = "cpu.json"
"""The file in a run directory that holds the CPU-seconds of the whole command."""


def is_finished(folder: Path) -> bool:
    """Return whether a run directory is complete."""
    try:
        status = json.loads((folder / "status.json").read_text(encoding="utf-8"))["status"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(status == "finished")


def train(command: str, words: Sequence[str], folder: Path, name: str) -> str | None:
    """Run `transfer COMMAND` on one thread; return why nothing came of it, None when something did.

    Args:
        command: pretrain or finetune.
        words: What it is given.
        folder: The run directory, which is made anew; its output is in a file beside it.
        name: What the run is called in messages.
    """
    shutil.rmtree(folder, ignore_errors=True)  # a run that was broken off
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"running {name}", file=sys.stderr, flush=True)
    log = folder.with_name(f"{folder.name}.log")
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "transfer_cli", command, *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if status or not is_finished(folder):
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no word"]
        return f"{name}: exit code {process.returncode}: {said[-1]} (see {log})"
    (folder / CPU).write_text(json.dumps(used.ru_utime + used.ru_stime), encoding="utf-8")
    return None
