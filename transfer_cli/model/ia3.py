"""Learned factors of keys, values and the feed-forward layer ((IA)3; Liu et al. 2022)."""

from transfer_cli.model.block import Block
from transfer_cli.model.edited_linear import Factors, as_edited


def add_ia3(block: Block) -> None:
    """Add factors of a block's keys, values and inner activation of its feed-forward layer.

    Those of keys and values act before rotary positions and norms of keys, and heads of queries
    that share a head of keys and values share its factors. Those of the inner activation (of the
    product, in a gated layer) are factors of the output matrix's input.

    Raises:
        ValueError: The block has such factors already.
    """
    if any(isinstance(module, Factors) for module in block.modules()):
        raise ValueError("it has the factors of (IA)3 already; one such edit is enough")
    for attention in block.attentions:
        name, rows = next(pair for pair in attention.projections.items() if "key" in pair[1])
        layer = as_edited(getattr(attention, name))
        for part in ("key", "value"):
            layer.factors[part] = Factors(rows[part]).to(layer.weight)
        setattr(attention, name, layer)
    output = as_edited(block.feed_forward.output)
    output.input_factors = Factors(slice(0, output.in_features)).to(output.weight)
    block.feed_forward.output = output
