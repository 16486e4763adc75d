"""Profile training steps of a model: which kernels take longest, and how long the GPU has none.

    python scripts/gpu/profile_step.py [--device cuda] [--steps 10] [--quick]

`transfer pretrain model=base` in bfloat16, compiled, 64 x 256 tokens a step. Prints a table, and as
its last line all figures as JSON.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gpu
import product
import torch
from torch.profiler import ProfilerActivity, profile

WARM = 50
"""Steps before the profile: more than an epoch, one batch of which has padding and is compiled."""
SHOWN = 30


class Profiled:
    """A gate that profiles some steps behind the first ones, then ends the run."""

    def __init__(self, steps: int, device: str) -> None:
        self._left, self._steps, self._is_gpu = WARM, steps, device.startswith("cuda")
        on_gpu = [ProfilerActivity.CUDA] if self._is_gpu else []
        self._profile = profile(activities=[ProfilerActivity.CPU, *on_gpu])
        self._began = 0.0

    def __call__(self) -> None:
        """Count a step."""
        self._left -= 1
        if self._left == 0:
            self._wait()
            self._profile.__enter__()
            self._began = time.perf_counter()
        if self._left == -self._steps:
            self._wait()
            seconds = time.perf_counter() - self._began
            self._profile.__exit__(None, None, None)
            self._show(seconds)
            raise SystemExit(0)

    def _wait(self) -> None:
        if self._is_gpu:
            torch.cuda.synchronize()

    def _show(self, seconds: float) -> None:
        kind = torch.autograd.DeviceType.CUDA if self._is_gpu else torch.autograd.DeviceType.CPU
        spans = sorted(
            (event.time_range.start, event.time_range.end)
            for event in self._profile.events()
            if event.device_type == kind
        )
        events = [e for e in self._profile.key_averages() if e.device_type == kind]
        cost = "self_device_time_total" if self._is_gpu else "self_cpu_time_total"
        events.sort(key=lambda event: -getattr(event, cost))
        total = sum(getattr(event, cost) for event in events)
        found: dict[str, Any] = {
            "ms a step": round(1000 * seconds / self._steps, 2),
            "of which kernels": round(total / 1000 / self._steps, 2),
            "share of time without a kernel": round(1 - _covered(spans) / (1e6 * seconds), 4),
        }
        for event in events[:SHOWN]:
            each = getattr(event, cost) / 1000 / self._steps
            found[event.key[:80]] = f"{each:.3f} ms, {event.count / self._steps:g} times"
        for name, value in found.items():
            print(f"{value!s:>24}  {name}")
        print(json.dumps(found))


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return how long at least one of some spans lasts, in microseconds."""
    covered, reached = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def main() -> None:
    """Profile from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        _, words, material = gpu.run_words("base", asked, Path(folder))
        os.environ.update(material.env)
        product.pretrain(Profiled(asked.steps, asked.device), words)


if __name__ == "__main__":
    sys.exit(main())
