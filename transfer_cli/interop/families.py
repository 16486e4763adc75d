"""The families that are read and written: ours, and those that a plugin adds."""

from typing import TypeVar

from transfer_cli.errors import ConfigError
from transfer_cli.interop.bert import Albert, Bert, DistilBert, Electra, MPNet, Roberta, XlmRoberta
from transfer_cli.interop.decoders import Gemma3, Gpt2, GptNeoX, Llama, Mistral, Qwen2, Qwen3
from transfer_cli.interop.family import Family
from transfer_cli.interop.modernbert import ModernBert

_OURS: tuple[type[Family], ...] = (
    Roberta, XlmRoberta, Bert, DistilBert, Electra, Albert, MPNet, ModernBert, Gpt2, GptNeoX, Llama,
    Mistral, Qwen2, Qwen3, Gemma3,
)  # fmt: skip
_families: dict[str, Family] = {kind.model_type: kind() for kind in _OURS}
"""An export takes the first that fits, so the family that asks for most comes first."""

_Kind = TypeVar("_Kind", bound=type[Family])


def families() -> dict[str, Family]:
    """Return all families by their `model_type`, in the order in which an export tries them."""
    return dict(_families)


def register_family(kind: _Kind) -> _Kind:
    """Add a family after those that are there; a decorator for classes of a plugin."""
    there = type(_families.get(kind.model_type, kind()))
    paths = [f"{family.__module__}.{family.__qualname__}" for family in (kind, there)]
    if paths[0] != paths[1]:
        raise ConfigError(
            f"{paths[0]}: model_type {kind.model_type!r} is that of {paths[1]}; "
            "a family needs one of its own"
        )
    _families[kind.model_type] = kind()
    return kind
