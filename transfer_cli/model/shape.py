"""The shape of a backbone: sizes, dropout rates, and the names of its kinds of module.

It imports none of these modules: each is built from a shape, and looked up by name in a table.
"""

from collections.abc import Collection, Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

from transfer_cli.errors import above_zero, at_least, one_of

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
SettledDirection = Literal["causal", "bidirectional", "encoder_decoder"]
Direction = Literal["auto", "causal", "bidirectional", "encoder_decoder"]
PoolerActivation = Literal["none", "tanh", "gelu", "relu", "gelu_norm"]
Biases = Literal["all", "none", "qkv", "feed_forward"]
Share = Literal["none", "all"]
Sparse = Literal["split", "alternate"]
Scaling = Literal["linear", "llama3"]

MAX_SIZE = 2**24
"""Maximum of all sizes: a hundred times the largest model trained so far."""

MAX_DEPTH = 10_000
"""The deepest Transformers have 1000 blocks, and even on meta a block is many Python objects."""


class ResidualForm(NamedTuple):
    """What a residual form asks of the norms outside of its blocks.

    Args:
        embedding_norm: Whether the embeddings have a norm by default.
        final_norm: Whether a norm follows the last block, because no block normalises the residual
            stream. If so, the output projections start smaller.
        plain_start: Whether the first block's attention has no norm, since the embeddings have one.
    """

    embedding_norm: bool = False
    final_norm: bool = False
    plain_start: bool = False


FORMS: dict[str, ResidualForm] = {
    "pre": ResidualForm(final_norm=True),
    "post": ResidualForm(embedding_norm=True),
    "tutorial": ResidualForm(),
    "pre_first_plain": ResidualForm(embedding_norm=True, final_norm=True, plain_start=True),
    "sandwich": ResidualForm(final_norm=True),
    "reordered": ResidualForm(final_norm=True),
    "parallel": ResidualForm(final_norm=True),
}
SPARSE_KINDS = ("strided", "fixed")
"""Attention patterns of `model.sparse_attention`."""

CHOICES: dict[str, Collection[str]] = {
    "activation": get_args(Activation), "output_activation": get_args(Activation),
    "direction": get_args(Direction), "pooler": get_args(PoolerActivation),
    "biases": get_args(Biases), "residual": FORMS,
    "norm": ("layer", "layer_no_bias", "rms", "rms_unit"), "feedforward_kind": ("mlp", "gated"),
    "position_kind": ("learned", "sinusoidal", "rotary", "relative_bias", "bias", "relative"),
    "attention": ("full", "window", *SPARSE_KINDS), "sparse": get_args(Sparse),
}  # fmt: skip
"""Names that a field may have. Kinds of module are in a table of their own by the same name:
`RESIDUALS`, `NORMS`, `FEED_FORWARDS`, `POSITIONS` and `PATTERNS`."""


@dataclass(frozen=True)
class RotaryScaling:
    """A change of rotary frequencies for texts longer than those of pretraining.

    Args:
        kind: linear: all are divided by `factor` (Chen et al. 2023); llama3: only low ones (Llama
            3.1).
        factor: At least 1.
        original_positions: Longest text of pretraining (llama3).
        low_factor: Waves longer than `original_positions / low_factor` are slowed down (llama3).
        high_factor: Those shorter than `original_positions / high_factor` are not (llama3).
    """

    kind: Scaling
    factor: float
    original_positions: int = 8192
    low_factor: float = 1.0
    high_factor: float = 4.0

    def __post_init__(self) -> None:
        one_of("rotary.scaling.kind", self.kind, get_args(Scaling), ValueError)
        if self.factor < 1:
            raise ValueError(f"rotary.scaling.factor must be at least 1, got {self.factor}")
        if not 0 < self.low_factor < self.high_factor or self.original_positions < 1:
            raise ValueError(
                "rotary.scaling needs 0 < low_factor < high_factor and original_positions of at "
                f"least 1; got {self.low_factor}, {self.high_factor}, {self.original_positions}"
            )


@dataclass(frozen=True)
class Rotary:
    """The angles of rotary positions.

    Args:
        base: Pair m of r rotated numbers is turned by base^(-2m/r) a position.
        share: Share of a head's width that is turned, its first numbers.
        local_base: The base in blocks with a window, which are not scaled; None: as elsewhere.
    """

    base: float = 10_000.0
    share: float = 1.0
    scaling: RotaryScaling | None = None
    local_base: float | None = None

    def __post_init__(self) -> None:
        above_zero("rotary.base", self.base)
        if self.local_base is not None:
            above_zero("rotary.local_base", self.local_base)
        if not 0 < self.share <= 1:
            raise ValueError(f"rotary.share must be above 0 and at most 1, got {self.share}")

    @property
    def local(self) -> "Rotary":
        """The angles in blocks with a window."""
        if self.local_base is None:
            return self
        return replace(self, base=self.local_base, scaling=None)

    def rotated_size(self, head_width: int) -> int:
        """Return how many numbers of a head are turned, which have to be pairs."""
        rotated = int(self.share * head_width)
        if rotated < 2 or rotated % 2:
            raise ValueError(
                f"rotary positions turn pairs of a head's numbers, and rotary.share={self.share} "
                f"of {head_width} are {rotated}"
            )
        return rotated


@dataclass(frozen=True)
class BackboneShape:
    """All sizes and options of a backbone except its vocabulary.

    Args:
        width: D, the size of a hidden state.
        heads: Attention heads; divide `width`, unless they have a `head_width`.
        depth: L, the number of blocks; with an encoder, those of the decoder.
        feedforward: Inner size of a block's feed-forward layer.
        positions: Maximum length of a sequence.
        dropout: After the embeddings and on every sub-layer's output.
        attention_dropout: On attention probabilities.
        activation: relu, gelu (exact), gelu_tanh or silu.
        residual: pre, post, tutorial, pre_first_plain, sandwich, reordered or parallel (see
            `model.block`).
        norm: layer, layer_no_bias, rms or rms_unit (see `model.norms`).
        feedforward_kind: mlp or gated (see `model.block`).
        position_kind: learned, sinusoidal, rotary, relative_bias, bias or relative (see
            `model.positions`).
        attention: full, window, strided or fixed (see `model.patterns`).
        direction: causal, bidirectional, encoder_decoder (see `model.encoder_decoder`), or auto:
            the objective's.
        embedding_norm: Whether the embeddings have a norm; None: only with `post`.
        output_bias: Whether the language-model head has a bias.
        tie_output: Whether the language-model head uses the token embedding as its matrix.
        segments: Number of segment embeddings (BERT has 2); 0 for none.
        output_transform: Whether the language-model head reads LN(act(W h + b)) instead of h
            (BERT). It does where it is tied to embeddings of another size.
        output_activation: That activation.
        embedding_width: Size of the embeddings if it is not `width`; a linear layer then projects
            them to it (ELECTRA, Clark et al. 2020).
        epsilon: Added to the variance in every norm. BERT's 1e-12 rounds to 0 in half precision.
        pooler: Activation of the linear layer between the hidden state of the classification token
            and a classifier (BERT: tanh); gelu_norm: GELU and a norm (ModernBERT); none: no such
            layer.
        rotary: The angles of rotary positions.
        biases: Which linear layers of a block have one: all, none, qkv (queries, keys and values)
            or feed_forward (all but those of the attention).
        key_value_heads: Heads of keys and values; divide `heads`. None: as many (Ainslie et al.
            2023).
        head_width: W, the width of a head; None: width / heads.
        query_key_norm: Whether each head's queries and keys have a norm (Qwen 3).
        embedding_scale: Factor of the token embeddings (Gemma: the square root of `width`).
        window: How many positions a query sees in blocks with a window, see
            `model.patterns.window_mask`; with strided and fixed attention the size of a block and
            the stride.
        global_every: With windows, each block of so many sees everything; 0: none does.
        global_from: The first block that does.
        share: Which of the L blocks are one and the same (ALBERT, Lan et al. 2020): none, all, or
            a number of groups of blocks that follow one another.
        sparse: With strided and fixed attention, whether half the heads of each block see what is
            near, half what is far (split), or all heads of every other block (alternate).
        summary: With fixed attention, how many positions at the end of each block all later ones
            see; None: a sixteenth of the block, as in the paper, and at least 1.
        recurrence: How many positions of running text a block sees of those before its own, as the
            states that they had (see `model.memory`); 0: none.
        embeddings: The file of word vectors that a new model's embeddings begin as
            (`data.word_vectors`), which is no part of its shape.
        encoder_depth: The number of blocks of an encoder; None: as many as the decoder's.
        scaled_scores: Whether scores are divided by the square root of a head's width (T5: not).
        output_scale: Factor of what the matrix of the language-model head reads (T5, where it is
            tied: 1 / sqrt(width)).
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
    attention: str = "full"
    rotary: Rotary = field(default_factory=Rotary)
    biases: Biases = "all"
    key_value_heads: int | None = None
    head_width: int | None = None
    query_key_norm: bool = False
    embedding_scale: float = 1.0
    window: int = 128
    global_every: int = 0
    global_from: int = 0
    output_activation: Activation = "gelu"
    share: int | Share = "none"
    sparse: Sparse = "split"
    summary: int | None = None
    recurrence: int = 0
    embeddings: InitVar[str | None] = None
    encoder_depth: int | None = None
    scaled_scores: bool = True
    output_scale: float = 1.0

    def __post_init__(self, embeddings: str | None) -> None:
        check_sizes(vars(self))
        if self.head_width is None:
            _check_divides("heads", self.heads, "width", self.width)
        _check_divides("key_value_heads", self.kv_heads, "heads", self.heads)
        _check_size("head_width", self.head_size, 1, MAX_SIZE)
        for name in ("segments", "global_every", "global_from", "recurrence"):
            _check_size(name, getattr(self, name), 0, MAX_SIZE)
        _check_size("window", self.window, 1, MAX_SIZE)
        _check_size("embedding_width", self.embedding_size, 1, MAX_SIZE)
        if self.embedding_size != self.width and self.tie_output:
            # Something has to bring hidden states to the size of their matrix.
            object.__setattr__(self, "output_transform", True)
        above_zero("embedding_scale", self.embedding_scale)
        above_zero("output_scale", self.output_scale)
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must be in (0, 1), got {self.epsilon}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name, known in CHOICES.items():
            one_of(name, getattr(self, name), known, ValueError)
        self._check_share()
        self._check_sparse()
        self._check_positions()
        self._check_stacks()

    def _check_positions(self) -> None:
        if self.position_kind == "rotary":
            self.rotary.rotated_size(self.head_size)
        if self.projects_distances and self.direction == "bidirectional":
            raise ValueError(
                f"position_kind={self.position_kind}: these distances look back alone, for a model "
                "that reads from left to right; take objective=clm, or other positions"
            )
        if self.recurrence and self.is_bounded:
            raise ValueError(
                f"recurrence={self.recurrence}: a memory has no positions of its own, only "
                "distances; take position_kind=relative (model=xl-tiny), or recurrence=0"
            )

    def _check_stacks(self) -> None:
        if self.encoder_depth is not None:
            _check_size("encoder_depth", self.encoder_depth, 1, MAX_DEPTH)
            if self.direction in ("causal", "bidirectional"):
                raise ValueError(
                    f"encoder_depth={self.encoder_depth}: a {self.direction} model has one stack "
                    "of blocks; take objective=seq2seq, or leave encoder_depth out"
                )
        if self.direction != "encoder_decoder":
            return
        built = {
            "residual": ("pre", "post"), "attention": ("full",), "share": ("none",),
            "recurrence": (0,), "segments": (0,),
            "position_kind": ("learned", "sinusoidal", "rotary", "bias"),
        }  # fmt: skip
        for name, values in built.items():
            value = getattr(self, name)
            if value not in values:
                raise ValueError(
                    f"{name}={value} is not built for an encoder and a decoder; take "
                    f"{' or '.join(map(str, values))}"
                )

    def _check_share(self) -> None:
        if isinstance(self.share, str):
            one_of("share", self.share, get_args(Share), ValueError)
        else:
            _check_size("share", self.share, 1, self.depth)
        if self.distinct_blocks < self.depth and FORMS[self.residual].plain_start:
            raise ValueError(
                f"share={self.share}: with residual={self.residual} the first block is unlike the "
                "others"
            )

    def _check_sparse(self) -> None:
        _check_size("summary", self.summary_size, 1, self.window)
        if self.summary is not None and self.attention != "fixed":
            raise ValueError(f"summary is for attention=fixed, and this one is {self.attention}")
        if not self.is_sparse:
            return
        if self.direction == "bidirectional":
            raise ValueError(
                f"attention={self.attention} looks back alone, and this model is to look both "
                "ways; take attention=full or window, or objective=clm"
            )
        if self.position_kind in ("relative_bias", "bias", "relative"):
            raise ValueError(
                f"attention={self.attention} has no scores of distances, which "
                f"position_kind={self.position_kind} needs; take attention=full or window"
            )
        if self.sparse == "split" and self.heads % 2:
            raise ValueError(
                f"attention={self.attention} with sparse=split halves the heads, and there are "
                f"{self.heads}; take sparse=alternate"
            )
        if self.sparse == "alternate" and self.depth == 1:
            raise ValueError(
                f"attention={self.attention} with sparse=alternate takes turns by block, and there "
                "is 1; take sparse=split"
            )

    def matrix_bytes(self, vocabulary: int) -> int:
        """Return the bytes of the largest matrices in float32."""
        has_table = self.position_kind not in ("rotary", "bias", "relative")
        positions = self.positions if has_table else 0
        embeddings = self.embedding_size * (vocabulary + positions)
        heads = 2 * (self.heads + self.kv_heads) * self.head_size
        blocks = self.distinct_blocks + (self.stacks[0].depth if self.has_encoder else 0)
        blocks *= self.width * (heads + 2 * self.feedforward)
        return 4 * (embeddings + blocks)

    @property
    def has_encoder(self) -> bool:
        """Whether there are two stacks of blocks, an encoder's and a decoder's."""
        return self.direction == "encoder_decoder"

    @property
    def stacks(self) -> "tuple[BackboneShape, BackboneShape]":
        """The shapes of the encoder and of the decoder, each as of a model of its own."""
        alone = replace(self, direction="causal", encoder_depth=None)
        depth = self.encoder_depth or self.depth
        return replace(alone, direction="bidirectional", depth=depth), alone

    @property
    def is_bounded(self) -> bool:
        """Whether a sequence may have as many tokens as there are positions, and no more."""
        return self.position_kind != "relative"

    @property
    def projects_distances(self) -> bool:
        """Whether each block's attention has a matrix for distances."""
        return self.position_kind == "relative"

    @property
    def distinct_blocks(self) -> int:
        """The number of blocks with weights of their own."""
        if isinstance(self.share, str):
            return 1 if self.share == "all" else self.depth
        return self.share

    @property
    def block_order(self) -> list[int]:
        """The number of the distinct block at each of the L places, bottom first."""
        return [place * self.distinct_blocks // self.depth for place in range(self.depth)]

    @property
    def head_size(self) -> int:
        """The width of a head."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.heads if self.key_value_heads is None else self.key_value_heads

    @property
    def has_window(self) -> list[bool]:
        """Whether a query sees only near keys, for each block."""
        if self.attention != "window":
            return [False] * self.depth
        period, first = self.global_every, self.global_from
        return [not period or (block - first) % period != 0 for block in range(self.depth)]

    @property
    def is_sparse(self) -> bool:
        """Whether heads see near or far keys alone; see `model.sparse_attention`."""
        return self.attention in SPARSE_KINDS

    @property
    def summary_size(self) -> int:
        """How many positions at the end of a block all later ones see in fixed attention."""
        return max(1, self.window // 16) if self.summary is None else self.summary

    @property
    def embedding_size(self) -> int:
        """The size of an embedding."""
        return self.width if self.embedding_width is None else self.embedding_width

    @property
    def has_embedding_norm(self) -> bool:
        """Whether the embeddings are normalised before their dropout."""
        default = FORMS[self.residual].embedding_norm
        return default if self.embedding_norm is None else self.embedding_norm

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last block."""
        return FORMS[self.residual].final_norm


def check_sizes(sizes: Mapping[str, Any]) -> None:
    """Refuse sizes of a backbone that no model has, before anything of that length is made."""
    for name in ("width", "heads", "depth", "feedforward", "positions"):
        if name in sizes:
            _check_size(name, sizes[name], 1, MAX_DEPTH if name == "depth" else MAX_SIZE)


def _check_size(name: str, value: int, least: int, most: int) -> None:
    at_least(name, value, least)
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, got {value}")


def _check_divides(name: str, value: int, of: str, number: int) -> None:
    at_least(name, value, 1)
    if number % value:
        divisors = (n for n in range(1, number + 1) if number % n == 0)
        nearest = min(divisors, key=lambda n: abs(n - value))
        raise ValueError(
            f"{name} ({value}) must divide {of} ({number}); the nearest that does is {nearest}"
        )
