"""Steps skipped since loss or gradient was not finite; too many in a row end a run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from transfer_cli.batch import Batch, IdleBatch
from transfer_cli.engine import distributed
from transfer_cli.errors import DivergedError, list_names
from transfer_cli.model.transfer_model import LayerGroup


def skips_on_device(optimizer: Optimizer, model: nn.Module, scaler: torch.amp.GradScaler) -> bool:
    """Return whether the device itself can skip a step, so that the host need not wait for it.

    A fused optimizer skips one if its `found_inf` is set; a first one makes SGD's momentum noise.
    """
    waits = scaler.is_enabled() or isinstance(optimizer, SGD) or distributed.is_sharded(model)
    return not waits and bool(getattr(optimizer, "_step_supports_amp_scaling", False))


class HostCopy:
    """A tensor of a device on its way to the host.

    To read the tensor itself, the host would wait for all that the device has got to do since;
    here it waits for the copy alone.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.to("cpu", non_blocking=True)
        self._arrival = None
        if tensor.is_cuda:
            self._arrival = torch.cuda.Event()
            self._arrival.record()

    def read(self) -> Tensor:
        """Return the copy, once it is there."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._copy


@dataclass(frozen=True)
class NotedStep:
    """A step that the host reads later."""

    step: int
    finite: HostCopy
    norms: Mapping[str, Tensor]
    micro_batches: Sequence[Mapping[str, Batch]]


class SkippedSteps:
    """Counts skipped steps in a row, and raises an error when there are too many.

    Args:
        most: Skipped steps in a row after which the run fails.
        late: Whether a step is read only during the next one.

    Attributes:
        in_a_row: Number of skipped steps since the last one that was taken.
        waited: Seconds that the host has waited to read steps.
    """

    def __init__(self, groups: Sequence[LayerGroup], most: int, *, late: bool) -> None:
        self.in_a_row = 0
        self.waited = 0.0
        self._groups = groups
        self._most = most
        self.late = late
        self._unread: list[NotedStep] = []

    def note(self, step: NotedStep) -> None:
        """Note a step, to be read later."""
        self._unread.append(step)

    def read(self, leave: int = 0) -> int:
        """Read all noted steps but the last `leave` ones; return how many were skipped."""
        skipped = 0
        while len(self._unread) > leave:
            noted, began = self._unread.pop(0), time.perf_counter()
            finite = noted.finite.read()
            self.waited += time.perf_counter() - began
            if finite:
                self.in_a_row = 0
                continue
            skipped += 1
            self.in_a_row += 1
            if self.in_a_row >= self._most:
                self._raise_diverged(noted)
        return skipped

    def _raise_diverged(self, last: NotedStep) -> None:
        bad = {n for n, norm in last.norms.items() if not distributed.full_tensor(norm.isfinite())}
        broken = [group.name for group in self._groups if bad.intersection(group.parameters)]
        raise DivergedError(
            f"step {last.step + 1}: loss or gradient is not finite, {self.in_a_row} step(s) in a "
            f"row, in {', '.join(broken) or 'no group: it is the loss'}, on "
            f"{_examples_seen(last.micro_batches)}; try a lower optimizer.lr, a longer "
            "schedule.warmup or precision=fp32"
        )


def _examples_seen(micro_batches: Sequence[Mapping[str, Batch]]) -> str:
    """Return which examples a step saw, on all processes."""
    seen_here = [
        f"{stream} {number}"
        for micro in micro_batches
        for stream, batch in micro.items()
        if not isinstance(batch, IdleBatch)
        for number in batch["index"].tolist()
    ]
    gathered = distributed.all_gather_text("\n".join(seen_here))
    words = [word for text in gathered for word in text.splitlines()]
    shown_examples = 16  # examples that an error names
    return f"examples {list_names(words, shown_examples)}"
