"""Whether a CPU multiplies bfloat16 so fast that computing in it pays.

Some processors have units for it, and a virtual machine may hide them or share them out; so two
products are timed, once for each machine and version of torch.
"""

import hashlib
import platform
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from transfer_cli.data.folders import home_cache
from transfer_cli.engine import distributed
from transfer_cli.engine.precision import Precision, device_and_precision
from transfer_cli.errors import RunError
from transfer_cli.runs.atomic import write_json
from transfer_cli.safe_files import UnreadableError, read_json

COMMANDS = ("pretrain",)
"""Those whose `precision=auto` asks for it. With short texts casts took longer than was gained."""

MIN_SPEEDUP = 2.0
"""How many times as fast as in float32 a product in bfloat16 must be.

Casts take a part of what products gain, and fewer bits have to bring something.
"""

_SIZE = 512
_FEWEST, _PRODUCTS, _SECONDS = 2, 6, 0.05
"""How many products are timed: so many at least, and more within this time. The first is slow."""


def is_fast(cache: Path) -> bool:
    """Return whether products in bfloat16 are fast on this CPU; in `cache` it is kept."""
    record = cache / "machines" / f"{_machine()}.json"
    try:
        rates = read_json(record)
        return bool(rates["bfloat16"] >= MIN_SPEEDUP * rates["float32"])
    except (OSError, UnreadableError, KeyError, TypeError):
        rates = measure_rates()
    with suppress(OSError, RunError):  # it is measured again next time
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, rates)
    return rates["bfloat16"] >= MIN_SPEEDUP * rates["float32"]


def measure_rates() -> dict[str, float]:
    """Return how fast products are in each type, in GFLOP/s."""
    return {
        str(kind).removeprefix("torch."): _rate(kind) for kind in (torch.float32, torch.bfloat16)
    }


def _rate(kind: torch.dtype) -> float:
    factor = torch.ones(_SIZE, _SIZE, dtype=kind)
    times: list[float] = []
    while len(times) < _FEWEST or (len(times) < _PRODUCTS and sum(times) < _SECONDS):
        since = time.perf_counter()
        factor @ factor
        times.append(time.perf_counter() - since)
    return 2e-9 * _SIZE**3 / min(times)


def _machine() -> str:
    """Return a name of this kind of machine, as what computes here sees it."""
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
        names = ("model name", "flags", "Features")
        facts = [line for line in first.splitlines() if line.startswith(names)]
    except OSError:
        facts = [platform.processor()]
    facts += [platform.machine(), torch.__version__]
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=8).hexdigest()


def command_precision(command: str, device: str, precision: str) -> Precision:
    """Return this process's device, and the precision of a command, in which processes agree.

    auto is bf16 on a CPU, too, for some commands, if its products in bf16 are fast.
    """
    chosen = device_and_precision(device, precision)
    if precision != "auto" or command not in COMMANDS or chosen.device.type != "cpu":
        return chosen
    kind = distributed.broadcast_text("bf16" if is_fast(home_cache()) else "fp32")
    return replace(chosen, kind=kind)
