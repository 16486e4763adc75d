"""The mark of what an edit adds to a network.

Whoever has to know (layer groups, distillation, storing, export) asks the modules, not their names.
"""

from collections.abc import Mapping
from typing import ClassVar, Protocol, cast, runtime_checkable

from torch import nn


class Added(nn.Module):
    """A module that an edit puts into a network: every parameter in it is new.

    It may stand by itself (an adapter at a block's site) or lie inside a layer that keeps its
    pretrained parameters and their names (an update of low rank).
    """

    keeps_outputs: ClassVar[bool] = True
    """Whether a fresh one changes nothing that the model computes."""

    kind: ClassVar[str] = ""
    """What people call it; by default the name of its class."""

    edit: str = ""
    """The name of its edit in `adaptation.edits`."""

    def describe(self) -> str:
        """Return what people call it, with the key of its edit."""
        return f"{self.kind or type(self).__name__} (adaptation.edits.{self.edit})"


@runtime_checkable
class Mergeable(Protocol):
    """A layer with something added that its base weights can take over."""

    def merged(self) -> nn.Module:
        """Return a layer of the same outputs with nothing added; this one is left as it is."""


def added_modules(model: nn.Module) -> dict[str, Added]:
    """Return all that edits have added, by name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, Added)}


def added_parameters(model: nn.Module) -> dict[str, Added]:
    """Return the full names of all added parameters, each with the module that brought it."""
    return {
        f"{prefix}.{name}": part
        for prefix, part in added_modules(model).items()
        for name, _ in part.named_parameters()
    }


def unmergeable_edits(model: nn.Module) -> dict[str, str]:
    """Return what the base weights cannot take over: names of edits, each with a description."""
    layers = _mergeable_layers(model).values()
    foldable = {id(part) for layer in layers for part in layer.modules()}
    stay = [part for part in added_modules(model).values() if id(part) not in foldable]
    return {part.edit: part.describe() for part in stay}


def merge(model: nn.Module) -> dict[str, nn.Module]:
    """Fold every edit that can be merged into the base weights, whole: plain layers remain of it.

    Returns:
        The layers that were replaced, by name: what `unmerge` needs to put them back.
    """
    stay = unmergeable_edits(model).keys()
    replaced = {
        name: layer
        for name, layer in _mergeable_layers(model).items()
        if stay.isdisjoint(edits_in(layer))
    }
    for name, layer in replaced.items():
        model.set_submodule(name, cast("Mergeable", layer).merged())
    return replaced


def unmerge(model: nn.Module, replaced: Mapping[str, nn.Module]) -> None:
    """Undo `merge`: the base weights have their old values again, bit for bit."""
    for name, layer in replaced.items():
        model.set_submodule(name, layer)


def edits_in(part: nn.Module) -> set[str]:
    """Return the names of the edits that have added something to a part of a model."""
    return {added.edit for added in added_modules(part).values()}


def _mergeable_layers(model: nn.Module) -> dict[str, nn.Module]:
    parts = dict(model.named_modules())
    return {name: parts[name] for name, part in parts.items() if isinstance(part, Mergeable)}
