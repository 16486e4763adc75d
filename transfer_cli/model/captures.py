"""Records outputs of modules, units, attention probabilities, and what attention computes with.

Legend: B batch, H heads, T queries, S keys, F units, N real tokens.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from transfer_cli.errors import nearest
from transfer_cli.model.attention import Projections, SelfAttention
from transfer_cli.model.backbone import Backbone


@dataclass
class Captured:
    """The outputs recorded in the latest pass, with their autograd graph.

    Args:
        hidden_states: The output of each chosen module, by its name.
        attention: The probabilities of each attention module, `[B, H, T, S]`, by its name,
            before dropout.
        projections: The queries, keys and values of each chosen attention module, by its name.
    """

    hidden_states: dict[str, Any] = field(default_factory=dict)
    attention: dict[str, Tensor] = field(default_factory=dict)
    projections: dict[str, Projections] = field(default_factory=dict)


@contextmanager
def captures(
    model: nn.Module,
    hidden_states: Sequence[str] = (),
    *,
    attention: bool = False,
    projections: Sequence[str] = (),
) -> Iterator[Captured]:
    """Record outputs of modules while the context is active.

    Compiled passes run eagerly meanwhile. With `attention` the probabilities are materialised,
    instead of fused kernels: outputs agree up to rounding, and memory grows with T x S.

    Args:
        model: Any module; it stays unchanged.
        hidden_states: Names of modules (see `named_modules`) whose outputs are recorded.
        attention: Whether attention probabilities are recorded.
        projections: Names of attention modules whose queries, keys and values are recorded; they
            keep their fused kernels.

    Raises:
        ValueError: The model has no module of that name.
    """
    modules = dict(model.named_modules())
    for name in (*hidden_states, *projections):
        if name not in modules:
            raise ValueError(f"the model has no module {name!r}.{nearest(name, modules)}")
    captured = Captured()
    with ExitStack() as stack:
        stack.enter_context(_uncompiled())
        for name in hidden_states:

            def keep(module: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
                captured.hidden_states[name] = output

            stack.enter_context(modules[name].register_forward_hook(keep))
        for name, module in modules.items():
            if not isinstance(module, SelfAttention):
                continue
            if attention:
                stack.callback(setattr, module, "on_probabilities", module.on_probabilities)
                module.on_probabilities = partial(captured.attention.__setitem__, name)
            if name in projections:
                stack.callback(setattr, module, "on_projections", module.on_projections)
                module.on_projections = partial(captured.projections.__setitem__, name)
        yield captured


@contextmanager
def attention_by_place(backbone: Backbone, look: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Hand over the attention probabilities of every place of each pass, and keep none.

    A block that several places share is handed over at each of them. Compiled passes run eagerly
    meanwhile.

    Args:
        backbone: It stays unchanged.
        look: Gets the number of the place, from 0, and its probabilities, `[B, H, T, S]`.
    """
    places = cycle(range(backbone.shape.depth))
    with ExitStack() as stack:
        stack.enter_context(_uncompiled())
        for block in backbone.blocks:
            module: SelfAttention = block.attention  # type: ignore[assignment]
            stack.callback(setattr, module, "on_probabilities", module.on_probabilities)
            module.on_probabilities = lambda found: look(next(places), found)
        yield


@contextmanager
def units_by_place(backbone: Backbone, look: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Hand over the feed-forward units of every place of each pass, and keep none.

    Units are what the down projection reads: after their activation, gated ones multiplied by their
    gates. A block that several places share is handed over at each of them. Compiled passes run
    eagerly meanwhile.

    Args:
        backbone: It stays unchanged.
        look: Gets the number of the place, from 0, and its units, `[B, T, F]`, or `[1, N, F]` of
            the N real tokens where the batch is packed.
    """
    places = cycle(range(backbone.shape.depth))

    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        look(next(places), inputs[0])

    with ExitStack() as stack:
        stack.enter_context(_uncompiled())
        for block in backbone.blocks:
            down: nn.Module = block.feed_forward.output  # type: ignore[union-attr,assignment]
            stack.enter_context(down.register_forward_pre_hook(keep))
        yield


def _uncompiled() -> AbstractContextManager[Any]:
    # Importing it takes a second; if it is missing, nothing is compiled.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager
