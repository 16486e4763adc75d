"""Where heads look: maps of some texts, summaries of heads over many, and rollout.

Legend: L places of blocks, H heads, S sequences, T tokens.
"""

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from transfer_cli.analysis.analysis import Analysis, Subject, evenly_spread
from transfer_cli.analysis.head_maps import (
    KINDS,
    MEASURES,
    FloatArray,
    HeadSummaries,
    ReadSequence,
    TextMaps,
    attention_maps,
    batch_of,
    round_to_units,
    sequences_of,
)
from transfer_cli.data.labelled import INPUT
from transfer_cli.data.split import Split
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import DataError, NotFiniteError, between
from transfer_cli.model.block import BESIDE_BLOCK
from transfer_cli.model.probes import set_probe
from transfer_cli.objectives.base import Encoding
from transfer_cli.reports import formats
from transfer_cli.reports.finding import Finding, FindingTable, FindingView, Matrix
from transfer_cli.runs.stored_analyses import MOST_BYTES

NO_EXPLANATION = (
    "Attention is no explanation: it says where a head looks, and not what the model's answer is "
    "made of."
)

MAPS_FILE = "maps.npz"

_DECIMALS = 4
"""Of what the JSON holds."""


@dataclass(frozen=True)
class AttentionMaps(Analysis):
    """Where heads look; for the options see `conf/analysis/attention.yaml`.

    A text with several sequences or windows has several maps. A longer text than `longest` is cut
    before the model reads it; the special token at its end stays.
    """

    texts: int = 8
    longest: int = 64
    corpus: int = 100

    def __post_init__(self) -> None:
        between("texts", self.texts, 1, 50)
        between("longest", self.longest, 2, 256)
        between("corpus", self.corpus, 1, 1_000_000)

    def __call__(self, subject: Subject) -> Finding:
        split = subject.split
        rows = range(len(split.data))
        if not rows:
            raise DataError(f"split: {split.name} holds no text to look at")
        is_file = split.name == INPUT
        chosen = rows[: self.texts] if is_file else evenly_spread(len(rows), self.texts).tolist()
        texts = [
            attention_maps(
                subject, sequence.cut(self.longest, keeps_end=subject.material.task is not None)
            )
            for sequence in sequences_of(split, chosen)
        ]
        summaries, num_texts = self._summarise(subject, split)
        means = {name: mean_LH.numpy() for name, mean_LH in summaries.means().items()}
        if not all(np.isfinite(mean).all() for mean in means.values()):
            raise NotFiniteError("run: the model's attention")
        strongest = _strongest_heads(means)
        data: dict[str, Any] = {
            "maps_file": f"attention-{MAPS_FILE}",
            "heads": _head_records(means),
            "texts": [_text_record(text, subject) for text in texts],
        }
        _add_maps(data, texts[0])
        _, block, head, _ = max(strongest, key=lambda row: row[-1])
        view = {
            **attention_view(texts, data["texts"], subject.tokenizer),
            **{key: data[key] for key in ("heads", "maps_file")},
            "start": {"block": block, "head": head},
        }
        return Finding(
            "Where heads look",
            f"{_summary(num_texts, summaries.num_tokens, strongest)} {NO_EXPLANATION}",
            {
                "blocks": subject.depth,
                "heads of a block": subject.model.backbone.shape.heads,
                "texts summarised": num_texts,
                "tokens summarised": summaries.num_tokens,
                "mean entropy in nats": round(float(means["entropy"].mean()), _DECIMALS),
            },
            [FindingTable(["looks at", "block", "head", "share"], strongest)],
            {
                "mean_entropy_in_nats": Matrix(means["entropy"].tolist(), "block", "head"),
                "mean_distance_in_tokens": Matrix(means["distance"].tolist(), "block", "head"),
            },
            list(_notes(subject)),
            data,
            {MAPS_FILE: _npz_bytes(texts, subject)},
            FindingView("attention", view),
        )

    def _summarise(self, subject: Subject, split: Split) -> tuple[HeadSummaries, int]:
        shape = subject.model.backbone.shape
        summaries = HeadSummaries(shape.depth, shape.heads, subject.tokenizer.sep)
        summarised = set[int]()
        rows = evenly_spread(len(split.data), self.corpus).tolist()
        for sequences in _in_batches(subject, split, rows):
            summarised.update(sequence.example for sequence in sequences)
            batch = batch_of(sequences, subject)
            add = partial(summaries.add, batch=batch)
            with (
                torch.no_grad(),
                subject.precision.context(),
                set_probe(subject.model.backbone, probabilities=add),
            ):
                _ = Encoding(subject.model, batch).states
        return summaries, len(summarised)


def _in_batches(
    subject: Subject, split: Split, rows: Sequence[int]
) -> Iterator[list[ReadSequence]]:
    """Yield the sequences of some rows, from short to long, so many that memory is bounded."""
    heads = subject.model.backbone.shape.heads
    summarised = 512  # tokens of a text that summaries are made of: memory grows with their square
    sequences = [
        one.cut(summarised, keeps_end=subject.material.task is not None)
        for one in sequences_of(split, rows)
    ]
    waiting: list[ReadSequence] = []
    at_once = 2**23  # probabilities of one place that are in memory at once
    for sequence in sorted(sequences, key=lambda sequence: len(sequence.tokens)):
        room = at_once // (heads * len(sequence.tokens) ** 2)
        if waiting and len(waiting) >= min(room, subject.batch):
            yield waiting
            waiting = []
        waiting.append(sequence)
    if waiting:
        yield waiting


def _strongest_heads(means: Mapping[str, FloatArray]) -> list[list[Any]]:
    """Return for each kind of token the head that looks most at it: kind, block, head, share."""
    rows = []
    for kind, kind_name in KINDS.items():
        if kind in means and means[kind].any():
            place, head = np.unravel_index(means[kind].argmax(), means[kind].shape)
            share = round(float(means[kind].max()), _DECIMALS)
            rows.append([kind_name, int(place), int(head), share])
    return rows


def _summary(num_texts: int, num_tokens: int, strongest: Sequence[Sequence[Any]]) -> str:
    kind, place, head, share = max(strongest, key=lambda row: row[-1])
    return (
        f"Over {formats.several(num_texts, 'text')} ({num_tokens:,} tokens) no head looks more at "
        f"one kind of token than head {head} of block {place}: {100 * share:.0f} % at {kind}."
    )


def _notes(subject: Subject) -> Iterator[str]:
    """Yield what these maps do not show of this model."""
    shape = subject.model.backbone.shape
    blocks: list[Any] = list(subject.model.backbone.blocks)
    if shape.distinct_blocks < shape.depth:
        yield "Blocks share weights; they are numbered by their places in a pass."
    if any(block.attention.prefix is not None for block in blocks):
        yield (
            "A gated prefix adds to each head what it mixes of learned keys. These belong to no "
            "token, and are in no map: rows are shares among tokens alone."
        )
    if any(BESIDE_BLOCK in block.sites for block in blocks):
        yield "Projected attention layers have heads of their own, which are in no map."


def _head_records(means: Mapping[str, FloatArray]) -> list[dict[str, Any]]:
    """Return the summary of each head: its block and number, then `MEASURES`, null without one."""
    places, heads = means["entropy"].shape
    return [
        {"block": place, "head": head}
        | {
            name: round(float(means[name][place, head]), _DECIMALS) if name in means else None
            for name in MEASURES
        }
        for place in range(places)
        for head in range(heads)
    ]


def _text_record(text: TextMaps, subject: Subject) -> dict[str, Any]:
    sequence = text.sequence
    tokens = sequence.tokens.tolist()
    return {
        "example": sequence.example,
        "part": sequence.part,
        "text": plain_text(subject.tokenizer, tokens),
        "tokens_of_all": sequence.length,
        "pieces": subject.tokenizer.pieces(tokens),
    }


def _add_maps(data: dict[str, Any], first: TextMaps) -> None:
    """Add the maps of the first text, if there is room; rows still sum to 1."""
    units = 10**_DECIMALS
    added = {
        "maps": (round_to_units(first.maps, units) / units).tolist(),
        "rollout": (round_to_units(first.rollout, units) / units).tolist(),
    }
    larger = data | {"texts": [data["texts"][0] | added, *data["texts"][1:]]}
    # As it is written, by which much of it is blanks.
    room = 2**14  # bytes of the file for all but the data
    if len(json.dumps(larger, indent=2)) < MOST_BYTES - room:
        data["texts"] = larger["texts"]


def _npz_bytes(texts: Sequence[TextMaps], subject: Subject) -> bytes:
    """Return the file of all maps: `maps_0` `[L, H, T, T]`, `rollout_0`, `pieces_0` and so on."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for number, text in enumerate(texts):
        arrays[f"maps_{number}"] = text.maps.astype(np.float16)
        arrays[f"rollout_{number}"] = text.rollout.astype(np.float16)
        pieces = subject.tokenizer.pieces(text.sequence.tokens.tolist())
        arrays[f"pieces_{number}"] = np.array(pieces)
    file = io.BytesIO()
    # Its types take any name for that of an option.
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


# --- what a page shows -------------------------------------------------------------------------

_MOST_BYTES = 3 * 2**20
"""Of maps on a page."""

_MOST_TOKENS = 64
_UNITS = 255
"""A probability is a byte: rows sum to this."""


def attention_view(
    texts: Sequence[TextMaps], records: Sequence[Mapping[str, Any]], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the texts with their maps, but for those that are too much for a page."""
    shown, room = [], _MOST_BYTES
    for text, record in zip(texts, records, strict=True):
        if len(text.sequence.tokens) <= _MOST_TOKENS:
            viewer_text = _viewer_text(text, record, tokenizer)
            room -= len(viewer_text["maps"]) + len(viewer_text["rollout"])
            if room >= 0:
                shown.append(viewer_text)
    return {"texts": shown, "left_out": len(texts) - len(shown), "kinds": KINDS}


def plain_text(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Return the text of a sequence, without what stands around it and between its parts."""
    around = {tokenizer.cls, tokenizer.sep, tokenizer.pad, tokenizer.begin}
    return tokenizer.decode([token for token in tokens if token not in around]).strip()


def _viewer_text(text: TextMaps, record: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    sequence = text.sequence
    part = f" · {sequence.part}" if sequence.part else ""
    most = 70  # characters of a title
    name = formats.cut(" ".join(record["text"].split()) or "(empty)", most)
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
    units = round_to_units(shares, _UNITS).astype(np.uint8)
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
