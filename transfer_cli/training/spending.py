"""What a run has spent: all that was computed for it, also what a kill has undone.

It is kept in `timing.json` from the first save on. What its steps take alone, whatever happened on
the way, is `cost` in `results.json` (`engine.cost`).
"""

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from transfer_cli.engine import distributed
from transfer_cli.engine.cost import Flops
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.untrusted import is_number
from transfer_cli.safe_files import UnreadableError, read_json

SPENT = "spent"
"""The key of `timing.json`."""

_PART = 2**40
"""Numbers are exchanged in two parts: a double has 53 bits."""


class Meter:
    """Reads a GPU's counter of millijoules from its start, or says why there is none.

    Nothing is estimated: where nobody counts, there is no number but the reason.

    Args:
        nvml: NVML's own package, extra `energy`, which reads the counter of `handle`.
    """

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


def device_meter(device: torch.device) -> Meter:
    """Return what reads the energy of a process's device; from Volta on GPUs count theirs."""
    if device.type != "cuda":
        return Meter("only a GPU counts its energy")
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Meter("a GPU's counter is read by pynvml: pip install nvidia-ml-py")
    try:
        nvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return Meter("nvml", nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except nvml.NVMLError as error:
        return Meter(f"NVML: {error}")


class Spending:
    """Adds up what the processes of a run spend, on top of what earlier ones have.

    Energy becomes carbon dioxide by the user's own numbers, or not at all.

    Args:
        pue: Energy of the data centre over that of its machines.
        kg_per_kwh: CO2 of a kilowatt-hour of this grid; None: unknown.
    """

    def __init__(
        self,
        meter: Meter,
        pue: float = 1.0,
        kg_per_kwh: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._meter = meter
        self._pue, self._kg_per_kwh = pue, kg_per_kwh
        self._clock = clock
        self._began = self._noted = clock()
        self._flops = 0
        self._joules, self._all_metered = 0.0, meter.has_reading
        self._earlier: Mapping[str, Any] = {}

    def load_earlier(self, directory: RunDirectory) -> None:
        """Begin with what the run has spent before; what cannot be read counts as nothing."""
        try:
            earlier = read_json(directory.timing).get(SPENT)
        except (OSError, UnreadableError):
            return
        self._earlier = earlier if isinstance(earlier, dict) else {}

    def add(self, flops: Flops) -> Flops:
        """Add up what all processes have computed since last time, and their energy so far.

        All processes call this together.
        """
        parts = [part for number in flops for part in divmod(number, _PART)]
        joules = self._meter.joules()
        silent = 0.0 if self._meter.has_reading else 1.0
        *summed, joules, silent = distributed.all_reduce_sum([*parts, joules, silent])
        high, low, high_real, low_real = map(int, summed)
        together = Flops(high * _PART + low, high_real * _PART + low_real)
        self._flops += together.done
        self._joules, self._all_metered = joules, not silent
        return together

    def is_due(self) -> bool:
        """Return whether a note of what is spent is due; reads the counters now and then."""
        seconds_between_notes = 30.0  # what a kill can keep from being counted
        if self._clock() - self._noted < seconds_between_notes:
            return False
        self._noted = self._clock()
        if distributed.world_size() == 1:
            self._joules, self._all_metered = self._meter.joules(), self._meter.has_reading
        return True

    def record(self, since: Flops = Flops()) -> dict[str, Any]:  # noqa: B008 - a tuple
        """Return what was spent by now, with what this process has computed since `add`."""
        processes = distributed.world_size()
        seconds = (self._clock() - self._began) * processes
        flops = self._flops + since.done * processes
        joules = self._spent("joules", 0.0)
        source = self._meter.source
        if joules is None and self._all_metered:
            source += ", but not of all that came before a resume"
        joules = joules + self._joules if joules is not None and self._all_metered else None
        kg_co2 = None
        if joules is not None and self._kg_per_kwh is not None:
            kg_co2 = joules / 3.6e6 * self._pue * self._kg_per_kwh  # of J to kWh
        return {
            "device_seconds": round(seconds + (self._spent("device_seconds", 0.0) or 0.0), 3),
            "flops": flops + int(self._spent("flops", 0) or 0),
            "joules": None if joules is None else round(joules, 3),
            "joules_source": source,
            "kg_co2": None if kg_co2 is None else float(f"{kg_co2:.6g}"),
        }

    def write(self, directory: RunDirectory, since: Flops = Flops()) -> None:  # noqa: B008
        """Write down what was spent by now."""
        write_json(directory.timing, {SPENT: self.record(since)})

    def _spent(self, name: str, nothing: float) -> float | None:
        """Return what was spent of something before this; None where that is not known."""
        if not self._earlier:
            return nothing
        value = self._earlier.get(name)
        return value if is_number(value) else None
