"""A model made of another one's blocks: some of them (Sanh et al. 2019), or all of them twice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from transfer_cli.model.shape import FORMS, BackboneShape
from transfer_cli.model.sparse_attention import sparse_parts
from transfer_cli.model.weights import LazyTensors, without_values

_BLOCKS = "backbone.blocks."


def evenly_spaced(depth: int, blocks: int) -> tuple[int, ...]:
    """Return the numbers of `blocks` blocks out of `depth`, the middle of each of as many parts."""
    if not 1 <= blocks <= depth:
        raise ValueError(f"{blocks} blocks cannot be picked of {depth}; give 1 to {depth}")
    return tuple((2 * number + 1) * depth // (2 * blocks) for number in range(blocks))


def shape_of_blocks(shape: BackboneShape, layers: Sequence[int]) -> BackboneShape:
    """Return the shape of a model that has these blocks of a model alone.

    Args:
        layers: Their numbers, from 0 and ascending.

    Raises:
        ValueError: There are no such blocks, or a model of them is none that a shape describes.
    """
    if shape.has_encoder:
        raise ValueError("the model has an encoder and a decoder, whose blocks are not picked")
    if not layers or list(layers) != sorted(set(layers)):
        raise ValueError(f"{list(layers)} has to name a block or more, ascending, each once")
    if not 0 <= layers[0] <= layers[-1] < shape.depth:
        raise ValueError(
            f"{list(layers)} goes beyond the model's blocks, which are 0 to {shape.depth - 1}"
        )
    if shape.distinct_blocks < shape.depth:
        raise ValueError(
            f"the model's blocks share their weights (model.share={shape.share}), so there are "
            "none to pick"
        )
    if FORMS[shape.residual].plain_start and layers[0] != 0:
        raise ValueError(
            f"{list(layers)} has to begin with 0: with residual={shape.residual} the first block "
            "is unlike the others"
        )
    is_windowed = [shape.has_window[layer] for layer in layers]
    depth = len(layers)
    if [sparse_parts(shape)[n] for n in layers] != list(sparse_parts(replace(shape, depth=depth))):
        raise ValueError(
            f"{list(layers)} do not alternate as the blocks of model.sparse=alternate do; pick "
            "blocks with even and odd numbers in turns, the first one even"
        )
    rhythms = [(shape.global_every, shape.global_from)]
    rhythms += [(period, first) for period in range(depth + 1) for first in range(max(1, period))]
    for period, first in rhythms:
        picked = replace(shape, depth=depth, global_every=period, global_from=first)
        if picked.has_window == is_windowed:
            return picked
    windows = ", ".join("a window" if local else "none" for local in is_windowed)
    raise ValueError(
        f"{list(layers)} have no rhythm of attention windows ({windows}) that model.global_every "
        "and model.global_from could say; pick others"
    )


def tensors_of_blocks(tensors: Mapping[str, Tensor], layers: Sequence[int]) -> Mapping[str, Tensor]:
    """Return a model's tensors with these blocks alone, numbered anew; each is read when needed."""
    place = {str(layer): str(number) for number, layer in enumerate(layers)}
    stored = {}
    for name in tensors:
        if not name.startswith(_BLOCKS):
            stored[name] = name
            continue
        number, _, rest = name.removeprefix(_BLOCKS).partition(".")
        if number in place:
            stored[f"{_BLOCKS}{place[number]}.{rest}"] = name
    return _rename(tensors, stored)


def tensors_of_both_stacks(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the tensors of an encoder and a decoder that are each the whole of a model.

    The decoder's attentions on the source have none (Rothe et al. 2020, section 2).
    """
    stored = {}
    for name in tensors:
        within = name.removeprefix("backbone.")
        if within == name or name.startswith("backbone.token_embedding."):
            stored[name] = name
            continue
        stored |= {f"backbone.{stack}.{within}": name for stack in ("encoder", "decoder")}
    return _rename(tensors, stored)


def _rename(tensors: Mapping[str, Tensor], stored: Mapping[str, str]) -> Mapping[str, Tensor]:
    shapes = without_values(tensors)
    return LazyTensors(
        {new: shapes[name] for new, name in stored.items()}, lambda new: tensors[stored[new]]
    )
