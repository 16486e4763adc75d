"""The section of a page in which people look at attention: a text, a block, a head, a token."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transfer_cli.analysis.attention.head_summaries import KINDS, MEASURES
from transfer_cli.analysis.attention.text_maps import FloatArray, TextMaps, in_units
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.report import formats
from transfer_cli.report.html.markup import Html, PageColumn, details, render, table
from transfer_cli.report.page import asset
from transfer_cli.report.results_table import Cell

SCRIPT = asset("attention.js")

_MOST_BYTES = 3 * 2**20
"""Of maps on a page."""

_MOST_TOKENS = 64
_UNITS = 255
"""A probability is a byte: rows sum to this."""

_TITLE_CHARACTERS = 70


def attention_section(
    content: Mapping[str, Any], texts: Sequence[TextMaps], tokenizer: Tokenizer
) -> Html:
    """Return the section: its maps are bytes, and those that are too much for a page are left out.

    Args:
        content: What is written to `attention.json`.
        texts: The maps.
        tokenizer: The model's.
    """
    shown, room = [], _MOST_BYTES
    # The head that the summary speaks of.
    _, block, head, _ = max(content["table"]["rows"], key=lambda row: row[-1])
    for each, described in zip(texts, content["texts"], strict=True):
        if len(each.sequence.tokens) <= _MOST_TOKENS:
            made = _text(each, described, tokenizer)
            room -= len(made["maps"]) + len(made["rollout"])
            if room >= 0:
                shown.append(made)
    left_out = len(texts) - len(shown)
    return render(
        "attention.html",
        content=content,
        data={
            "texts": shown,
            "heads": content["heads"],
            "kinds": KINDS,
            "start": {"block": block, "head": head},
        },
        left_out=left_out,
        numbers=details("Numbers of all heads", _numbers(content["heads"]), is_open=False),
    )


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


def _numbers(heads: Sequence[Mapping[str, Any]]) -> Html:
    """Return the summaries of all heads as a table that can be sorted."""
    titles = [KINDS.get(name, name) for name in MEASURES]
    columns = [PageColumn("head"), *(PageColumn(title, is_number=True) for title in titles)]
    rows = [
        [
            Cell(f"{each['block']}.{each['head']}", 1000 * each["block"] + each["head"]),
            *(_cell(each[name], name) for name in MEASURES),
        ]
        for each in heads
    ]
    return table("Heads", columns, rows, [False] * len(rows))


def _cell(value: float | None, name: str) -> Cell:
    if value is None:
        return Cell()
    return Cell(f"{100 * value:.1f} %" if name in KINDS else f"{value:.2f}", value)
