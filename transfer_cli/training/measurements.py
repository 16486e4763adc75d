"""What a finished run says about itself beyond its measures."""

import resource
import sys
from collections.abc import Mapping
from typing import Any

import torch

from transfer_cli.config.flat import flat_items
from transfer_cli.config.roles import Role, role_of
from transfer_cli.engine.distributed import full_tensor
from transfer_cli.engine.precision import Precision
from transfer_cli.model.readout import ScalarMix
from transfer_cli.model.transfer_model import TransferModel

MOST_CHARACTERS = 100
"""Of a text: a table's cell shows no more."""

PEAK_TFLOPS = {"H100 PCIe": 756.0, "H100": 989.4, "H200": 989.4, "A100": 312.0}
"""Dense bfloat16, by what the name of a GPU contains (Nvidia's data sheets)."""

_PATH_OPTIONS = frozenset({"train", "validation", "test", "path"})
"""What options of data and tokenizers are called that name files."""


def hyperparameters(
    config: Mapping[str, Any], presets: Mapping[str, str]
) -> dict[str, str | float]:
    """Return what TensorBoard lists beside the final measures: plain values and chosen presets.

    Lists and paths are left out, and so is what only names the run or says where it works.
    """
    values = {key: _as_cell(value) for key, value in flat_items(config) if _is_listed(key, value)}
    return values | {group: _as_cell(option) for group, option in presets.items()}


def _is_listed(key: str, value: Any) -> bool:
    name = key.rpartition(".")[2]
    is_path = isinstance(value, str) and (name in _PATH_OPTIONS or "/" in value)
    is_plain = not isinstance(value, list) and name != "_target_"
    return is_plain and not is_path and Role.HYPERPARAMETER in role_of(key)


def _as_cell(value: Any) -> str | float:
    """Return a value as the table can hold it: TensorBoard's writer makes numbers of truth."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, int | float) else str(value)[:MOST_CHARACTERS]


def layer_shares(model: TransferModel) -> list[float] | None:
    """Return how much each layer counts in a learnt mix, from the embeddings up; None without.

    Of a sharded model all processes call this.
    """
    if not isinstance(model.readout, ScalarMix):
        return None
    return [round(share, 6) for share in full_tensor(model.readout.layer_weights()).tolist()]


def peak_flops(precision: Precision) -> float | None:
    """Return how many floating-point operations a GPU computes in a second at most, if known."""
    if precision.device.type != "cuda" or precision.kind == "fp32":
        return None
    name = torch.cuda.get_device_name(precision.device)
    return next((1e12 * peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


def peak_memory(device: torch.device) -> int:
    """Return the most bytes held at once: on a GPU by tensors, else by the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
