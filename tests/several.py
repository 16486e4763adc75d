"""Calls a function on several processes, as torchrun starts them.

Run as a program it is one of these processes: `several.py MODULE FUNCTION FOLDER DEVICE`. Or it
becomes all processes of a command: `several.py fork COUNT WORDS`.
"""

import importlib
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 240


def torchrun(processes: int, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a Python program by torchrun, with one thread a process."""
    return _ended(
        "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "localhost:0", "--local-addr", "127.0.0.1", *words, **options,
    )  # fmt: skip


def forked(processes: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as under torchrun, on processes that import torch once for all."""
    return _ended(str(Path(__file__)), "fork", str(processes), *words)


def _ended(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        **options.pop("environment", {}),
    }
    return subprocess.run(
        [sys.executable, *words],
        env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
        **options,
    )  # fmt: skip


def on_processes(
    count: int, function: Callable[[], Any], folder: Path, device: str = "cpu"
) -> list[Any]:
    """Return what the function returns in each process: tensors and plain values.

    The processes exchange gradients over gloo, or where `device` is cuda over NCCL.
    """
    ended = torchrun(
        count, str(Path(__file__)), function.__module__, function.__name__, str(folder), device
    )
    assert ended.returncode == 0, ended.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


def _main(module: str, function: str, folder: str, device: str) -> None:
    from transfer_cli.engine import distributed
    from transfer_cli.engine.distributed.watch import process_group

    with process_group(torch.device(device), timeout_minutes=1):
        result = getattr(importlib.import_module(module), function)()
        torch.save(result, Path(folder) / f"{distributed.rank()}.pt")


def _fork(count: int, words: list[str]) -> int:
    """Run a command on processes that have what torchrun tells of theirs; return the worst code."""
    from transfer_cli import cli

    importlib.import_module("transfer_cli.training.train")  # what takes long, once for all
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def run(rank: int) -> None:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ |= {name: str(number) for name, number in numbers.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        sys.exit(cli.main(words))

    context = multiprocessing.get_context("fork")
    started = [context.Process(target=run, args=(rank,)) for rank in range(count)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    return max(abs(process.exitcode) for process in started)


if __name__ == "__main__":
    if sys.argv[1] == "fork":
        sys.exit(_fork(int(sys.argv[2]), sys.argv[3:]))
    _main(*sys.argv[1:])
