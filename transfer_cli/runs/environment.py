"""What a run ran on."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from transfer_cli.errors import ConfigError

if TYPE_CHECKING:
    import torch

RECORD = "ran_on.json"
"""The file of a checkpoint that says what it was computed on."""

PACKAGES = (
    "transfer-cli", "torch", "pytorch-ignite", "hydra-core", "omegaconf", "tokenizers",
    "safetensors", "numpy", "tensorboard",
)  # fmt: skip

_ROUNDING_PACKAGES = ("python", "transfer-cli", "torch", "numpy", "tokenizers")
"""Of which another version may compute other bits."""


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    numbers = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            numbers[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            numbers[package] = "not installed"
    return numbers


def environment() -> dict[str, Any]:
    """Return versions, machine and devices."""
    import torch

    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return {
        "versions": versions(),
        "machine": {"system": platform.platform(), "processor": platform.machine()},
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(number) for number in gpus],
        "python": sys.executable,
    }


def available_cores() -> int:
    """Return how many cores this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def num_processes(devices: int | str, device: str) -> int:
    """Return how many processes work on a run: with `auto` one for each GPU, or one on the CPU."""
    if devices == "auto":
        return max(1, len(visible_gpus())) if device in ("auto", "cuda") else 1
    if isinstance(devices, str):
        raise ConfigError(f"devices: expected auto or a whole number, got {devices!r}")
    return devices


def visible_gpus() -> list[str]:
    """Return the names that CUDA has for the GPUs a job could use, without importing torch."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        names = [name.strip() for name in given.split(",") if name.strip()]
        return names[: [*names, "-1"].index("-1")]  # as CUDA reads it: what is behind -1 is ignored
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        listed = subprocess.run(  # noqa: S603 - the driver's own command, with fixed words
            [command, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.split()


# --- what decides the last bits ----------------------------------------------------------------


def numerical_environment(device: "torch.device", processes: int) -> dict[str, Any]:
    """Return what decides how numbers are rounded: threads, processes, device and versions."""
    import torch

    name = device.type
    if name == "cuda":
        name = f"cuda ({torch.cuda.get_device_name(device)})"
    elif name == "cpu":
        name = f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    all_versions = versions()
    return {
        "threads": torch.get_num_threads(),
        "processes": processes,
        "device": name,
        **{package: all_versions[package] for package in _ROUNDING_PACKAGES},
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in words how `now` differs from an earlier `numerical_environment`."""
    return [
        f"{name} {value} (was {then.get(name, 'not written down')})"
        for name, value in now.items()
        if then.get(name) != value
    ]


@contextmanager
def computing_threads(number: int | None) -> Iterator[None]:
    """Have torch compute with so many threads on the CPU during the block; None: as it does."""
    if number is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
