"""Batches: a documented dict of tensors.

Legend: B examples, T positions, L kept layers, D width, C sequences of an example, S sequences.

A batch is a plain dict of tensors, batch first. An example is one sequence of tokens, or several
that are judged together (the choices of a question): then what is `[B, T]` below is `[B, C, T]`,
and `pooled` is `[B, C, D]`. Sequences that an example lacks have a mask that is all False.

Data sets make `tokens`, `mask`, `index` and what there is to predict: `next_tokens` of running
text, `label` of texts with a class. The loader adds `epoch`; an objective's `prepare` adds `target`
to the former and nothing to the latter; `with_facts` adds what the pass needs. All keys of ours:

=============  ==============  =====================================================================
key            shape, type     meaning
=============  ==============  =====================================================================
`tokens`       [B, T] int64    token numbers, padded on the right to the longest example
`mask`         [B, T] bool     True for real tokens, False for padding
`index`        [B] int64       each example's number in its split; randomness is derived from it
`epoch`        [B] int64       in training only: how many epochs of its stream are over
`next_tokens`  [B, T] int64    running text and texts to be made: the token after each position
`segment`      [B, T] int64    pairs of texts only: 0 in the first text, 1 in the second
`pair`         [B] int64       pairs of running text only: 1 where the second does not follow
`restart`      [B, T] int64    translations only: 0 in the first text, 1 in the second; positions
                               count from 0 in each
`document`     [B, T] int64    running text whose documents are apart: the number of the one that
                               a position belongs to, which sees no other
`prefix`       [B] int64       texts with prefixes only: the length of each prefix, which every
                               position sees; after it attention is causal
`gap`          [B] int64       cloze in bidirectional models only: the position of the mask token
`label`        [B] int64       labelled data only: the class that people gave
`window`       [B, 5] int64    span extraction only: see `tasks.span.windows`
`span`         [B, 2] int64    span extraction only: the first and last position of the answer
`labels`       [B, K] int64    several labels a text only: their numbers, then -1
`word`         [B, T] int64    tagging only: the number of a word, counted through its split, where
                               its tag is read, else `IGNORE`
`target`       [B, T] int64    made by an objective's `prepare`, or there already in tagging;
                               `IGNORE` where there is no loss
`states`       [B, T, L, D]    cached features only: float32 hidden states of the layers that the
                               readout reads; 0 at padding
`pooled`       [B, D]          cached features only, in place of `states` where every loss reads
                               one vector a text: the readout's states, pooled
`teacher_NAME` [B, N] float32  distillation only: what the teachers of the loss NAME answered; of
                               words `[B, T, N]`, where `word` has a number
`tokens_VIEW`  [B, T] int64    made by `prepare` of losses with further passes: the tokens of
                               another view of the texts, see `select_view`; likewise `mask_VIEW`
`paraphrases_NAME`  [B, 2]     consistency with paraphrases only: where those of the text begin
                               among all of the loss NAME, and how many it has
`tokens_source` [B, S] int64   made by `prepare` of encoder-decoders: what the encoder reads, while
                               `tokens` are the decoder's; likewise `mask_source`
`slices_NAME`  [B, K] bool     slices only: which of those of the loss NAME an example is in
`texts`        [B, C] int64    pairs of texts to be compared only: the number of each text in its
                               split, equal for those not to be told apart; -1: there is none
`output_loss`  [B] float32     made by `engine.gradient_cache`: each example's loss in a step
`output_gradient` [B, ...]     likewise: the gradient of their sum by the outputs
`compared`     [B, T] bool     made by `prepare` of distillation: where predictions are compared;
                               of replaced tokens: where the model's own loss is
`draw`         [B, T] float32  made by `prepare` of replaced tokens: numbers in [0, 1), by which a
                               generator's tokens are drawn
`target_rows`  [N] int64       made by `with_facts`: where there is a target, counted through the
                               batch row by row; likewise `compared_rows`, `word_rows`
`real_rows`    [N] int64       made by `with_facts` where enough is padding: where a real token
                               is, counted through the batch row by row
`closed_rows`  [N] int64       made by `with_facts` where a view leaves out something amid a text:
                               where each of `real_rows` is once the gaps are closed
`row_text`     [R, L] int64    made by `with_packed_rows`: which sequence a place in a row
                               belongs to, -1 where there is none
`row_places`   [N] int64       made by `with_packed_rows`: where each of `real_rows` is in the rows,
                               counted through them row by row
`sequences`    [S] int64       made by `with_facts` where examples have several sequences: which
                               of all B * C are there
`padded`       [] bool         made by `with_facts`, on the host: whether anything is padding
`lengths`      [S] int64       made by `with_facts`, on the host: real tokens of each sequence
`FACT_VIEW`                    made by `with_facts` or `with_packed_rows`: what `real_rows`,
                               `closed_rows`, `row_text`, `row_places`, `padded` and `lengths` are
                               for `mask_VIEW`
=============  ==============  =====================================================================
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transfer_cli.errors import ConfigError

Batch = dict[str, Tensor]

Sums = dict[str, Tensor]
"""Losses and tallies by name, summed over a batch or, in the end, over a split."""

Counts = Mapping[str, int]
"""How many targets each of them is summed over."""

Items = TypeVar("Items", np.ndarray, list[Any])


class IdleBatch(dict[str, Tensor]):
    """A batch of weight 0, which keeps a process in step with the others."""


class Indexed(Protocol):
    """An array, or what is read as one."""

    def __getitem__(self, places: npt.NDArray[np.int64], /) -> npt.NDArray[Any]: ...


_ON_HOST = ("padded", "lengths")
"""What is asked for in a pass, and must not wait for the device; so of each view."""

_MASK_FACTS = (*_ON_HOST, "real_rows", "closed_rows", "row_text", "row_places")
"""The facts of a mask."""

IGNORE = -100
"""The target that marks a position without loss."""


def batch_size(batch: Batch) -> int:
    """Return the number of examples."""
    return int(batch["tokens"].shape[0])


def with_facts(batch: Batch) -> Batch:
    """Return the batch with the facts in the table above, so that a pass need not wait for them.

    To read a tensor on a device, the host waits for all work queued there.
    """
    facts = {**_for_each_mask(batch, _mask_facts), **batch}
    if batch["mask"].dim() > 2:
        facts["sequences"] = real_sequences(batch)
    if "target" in batch or "next_tokens" in batch:
        facts["target_rows"] = rows_with_target(batch)
    if "compared" in batch:
        facts["compared_rows"] = rows_compared(batch)
    if "word" in batch:
        facts["word_rows"] = rows_with_word(batch)
    return facts


def with_packed_rows(batch: Batch) -> Batch:
    """Return `with_facts` of a batch, with the rows into which its texts are put to be computed.

    Running text is in rows already, and cached features are not computed.
    """
    facts = with_facts(batch)
    if facts.keys() & {"prefix", "tokens_source"}:
        raise ConfigError(
            "loop.pack: texts whose positions all see a prefix, or a source, have rows of their "
            "own; leave loop.pack out"
        )
    if facts.keys() & {"document", "restart", "next_tokens", "states", "pooled"}:
        return facts
    return {**facts, **_for_each_mask(batch, _pack_rows)}


def with_padded_facts(batch: Batch, multiple: int, longest: int) -> Batch:
    """Return a batch of texts, and of segments, padded to a multiple of so many positions.

    It has at most `longest`. Of its facts it has those that do not depend on how much is padding.
    """
    positions = batch["tokens"].shape[1]
    more = min(-(-positions // multiple) * multiple, max(longest, positions)) - positions
    padded: Batch = {
        name: torch.nn.functional.pad(batch[name], (0, more))
        for name in ("tokens", "mask", "segment")
        if name in batch
    }
    facts = {"padded": torch.tensor(data=True), "lengths": batch["mask"].sum(1)}
    return {**batch, **padded, **facts}


def split_batch(batch: Batch, rows: int) -> list[Batch]:
    """Return a batch, which is not prepared yet, cut into portions of so many rows or fewer."""
    return [
        {key: tensor[first : first + rows] for key, tensor in batch.items()}
        for first in range(0, batch_size(batch), rows)
    ]


def select_view(batch: Batch, view: str) -> Batch:
    """Return a batch with the tokens, the mask and the facts of another view of its texts.

    It has the batch's own tokens, or mask, where it has none itself.
    """
    derived = ("mask", *_MASK_FACTS) if f"mask_{view}" in batch else ()
    kept = {key: value for key, value in batch.items() if key not in derived}
    others = {key: batch.get(f"{key}_{view}") for key in ("tokens", *derived)}
    return kept | {key: value for key, value in others.items() if value is not None}


def _for_each_mask(batch: Batch, facts: Callable[[Tensor], Batch]) -> Batch:
    masks = [key for key in batch if key == "mask" or key.startswith("mask_")]
    return {
        fact + key.removeprefix("mask"): value
        for key in masks
        for fact, value in facts(batch[key].flatten(0, -2)).items()
    }


def _mask_facts(mask_ST: Tensor) -> Batch:
    lengths_S = mask_ST.sum(1)
    facts = {"padded": ~mask_ST.all(), "lengths": lengths_S}
    # The share of real tokens from which on their padding costs less than to leave it out.
    packed_below = 0.95
    runs_S = mask_ST[:, :1].sum(1) + (mask_ST[:, 1:] & ~mask_ST[:, :-1]).sum(1)
    has_gaps = bool((runs_S > 1).any())
    if has_gaps or lengths_S.sum() < packed_below * mask_ST.numel():
        facts["real_rows"] = mask_ST.flatten().nonzero().squeeze(1)
    if has_gaps:
        closed_ST = torch.arange(mask_ST.shape[1]) < lengths_S[:, None]
        facts["closed_rows"] = closed_ST.flatten().nonzero().squeeze(1)
    return facts


def _pack_rows(mask_ST: Tensor) -> Batch:
    """Return which texts are put into which rows, which are as long as the longest text.

    Long texts come first, and each goes into the first row that has room (first-fit decreasing).
    """
    length_S = mask_ST.sum(1)
    longest = max(1, int(length_S.max()))
    room, starts = list[int](), torch.zeros(len(mask_ST), dtype=torch.int64)
    for text in length_S.argsort(descending=True, stable=True).tolist():
        length = int(length_S[text])
        row = next((n for n, free in enumerate(room) if free >= length), len(room))
        if row == len(room):
            room.append(longest)
        starts[text] = row * longest + longest - room[row]
        room[row] -= length
    real_rows = mask_ST.flatten().nonzero().squeeze(1)
    text_N = real_rows // mask_ST.shape[1]
    # The next place of a text is that of its next real token: what a view leaves out takes none.
    places = starts[text_N] + (mask_ST.cumsum(1) - 1).flatten()[real_rows]
    row_text = torch.full((len(room) * longest,), -1)
    row_text[places] = text_N
    return {
        "real_rows": real_rows, "row_places": places, "row_text": row_text.view(-1, longest)
    }  # fmt: skip


def real_sequences(batch: Batch) -> Tensor:
    """Return which sequences of all examples, one example after the other, are there, `[S]`."""
    if "sequences" in batch:
        return batch["sequences"]
    return batch["mask"].any(-1).flatten().nonzero().squeeze(1)


def rows_with_target(batch: Batch) -> Tensor:
    """Return where a batch has a target, `[N]`, counted through it row by row.

    Before an objective has prepared it, the tokens that follow are the targets.
    """
    if "target_rows" in batch:
        return batch["target_rows"]
    target_BT = batch["target"] if "target" in batch else batch["next_tokens"]
    return (target_BT != IGNORE).flatten().nonzero().squeeze(1)


def rows_compared(batch: Batch) -> Tensor:
    """Return where predictions are compared, counted as by `rows_with_target`."""
    if "compared_rows" in batch:
        return batch["compared_rows"]
    return batch["compared"].flatten().nonzero().squeeze(1)


def rows_with_word(batch: Batch) -> Tensor:
    """Return where words are read, counted as by `rows_with_target`."""
    if "word_rows" in batch:
        return batch["word_rows"]
    return (batch["word"] != IGNORE).flatten().nonzero().squeeze(1)


def select_rows(values: Tensor, rows_N: Tensor) -> Tensor:
    """Return values at some rows, which rise; where these are all, the values themselves."""
    return values if len(rows_N) == len(values) else values.index_select(0, rows_N)


def is_padded(batch: Batch) -> bool:
    """Return whether anything in a batch is padding."""
    return bool(batch["padded"] if "padded" in batch else ~batch["mask"].all())


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on `device`; the host does not wait for the copies."""
    return {
        key: value if key.startswith(_ON_HOST) else value.to(device, non_blocking=True)
        for key, value in to_pinned(batch, device).items()
    }


def to_pinned(batch: Batch, device: torch.device) -> Batch:
    """Return the batch where a GPU reads it by itself: copies of other memory wait for the GPU."""
    if device.type != "cuda":
        return batch
    stays = {k for k, v in batch.items() if v.is_cuda or k.startswith(_ON_HOST)}
    return {k: v if k in stays else v.pin_memory() for k, v in batch.items()}


def micro_batches(indices: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut the numbers of examples into micro-batches of at most `size`, in order."""
    return [indices[begin : begin + size] for begin in range(0, len(indices), size)]


def shard(items: Items, rank: int, world_size: int) -> Items:
    """Return the items of one of `world_size` processes, perhaps none."""
    return items[rank::world_size]


def gather(
    tokens: Indexed, starts_B: npt.NDArray[np.int64], lengths_B: npt.NDArray[np.int64], filler: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return pieces of `tokens` from `starts_B` on as rows, padded on the right, and a mask."""
    offsets_T = np.arange(lengths_B.max(initial=0))
    mask_BT = offsets_T < lengths_B[:, None]
    positions_BT = np.where(mask_BT, starts_B[:, None] + offsets_T, 0)
    rows_BT = np.where(mask_BT, tokens[positions_BT].astype(np.int64), filler)
    return rows_BT, mask_BT
