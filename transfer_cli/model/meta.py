"""Modules without weights: to know their names and shapes before any memory is taken."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def without_weights() -> Iterator[None]:
    """Make modules on the meta device, where nothing is computed and nothing is kept.

    Raises:
        MemoryError: One is so large that its size cannot be counted.
    """
    try:
        with torch.device("meta"), _NoDraws():
            yield
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise MemoryError(str(error)) from error


class _NoDraws(TorchFunctionMode):
    """Leaves out random initialisation: on the meta device torch would load its compiler for it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
