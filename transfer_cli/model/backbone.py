"""Embeddings and blocks: tokens in, the hidden states of every layer out.

Legend: B batch, T positions, D width, L blocks.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from transfer_cli.errors import ConfigError
from transfer_cli.model.added_embeddings import AddedRows, AddedSegments
from transfer_cli.model.attention import Probe, SourceText
from transfer_cli.model.block import RESIDUALS, Block
from transfer_cli.model.dropout import Dropout
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.memory import Memory
from transfer_cli.model.norms import NORMS, build_norm
from transfer_cli.model.packing import Packing
from transfer_cli.model.patterns import (
    PATTERNS,
    hide_other_documents,
    hide_padding,
    hide_unwritten,
)
from transfer_cli.model.positions import POSITIONS, count_positions, positions_in_documents
from transfer_cli.model.products import NEAR_PAIR, PAIR, ProductCounter
from transfer_cli.model.shape import FORMS, MAX_SIZE, BackboneShape, Direction
from transfer_cli.model.sparse_attention import sparse_parts

__all__ = ["MAX_SIZE", "Backbone", "BackboneShape", "Direction", "initialise_plain"]

INITIAL_STD = 0.02

_EMBEDDINGS = (
    "token_embedding", "new_rows", "new_segments", "position_embedding", "segment_embedding",
    "embedding_norm",
)  # fmt: skip


class Backbone(nn.Module):
    """A Transformer without heads.

    The tensors of every position kind are under `position_embedding`.

    Args:
        shape: Everything but the vocabulary; its direction must not be "auto".
        vocabulary: Number of tokens.

    Raises:
        MemoryError: The machine has too little memory for its weights.
    """

    new_rows: AddedRows | None
    """Added to the embeddings of a few tokens; None without an edit."""
    new_segments: AddedSegments | None
    """The embeddings of segments of a model whose shape has none; None without an edit."""
    shared_projections: nn.Module | None
    """What all projected attention layers share; None without an edit."""

    def __init__(self, shape: BackboneShape, vocabulary: int) -> None:
        super().__init__()
        if shape.direction not in ("causal", "bidirectional"):
            raise ValueError("direction must be causal or bidirectional before a model is built")
        _check_memory(shape.matrix_bytes(vocabulary))
        self.shape = shape
        self.vocabulary = vocabulary
        self.causal = shape.direction == "causal"
        size = shape.embedding_size
        self.token_embedding = nn.Embedding(vocabulary, size)
        self.register_module("new_rows", None)
        self.register_module("new_segments", None)
        self.register_module("shared_projections", None)
        self.position_embedding = POSITIONS[shape.position_kind](shape)
        if shape.segments:
            self.segment_embedding = nn.Embedding(shape.segments, size)
        if shape.has_embedding_norm:
            self.embedding_norm = build_norm(shape, size)
        if size != shape.width:
            self.embedding_projection = nn.Linear(size, shape.width)
        self.drop = Dropout(shape.dropout)
        self.attention_pattern = PATTERNS[shape.attention](shape)
        block = RESIDUALS[shape.residual]
        self.blocks = nn.ModuleList(block(shape) for _ in range(shape.distinct_blocks))
        if FORMS[shape.residual].plain_start:
            self.blocks[0].attention_norm = nn.Identity()
        if shape.has_final_norm:
            self.final_norm = build_norm(shape, shape.width)
        self.probe: Probe | None = None
        """What its passes carry; see `model.probes`."""
        self.initialise()

    def initialise(self) -> None:
        """Draw weights from N(0, 0.02^2); norms start as the identity, biases at 0.

        With residual form `pre`, the two output projections of a block start smaller, by
        1/sqrt(2 L), so that the residual stream does not grow with depth (Radford et al. 2019).
        """
        self.apply(initialise_plain)
        for block in self.blocks:
            self._shrink_outputs(block)  # type: ignore[arg-type]

    def set_activation_checkpointing(self, enabled: bool) -> None:  # noqa: FBT001 - the only argument of a method named for what it switches
        """Turn gradient checkpointing of all blocks on or off."""
        for block in self.blocks:
            block.recomputed = enabled  # type: ignore[assignment]  # a Block: a ModuleList forgets the kind

    def set_residual_dtype(self, dtype: torch.dtype | None) -> None:
        """Keep the residual stream in this type, that of autocast's products; None: as sums are."""
        for block in self.blocks:
            block.residual_dtype = dtype  # type: ignore[assignment]  # a Block: a ModuleList forgets the kind

    def reinitialise_top(self, count: int) -> None:
        """Reinitialise the weights of the top `count` blocks and of the final norm.

        Modules that edits have added stay unchanged.
        """
        for block in list(self.blocks)[-count:]:
            for name, part in block.named_children():
                if name != "sites":
                    part.apply(_reinitialise)
            self._shrink_outputs(block)  # type: ignore[arg-type]
        if self.shape.has_final_norm:
            _reinitialise(self.final_norm)

    def _shrink_outputs(self, block: Block) -> None:
        if not self.shape.has_final_norm:
            return
        std = INITIAL_STD / math.sqrt(2 * self.shape.depth)
        for part in (*block.attentions, block.feed_forward):
            output: nn.Linear = part.output  # type: ignore[assignment]
            nn.init.normal_(output.weight, std=std)

    def forward(  # noqa: PLR0913 - all that a pass depends on
        self,
        tokens_BT: Tensor,
        mask_BT: Tensor,
        segment_BT: Tensor | None = None,
        *,
        padded: bool = True,
        kv_cache: KVCache | None = None,
        prefix_B: Tensor | None = None,
        document_BT: Tensor | None = None,
        restart_BT: Tensor | None = None,
        packing: Packing | None = None,
        memory: Memory | None = None,
        layers: Sequence[int] | None = None,
        source: SourceText | None = None,
    ) -> list[Tensor]:
        """Return L + 1 hidden states, each `[B, T, D]`: the embeddings, then after every block.

        With `pre` the last one has passed the final norm. Hidden states at padded positions are
        finite and meaningless.

        Args:
            tokens_BT: Token ids.
            mask_BT: True at real tokens.
            segment_BT: See `embed`.
            padded: Whether `mask_BT` is False anywhere; without padding attention is faster. The
                batch holds it (`batch.is_padded`): reading a mask on a GPU would block the host.
            kv_cache: Keys and values of earlier positions; the pass appends its own. Only the new
                hidden states are returned. Padding is at the beginning of its texts alone.
            prefix_B: The length of each sequence's prefix, which every position sees whole; what
                follows is causal, whatever the model's direction. None: its direction decides.
            document_BT: A number for each document in a sequence; a position sees its own alone,
                and positions count from 0 in each. Not together with a cache. None: there is one.
            restart_BT: A number for each text in a sequence, in which positions count from 0; it
                sees the others all the same. None: there is one.
            packing: Of where `mask_BT` is True: attention alone then sees padding, and the hidden
                states are returned packed, `[1, N, D]`. None: every layer computes padding.
            memory: The states of earlier positions of the same texts, which are seen; the pass
                keeps its own there. Only with positions that are distances, and without a cache.
            layers: Return these of the hidden states alone: torch's compiler computes a gradient of
                each that a graph returns, though nobody reads it. None: all.
            source: What a decoder reads (`model.encoder_decoder`).

        Raises:
            ValueError: The sequences exceed the model's positions, or a bidirectional model gets a
                `kv_cache` and no prefixes.
        """
        past = memory if kv_cache is None else kv_cache
        earlier = 0 if past is None else past.length
        self._check_inputs(earlier + tokens_BT.shape[1], kv_cache, prefix_B)
        inputs = self.attention_pattern(mask_BT, padded=padded, cached=earlier, prefix_B=prefix_B)
        # Without padding one row for all: a table's gradient is then added up over texts at once.
        seen_BT = mask_BT if padded else torch.ones_like(mask_BT[:1])
        position_BT = count_positions(seen_BT, earlier)
        if document_BT is not None:
            seen_BS = document_BT if memory is None else memory.key_documents(document_BT)
            inputs = hide_other_documents(inputs, document_BT, seen_BS)
            position_BT = positions_in_documents(position_BT, document_BT)
        elif restart_BT is not None:
            position_BT = positions_in_documents(position_BT, restart_BT)
        if earlier and kv_cache is not None and kv_cache.padding_B is not None:
            inputs = hide_padding(inputs, kv_cache.padding_B, earlier + tokens_BT.shape[1])
            position_BT = position_BT - kv_cache.padding_B[:, None]
        if kv_cache is not None and kv_cache.place_1 is not None:
            inputs = hide_unwritten(inputs, kv_cache.place_1, earlier + 1)
            position_BT = kv_cache.place_1[None]
        inputs = self.position_embedding.add_to_attention(inputs, position_BT)
        if packing is not None:
            tokens_BT, position_BT = packing.pack(tokens_BT), packing.pack(position_BT)
            segment_BT = None if segment_BT is None else packing.pack(segment_BT)
        remembered = memory.states if memory is not None else ()
        first: Block = self.blocks[0]  # type: ignore[assignment]
        hidden_states = [first.cast_residual(self.embed(tokens_BT, position_BT, segment_BT))]
        for place, number in enumerate(self.shape.block_order):
            seen = replace(
                inputs[self.attention_pattern.kinds[place]],
                kv_cache=None if kv_cache is None else kv_cache.layers[place],
                memory=remembered[place] if remembered else None,
                packing=packing,
                probe=self.probe,
                place=place,
                source=source,
            )
            hidden_states.append(self.blocks[number](hidden_states[-1], seen))
        if memory is not None:
            memory.append(hidden_states[:-1], document_BT, packing)
        if self.shape.has_final_norm:
            hidden_states[-1] = self.final_norm(hidden_states[-1])
        return hidden_states if layers is None else [hidden_states[layer] for layer in layers]

    def _check_inputs(self, length: int, kv_cache: KVCache | None, prefix_B: Tensor | None) -> None:
        if prefix_B is not None and self.shape.projects_distances:
            raise ConfigError(
                f"model.position_kind={self.shape.position_kind}: these distances look back alone, "
                "and of a prefix all positions see all; take objective=clm, or another model"
            )
        if kv_cache is not None and prefix_B is None and not self.causal:
            raise ValueError(
                "a bidirectional model cannot use a cache: later tokens change its hidden states"
            )
        if length > self.shape.positions and self.shape.is_bounded:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the model's "
                f"{self.shape.positions} positions"
            )

    @property
    def num_segments(self) -> int:
        """Number of segments that it tells apart; 0 for none."""
        added = self.new_segments
        return self.shape.segments if added is None else len(added.weight)

    def embed(
        self, tokens_BT: Tensor, position_BT: Tensor, segment_BT: Tensor | None = None
    ) -> Tensor:
        """Return the hidden states before the first block, `[B, T, D]`.

        A model with segments reads a missing `segment_BT` as zeros; a model without ignores it.
        Segment ids beyond the last one count as the last.
        """
        hidden: Tensor = self.drop(self.embedder.sum_embeddings(tokens_BT, position_BT, segment_BT))
        if self.shape.embedding_size != self.shape.width:
            hidden = self.embedding_projection(hidden)
        return hidden

    def count_products(self, counter: ProductCounter, unit: str, *, needs_grad: bool) -> bool:
        """See `CountsProducts`; what it reads are tokens, which need no gradient."""
        shape = self.shape
        embeddings = (getattr(self.embedder, name, None) for name in _EMBEDDINGS)
        needs_grad = counter.trains(*embeddings)
        if shape.embedding_size != shape.width:
            needs_grad = counter.count(self.embedding_projection, unit, needs_grad=needs_grad)
        places = zip(shape.block_order, shape.has_window, sparse_parts(shape), strict=True)
        for number, has_window, parts in places:
            counter.pairs = [part.name for part in parts] or [NEAR_PAIR if has_window else PAIR]
            before = {name: forward for name, (forward, _) in counter.prices.items()}
            needs_grad = counter.count(self.blocks[number], unit, needs_grad=needs_grad)
            if self.blocks[number].recomputed and needs_grad:
                for name, price in counter.prices.items():
                    price[1] += price[0] - before.get(name, 0)
        return needs_grad or counter.trains(self.final_norm if shape.has_final_norm else None)

    @property
    def embedder(self) -> "Backbone":
        """The backbone whose embeddings it reads: its own, but see `model.borrowing`."""
        return self

    def sum_embeddings(
        self, tokens_BT: Tensor, position_BT: Tensor, segment_BT: Tensor | None = None
    ) -> Tensor:
        """Return the embeddings of tokens, positions and segments, summed and normed."""
        token_BTE = self.embed_tokens(tokens_BT)
        if self.probe is not None and self.probe.embeddings is not None:
            token_BTE = self.probe.embeddings(token_BTE)
        if self.shape.embedding_scale != 1:
            token_BTE = token_BTE * self.shape.embedding_scale
        summed = self.position_embedding.embed(token_BTE, position_BT)
        if self.num_segments:
            segment_BT = torch.zeros_like(tokens_BT) if segment_BT is None else segment_BT
            kind_BT = segment_BT.clamp(max=self.num_segments - 1)
            table = self.new_segments or self.segment_embedding
            summed = summed + table(kind_BT)
        if self.shape.has_embedding_norm:
            summed = self.embedding_norm(summed)
        return summed

    def embed_tokens(self, tokens_BT: Tensor) -> Tensor:
        """Return the embeddings of tokens alone, `[B, T, E]`: without positions and segments."""
        token_BTE: Tensor = self.token_embedding(tokens_BT)
        return token_BTE if self.new_rows is None else token_BTE + self.new_rows(tokens_BT)


def _check_memory(size_bytes: int) -> None:
    """Refuse a model that exceeds the memory: the system might kill other processes for it."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if torch.get_default_device().type == "cpu" and size_bytes > memory:
        raise MemoryError(
            f"the weights take {size_bytes / 2**30:,.0f} GiB, and there are {memory / 2**30:,.0f}"
        )


def initialise_plain(module: nn.Module) -> None:
    """Draw the weights of linear and embedding modules from N(0, 0.02^2), set their biases to 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _reinitialise(module: nn.Module) -> None:
    initialise_plain(module)
    if isinstance(module, tuple(NORMS.values())):
        module.reset_parameters()  # type: ignore[operator]
