"""Watch the other processes: notice a lost one, name it, and report each failure once.

A collective on a GPU waits for a process that is gone, and cannot be interrupted. So threads watch
the launcher and the heartbeats of all processes, and end this process if one is lost.
"""

import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from transfer_cli.engine.distributed import JoinedGroup, barrier, connect_store, join, leave
from transfer_cli.errors import EXIT_INTERRUPTED, EXIT_OUR_FAULT, PeerError, RunError, TransferError

_RUN_ID = re.compile(r"launched-by-(\d+)-[0-9a-f]{32}")
_END_SECONDS = 3.0
"""How long a process may take to end by itself after another one has failed."""
_LOOK_SECONDS = 0.5
"""How often a process looks whether another one has failed."""
_LOOKS_A_HEARTBEAT = 10
_HEARTBEAT_SECONDS = _LOOK_SECONDS * _LOOKS_A_HEARTBEAT
_GRACE_SECONDS = 3.0
"""How long to wait for the message of a process that broke a connection."""


@contextmanager
def process_group(device: torch.device, timeout_minutes: float) -> Iterator[None]:
    """Join the processes that torchrun has started, for the duration of the block.

    A failure of one process ends all of them. The process that failed first reports it; one that
    misses an exchange has failed after the timeout.
    """
    over = threading.Event()
    threading.Thread(target=_watch_launcher, args=(over,), daemon=True).start()
    joined = join(device, timeout_minutes)
    watch = threading.Thread(target=_watch_processes, args=(joined, over), daemon=True)
    watch.start()
    try:
        yield
        # A process that leaves early would look like one that failed.
        barrier()
    except BaseException as error:
        raise _error_to_report(joined, error) from error
    finally:
        over.set()
        # Python kills threads at its exit; in the middle of torch's code, that aborts the process.
        watch.join(_END_SECONDS)
        leave()


class Heartbeats:
    """Heartbeats of all processes, read in a separate thread: the store may never answer.

    Each process writes one now and then, and the first process reads all of them: a connection to a
    machine that is cut off looks like a connection without traffic.
    """

    def __init__(self, joined: JoinedGroup, over: threading.Event) -> None:
        self.failed = False
        now = time.monotonic()
        self._heard = dict.fromkeys(range(joined.world_size), now)
        self._last = dict.fromkeys(range(joined.world_size), "")
        self._group = joined
        self._over = over

    def listen(self) -> None:
        """Write and read until the work is done."""
        store, rank, times = connect_store(), self._group.rank, 0
        while not self._over.wait(_LOOK_SECONDS):
            try:
                self.failed = store.check(["failed"])
                if times % _LOOKS_A_HEARTBEAT == 0:
                    store.set(f"alive/{rank}", str(times))
                    self._read(store)
            except RuntimeError:
                self.failed = True
            self._heard[rank] = time.monotonic()
            times += 1

    def _read(self, store: Store) -> None:
        for rank in range(self._group.world_size) if self._group.rank == 0 else ():
            key = f"alive/{rank}"
            heartbeat = store.get(key).decode() if store.check([key]) else ""
            if heartbeat != self._last[rank]:
                self._last[rank], self._heard[rank] = heartbeat, time.monotonic()

    def silent_processes(self, longest: float) -> str:
        """Return which processes had no heartbeat for `longest` seconds, in words; "" for none."""
        now, joined = time.monotonic(), self._group
        if now - self._heard[joined.rank] > longest:
            return "process 0, over which all talk,"
        if joined.rank != 0:
            return ""
        silent = [str(rank) for rank, at in self._heard.items() if now - at > longest]
        return f"process {', '.join(silent)} of {joined.world_size}" if silent else ""


def _watch_launcher(over: threading.Event) -> None:
    """End this process when its launcher is gone, even before the processes have joined."""
    named = _RUN_ID.fullmatch(os.environ.get("TORCHELASTIC_RUN_ID", ""))
    parent = int(named[1]) if named else os.getppid()
    while os.getppid() == parent:
        if over.wait(_LOOK_SECONDS):
            return
    os._exit(EXIT_OUR_FAULT)


def _watch_processes(joined: JoinedGroup, over: threading.Event) -> None:
    """End this process when another one is lost, or soon after one has failed."""
    heartbeats, failed_since = Heartbeats(joined, over), 0.0
    listener = threading.Thread(target=heartbeats.listen, daemon=True)
    listener.start()
    to_end = _GRACE_SECONDS + _END_SECONDS
    while not over.wait(_LOOK_SECONDS):
        if heartbeats.failed:
            failed_since = failed_since or time.monotonic()
            if time.monotonic() - failed_since > to_end:
                os._exit(EXIT_OUR_FAULT)
        # Later than a collective that waits for the same process, whose error says more.
        missed = heartbeats.silent_processes(joined.timeout + to_end + _HEARTBEAT_SECONDS)
        if missed:
            sys.stderr.write(
                f"{missed} cannot be reached from process {joined.rank}; the last checkpoint is "
                "whole, go on with resume=auto\n"
            )
            sys.stderr.flush()
            os._exit(EXIT_OUR_FAULT)
    listener.join(_END_SECONDS)


def new_run_id() -> str:
    """Return a name for a launch that holds its launcher's process id.

    The launcher may be gone before its processes can ask for their parent.
    """
    return f"launched-by-{os.getpid()}-{uuid.uuid4().hex}"


def _error_to_report(joined: JoinedGroup, error: BaseException) -> BaseException:
    """Return what this process ends with: its own error, or a silent one if another has failed."""
    code = getattr(error, "exit_code", EXIT_OUR_FAULT)  # its own, of a `TransferError`
    if isinstance(error, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    try:
        if not is_lost_connection(error):
            joined.store.compare_set("code", "", str(code))  # the first one's stays
            first = joined.store.add("failed", 1) == 1
            return error if first else PeerError("another process failed", code)
        return _lost_connection_error(joined, error)
    except RuntimeError:
        # The process that held the store is gone; torchrun reports it.
        return PeerError("the process that all others talk to is gone", EXIT_OUR_FAULT)


def _lost_connection_error(joined: JoinedGroup, error: BaseException) -> BaseException:
    """Return why a collective broke: another process has failed, is gone, or hangs."""
    joined.store.set(f"waits/{joined.rank}", "1")
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline:
        if joined.store.check(["code", "failed"]):
            return PeerError("another process failed", int(joined.store.get("code")))
        time.sleep(0.1)
    if joined.store.add("failed", 1) != 1:
        return PeerError("another process failed", EXIT_OUR_FAULT)
    missing = [n for n in range(joined.world_size) if not joined.store.check([f"waits/{n}"])]
    behind = [n for n in missing if joined.exchanges_of(n) < joined.exchanges]
    named = ", ".join(str(n) for n in behind or missing) or "unknown"
    if "imed out" in str(error) or "imeout" in str(error):
        return RunError(
            f"process {named} of {joined.world_size} has not come within {joined.timeout:g} s "
            "while the others waited: it hangs, or its machine cannot be reached; see what it did "
            "last, or raise timeout_minutes"
        )
    return RunError(
        f"process {named} of {joined.world_size} is gone without a word: killed, perhaps for its "
        "memory; the last checkpoint is whole, go on with resume=auto"
    )


def is_lost_connection(error: BaseException) -> bool:
    """Return whether a collective broke because another process took no part in it."""
    if isinstance(error, TransferError):
        return False
    if isinstance(error, dist.DistError):
        return True
    signs = ("gloo", "NCCL", "onnection closed", "onnection reset", "roken pipe", "imed out")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
