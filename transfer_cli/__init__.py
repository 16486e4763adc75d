"""Pretrain Transformer language models and adapt them to tasks, driven by YAML configs.

`import transfer_cli as transfer` has the commands as functions, see `transfer_cli.api`.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_FUNCTIONS = ("finetune", "load", "pretrain", "report", "sweep")


def __dir__() -> list[str]:
    """Name the functions alone, which an interpreter then completes."""
    return [*_FUNCTIONS, "__version__"]


def __getattr__(name: str) -> Any:
    """Import the functions when one of them is asked for: they bring torch along."""
    if name in _FUNCTIONS:
        return getattr(importlib.import_module("transfer_cli.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
