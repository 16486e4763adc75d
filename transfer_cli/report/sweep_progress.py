"""The progress of a sweep: how much is done, at work and left, and how long that will take."""

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from transfer_cli.report.contents import SweepProgress
from transfer_cli.report.untrusted import is_number
from transfer_cli.runs.sweep import JobState, SweepDirectory, SweepJob, SweepRequest

_LARGEST = 1e9
"""A larger number of trials or seconds is not believed."""


def sweep_progress(
    sweep: SweepDirectory, request: SweepRequest, jobs: Sequence[SweepJob]
) -> SweepProgress:
    """Return the progress of a sweep, from what is known of its jobs."""
    counts = Counter(job.outcome for job in jobs)
    # The trials of a search become known as they begin.
    unknown = max(0, int(_plausible(request.trials) or 0) - len(jobs))
    left = unknown + counts[JobState.LEFT] + counts[JobState.STOPPED]
    return SweepProgress(
        path=sweep.path,
        command=f"transfer {request.command} -m {shlex.join(request.words)}",
        done=counts[JobState.DONE],
        running=counts[JobState.RUNNING],
        left=left,
        failed=tuple(
            (job.number, " ".join(job.overrides), str(job.reason or "no reason is known"))
            for job in jobs
            if job.outcome == JobState.FAILED
        ),
        pruned=counts[JobState.PRUNED],
        seconds_left=_seconds_left(sweep, jobs, left),
    )


def _seconds_left(sweep: SweepDirectory, jobs: Sequence[SweepJob], left: int) -> float | None:
    """Guess when all is done, if as many jobs run side by side as now (or one), and as long."""
    took = (_plausible(job.seconds) for job in jobs if job.outcome == JobState.DONE)
    known = [seconds for seconds in took if seconds is not None]
    running = [job for job in jobs if job.outcome == JobState.RUNNING]
    if not known or not (left or running):
        return None
    each = sum(known) / len(known)
    rests = [max(0.0, each - _age(sweep, job)) for job in running]
    together = (sum(rests) + left * each) / max(1, len(running))
    return max([together, *rests])


def _age(sweep: SweepDirectory, job: SweepJob) -> float:
    """Return for how many seconds a job has been running: its file was written when it began."""
    try:
        return max(0.0, time.time() - (sweep.path / f"job-{job.number}.json").stat().st_mtime)
    except OSError:
        return 0.0


def _plausible(value: Any) -> float | None:
    return float(value) if is_number(value) and 0 <= value < _LARGEST else None
