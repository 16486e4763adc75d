"""Calls a function on several processes, as torchrun starts them.

Run as a program it is one of these processes: `several.py MODULE FUNCTION FOLDER DEVICE`.
"""

import importlib
import os
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
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        **options.pop("environment", {}),
    }
    return subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--local-addr", "127.0.0.1",
            *words,
        ],
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
        found = getattr(importlib.import_module(module), function)()
        torch.save(found, Path(folder) / f"{distributed.rank()}.pt")


if __name__ == "__main__":
    _main(*sys.argv[1:])
