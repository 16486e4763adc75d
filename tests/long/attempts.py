"""A command that is started in order to be killed: how far it is, and how to end it.

Belongs to `test_torture.py`. Linux only: processes are found in `/proc`.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

MARK = "TRANSFER_TORTURE"
"""Stands in the environment of every process of a command, whatever session it is in."""

LONGEST_SECONDS = 300.0
"""After this time a command counts as hanging."""

LONGEST_END_SECONDS = 60.0
"""The same for what is left of a command after a signal."""


class Attempt:
    """One start of a command line."""

    def __init__(
        self, words: Sequence[str], run: Path, last_step: int | None = None, threads: int = 1
    ) -> None:
        run.parent.mkdir(parents=True, exist_ok=True)
        self._run = run
        self._last_step = last_step
        self._log = run.with_name("log.txt")
        self._written_before = self._log.stat().st_size if self._log.exists() else 0
        self._left_before = self.half_written()
        self._mark = f"{run}-{time.monotonic_ns()}"
        # Caches of its own: a kill may hit the making of a tokenizer, too.
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "TRANSFER_CACHE": str(run.with_name("cache")),
            "TRANSFER_DATA": str(run.with_name("data")),
            MARK: self._mark,
        }
        self.began = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                words, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._aimed_at: list[int] = []

    # ------------------------------------------------------------------------- how far it is

    @property
    def code(self) -> int | None:
        """The exit code; None while it works."""
        return self._process.poll()

    def said(self) -> str:
        """Return what this start has written to the terminal."""
        with self._log.open("rb") as log:
            log.seek(self._written_before)
            return log.read().decode("utf-8", "replace")

    def last_line(self) -> str:
        """Return the last that it said."""
        return (self.said().strip().splitlines() or ["not a word"])[-1]

    def half_written(self) -> set[Path]:
        """Return what is being written under another name, or was when something was killed."""
        return {*self._run.glob("checkpoints/.*"), *self._run.glob("model/.*")}

    def has_begun(self) -> bool:
        """Return whether training has begun."""
        return "  steps  " in self.said()

    def is_scoring(self) -> bool:
        """Return whether the last step is taken."""
        return self.has_begun() and self._is_at_its_end(self._run)

    def _is_at_its_end(self, run: Path) -> bool:
        try:
            lines = (run / "metrics.jsonl").read_bytes().splitlines()
            return bool(json.loads(lines[-1])["step"] == self._last_step)
        except (OSError, ValueError, LookupError):
            return False

    def phase(self) -> str:
        """Return what it does, or what it did when it was killed."""
        if "done: " in self.said():
            return "done"
        if self.half_written() - self._left_before:
            return "saving"
        if self.is_scoring():
            return "scoring"
        return "training" if self.has_begun() else "starting"

    def reaches(self, sign: Callable[[], bool], longest: float = LONGEST_SECONDS) -> bool:
        """Wait for a sign; return whether it came before the command ended.

        Raises:
            TimeoutError: Neither came. Every process of the command is killed.
        """
        began = time.monotonic()
        while not sign():
            if self.code is not None:
                return False
            if time.monotonic() - began > longest:
                left = len(self.processes())
                self.kill()
                raise TimeoutError(f"no end after {longest:.0f} s, {left} processes; {self._log}")
            time.sleep(0.002)
        return True

    def ends(self, longest: float = LONGEST_SECONDS) -> int:
        """Wait for its end and return the exit code.

        Raises:
            TimeoutError: It hangs, or a process of it outlives it. All are killed.
        """
        began = time.monotonic()
        self.reaches(lambda: False, longest)
        while left := self.processes():
            if time.monotonic() - began > longest:
                self.kill()
                raise TimeoutError(f"{len(left)} processes outlive the command; {self._log}")
            time.sleep(0.05)
        return self._process.wait()

    # --------------------------------------------------------------------------- how to end it

    def aim(self) -> None:
        """Look for its processes before they are to be killed: it takes as long as many a save."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                self._aimed_at.append(os.pidfd_open(process))

    def processes(self) -> list[int]:
        """Return the ids of all its processes that are alive."""
        wanted, ids = f"{MARK}={self._mark}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            if wanted in _environment(int(entry.name)):
                ids.append(int(entry.name))
        return ids

    def kill(self) -> None:
        """Kill every process of the command, also those in sessions of their own."""
        while self._aimed_at:
            handle = self._aimed_at.pop()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        while processes := self.processes():
            for process in processes:
                _send(process, signal.SIGKILL)
        self._process.wait()

    def hit(self, number: signal.Signals, victim: str, draw: random.Random) -> int:
        """Send a signal and return the exit code that it led to.

        Args:
            number: The signal.
            victim: Who gets it: all (the process group, as from a terminal or a scheduler; SIGKILL
                goes to every process), worker (one of several), or launcher (what was started).
            draw: Draws the worker.

        Raises:
            TimeoutError: Something is left of the command long after.
        """
        workers = [p for p in self.processes() if _is_worker(p)] if victim == "worker" else []
        if victim == "all" and number is signal.SIGKILL:
            self.kill()
        elif victim == "all":
            os.killpg(self._process.pid, number)
        elif workers:
            _send(draw.choice(workers), number)
        else:
            _send(self._process.pid, number)
        # Where a launcher starts a dead worker anew, the end is that of the whole run.
        return self.ends(LONGEST_SECONDS if workers else LONGEST_END_SECONDS)


class SweepAttempt(Attempt):
    """One start of a sweep, whose folder is `run`; the signs are those of any of its jobs."""

    def __init__(
        self, words: Sequence[str], run: Path, last_step: int | None = None, threads: int = 1
    ) -> None:
        self._sweep = run
        self._begun_before = self._count_begun()
        super().__init__(words, run, last_step, threads)

    def _count_begun(self) -> int:
        logs = self._sweep.glob("job-*.log")
        return sum(log.read_bytes().count(b"  steps  ") for log in logs)

    def half_written(self) -> set[Path]:
        """See `Attempt`."""
        return {*self._sweep.glob("*/checkpoints/.*"), *self._sweep.glob("*/model/.*")}

    def has_begun(self) -> bool:
        """See `Attempt`."""
        return self._count_begun() > self._begun_before

    def is_scoring(self) -> bool:
        """See `Attempt`."""
        at_work = (
            path.parent for path in self._sweep.glob("*/status.json") if b"running" in _bytes(path)
        )
        return self.has_begun() and any(map(self._is_at_its_end, at_work))

    def phase(self) -> str:
        """See `Attempt`."""
        return "done" if "compare: transfer report" in self.said() else super().phase()


def _bytes(path: Path) -> bytes:
    with contextlib.suppress(OSError):  # it may just be replaced
        return path.read_bytes()
    return b""


def _environment(process: int) -> list[bytes]:
    try:
        return Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is not ours


def _is_worker(process: int) -> bool:
    return any(word.startswith(b"LOCAL_RANK=") for word in _environment(process))


def _send(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
