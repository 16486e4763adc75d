"""Several processes at one run: who this one is, and the little that they tell each other.

torchrun starts the processes, Ignite joins them to a group, and NCCL (GPUs) or gloo (CPUs) carries
the gradients. What is exchanged here is small and lies on the CPU: counts, decisions, names. It
goes over a gloo group of its own, so that it never waits for a GPU, and a process that does not
come is missed after a time that can be chosen, and named.

Alone, without torchrun, every function returns what it was given.
"""

import os
import re
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from transfer_cli.errors import EXIT_INTERRUPTED, EXIT_OUR_FAULT, PeerError, RunError, TransferError

_RUN_ID = re.compile(r"launched-by-(\d+)-[0-9a-f]{32}")
PATIENCE = timedelta(days=1)
"""How long processes wait for one that prepares data: as long as that takes, within reason."""
_TO_END_SECONDS = 3.0
"""How long a process may take to end by itself after another one has failed."""
_STEPS_OF_A_SIGN = 10
_SIGN_SECONDS = 0.5 * _STEPS_OF_A_SIGN
"""How often a process says that it is alive."""
_GRACE_SECONDS = 3.0
"""How long to wait for the words of a process that broke a connection."""


@dataclass(frozen=True)
class _Group:
    """What this process needs to talk to the others.

    Args:
        rank: The number of this process, from 0.
        count: How many there are.
        control: For small tensors on the CPU.
        patient: The same, for waits without a limit.
        store: A dictionary that all processes share; it outlives each of them under torchrun.
        timeout: Of `control`, in seconds.
    """

    rank: int
    count: int
    control: dist.ProcessGroup
    patient: dist.ProcessGroup
    store: Store
    timeout: float


_group: _Group | None = None
_meetings = 0


def started_by_torchrun() -> bool:
    """Return whether torchrun, or what acts like it, has started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def rank() -> int:
    """Return the number of this process, from 0."""
    return _group.rank if _group is not None else 0


def count() -> int:
    """Return how many processes there are."""
    return _group.count if _group is not None else 1


def local_rank() -> int:
    """Return the number of this process on its machine: that of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0")) if started_by_torchrun() else 0


def local_count() -> int:
    """Return how many processes torchrun has started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_main() -> bool:
    """Return whether this is the process that writes files and speaks."""
    return rank() == 0


@contextmanager
def joined(device: torch.device, timeout_minutes: float) -> Iterator[None]:
    """Be one of the group of processes that torchrun has started, until the work is done.

    Whatever ends one process ends all, and is said once, by the one that met it first.

    Args:
        device: That this process computes on.
        timeout_minutes: How long to wait for a process that does not come to a meeting point.

    Raises:
        PeerError: Another process failed, and says why.
        RunError: A process is gone, or stuck; the message names it.
    """
    global _group, _meetings  # one group a process, as in torch
    over = threading.Event()
    threading.Thread(target=_watch_launcher, args=(over,), daemon=True).start()
    _group, _meetings = _join(device, timeout_minutes), 0
    watch = threading.Thread(target=_watch, args=(_group, over), daemon=True)
    watch.start()
    try:
        yield
        # One that leaves early would look like one that failed.
        wait_for_all()
    except BaseException as error:
        raise _as_said_once(error) from error
    finally:
        over.set()
        # Python ends threads as it ends; in the middle of torch's code, that aborts the process.
        watch.join(_TO_END_SECONDS)
        _group = None
        _leave()


def _join(device: torch.device, timeout_minutes: float) -> _Group:
    # Here, because it takes seconds to import, which a process alone need not wait for.
    import ignite.distributed as idist

    if rank_of_environment() != 0:
        warnings.simplefilter("ignore")
    # Under Slurm, Ignite would take Slurm's numbering of tasks in place of torchrun's of processes.
    hidden = os.environ.pop("SLURM_JOB_ID", None)
    try:
        timeout = timedelta(minutes=timeout_minutes)
        idist.initialize("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"the processes cannot find each other at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} ({_first_line(error)}); start all of them with torchrun"
        ) from error
    finally:
        if hidden is not None:
            os.environ["SLURM_JOB_ID"] = hidden
    return _Group(
        rank=dist.get_rank(),
        count=dist.get_world_size(),
        control=dist.new_group(backend="gloo", timeout=timeout),
        patient=dist.new_group(backend="gloo", timeout=PATIENCE),
        store=_connect(),
        timeout=timeout.total_seconds(),
    )


def _leave() -> None:
    import ignite.distributed as idist

    with suppress(RuntimeError):
        idist.finalize()


def _connect() -> Store:
    """Return a connection to the dictionary that all processes share; each restart has its own."""
    server = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"transfer/{attempt}", server)


class _Ear:
    """What a process hears of the others, from a thread that may wait for an answer for ever.

    Each says now and then that it is alive, and the first one looks whether all do: a connection to
    a machine that is cut off looks like one on which nothing is said.

    Args:
        group: Who listens, and to whom.
        over: Set when the work is done.
    """

    def __init__(self, group: _Group, over: threading.Event) -> None:
        self.failed = False
        now = time.monotonic()
        self._heard = dict.fromkeys(range(group.count), now)
        self._said = dict.fromkeys(range(group.count), "")
        self._group = group
        self._over = over

    def listen(self) -> None:
        """Ask again and again."""
        store, own, times = _connect(), self._group.rank, 0
        while not self._over.wait(0.5):
            try:
                self.failed = store.check(["failed"])
                if times % _STEPS_OF_A_SIGN == 0:
                    store.set(f"alive/{own}", str(times))
                    self._look_around(store)
            except RuntimeError:
                self.failed = True
            self._heard[own] = time.monotonic()
            times += 1

    def _look_around(self, store: Store) -> None:
        for number in range(self._group.count) if self._group.rank == 0 else ():
            key = f"alive/{number}"
            said = store.get(key).decode() if store.check([key]) else ""
            if said != self._said[number]:
                self._said[number], self._heard[number] = said, time.monotonic()

    def missed(self, longest: float) -> str:
        """Return who has not been heard of for so many seconds, in words; "" when all have."""
        now, group = time.monotonic(), self._group
        if now - self._heard[group.rank] > longest:
            return "process 0, over which all talk,"
        if group.rank != 0:
            return ""
        silent = [str(number) for number, at in self._heard.items() if now - at > longest]
        return f"process {', '.join(silent)} of {group.count}" if silent else ""


def _watch_launcher(over: threading.Event) -> None:
    """End this process when its launcher is gone, be it before the processes have met."""
    named = _RUN_ID.fullmatch(os.environ.get("TORCHELASTIC_RUN_ID", ""))
    parent = int(named[1]) if named else os.getppid()
    while os.getppid() == parent:
        if over.wait(0.5):
            return
    os._exit(EXIT_OUR_FAULT)


def _watch(group: _Group, over: threading.Event) -> None:
    """End this process when another one is lost, or soon after one has failed.

    A collective on a GPU waits for a process that is no more, and cannot be interrupted.
    """
    ear, failed_since = _Ear(group, over), 0.0
    listener = threading.Thread(target=ear.listen, daemon=True)
    listener.start()
    to_end = _GRACE_SECONDS + _TO_END_SECONDS
    while not over.wait(0.5):
        if ear.failed:
            failed_since = failed_since or time.monotonic()
            if time.monotonic() - failed_since > to_end:
                os._exit(EXIT_OUR_FAULT)
        # Later than a collective that waits for the same process, and can say more.
        missed = ear.missed(group.timeout + to_end + _SIGN_SECONDS)
        if missed:
            sys.stderr.write(
                f"{missed} cannot be reached from process {group.rank}; the last checkpoint is "
                "whole, go on with resume=auto\n"
            )
            sys.stderr.flush()
            os._exit(EXIT_OUR_FAULT)
    listener.join(_TO_END_SECONDS)


def new_run_id() -> str:
    """Return a name for a launch, which tells the processes who has started them.

    The launcher may be gone before they can look who that is.
    """
    return f"launched-by-{os.getpid()}-{uuid.uuid4().hex}"


def rank_of_environment() -> int:
    """Return what torchrun calls this process, before there is a group."""
    return int(os.environ.get("RANK", "0"))


# --- meeting points ----------------------------------------------------------------------------


def sums(values: Sequence[float]) -> list[float]:
    """Return the sum over all processes of each number."""
    if _group is None:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64)
    _meet(_group)
    dist.all_reduce(total, group=_group.control)
    found: list[float] = total.tolist()
    return found


def largest(value: int) -> int:
    """Return the largest of the values of all processes."""
    if _group is None:
        return value
    found = torch.tensor(value)
    _meet(_group)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=_group.control)
    return int(found)


def summed(tensor: Tensor) -> Tensor:
    """Return the sum over all processes, on the device that the gradients travel from."""
    if _group is None:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def from_main(text: str) -> str:
    """Return the text that the main process has, however long that takes; others' is ignored."""
    if _group is None:
        return text
    _meet(_group)
    return _text_from(0, text, _group.patient)


def texts(text: str) -> list[str]:
    """Return the text of every process, by number."""
    if _group is None:
        return [text]
    _meet(_group)
    return [_text_from(number, text, _group.control) for number in range(count())]


def _text_from(source: int, text: str, group: dist.ProcessGroup) -> str:
    own = bytearray(text.encode()) if rank() == source else bytearray()
    size = torch.tensor(len(own))
    dist.broadcast(size, source, group=group)
    if not size:
        return ""
    content = torch.zeros(int(size), dtype=torch.uint8)
    if own:
        content = torch.frombuffer(own, dtype=torch.uint8)
    dist.broadcast(content, source, group=group)
    return content.numpy().tobytes().decode()


def wait_for_all() -> None:
    """Return when every process has come here, however long that takes."""
    if _group is not None:
        _meet(_group)
        dist.barrier(group=_group.patient)


@contextmanager
def main_first() -> Iterator[None]:
    """Let the first process of each machine do this before its others, which find it done."""
    if local_rank() == 0:
        yield
        wait_for_all()
    else:
        wait_for_all()
        yield


def _meet(group: _Group) -> None:
    """Write down how far this process has come, for the message when another one has not."""
    global _meetings
    _meetings += 1
    group.store.set(f"at/{rank()}", str(_meetings))


# --- when something goes wrong -----------------------------------------------------------------


def _as_said_once(error: BaseException) -> BaseException:
    """Return what this process ends with: its own error, or silence if another has failed."""
    code = _exit_code(error)
    group = _group
    if group is None:
        return error
    try:
        if not is_lost_connection(error):
            first = group.store.add("failed", 1) == 1
            return error if first else PeerError("another process failed", code)
        return _lost(group, error)
    except RuntimeError:
        # The store lay in a process that is gone; torchrun says what became of it.
        return PeerError("the process that all others talk to is gone", EXIT_OUR_FAULT)


def _lost(group: _Group, error: BaseException) -> BaseException:
    """Return why a collective broke: another process has failed, is gone, or has not come."""
    group.store.set(f"waits/{rank()}", "1")
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline:
        if group.store.check(["failed"]):
            return PeerError("another process failed", EXIT_OUR_FAULT)
        time.sleep(0.1)
    if group.store.add("failed", 1) != 1:
        return PeerError("another process failed", EXIT_OUR_FAULT)
    missing = [n for n in range(count()) if not group.store.check([f"waits/{n}"])]
    behind = [n for n in missing if _meetings_of(group, n) < _meetings]
    named = ", ".join(str(n) for n in behind or missing) or "unknown"
    if "imed out" in str(error) or "imeout" in str(error):
        return RunError(
            f"process {named} of {count()} has not come within {group.timeout:g} s while the "
            "others waited: it hangs, or its machine cannot be reached; see what it did last, or "
            "raise timeout_minutes"
        )
    return RunError(
        f"process {named} of {count()} is gone without a word: killed, perhaps for its memory; "
        "the last checkpoint is whole, go on with resume=auto"
    )


def _meetings_of(group: _Group, number: int) -> int:
    key = f"at/{number}"
    return int(group.store.get(key)) if group.store.check([key]) else 0


def is_lost_connection(error: BaseException) -> bool:
    """Return whether a collective broke because another process did not take part in it."""
    if isinstance(error, TransferError):
        return False
    if isinstance(error, dist.DistError):
        return True
    signs = ("gloo", "NCCL", "onnection closed", "onnection reset", "roken pipe", "imed out")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return error.exit_code if isinstance(error, TransferError) else EXIT_OUR_FAULT


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
