"""What a run ran on."""

import platform
import sys
from importlib import metadata
from typing import Any

PACKAGES = (
    "transfer-cli", "torch", "pytorch-ignite", "hydra-core", "omegaconf", "tokenizers",
    "safetensors", "numpy", "tensorboard",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


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
