"""Reads one token of each text by a CUDA graph: a GPU gets all kernels of the pass at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from transfer_cli.model.backbone import Backbone
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.patterns import FullAttention
from transfer_cli.model.positions import LearnedPositions, RotaryPositions, SinusoidalPositions

FEWEST_TOKENS = 32
"""Tokens from which on a graph pays: to capture it takes as long as some of them."""

ALIGNMENT = 8
"""Keys are a multiple of this many: kernels of attention read masks in such pieces."""


def takes_graph(backbone: Backbone, max_new_tokens: int, device: torch.device) -> bool:
    """Return whether passes of one token, each behind the one before, are worth a graph.

    Masks and positions of other kinds are made from the number of earlier tokens, on the host.
    """
    shape, positions = backbone.shape, type(backbone.position_embedding)
    return (
        device.type == "cuda"
        and max_new_tokens >= FEWEST_TOKENS
        and type(backbone.attention_pattern) is FullAttention
        and positions in (LearnedPositions, RotaryPositions, SinusoidalPositions)
        and not shape.has_encoder
    )


def graph_length(backbone: Backbone, positions: int) -> int:
    """Return how many positions a cache for so many has, where passes have all of its length."""
    return min(-(-positions // ALIGNMENT) * ALIGNMENT, backbone.shape.positions)


class TokenGraph:
    """Reads the next token of each text, behind what is cached.

    A token costs the host a launch for each of some 700 kernels, which take less time than that.
    A graph has its kernels in one launch; it computes with the same memory each time, so that the
    cache has one length, and its place to write is read on the device. The first token is read as
    it comes: libraries choose their kernels.

    Args:
        read: Returns the logits, `[B, V]`, that tokens, `[B, 1]`, lead to, with the cache.
    """

    def __init__(
        self, read: Callable[[Tensor], Tensor], kv_cache: KVCache, rows: int, device: torch.device
    ) -> None:
        self._read = read
        self._place_1 = kv_cache.fix_length(device)
        self._tokens_B1 = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits_BV: Tensor | None = None

    def __call__(self, tokens_B1: Tensor) -> Tensor:
        """Return the logits of the token behind, `[B, V]`: valid until the next call."""
        self._tokens_B1.copy_(tokens_B1)
        if self._logits_BV is None:
            self._logits_BV = self._read(self._tokens_B1)
        else:
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                    self._logits_BV = self._read(self._tokens_B1)
            self._graph.replay()
        self._place_1.add_(1)
        return self._logits_BV
