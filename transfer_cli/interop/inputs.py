"""How a text becomes the input of a model, as a `tokenizer.json` says it to others.

Special tokens around texts, the longest input, and what is cut of a longer one: whatever reads the
file with the tokenizers library gets the tokens that the run reads.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch

from transfer_cli.data.encoded_task import Truncate, encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import CheckpointError
from transfer_cli.interop.vocabulary import BEGIN
from transfer_cli.seeds import derive

CUT = {"direction": "Right", "stride": 0}
STRATEGIES = {"longest_first": "LongestFirst", "first": "OnlyFirst", "second": "OnlySecond"}
"""What `data.encoded_task.kept_sizes` does, in the words of the library.

Where only one text may be cut, it refuses another one that is too long alone.
"""


@dataclass(frozen=True)
class Inputs:
    """What a model reads.

    Args:
        length: The longest input in tokens, special ones included; of a longer one the end is cut.
            None: nothing is cut.
        layout: A text A among its special tokens, such as "cls A sep".
        pair_layout: The same for two texts A and B; None: there is one text.
        segments: Whether B and what follows it are segment 1.
    """

    length: int | None
    layout: str
    pair_layout: str | None
    segments: bool
    truncate: Truncate = "longest_first"

    def settings(self, names: Mapping[str, str], numbers: Mapping[str, int]) -> dict[str, Any]:
        """Return what a `tokenizer.json` says about inputs."""
        cut = {**CUT, "strategy": STRATEGIES[self.truncate]}
        return {
            "truncation": None if self.length is None else {"max_length": self.length, **cut},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": self._template(self.layout, names),
                "pair": self._template(self.pair_layout or f"{self.layout} B", names),
                "special_tokens": {
                    name: {"id": name, "ids": [numbers[kind]], "tokens": [name]}
                    for kind, name in names.items()
                    if kind in ("cls", "sep", BEGIN)
                },
            },
        }

    def _template(self, layout: str, names: Mapping[str, str]) -> list[dict[str, Any]]:
        parts, segment = [], 0
        for word in layout.split():
            segment = int(self.segments) if word == "B" else segment
            kind, name = ("Sequence", word) if word in "AB" else ("SpecialToken", names[word])
            parts.append({kind: {"id": name, "type_id": segment}})
        return parts

    def check(self, path: Path, tokenizer: Tokenizer, direction: str) -> None:
        """Compare what a `tokenizer.json` makes of short and long texts with what a run reads."""
        if self.length is None:
            return
        backend = tokenizers.Tokenizer.from_file(str(path))
        backend.encode_special_tokens = True
        room = self.length - 2
        sizes = [0, 1, room // 2 - 1, room // 2, room - 1, room, room + 1, room + min(room, 512)]
        texts = [" ".join(words) for words in _random_words(tokenizer, sizes)]
        some = [*texts[1:4], texts[-1]]
        firsts, seconds = (
            some[:1] if self.truncate == kept else some for kept in ("second", "first")
        )
        pairs = [Example(text, pair=other) for text in firsts for other in seconds]
        if self.truncate == "second":
            texts = [text for text in texts if len(tokenizer.encode(text)) <= room]
        # Apart, since a batch has segments if one of its rows has a second text.
        for examples in ([Example(text) for text in texts], pairs):
            rows = encode_texts(examples, tokenizer, self.length, direction, truncate=self.truncate)
            batch = rows.batch(np.arange(len(examples)))
            segment_BT = batch.get("segment", torch.zeros_like(batch["tokens"])) * self.segments
            for number, example in enumerate(examples):
                encoded = backend.encode(example.text, example.pair)
                real = batch["mask"][number]
                expected = [
                    values[number][real].tolist() for values in (batch["tokens"], segment_BT)
                ]
                if [encoded.ids, encoded.type_ids] != expected:
                    raise CheckpointError(
                        f"to: of a text of {len(tokenizer.encode(example.text)):,} tokens, "
                        "tokenizer.json makes another input than the run reads; nothing is "
                        "written, try another version of tokenizers"
                    )


def _random_words(tokenizer: Tokenizer, sizes: Sequence[int]) -> list[list[str]]:
    """Return texts of so many words, most of which are one token each."""
    alone = (
        piece
        for piece in tokenizer.pieces(range(tokenizer.size))
        if piece.isalpha() and len(tokenizer.encode(f"{piece} {piece}")) == 2
    )
    words = list(itertools.islice(alone, 50)) or ["a"]
    # Not in turn: a text that is cut at its beginning has to look otherwise.
    draw = random.Random(derive(0, "words to check")).choice  # noqa: S311 - not for cryptography
    return [[draw(words) for _ in range(max(0, size))] for size in sizes]
