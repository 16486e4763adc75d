"""The families that are read and written: ours, and those that a plugin adds."""

from functools import cache
from importlib import import_module
from typing import TypeVar

from transfer_cli.errors import ConfigError
from transfer_cli.interop.family import Family

_OURS = {
    "encoders": (
        "Roberta", "XlmRoberta", "Bert", "DistilBert", "Electra", "Albert", "MPNet", "ModernBert",
    ),
    "decoders": ("Gpt2", "OpenAIGpt", "GptNeoX", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3"),
    "t5": ("T5", "MT5"),
    "bart": ("Bart", "MBart"),
}  # fmt: skip
"""The classes of each module beside this one, in the order in which an export tries them: it takes
the first that fits, so the family that asks for most comes first."""

_Kind = TypeVar("_Kind", bound=type[Family])


@cache
def families() -> dict[str, Family]:
    """Return all families by their `model_type`, in the order in which an export tries them."""
    kinds: list[type[Family]] = [
        getattr(import_module(f"transfer_cli.interop.{module}"), name)
        for module, names in _OURS.items()
        for name in names
    ]
    return {kind.model_type: kind() for kind in kinds}


def register_family(kind: _Kind) -> _Kind:
    """Add a family after those that are there; a decorator for classes of a plugin."""
    there = type(families().get(kind.model_type, kind()))
    paths = [f"{family.__module__}.{family.__qualname__}" for family in (kind, there)]
    if paths[0] != paths[1]:
        raise ConfigError(
            f"{paths[0]}: model_type {kind.model_type!r} is that of {paths[1]}; "
            "a family needs one of its own"
        )
    families()[kind.model_type] = kind()
    return kind
