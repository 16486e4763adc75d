"""The energy of a GPU, as it counts it itself: read by NVML's own package, extra `energy`.

Nothing is estimated: where nobody counts, there is no number but the reason.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Meter:
    """Reads a counter of millijoules of `nvml` from its start, or says why there is none."""

    def __init__(self, source: str, nvml: Any = None, handle: Any = None) -> None:
        self.source = source
        self._nvml = nvml
        self._handle = handle
        self._first = 0
        self._first = self._millijoules()

    @property
    def has_reading(self) -> bool:
        """Whether there is a number."""
        return self._nvml is not None

    def joules(self) -> float:
        """Return J since it was made, 0 where it does not tell."""
        return (self._millijoules() - self._first) / 1000 if self.has_reading else 0.0

    def _millijoules(self) -> int:
        if self._nvml is None:
            return 0
        try:
            return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except self._nvml.NVMLError as error:
            self.source, self._nvml = f"NVML: {error}", None
            return self._first


def device_meter(device: "torch.device") -> Meter:
    """Return what reads the energy of a process's device; from Volta on GPUs count theirs."""
    if device.type != "cuda":
        return Meter("only a GPU counts its energy")
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Meter("a GPU's counter is read by pynvml: pip install nvidia-ml-py")
    import torch

    try:
        nvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return Meter("nvml", nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except nvml.NVMLError as error:
        return Meter(f"NVML: {error}")
