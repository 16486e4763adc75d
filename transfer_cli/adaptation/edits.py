"""Changes of a model before training: adapters, LoRA, (IA)3, prefixes, PALs, mixes, embeddings.

An edit is called once a run, after the pretrained weights are loaded. Every loaded tensor keeps its
name; an added module is an `Added`, and at first leaves the model's outputs unchanged.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, cast, get_args

from torch import nn

from transfer_cli.adaptation.edit import SPECIAL_TOKENS, Edit
from transfer_cli.errors import above_zero, at_least, one_of, raised_as
from transfer_cli.model.adapters import Adapter, ParallelAdapter
from transfer_cli.model.added_embeddings import AddedRows, AddedSegments
from transfer_cli.model.block import AFTER_CROSS_ATTENTION, BESIDE_BLOCK, BESIDE_FEED_FORWARD, Block
from transfer_cli.model.edited_linear import add_ia3
from transfer_cli.model.lora import Decomposed, LowRank, Target, add_lora
from transfer_cli.model.pals import ProjectedAttention, SharedProjections
from transfer_cli.model.prefix_attention import PrefixAttention
from transfer_cli.model.readout import ScalarMix, TopLayer
from transfer_cli.model.shape import Activation
from transfer_cli.model.transfer_model import TransferModel, layer_groups


@dataclass(frozen=True)
class Adapters(Edit):
    """A bottleneck after the sub-layers of every block (Houlsby et al. 2019).

    Args:
        size: Width of the bottleneck.
        placement: both: after attention and after the feed-forward layer; ffn_only: after the
            feed-forward layer.
        activation: relu, gelu or gelu_tanh.
    """

    size: int = 32
    placement: Literal["both", "ffn_only"] = "both"
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        sites = ["after_feed_forward"]
        if self.placement == "both":
            sites += ["after_attention", AFTER_CROSS_ATTENTION]
        _fill_sites(model, sites, partial(Adapter, size=self.size, activation=self.activation))
        return set()


@dataclass(frozen=True)
class ParallelAdapters(Edit):
    """A bottleneck beside the feed-forward layer of every block (He et al. 2022, section 4).

    Args:
        scale: Multiplies what it adds.
        activation: relu, gelu or gelu_tanh.
    """

    size: int = 64
    scale: float = 4.0
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)
        above_zero("scale", self.scale)

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        make = partial(
            ParallelAdapter, size=self.size, activation=self.activation, scale=self.scale
        )
        _fill_sites(model, (BESIDE_FEED_FORWARD,), make)
        return set()


@dataclass(frozen=True)
class LoRA(Edit):
    """Low-rank updates of frozen matrices (LoRA; Hu et al. 2021).

    Args:
        rank: r, the rank of an update.
        alpha: Scales an update, see `scale`.
        dropout: On the input of the updates, in training.
        targets: Any of query, key, value, output (of attention) and feed_forward (both matrices).
        scale: standard: an update is scaled by alpha / rank; rank_stabilised: by alpha /
            sqrt(rank), so that a larger rank learns more (Kalajdzievski 2023).
        dora: Whether the updates are of the directions of rows, whose magnitudes are learned apart
            (DoRA; Liu et al. 2024).
        lr_ratio: The learning rate of B relative to that of A, which is the group's; 16 in LoRA+
            (Hayou et al. 2024).
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.05
    targets: tuple[Target, ...] = ("query", "value")
    scale: Literal["standard", "rank_stabilised"] = "standard"
    dora: bool = False
    lr_ratio: float = 1.0

    def __post_init__(self) -> None:
        at_least("rank", self.rank, 1)
        above_zero("alpha", self.alpha)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        _check_names("targets", self.targets, get_args(Target))
        above_zero("lr_ratio", self.lr_ratio)

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        divisor = self.rank if self.scale == "standard" else math.sqrt(self.rank)
        make = partial(
            Decomposed if self.dora else LowRank,
            rank=self.rank, scale=self.alpha / divisor, dropout=self.dropout,
            lr_ratio=self.lr_ratio,
        )  # fmt: skip
        _edit_blocks(model, partial(add_lora, targets=self.targets, make=make))
        return set()


@dataclass(frozen=True)
class IA3(Edit):
    """Learned factors of keys, values and the feed-forward layer's inner activation.

    (IA)3, Liu et al. 2022, section 3.3.
    """

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        _edit_blocks(model, add_ia3)
        return set()


@dataclass(frozen=True)
class GatedPrefix(Edit):
    """Learned keys and values in every block, behind a gate that is closed at first.

    LLaMA-Adapter, Zhang et al. 2023, section 3.

    Args:
        length: How many keys and values each head has.
    """

    length: int = 10

    def __post_init__(self) -> None:
        at_least("length", self.length, 1)

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        shape = model.backbone.shape

        def add(block: Block) -> None:
            if block.attention.prefix is not None:
                raise ValueError("it has learned keys and values already; one such edit is enough")
            prefix = PrefixAttention(
                self.length, heads=shape.heads, kv_heads=shape.kv_heads,
                head_width=shape.head_size,
            )  # fmt: skip
            block.attention.prefix = prefix.to(block.attention.packed.weight)

        _edit_blocks(model, add)
        return set()


@dataclass(frozen=True)
class PALs(Edit):
    """A narrow attention beside every block (projected attention layers).

    Stickland and Murray 2019, section 3.2.

    Args:
        head_width: Width of a head; there are as many heads as the model has.
    """

    head_width: int = 17

    def __post_init__(self) -> None:
        at_least("head_width", self.head_width, 1)

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        backbone, heads = model.backbone, model.backbone.shape.heads
        shared = SharedProjections(backbone.shape.width, heads * self.head_width)
        _fill_sites(model, (BESIDE_BLOCK,), lambda width: ProjectedAttention(shared, heads))
        backbone.shared_projections = shared.to(_blocks(model)[0].attention.packed.weight)
        return set()


@dataclass(frozen=True)
class MixLayers(Edit):
    """Heads read a learned mix of all layers (scalar mix; Peters et al. 2018).

    Args:
        norm: Whether hidden states are normalised first. None: only with residual form `pre`, whose
            hidden states grow with depth.
    """

    norm: bool | None = None

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        if not isinstance(model.readout, TopLayer):
            raise ValueError(  # noqa: TRY004 - the user chose values, not types
                f"the model's heads read a {type(model.readout).__name__} already; "
                "a model has one readout"
            )
        backbone = model.backbone
        norm = backbone.shape.has_final_norm if self.norm is None else self.norm
        mix = ScalarMix(backbone.shape.depth + 1, norm=norm)
        model.readout = mix.to(backbone.token_embedding.weight)
        return set()


@dataclass(frozen=True)
class FreshTop(Edit):
    """Reinitialise the top blocks, and the final norm with them: they may fit pretraining alone."""

    structural: ClassVar[bool] = False
    blocks: int = 1

    def __post_init__(self) -> None:
        at_least("blocks", self.blocks, 1)

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        depth = model.backbone.shape.depth
        if self.blocks > depth:
            raise ValueError(f"blocks is {self.blocks}, but the model has {depth}")
        if model.backbone.shape.distinct_blocks < depth:
            raise ValueError("the model's blocks are shared, so the top ones are not apart")
        model.backbone.reinitialise_top(self.blocks)
        of_blocks = [group for group in layer_groups(model, set()) if group.is_block]
        return {name for group in of_blocks[-self.blocks :] for name in group.parameters}


@dataclass(frozen=True)
class NewRows(Edit):
    """Train the embeddings of special tokens (cls, sep, mask, unk, pad) while others are frozen."""

    tokens: tuple[str, ...] = ("cls",)

    def __post_init__(self) -> None:
        _check_names("tokens", self.tokens, SPECIAL_TOKENS)

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        backbone = model.backbone
        if backbone.new_rows is not None:
            raise ValueError("the model has new rows already; name all tokens in one place")
        # Two names may have one token id, which must not be added twice.
        tokens = sorted({special[name] for name in self.tokens})
        table = backbone.token_embedding.weight
        backbone.new_rows = AddedRows(tokens, backbone.shape.embedding_size).to(table)
        return set()


@dataclass(frozen=True)
class Segments(Edit):
    """Embeddings of segments, such as speakers, where the pretrained model has none.

    Wolf et al. 2019 add the embedding of the speaker's token in their place; these are new, and
    zero at first.
    """

    count: int = 2

    def __post_init__(self) -> None:
        at_least("count", self.count, 2)

    def __call__(self, model: TransferModel, special: Mapping[str, int]) -> set[str]:
        backbone = model.backbone
        if backbone.shape.has_encoder:
            raise ValueError("the model has a stack of blocks for each text, and so no segments")
        if backbone.num_segments:
            raise ValueError(
                f"the model has embeddings of {backbone.num_segments} segments already"
            )
        table = backbone.token_embedding.weight
        backbone.new_segments = AddedSegments(self.count, backbone.shape.embedding_size).to(table)
        return set()


def _blocks(model: TransferModel) -> list[Block]:
    return cast("list[Block]", list(model.backbone.blocks))


def _fill_sites(
    model: TransferModel, sites: Sequence[str], make: Callable[[int], nn.Module]
) -> None:
    """Put a module, made for the width of the model, into sites of every block that has them."""
    for number, block in enumerate(_blocks(model)):
        for site in sites:
            if site == AFTER_CROSS_ATTENTION and block.cross_attention is None:
                continue
            module = dict(block.sites.items()).get(site, nn.Identity())
            if not isinstance(module, nn.Identity):
                raise ValueError(  # noqa: TRY004 - the user chose values, not types
                    f"{site} of block {number} is taken by another {type(module).__name__}; "
                    "choose one kind of adapters, or placements that do not overlap"
                )
            packed = block.attention.packed
            block.sites[site] = make(packed.in_features).to(packed.weight)


def _edit_blocks(model: TransferModel, add: Callable[[Block], None]) -> None:
    """Edit every block; what does not fit one names it."""
    for number, block in enumerate(_blocks(model)):
        with raised_as(ValueError, f"block {number}: "):
            add(block)


def _check_names(option: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    if not values:
        raise ValueError(f"{option} must name at least one of {', '.join(known)}")
    for value in values:
        one_of(option, value, known, ValueError)
