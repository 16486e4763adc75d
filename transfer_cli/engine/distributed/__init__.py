"""The group of processes at one run: this process's number, and small exchanges.

torchrun starts the processes, torch joins them to a group, and NCCL (GPUs) or gloo (CPUs) carries
the gradients. Counts, decisions and names are exchanged on the CPU, over a separate gloo group, so
that an exchange never waits for a GPU. A process that misses an exchange for longer than a timeout
is named (`watch`).

Without torchrun there is no group, and every function returns its argument.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not declared so
from torch.distributed.distributed_c10d import PrefixStore, Store

from transfer_cli.errors import RunError

_LONG = timedelta(days=1)
"""How long processes wait for one that prepares data."""


@dataclass
class JoinedGroup:
    """This process's connections to the others.

    Args:
        control: Exchanges small tensors on the CPU.
        patient: The same, but waits as long as it takes.
        store: A dictionary that all processes share; under torchrun it outlives each of them.
        timeout: Of `control`, in seconds.
        exchanges: Number of exchanges that this process has reached so far.
    """

    rank: int
    world_size: int
    control: dist.ProcessGroup
    patient: dist.ProcessGroup
    store: Store
    timeout: float
    exchanges: int = 0

    def count_exchange(self) -> None:
        """Publish that this process has reached an exchange, for the error if it fails."""
        self.exchanges += 1
        self.store.set(f"at/{self.rank}", str(self.exchanges))

    def exchanges_of(self, rank: int) -> int:
        """Return how many exchanges a process has reached."""
        key = f"at/{rank}"
        return int(self.store.get(key)) if self.store.check([key]) else 0


_group: JoinedGroup | None = None


def started_by_torchrun() -> bool:
    """Return whether torchrun, or a launcher like it, has started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def rank() -> int:
    """Return the number of this process, from 0."""
    return _group.rank if _group is not None else 0


def world_size() -> int:
    """Return the number of processes."""
    return _group.world_size if _group is not None else 1


def local_rank() -> int:
    """Return the number of this process, and of its GPU, on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0")) if started_by_torchrun() else 0


def local_world_size() -> int:
    """Return how many processes torchrun has started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_main() -> bool:
    """Return whether this is the process that writes files and logs."""
    return rank() == 0


def join(device: torch.device, timeout_minutes: float) -> JoinedGroup:
    """Join the processes that torchrun has started; see `watch.process_group`."""
    global _group  # one group a process, as in torch
    # Not at the top: the import takes seconds, which a single process does not need.
    import ignite.distributed as idist

    if os.environ.get("RANK", "0") != "0":
        warnings.simplefilter("ignore")
    # Under Slurm, Ignite would take Slurm's numbers of tasks instead of torchrun's of processes.
    slurm_job_id = os.environ.pop("SLURM_JOB_ID", None)
    try:
        timeout = timedelta(minutes=timeout_minutes)
        if device.type == "cuda":
            torch.cuda.set_device(local_rank())
        # Ignite itself would give each process a GPU, even those that compute on the CPU.
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
        idist.sync()
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise RunError(
            f"the processes cannot find each other at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} ({reason}); start all of them with torchrun"
        ) from error
    finally:
        if slurm_job_id is not None:
            os.environ["SLURM_JOB_ID"] = slurm_job_id
    _group = JoinedGroup(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        control=dist.new_group(backend="gloo", timeout=timeout),
        patient=dist.new_group(backend="gloo", timeout=_LONG),
        store=connect_store(),
        timeout=timeout.total_seconds(),
    )
    return _group


def leave() -> None:
    """Leave the group; this process is alone from here on."""
    global _group
    import ignite.distributed as idist

    _group = None
    with suppress(RuntimeError):
        idist.finalize()


def connect_store() -> Store:
    """Return a connection to the dictionary that all processes of this restart share."""
    server = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"transfer/{attempt}", server)


# --- exchanges ---------------------------------------------------------------------------------


def all_reduce_sum(values: Sequence[float]) -> list[float]:
    """Return the sum over all processes of each number."""
    if _group is None:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64)
    _group.count_exchange()
    dist.all_reduce(total, group=_group.control)
    sums: list[float] = total.tolist()
    return sums


def all_reduce_max(value: int) -> int:
    """Return the largest of the values of all processes."""
    if _group is None:
        return value
    largest = torch.tensor(value)
    _group.count_exchange()
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=_group.control)
    return int(largest)


def all_reduce_tensor(tensor: Tensor) -> Tensor:
    """Return the sum over all processes, on the tensor's device."""
    if _group is None:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def all_gather_rows(tensor: Tensor) -> list[Tensor]:
    """Return the tensor of every process, by number; they may differ in their number of rows."""
    if _group is None:
        return [tensor]
    here = [len(tensor) if number == _group.rank else 0 for number in range(_group.world_size)]
    counts = [int(count) for count in all_reduce_sum(here)]
    padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
    padded[: len(tensor)] = tensor.detach()
    gathered = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(gathered, padded)
    return [rows[:count] for rows, count in zip(gathered, counts, strict=True)]


def broadcast_text(text: str) -> str:
    """Return the text of the main process, however long that takes."""
    if _group is None:
        return text
    _group.count_exchange()
    return _broadcast_from(0, text, _group.patient)


def all_gather_text(text: str) -> list[str]:
    """Return the text of every process, by number."""
    if _group is None:
        return [text]
    _group.count_exchange()
    return [_broadcast_from(number, text, _group.control) for number in range(_group.world_size)]


def _broadcast_from(source: int, text: str, group: dist.ProcessGroup) -> str:
    sent = bytearray(text.encode()) if rank() == source else bytearray()
    size = torch.tensor(len(sent))
    dist.broadcast(size, source, group=group)
    if not size:
        return ""
    content = torch.zeros(int(size), dtype=torch.uint8)
    if sent:
        content = torch.frombuffer(sent, dtype=torch.uint8)
    dist.broadcast(content, source, group=group)
    return content.numpy().tobytes().decode()


def barrier() -> None:
    """Wait for every process, however long that takes."""
    if _group is not None:
        _group.count_exchange()
        dist.barrier(group=_group.patient)


@contextmanager
def main_first() -> Iterator[None]:
    """Let the first process of each machine run the block before the others do."""
    if local_rank() == 0:
        yield
        barrier()
    else:
        barrier()
        yield


def is_sharded(module: nn.Module) -> bool:
    """Return whether this process holds only a shard of the parameters."""
    # A test by the type of tensor would import torch.distributed.tensor, which takes long.
    return any(hasattr(parameter, "full_tensor") for parameter in module.parameters())


def reshard(module: nn.Module) -> None:
    """Free the parameters that a sharded module has gathered, which a backward pass would free."""
    getattr(module, "reshard", lambda: None)()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded; all processes call this."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole
