"""Jobs in processes of their own, side by side on this machine, each with GPUs of its own."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import transfer_cli
from transfer_cli.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_PRUNED, EXIT_STOPPED, StoppedError
from transfer_cli.runs.sweep import JobState, SweepJob
from transfer_cli.safe_files import printable
from transfer_cli.sweeps.jobs import Jobs
from transfer_cli.terminal import leave_dead_terminal, without_ignored

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.1
OUTCOMES = {
    EXIT_DONE: JobState.DONE, EXIT_PRUNED: JobState.PRUNED, EXIT_STOPPED: JobState.STOPPED,
    EXIT_INTERRUPTED: JobState.STOPPED,
}  # fmt: skip
"""What the exit code of a job means; any other one that it failed."""

_WARNING = "warning: "
_MOST_LOG_BYTES = 2**20
"""Of what a job says, as far as it is looked through for warnings."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@dataclass
class _Running:
    job: SweepJob
    process: subprocess.Popen[bytes]
    slot: int
    reason: Path
    log_begin: int
    stack: contextlib.ExitStack


@dataclass
class SideBySide:
    """Runs jobs of a sweep as commands of their own, each with a file for what it says.

    Args:
        gpus: The GPUs of this machine, assigned to the workers in turn; empty without any.
        threads: Of each process of a job, on the CPU; None: as it happens.
    """

    jobs: Jobs
    workers: int
    gpus: Sequence[str]
    gpus_each: int
    threads: int | None
    stop_on_error: bool
    _elsewhere: list[SweepJob] = field(default_factory=list)
    _running: list[_Running] = field(default_factory=list)
    _signal: int | None = None

    def __post_init__(self) -> None:
        self._slots = deque(range(self.workers))

    def run(self, todo: Sequence[SweepJob]) -> None:
        """Run jobs, and return when all have ended."""
        left = deque(todo)
        if left and not self.jobs.done:
            log.info("what a job says is in %s", self.jobs.directory.path / "job-NUMBER.log")
        with self._forwarding_signals():
            try:
                while ((left or self._elsewhere) and not self._is_over()) or self._running:
                    while left and self._slots and not self._is_over():
                        self._start(left.popleft())
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                    self._collect(len(left))
                    left += self._released_jobs()
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):  # of a function, which handles no signals
                    self.stop()
                for running in self._running:
                    running.process.kill()
                    running.stack.close()
                raise
        if self._signal is not None:
            not_begun = len(left) + len(self._elsewhere)
            text = f"stopped with {not_begun} jobs not begun; go on with the same command and "
            text += "resume=auto"
            raise KeyboardInterrupt(text) if self._signal == signal.SIGINT else StoppedError(text)

    def _is_over(self) -> bool:
        failed = any(job.outcome == JobState.FAILED for job in self.jobs.done)
        return self._signal is not None or (self.stop_on_error and failed)

    def _released_jobs(self) -> list[SweepJob]:
        """Return the jobs that other commands had, and have no longer: they may not be done."""
        directory = self.jobs.directory
        free = [job for job in self._elsewhere if not directory.is_claimed(job.number)]
        self._elsewhere = [job for job in self._elsewhere if job not in free]
        return free

    # --- one job -------------------------------------------------------------------------------

    def _start(self, job: SweepJob) -> None:
        with contextlib.ExitStack() as stack:
            claim = stack.enter_context(self.jobs.claim_job(job))
            if claim is None:
                if all(job.number != done.number for done in self.jobs.done):
                    self._elsewhere.append(job)
                    log.info("job %d: waiting for its end, to see whether it is done", job.number)
                return
            slot = self._slots.popleft()
            reason = self.jobs.directory.path / f".job-{job.number}.reason"
            reason.unlink(missing_ok=True)
            command = [sys.executable, "-P", "-m", "transfer_cli", self.jobs.command]
            output = stack.enter_context(self.jobs.directory.log(job.number).open("ab"))
            begin = output.tell()
            process = subprocess.Popen(  # noqa: S603 - our own command, with what the user typed
                [*command, "--job", str(reason), *self.jobs.words_of(job)],
                env=job_environment(slot, self.threads, self.gpus, self.gpus_each),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # It holds the job as long as it lives, whatever becomes of this process.
                pass_fds=(claim,),
            )
            self._running.append(_Running(job, process, slot, reason, begin, stack.pop_all()))
        if self._signal is not None:  # while it started
            process.send_signal(self._signal)

    def _collect(self, left: int) -> None:
        for ended in [ended for ended in self._running if ended.process.poll() is not None]:
            self._running.remove(ended)
            self._slots.append(ended.slot)
            code = ended.process.returncode
            job = ended.job
            # One that has only just started has no handler yet, and dies of the signal itself.
            stopped = self._signal is not None and code == -self._signal
            job.outcome = JobState.STOPPED if stopped else OUTCOMES.get(code, JobState.FAILED)
            job.reason = None if job.outcome == JobState.DONE else _reason(ended, code)
            ended.stack.close()
            ended.reason.unlink(missing_ok=True)
            self._forward_warnings(ended)
            if job.outcome == JobState.FAILED:
                self.jobs.report(job, None)
            self._say_where_it_stands(job, left)

    def _say_where_it_stands(self, job: SweepJob, left: int) -> None:
        todo = left + len(self._running)
        if not todo or self._signal is not None:
            return
        seconds = [
            done.seconds
            for done in self.jobs.done
            if done.seconds and done.outcome == JobState.DONE
        ]
        guess = ""
        if seconds:
            rest = sum(seconds) / len(seconds) * todo / min(self.workers, todo)
            guess = f", about {duration_text(rest)} to go"
        ended = "" if job.outcome == JobState.FAILED else f"job {job.number} {job.outcome}; "
        log.info("%s%d left%s", ended, todo, guess)

    def _forward_warnings(self, ended: _Running) -> None:
        """Say what a job has warned of, but for what another one has warned of before."""
        with self.jobs.directory.log(ended.job.number).open("rb") as file:
            file.seek(ended.log_begin)
            lines = file.read(_MOST_LOG_BYTES).decode(errors="replace").splitlines()
        parts = (line.partition(_WARNING) for line in lines)
        for text in dict.fromkeys(text for begin, _, text in parts if text and not begin):
            jobs = self.jobs.warned.setdefault(text, [])
            if not jobs:
                log.warning("job %d: %s", ended.job.number, printable(text))
            jobs.append(ended.job.number)

    # --- signals -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _forwarding_signals(self) -> Iterator[None]:
        """Pass signals on to the running jobs, and start no other one after them."""

        def tell(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGHUP:
                leave_dead_terminal()
            self._send_signal(number)

        before = {number: signal.signal(number, tell) for number in without_ignored(_SIGNALS)}
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    def _send_signal(self, number: int) -> None:
        self._signal = self._signal or number
        for running in self._running:
            with contextlib.suppress(ProcessLookupError):
                running.process.send_signal(number)

    def stop(self) -> None:
        """Have the running jobs save and end, and wait until they have."""
        self._send_signal(signal.SIGUSR1)
        for running in self._running:
            running.process.wait()


def job_environment(
    slot: int, threads: int | None, gpus: Sequence[str], gpus_each: int
) -> dict[str, str]:
    """Return the environment of a job: this package, its threads, its GPUs.

    Args:
        slot: The number of its worker, from 0.
        threads: Of each of its processes; None: as this process has been told.
        gpus_each: How many a job takes. If there are too few, jobs share them in turn.
    """
    variables = dict(os.environ)
    package = str(Path(transfer_cli.__file__).parents[1])
    variables["PYTHONPATH"] = os.pathsep.join(
        [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    if threads is not None:
        variables["OMP_NUM_THREADS"] = str(threads)
    if gpus:
        first = slot * gpus_each
        mine = [gpus[(first + n) % len(gpus)] for n in range(gpus_each)]
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    return variables


def _reason(ended: _Running, code: int) -> str:
    with contextlib.suppress(OSError):
        return ended.reason.read_text(encoding="utf-8").strip()
    if code < 0:
        names = {int(number): number.name for number in signal.Signals}  # real-time ones have none
        name = names.get(-code, f"signal {-code}")
        cure = "; it may have taken too much memory" if code == -signal.SIGKILL else ""
        return f"killed by {name}{cure}"
    return f"ended with exit code {code}"


def duration_text(seconds: float) -> str:
    """Return a length of time as people say it, in seconds, minutes or hours."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
