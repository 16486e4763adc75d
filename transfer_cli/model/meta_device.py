"""Builds modules on the meta device: their names and shapes without memory for weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def without_weights() -> Iterator[None]:
    """Build modules on the meta device, without random initialisation.

    Raises:
        MemoryError: The size of a tensor overflows.
    """
    try:
        with torch.device("meta"), _NoDraws():
            yield
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise MemoryError(str(error)) from error


class _NoDraws(TorchFunctionMode):
    """Skips random initialisation, for which torch would import its compiler on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
