"""Energy that the machine itself counts: a GPU's by NVML, a processor's by RAPL.

Nothing is estimated: where a machine cannot tell, there is no number but the reason. The counters
are read when somebody asks; there is no thread.

Legend: uJ, J: millionths of a joule, joules.
"""

import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from transfer_cli.errors import TransferError

if TYPE_CHECKING:
    import torch

POWERCAP = Path("/sys/class/powercap")
"""Where Linux has the counters of processors; root alone may read them, unless it allows more."""

MOST_WATTS = 1000.0
"""More than a socket takes: a counter that is read more seldom than it may wrap tells nothing."""


class EnergyError(TransferError):
    """A counter cannot be read; the message says why."""


class Counter(Protocol):
    """Counts energy from when it was made."""

    def joules(self) -> float:
        """Return J since then.

        Raises:
            EnergyError: It cannot be read, or was read too seldom.
        """


class RaplZone:
    """A counter of a processor, or of its memory, that begins again at 0 at the end of its range.

    Args:
        folder: With `energy_uj` and `max_energy_range_uj`.
        clock: Returns seconds.

    Raises:
        EnergyError: It cannot be read.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._energy = folder / "energy_uj"
        self._range = _number_in(folder / "max_energy_range_uj")
        self._clock = clock
        self._last, self._read_at, self._total = _number_in(self._energy), clock(), 0

    def joules(self) -> float:
        """See `Counter`."""
        now, last = _number_in(self._energy), self._last
        since = self._clock() - self._read_at
        if since * MOST_WATTS * 1e6 > self._range:
            raise EnergyError(
                f"{self._energy} was not read for {since:,.0f} s, in which it may have wrapped "
                "more than once"
            )
        self._total += now - last if now >= last else now + self._range - last
        self._last, self._read_at = now, self._clock()
        return self._total / 1e6


class GpuCounter:
    """The counter of a GPU; from Volta on there is one.

    Args:
        uuid: Of the GPU, as torch says it.

    Raises:
        EnergyError: There is no package `pynvml`, or the GPU has no such counter.
    """

    def __init__(self, uuid: str) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError as error:
            raise EnergyError(
                "the GPU's counter is read by the package pynvml, which is not installed "
                "(pip install nvidia-ml-py)"
            ) from error
        try:
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except self._nvml.NVMLError as error:
            raise EnergyError(f"NVML: {error}") from error
        self._first = self._millijoules()

    def joules(self) -> float:
        """See `Counter`."""
        return (self._millijoules() - self._first) / 1000

    def _millijoules(self) -> int:
        try:
            found: int = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except self._nvml.NVMLError as error:
            raise EnergyError(f"NVML: {error}") from error
        return found


class Meter:
    """What this process reads of the energy of its run.

    Args:
        counters: That it reads; none where others read them, or there are none.
        source: What they are; without any, why not.
        tells: Whether the run's energy is known by what processes read together.
    """

    def __init__(self, counters: Sequence[Counter], source: str, *, tells: bool) -> None:
        self._counters = counters
        self.source = source
        self.tells = tells

    def joules(self) -> float:
        """Return J since it was made, 0 where it does not tell."""
        try:
            return sum(counter.joules() for counter in self._counters) if self.tells else 0.0
        except EnergyError as error:
            self.tells, self.source = False, str(error)
            return 0.0


def no_meter(why: str) -> Meter:
    """Return a meter that tells nothing, and why."""
    return Meter((), why, tells=False)


def meter_of(
    device: "torch.device",
    *,
    first_of_machine: bool,
    powercap: Path | None = None,
) -> Meter:
    """Return what this machine has to read: of a run on a GPU its counter is needed.

    Args:
        device: Of this process.
        first_of_machine: Whether this process reads what all of its machine share.
        powercap: Where the processor's counters are; None: where Linux has them.
    """
    try:
        gpus = [_gpu_counter(device)] if device.type == "cuda" else []
        sources = ["nvml"] if gpus else []
        zones: list[Counter] = []
        try:
            zones = [RaplZone(folder) for folder in _zones(powercap or POWERCAP)]
            sources.append("rapl")
        except EnergyError:
            if not gpus:
                raise
        return Meter([*gpus, *(zones if first_of_machine else ())], " + ".join(sources), tells=True)
    except EnergyError as error:
        return no_meter(str(error))


def _gpu_counter(device: "torch.device") -> Counter:
    import torch

    return GpuCounter(str(torch.cuda.get_device_properties(device).uuid))


def _zones(powercap: Path) -> list[Path]:
    """Return the counters of sockets, and of memory beside them, which theirs do not hold."""
    found = []
    for folder in sorted(powercap.glob("intel-rapl:*")):
        try:
            name = (folder / "name").read_text("ascii").strip()
        except (OSError, UnicodeError):
            continue
        if name.startswith("package") or name == "dram":
            found.append(folder)
    if not found:
        raise EnergyError(f"there is no counter of the processor in {powercap}")
    return found


def _number_in(path: Path) -> int:
    try:
        return int(path.read_text("ascii"))
    except OSError as error:
        hint = ", which an administrator can allow" if isinstance(error, PermissionError) else ""
        raise EnergyError(f"{path} cannot be read: {error.strerror}{hint}") from error
    except ValueError as error:
        raise EnergyError(f"{path} holds no number") from error
