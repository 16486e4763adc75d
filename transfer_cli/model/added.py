"""`Added`, the base class of modules that edits add to a network.

Layer groups, distillation, storing and export find them by class, not by name.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Protocol, cast, runtime_checkable

from torch import nn


class Added(nn.Module):
    """A module that an edit adds to a network: every parameter in it is new.

    It is a module of its own (an adapter in a block's site), or inside a layer that keeps its
    pretrained parameters and their names (a low-rank update).
    """

    keeps_outputs: ClassVar[bool] = True
    """Whether a newly added module leaves the model's outputs unchanged."""

    in_graphs: ClassVar[bool] = True
    """Whether an ONNX graph can hold it."""

    kind: ClassVar[str] = ""
    """Its name in messages; the default is the name of its class."""

    rates: Mapping[str, float] = MappingProxyType({})
    """Multipliers of the learning rates of its own parameters, by name; 1 for all others."""

    edit: str = ""
    """The name of its edit in `adaptation.edits`."""

    def describe(self) -> str:
        """Return its name in messages, with the key of its edit."""
        return f"{self.kind or type(self).__name__} (adaptation.edits.{self.edit})"


@runtime_checkable
class Mergeable(Protocol):
    """A layer with an added module that can be folded into its base weights."""

    def merged(self) -> nn.Module:
        """Return a plain layer with the same outputs; this layer stays unchanged."""


def added_modules(model: nn.Module) -> dict[str, Added]:
    """Return the modules that edits have added, by name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, Added)}


def added_parameters(model: nn.Module) -> dict[str, Added]:
    """Return the added module of each added parameter, by the parameter's full name."""
    return {
        f"{prefix}.{name}": part
        for prefix, part in added_modules(model).items()
        for name, _ in part.named_parameters()
    }


def added_rates(model: nn.Module) -> dict[str, float]:
    """Return the multiplier of each parameter's learning rate that is not 1, by full name."""
    return {
        f"{prefix}.{name}": rate
        for prefix, part in added_modules(model).items()
        for name, rate in part.rates.items()
        if rate != 1
    }


def unmergeable_edits(model: nn.Module) -> dict[str, str]:
    """Return a description of each edit that cannot be merged, by name."""
    layers = _mergeable_layers(model).values()
    foldable = {part for layer in layers for part in layer.modules()}
    stay = (part for part in added_modules(model).values() if part not in foldable)
    return {part.edit: part.describe() for part in stay}


def unmerged_parameters(model: nn.Module) -> dict[str, Added]:
    """Return the added module of each added parameter that `merge` leaves; nothing is computed."""
    folded = {part for layer in merged_layers(model).values() for part in layer.modules()}
    return {name: part for name, part in added_parameters(model).items() if part not in folded}


def merge(model: nn.Module) -> dict[str, nn.Module]:
    """Fold each mergeable edit into the base weights; return the layers replaced, for `unmerge`."""
    replaced = merged_layers(model)
    for name, layer in replaced.items():
        model.set_submodule(name, cast("Mergeable", layer).merged())
    return replaced


def unmerge(model: nn.Module, replaced: Mapping[str, nn.Module]) -> None:
    """Undo `merge`: restore the base weights, bit for bit."""
    for name, layer in replaced.items():
        model.set_submodule(name, layer)


def edits_in(part: nn.Module) -> set[str]:
    """Return the names of the edits that have added modules to a part of a model."""
    return {added.edit for added in added_modules(part).values()}


def merged_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that `merge` replaces, by name."""
    stay, layers = unmergeable_edits(model).keys(), _mergeable_layers(model)
    return {n: layer for n, layer in layers.items() if stay.isdisjoint(edits_in(layer))}


def _mergeable_layers(model: nn.Module) -> dict[str, nn.Module]:
    parts = dict(model.named_modules())
    return {name: parts[name] for name, part in parts.items() if isinstance(part, Mergeable)}
