"""What a page needs to show attention: its maps as bytes, the pieces of texts as people read them.

`report.html.views` shows it.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transfer_cli.analysis.attention.head_summaries import KINDS
from transfer_cli.analysis.attention.text_maps import FloatArray, TextMaps, in_units
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.report import formats

_MOST_BYTES = 3 * 2**20
"""Of maps on a page."""

_MOST_TOKENS = 64
_UNITS = 255
"""A probability is a byte: rows sum to this."""

_TITLE_CHARACTERS = 70


def attention_view(
    texts: Sequence[TextMaps], described: Sequence[Mapping[str, Any]], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the texts with their maps, but for those that are too much for a page.

    Args:
        texts: The maps.
        described: What the file says of each text.
        tokenizer: The model's.
    """
    shown, room = [], _MOST_BYTES
    for maps, text in zip(texts, described, strict=True):
        if len(maps.sequence.tokens) <= _MOST_TOKENS:
            made = _text(maps, text, tokenizer)
            room -= len(made["maps"]) + len(made["rollout"])
            if room >= 0:
                shown.append(made)
    return {"texts": shown, "left_out": len(texts) - len(shown), "kinds": KINDS}


def plain_text(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Return the text of a sequence, without what stands around it and between its parts."""
    around = {tokenizer.cls, tokenizer.sep, tokenizer.pad, tokenizer.begin}
    return tokenizer.decode([token for token in tokens if token not in around]).strip()


def _text(text: TextMaps, described: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    sequence = text.sequence
    part = f" · {sequence.part}" if sequence.part else ""
    name = formats.cut(" ".join(described["text"].split()) or "(empty)", _TITLE_CHARACTERS)
    tokens = sequence.tokens.tolist()
    is_lower = not np.triu(text.maps, 1).any()
    return {
        "name": f"{sequence.example}: {name}{part}",
        "pieces": [_readable(tokenizer, token) for token in tokens],
        "tokens": sequence.length,
        "is_lower": is_lower,
        "maps": _as_bytes(text.maps, is_lower=is_lower),
        "rollout": _as_bytes(text.rollout, is_lower=is_lower),
    }


def _as_bytes(shares: FloatArray, *, is_lower: bool) -> str:
    """Return shares as bytes, row by row; of lower triangles what is in them."""
    units = in_units(shares, _UNITS).astype(np.uint8)
    if is_lower:
        units = units[..., np.tri(units.shape[-1], dtype=bool)]
    return base64.b64encode(units.tobytes()).decode()


def _readable(tokenizer: Tokenizer, token: int) -> str:
    """Return a piece as people read it: without the mark of a space, and bytes as letters."""
    (piece,) = tokenizer.pieces([token])
    if token in tokenizer.special:
        return piece
    if tokenizer.is_byte_level:
        decoded = tokenizer.decode([token])
        # Half a letter is shown by the names of its bytes.
        piece = piece if "\ufffd" in decoded else decoded
    return piece.lstrip("\u2581 ").replace("\n", "↵").replace("\t", "⇥") or "␣"
