"""The shape of a backbone: sizes, dropout rates, and the classes of its modules."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from transfer_cli.errors import at_least, one_of
from transfer_cli.model.block import FEED_FORWARDS, RESIDUALS, Activation
from transfer_cli.model.norms import NORMS
from transfer_cli.model.patterns import PATTERNS
from transfer_cli.model.positions import POSITIONS

Direction = Literal["auto", "causal", "bidirectional"]
PoolerActivation = Literal["none", "tanh", "gelu", "relu"]

MAX_SIZE = 2**24
"""Maximum of all sizes: a hundred times the largest model trained so far."""

MAX_DEPTH = 10_000
"""The deepest Transformers have 1000 blocks, and even on meta a block is many Python objects."""

_CHOICES: dict[str, Collection[str]] = {
    "activation": get_args(Activation), "direction": get_args(Direction),
    "pooler": get_args(PoolerActivation), "residual": RESIDUALS, "norm": NORMS,
    "feedforward_kind": FEED_FORWARDS, "position_kind": POSITIONS, "attention_pattern": PATTERNS,
}  # fmt: skip
"""Values of a field. A dict holds classes; add new ones there."""


@dataclass(frozen=True)
class BackboneShape:
    """All sizes and options of a backbone except its vocabulary.

    Args:
        width: D, the size of a hidden state.
        heads: Attention heads; divide `width`.
        depth: L, the number of blocks.
        feedforward: Inner size of a block's feed-forward layer.
        positions: Maximum length of a sequence.
        dropout: After the embeddings and on every sub-layer's output.
        attention_dropout: On attention probabilities.
        activation: relu, gelu (exact) or gelu_tanh.
        residual: pre, post or tutorial (see `model.block`).
        norm: layer (see `model.norms`).
        feedforward_kind: mlp (see `model.block`).
        position_kind: learned, or sinusoidal (see `model.positions`).
        attention_pattern: full (see `model.patterns`).
        direction: causal, bidirectional, or auto: the objective's.
        embedding_norm: Whether the embeddings have a norm; None: only with `post`.
        output_bias: Whether the language-model head has a bias.
        tie_output: Whether the language-model head uses the token embedding as its matrix.
        segments: Number of segment embeddings (BERT has 2); 0 for none.
        output_transform: Whether the language-model head reads LN(gelu(W h + b)) instead of h
            (BERT).
        embedding_width: Size of the embeddings if it is not `width`; a linear layer then projects
            them to it (ELECTRA, Clark et al. 2020).
        epsilon: Added to the variance in every LayerNorm. BERT's 1e-12 rounds to 0 in half
            precision.
        pooler: Activation of the linear layer between the hidden state of the classification token
            and a classifier (BERT: tanh); none: no such layer.
    """

    width: int
    heads: int
    depth: int
    feedforward: int
    positions: int
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: Activation = "gelu"
    residual: str = "pre"
    position_kind: str = "learned"
    direction: Direction = "auto"
    embedding_norm: bool | None = None
    output_bias: bool = True
    tie_output: bool = True
    output_transform: bool = False
    segments: int = 0
    embedding_width: int | None = None
    epsilon: float = 1e-5
    pooler: PoolerActivation = "none"
    norm: str = "layer"
    feedforward_kind: str = "mlp"
    attention_pattern: str = "full"

    def __post_init__(self) -> None:
        for name in ("width", "heads", "depth", "feedforward", "positions"):
            most = MAX_DEPTH if name == "depth" else MAX_SIZE
            _check_size(name, getattr(self, name), 1, most)
        if self.width % self.heads:
            raise ValueError(
                f"heads ({self.heads}) must divide width ({self.width}); "
                f"the nearest that does is {_nearest_divisor(self.width, self.heads)}"
            )
        _check_size("segments", self.segments, 0, MAX_SIZE)
        _check_size("embedding_width", self.embedding_size, 1, MAX_SIZE)
        if self.embedding_size != self.width and self.tie_output and not self.output_transform:
            raise ValueError(
                f"embedding_width ({self.embedding_size}) is not width ({self.width}), so tied "
                "logits need output_transform, which projects hidden states to it"
            )
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must be in (0, 1), got {self.epsilon}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name, known in _CHOICES.items():
            one_of(name, getattr(self, name), known, ValueError)

    def least_bytes(self, vocabulary: int) -> int:
        """Return the bytes of the largest matrices in float32."""
        embeddings = self.embedding_size * (vocabulary + self.positions)
        blocks = self.depth * self.width * (4 * self.width + 2 * self.feedforward)
        return 4 * (embeddings + blocks)

    @property
    def embedding_size(self) -> int:
        """The size of an embedding."""
        return self.width if self.embedding_width is None else self.embedding_width

    @property
    def has_embedding_norm(self) -> bool:
        """Whether the embeddings are normalised before their dropout."""
        default = RESIDUALS[self.residual].embedding_norm
        return default if self.embedding_norm is None else self.embedding_norm

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last block."""
        return RESIDUALS[self.residual].final_norm


def _check_size(name: str, value: int, least: int, most: int) -> None:
    at_least(name, value, least)
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, got {value}")


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = (n for n in range(1, number + 1) if number % n == 0)
    return min(divisors, key=lambda n: abs(n - wanted))
