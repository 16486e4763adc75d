"""A CUDA graph without a GPU: the operations of a block, computed again with the same tensors.

As of a graph, numbers that the host had when it was captured stay, and so do the tensors.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph(TorchDispatchMode):
    """Records what is computed while it is entered, which `replay` repeats in place."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, outputs))
        return outputs

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, outputs in self.calls:
            pairs = zip(tree_leaves(outputs), tree_leaves(func(*args, **kwargs)), strict=True)
            for before, now in pairs:
                if isinstance(now, Tensor) and now.data_ptr() != before.data_ptr():
                    before.copy_(now)

    def pool(self) -> None:
        return None


@contextlib.contextmanager
def _capture(graph: RecordedGraph, **_: Any) -> Iterator[None]:
    with graph:
        yield


def replace_graphs(patch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Let CUDA graphs be recorded ones; return those that are made."""
    made: list[RecordedGraph] = []

    def make() -> RecordedGraph:
        made.append(RecordedGraph())
        return made[-1]

    patch.setattr(torch.cuda, "CUDAGraph", make)
    patch.setattr(torch.cuda, "graph", _capture)
    return made
