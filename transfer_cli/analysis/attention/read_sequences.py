"""The sequences of tokens that a model reads, one by one, and batches of them.

Legend: B examples, C sequences of an example, S sequences, T positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from transfer_cli.analysis.analysis import Subject
from transfer_cli.batch import Batch, to_device, with_facts
from transfer_cli.data.split import Split

_BY_POSITION = {"segment": 0, "document": -1}
"""What a pass reads for each position beside tokens and mask, and its value at padding."""


@dataclass(frozen=True)
class ReadSequence:
    """A row of tokens as the model reads it.

    Args:
        example: The number of its example in the split.
        part: Which of its sequences or windows it is; empty: there is one.
        tokens: `[T]`, without padding.
        by_position: `segment` and `document`, where there are some, each `[T]`.
        prefix: The length of its prefix; None: it has none.
        length: Its tokens before it was cut.
    """

    example: int
    part: str
    tokens: Tensor
    by_position: dict[str, Tensor]
    prefix: Tensor | None
    length: int

    def cut(self, most: int, *, keeps_end: bool) -> "ReadSequence":
        """Return its first `most` tokens; with `keeps_end` the last of them is its last one."""
        if len(self.tokens) <= most:
            return self
        kept = torch.arange(most)
        if keeps_end:
            kept[-1] = len(self.tokens) - 1
        return ReadSequence(
            self.example,
            self.part,
            self.tokens[kept],
            {name: values[kept] for name, values in self.by_position.items()},
            None if self.prefix is None else self.prefix.clamp(max=most),
            self.length,
        )


def sequences_of(split: Split, rows: Sequence[int]) -> Iterator[ReadSequence]:
    """Yield the sequences of some rows of a split, in this order.

    The end of a text, a special token, stays where it is cut; running text has no end.
    """
    for row in rows:
        batch = split.data.batch(np.array([row]))
        example, window = _window_of(split, row)
        mask_ST = batch["mask"].flatten(0, -2)
        is_group = batch["mask"].dim() > 2
        for number, mask_T in enumerate(mask_ST):
            if not mask_T.any():
                continue
            by_position = {
                name: batch[name].flatten(0, -2)[number][mask_T]
                for name in _BY_POSITION
                if name in batch
            }
            tokens_T = batch["tokens"].flatten(0, -2)[number][mask_T]
            part = f"choice {number + 1}" if is_group else window
            prefix = batch["prefix"][0] if "prefix" in batch else None
            yield ReadSequence(example, part, tokens_T, by_position, prefix, len(tokens_T))


def _window_of(split: Split, row: int) -> tuple[int, str]:
    if split.example_of is None:
        return row, ""
    example = int(split.example_of[row])
    windows = np.flatnonzero(split.example_of == example)
    number = int(np.searchsorted(windows, row)) + 1
    return example, f"window {number} of {len(windows)}" if len(windows) > 1 else ""


def batch_of(sequences: Sequence[ReadSequence], subject: Subject) -> Batch:
    """Return sequences as a batch on the device, padded on the right to the longest."""
    longest = max(len(each.tokens) for each in sequences)

    def padded(rows: Sequence[Tensor], fill: int) -> Tensor:
        made = torch.full((len(rows), longest), fill, dtype=torch.int64)
        for at, row in enumerate(rows):
            made[at, : len(row)] = row
        return made

    lengths_S = torch.tensor([len(each.tokens) for each in sequences])
    batch = {
        "tokens": padded([each.tokens for each in sequences], subject.tokenizer.pad),
        "mask": torch.arange(longest) < lengths_S[:, None],
        "index": torch.arange(len(sequences)),
    }
    for name in sequences[0].by_position:
        rows = [each.by_position[name] for each in sequences]
        batch[name] = padded(rows, _BY_POSITION[name])
    prefixes = [each.prefix for each in sequences if each.prefix is not None]
    if prefixes:
        batch["prefix"] = torch.stack(prefixes)
    return to_device(with_facts(batch), subject.precision.device)
