"""The device, and the precision of the forward pass."""

from collections.abc import Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from transfer_cli.engine import distributed
from transfer_cli.errors import ConfigError, RunError, did_you_mean, one_of

AUTOCAST_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """Autocast to `kind` on `device`; norms, losses and measures stay in float32.

    So do weights, but for frozen matrices in bf16; see `cast_to_bf16`.
    """

    kind: str
    device: torch.device

    @classmethod
    def choose(cls, name: str, device: torch.device) -> "Precision":
        """Read `auto`, `fp32`, `bf16` or `fp16`.

        auto is bf16 on a GPU that computes in it, else fp32; see `engine.bf16_products`.
        """
        if name == "auto":
            fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
            return cls("bf16" if fast else "fp32", device)
        one_of("precision", name, ("auto", *AUTOCAST_DTYPES))
        if name == "fp16" and device.type != "cuda":
            raise ConfigError("precision: fp16 needs a GPU; on a CPU use fp32 or bf16")
        return cls(name, device)

    def context(self) -> AbstractContextManager[object]:
        """Return the context that a forward pass runs in."""
        if self.kind == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, AUTOCAST_DTYPES[self.kind])

    def scaler(self) -> torch.amp.GradScaler:
        """Return the gradient scaler: one that does nothing unless fp16 needs it."""
        return torch.amp.GradScaler(self.device.type, enabled=self.kind == "fp16")


def frozen_matrices(
    model: nn.Module, precision: Precision, left_out: Set[str], *, sharded: bool
) -> set[str]:
    """Return the weights of linear layers that a run may keep in bf16.

    A pass casts them anyway, so it computes the same. They are those that the run neither trains
    nor stores (`left_out`), of a model that is not sharded: shards have one type.
    """
    if precision.kind != "bf16" or sharded:
        return set()
    layers = {name for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    return {name for name in left_out if name.removesuffix(".weight") in layers}


def cast_to_bf16(model: nn.Module, names: Set[str]) -> None:
    """Keep these weights in bf16, in half the memory."""
    for name in names:
        weight = model.get_parameter(name)
        weight.data = weight.data.to(torch.bfloat16)


def choose_device(name: str) -> torch.device:
    """Read `auto`, `cpu`, `cuda` or `cuda:N`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, number = name.partition(":")
    has_number = kind == "cuda" and number.isascii() and number.isdigit()
    if kind not in {"cpu", "cuda"} or (colon and not has_number):
        known = ("auto", "cpu", "cuda", "cuda:1")
        raise ConfigError(
            f"device: {name!r} is not auto, cpu, cuda (a GPU) or cuda:N."
            f"{did_you_mean(name, known, 0.75)}"
        )
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= count:
            raise RunError(
                f"device: {name} asked for, but this machine has {count or 'no'} CUDA device(s); "
                "use device=auto or device=cpu"
            )
    return torch.device(kind, int(number)) if number else torch.device(kind)


def device_of_process(name: str, local_rank: int, local_count: int) -> torch.device:
    """Return the device of one of several processes of a machine: each has its own GPU."""
    device = choose_device(name)
    if device.type == "cpu":
        return device
    if ":" in name:
        raise ConfigError(f"device: {name} is one GPU, and each process has its own; use cuda")
    count = torch.cuda.device_count()
    if count < local_count:
        raise RunError(
            f"devices: {local_count} processes need a GPU each, and this machine has {count}; "
            "start fewer, or use device=cpu"
        )
    return torch.device("cuda", local_rank)


def device_and_precision(device: str, precision: str) -> Precision:
    """Return this process's device and precision."""
    place = choose_device(device)
    if distributed.started_by_torchrun():
        ranks = distributed.local_rank(), distributed.local_world_size()
        place = device_of_process(device, *ranks)
    return Precision.choose(precision, place)
