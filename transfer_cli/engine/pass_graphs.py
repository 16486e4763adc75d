"""Forward and backward passes over short texts as CUDA graphs.

A small model's pass over a batch of questions has some 400 kernels of a few microseconds each, and
a host needs longer to launch one than a GPU to compute it. A graph has them all in one launch; it
computes with tensors of the same shapes at the same places each time.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from transfer_cli.batch import Batch, to_device, to_pinned, with_padded_facts
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import Pass, TransferModel

LENGTH_MULTIPLE = 8
"""Texts are padded to a multiple of this many tokens, so that few batches differ in shape."""

MAX_GRAPHS = 64
"""Of batches of further shapes there is none."""

MOST_FLOPS = 2e12
"""Of a forward and a backward pass: with more a GPU is slower than its host, and padding costs."""

_KEYS = {"tokens", "mask", "segment", "index", "epoch", "label", "labels", "value"}
"""What a batch may hold: `with_padded_facts` knows how to pad it."""

_FACTORS = "factors"
"""Beside what a batch holds: the factor of each term."""

Sums = dict[str, Tensor]
Compute = Callable[[Batch, Mapping[str, Tensor]], Sums]
"""Adds gradients to those of the weights, given a batch and the factor of each term; returns sums
that need no gradients."""


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: Batch
    sums: Sums
    parameters: list[nn.Parameter]
    passes: list[Pass]


class PassGraphs:
    """Passes of a model, each a graph from the second batch of its shape on.

    The first is computed as it comes, so that libraries choose their kernels and it is known which
    weights have gradients. Passes draw the same dropout either way: what a run comes to does not
    depend on where it was resumed.
    """

    def __init__(self, model: TransferModel, device: torch.device) -> None:
        self._model, self._device = model, device
        sizes = (p.numel() for p in model.backbone.blocks.parameters())
        self._most_tokens = MOST_FLOPS / (6 * max(1, sum(sizes)))
        self._met: dict[Hashable, list[nn.Parameter]] = {}
        self._captured: dict[Hashable, _Captured] = {}
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self._pool: Any = None

    def prepare(self, view: Batch) -> Batch | None:
        """Return a batch as graphs read it, on the host; None where there is none of it."""
        if not view.keys() <= _KEYS or view["mask"].dim() > 2:
            return None
        longest = self._model.backbone.shape.positions
        padded = with_padded_facts(view, LENGTH_MULTIPLE, longest)
        return padded if padded["tokens"].numel() <= self._most_tokens else None

    def __call__(
        self, stage: int | None, view: Batch, factors: Mapping[str, float], compute: Compute
    ) -> Sums:
        """Compute a batch that `prepare` returned; return sums that hold until the next call."""
        shapes = tuple((name, value.shape, value.dtype) for name, value in sorted(view.items()))
        key = stage, shapes, tuple(factors)
        inputs = {**view, _FACTORS: torch.tensor([*factors.values()])}

        def work(inputs: Batch) -> Sums:
            batch = {name: value for name, value in inputs.items() if name != _FACTORS}
            return compute(batch, dict(zip(factors, inputs[_FACTORS].unbind(), strict=True)))

        captured = self._captured.get(key)
        if captured is None and key in self._met and len(self._captured) < MAX_GRAPHS:
            captured = self._capture(self._met[key], to_device(inputs, self._device), work)
            self._captured[key] = captured
        elif captured is None:
            sums = work(to_device(inputs, self._device))
            self._met[key] = [p for p in self._model.parameters() if p.grad is not None]
            return sums
        for name, value in to_pinned(inputs, self._device).items():
            captured.inputs[name].copy_(value, non_blocking=True)
        captured.graph.replay()
        for parameter in captured.parameters:
            parameter.grad = self._gradients[parameter]
        if self._model.on_pass is not None:
            for graph_pass in captured.passes:
                self._model.on_pass(replace(graph_pass, lengths=view["lengths"].tolist()))
        return captured.sums

    def _capture(
        self, parameters: list[nn.Parameter], inputs: Batch, work: Callable[[Batch], Sums]
    ) -> _Captured:
        for parameter in parameters:
            # All graphs have the same gradients: each begins with zeros.
            parameter.grad = self._gradients.setdefault(parameter, torch.zeros_like(parameter))
        passes = list[Pass]()
        on_pass, self._model.on_pass = self._model.on_pass, passes.append
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                torch._foreach_zero_([self._gradients[p] for p in parameters])
                sums = work(inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # such as a part of somebody's own that asks the device
            reason, *_ = str(error).splitlines()
            raise ConfigError(
                f"loop.cuda_graphs: a pass of this model cannot be one ({reason}); begin again "
                "with loop.cuda_graphs=false"
            ) from error
        finally:
            self._model.on_pass = on_pass
        self._pool = graph.pool()
        return _Captured(graph, inputs, sums, parameters, passes)
