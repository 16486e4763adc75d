"""What training takes in floating-point operations: counted by a formula, not timed.

Two for each weight of a matrix and each row that it multiplies (a product and a sum), and four a
head, its width and each pair of a query and a key: that is a forward pass. The backward pass takes
the same again for the gradient of a matrix that trains, and the same again for that of its input,
where anything below it trains. Norms, sums and look-ups in tables count nothing, nor do products
that a loss computes beside the model's own.

What is *done* includes padding and keys behind a mask, as torch's `FlopCounterMode` counts it (and
Chowdhery et al. 2022, appendix B); what is *real* are real tokens and the keys that each may see.

A *unit* is what a price is of: `token`, a position in the backbone; `place`, one that attention
sees, which may be padding that nothing else computes; `pair` and `near_pair`, a query and a key in
a block that sees everything, or has a window; `window_pair` and so on, those that a part of sparse
attention computes (`model.sparse_attention`); `remembered`, a position of a memory; `distance`, one
between a query and a key, encoded once a pass; `heads.NAME...`, a row in a head.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from transfer_cli.engine.step import TrainStep
from transfer_cli.model.attention import SelfAttention
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.block import BESIDE, BESIDE_BLOCK, Block, ParallelBlock
from transfer_cli.model.edited_linear import EditedLinear
from transfer_cli.model.heads import LanguageModelHead, Pooler
from transfer_cli.model.lora import LowRank
from transfer_cli.model.pals import ProjectedAttention
from transfer_cli.model.prefix_attention import PrefixAttention
from transfer_cli.model.sparse_attention import SparsePart, parts_of
from transfer_cli.model.transfer_model import Pass, TransferModel

TOKEN, PLACE, PAIR, NEAR = "token", "place", "pair", "near_pair"
REMEMBERED, DISTANCE = "remembered", "distance"

_BELOW = (
    "token_embedding", "new_rows", "new_segments", "position_embedding", "segment_embedding",
    "embedding_norm",
)  # fmt: skip
"""The parts of a backbone that make the embeddings."""


class Flops(NamedTuple):
    """Floating-point operations.

    Args:
        done: Of all that was computed.
        real: Of these, for real tokens and the keys that they may see.
    """

    done: int = 0
    real: int = 0

    def plus(self, other: "Flops") -> "Flops":
        """Return the sum."""
        return Flops(self.done + other.done, self.real + other.real)


class Price(NamedTuple):
    """Floating-point operations of a unit in a forward and in a backward pass."""

    forward: int = 0
    backward: int = 0


Prices = Mapping[str, Price]
Amounts = Mapping[tuple[str, bool], Sequence[float]]
"""How many of each unit, done and real, without and with a backward pass."""


def prices_of(model: TransferModel, trains: Set[str]) -> dict[str, Price]:
    """Return the price of each unit of a model in which the named parameters train."""
    return _prices(model, {id(each) for name, each in model.named_parameters() if name in trains})


def _prices(model: TransferModel, trained: Set[int]) -> dict[str, Price]:
    walk = _Walk(trained)
    walk.heads(model, moves=walk.readout(model, moves=walk.backbone(model.backbone)))
    found = {unit: Price(*price) for unit, price in walk.prices.items()}
    for prefix, inner in models_inside(model):
        found |= {f"{prefix}{unit}": price for unit, price in _prices(inner, trained).items()}
    return found


def models_inside(model: TransferModel) -> Iterator[tuple[str, TransferModel]]:
    """Yield each head that is a model itself, with what its units begin with."""
    for name, head in model.heads.items():
        if isinstance(head, TransferModel):
            yield f"{head_unit(name)}.", head


def simple_heads(model: TransferModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield all other heads, by name."""
    yield from (each for each in model.heads.items() if not isinstance(each[1], TransferModel))


def flops_of(amounts: Amounts, prices: Prices) -> Flops:
    """Return what amounts of units take at these prices."""
    total = Flops()
    for (unit, learns), counts in amounts.items():
        forward, backward = prices.get(unit, Price())
        price = forward + learns * backward
        total = total.plus(Flops(*(int(count * price) for count in counts)))
    return total


def amounts_of_texts(
    model: TransferModel, texts: int, length: int, scored: Mapping[str, int], earlier: int = 0
) -> Amounts:
    """Return what a step of one pass is made of.

    Args:
        model: The model.
        texts: Of a step, without padding.
        length: Of each, in tokens.
        scored: Rows in the heads that are not asked once for each text, by name; of one that is a
            model, those in its own head.
        earlier: Positions that a memory holds of each.
    """
    shape, tokens = model.backbone.shape, texts * length
    found = {TOKEN: (tokens, tokens), PLACE: (tokens, tokens)}
    found[REMEMBERED] = texts * earlier, texts * earlier
    found[DISTANCE] = earlier + length, earlier + length
    for unit, seen in kinds_of_pairs(shape).items():
        pairs = seen.pairs([length], length, causal=model.backbone.causal, earlier=earlier)
        found[unit] = texts * pairs[0], texts * pairs[1]
    for name, head in simple_heads(model):
        rows = scored.get(name, texts)
        units = [head_unit(name), *(unit for unit, _ in head_products(name, head))]
        found |= dict.fromkeys(units, (rows, rows))
    amounts: dict[tuple[str, bool], Sequence[float]] = {(u, True): n for u, n in found.items()}
    for prefix, inner in models_inside(model):
        own = {name: scored.get(prefix.split(".")[1], texts) for name in inner.heads}
        for (unit, learns), counts in amounts_of_texts(inner, texts, length, own).items():
            amounts[f"{prefix}{unit}", learns] = counts
    return amounts


def training_flops(model: TransferModel, length: int) -> int:
    """Return what training a whole language model takes for a token of a text of this length."""
    prices = prices_of(model, {name for name, _ in model.named_parameters()})
    of_text = {
        unit: seen.pairs([length], length, causal=True)[0]
        for unit, seen in kinds_of_pairs(model.backbone.shape).items()
    }
    of_text |= {REMEMBERED: 0, DISTANCE: 0}
    total = sum(sum(price) * of_text.get(unit, length) for unit, price in prices.items())
    return total // length


class _Walk:
    """Follows a state from the embeddings to the heads, and adds up what is computed on its way.

    `moves` says of a state whether anything that it was computed from trains: then what comes next
    has to return the gradient of its input.
    """

    def __init__(self, trained: Set[int]) -> None:
        self._trained = trained
        self.prices: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def _trains(self, *parts: nn.Module | Tensor | None) -> bool:
        own = (p.parameters() if isinstance(p, nn.Module) else [p] for p in parts)
        return any(id(each) in self._trained for found in own for each in found)

    def _product(self, unit: str, size: int, *, moves: bool, trains: bool) -> None:
        price = self.prices[unit]
        price[0] += 2 * size
        price[1] += 2 * size * (moves + trains)

    def _through(self, part: nn.Module, unit: str = TOKEN, *, moves: bool) -> bool:
        """Note a part and all in it, in the order in which they were made."""
        if isinstance(part, EditedLinear):
            return self._edited(part, unit, moves=moves)
        if isinstance(part, nn.Linear):
            size = part.in_features * part.out_features
            self._product(unit, size, moves=moves, trains=self._trains(part.weight))
        for child in part.children():
            moves = self._through(child, unit, moves=moves)
        return moves or self._trains(*part.parameters(recurse=False))

    def _edited(self, layer: EditedLinear, unit: str, *, moves: bool) -> bool:
        moves = moves or (layer.input_factors is not None and self._trains(layer.input_factors))
        size = layer.in_features * layer.out_features
        self._product(unit, size, moves=moves, trains=self._trains(layer.weight))
        for change in layer.lora.values():
            if isinstance(change, LowRank):
                down, up = change.down, change.up
                below = moves or self._trains(down)
                self._product(unit, down.numel(), moves=moves, trains=self._trains(down))
                self._product(unit, up.numel(), moves=below, trains=self._trains(up))
        return moves or self._trains(layer)

    def backbone(self, backbone: Backbone) -> bool:
        """Note the backbone; return whether its last state moves."""
        below = (getattr(backbone.lender, name, None) for name in _BELOW)
        moves = self._trains(*below)
        if hasattr(backbone, "embedding_projection"):
            moves = self._through(backbone.embedding_projection, moves=moves)
        shape = backbone.shape
        for number, has_window, parts in zip(
            shape.visits, shape.has_window, parts_of(shape), strict=True
        ):
            pairs = [part.name for part in parts] or [NEAR if has_window else PAIR]
            block = cast("Block", backbone.blocks[number])
            before = {unit: price[0] for unit, price in self.prices.items()}
            moves = self._block(block, pairs, moves=moves)
            if block.recomputed and moves:
                for unit, price in self.prices.items():
                    price[1] += price[0] - before.get(unit, 0)
        return moves or self._trains(getattr(backbone, "final_norm", None))

    def _block(self, block: Block, pairs: Sequence[str], *, moves: bool) -> bool:
        sites = block.sites
        norms = [
            [getattr(block, f"{part}_norm", None) for part in (f"{name}_first", name)]
            for name in ("attention", "feed_forward")
        ]
        # A norm that follows its sub-layer has no part in what that reads.
        before, after = ([each[0] for each in norms], [each[1] for each in norms])
        if not block.norms_follow:
            before, after = after, [None, None]
        read = moves or self._trains(before[0])
        attended = self._attention(block.attention, pairs, moves=read)
        attended = self._through(sites["after_attention"], moves=attended) or self._trains(after[0])
        between = moves if isinstance(block, ParallelBlock) else moves or read or attended
        between = between or self._trains(before[1])
        fed = self._through(block.feed_forward, moves=between)
        fed = self._through(sites["after_feed_forward"], moves=fed) or self._trains(after[1])
        if BESIDE in sites:
            fed = self._through(sites[BESIDE], moves=between) or fed
        if BESIDE_BLOCK in sites:
            fed = self._beside_block(sites[BESIDE_BLOCK], pairs, moves=read) or fed
        return attended or fed

    def _attention(self, attention: SelfAttention, pairs: Sequence[str], *, moves: bool) -> bool:
        self._through(attention.packed, REMEMBERED, moves=False)
        moves = self._through(attention.packed, moves=moves)
        norms = (getattr(attention, name, None) for name in ("query_norm", "key_norm"))
        moves = moves or self._trains(*norms)
        width = attention.rows[0]
        if hasattr(attention, "distance"):
            own = self._through(attention.distance, DISTANCE, moves=False)
            for unit in pairs:
                self._product(unit, width // len(pairs), moves=moves, trains=own)
            moves = moves or own
        self._mix(pairs, width, moves=moves)
        if isinstance(attention.prefix, PrefixAttention):
            keys = width * attention.prefix.key.shape[1]
            own = self._trains(attention.prefix)
            # Scores, and sums of values; of both, what is learnt and what it is multiplied with.
            self._product(PLACE, keys, moves=moves, trains=moves or own)
            self._product(PLACE, keys, moves=moves or own, trains=moves or own)
            moves = moves or own
        return self._through(attention.output, moves=moves)

    def _mix(self, pairs: Sequence[str], width: int, *, moves: bool) -> None:
        """Note scores and weighted sums; all that they are made of has a gradient, or nothing."""
        for unit in pairs:  # equally many heads have each
            self._product(unit, 2 * width // len(pairs), moves=moves, trains=moves)

    def _beside_block(self, part: nn.Module, pairs: Sequence[str], *, moves: bool) -> bool:
        if not isinstance(part, ProjectedAttention):
            return self._through(part, moves=moves)
        inside = self._through(part.packed, moves=self._through(part.shared.encode, moves=moves))
        self._mix(pairs, part.shared.encode.out_features, moves=inside)
        return self._through(part.shared.decode, moves=inside)

    def readout(self, model: TransferModel, *, moves: bool) -> bool:
        """Note the readout."""
        return self._through(model.readout, moves=moves)

    def heads(self, model: TransferModel, *, moves: bool) -> None:
        """Note the heads; a pooler comes before those that read what it returns."""
        for name, head in sorted(
            simple_heads(model), key=lambda each: not isinstance(each[1], Pooler)
        ):
            inside = moves
            for unit, part in head_products(name, head):
                inside = self._through(part, unit, moves=inside)
            if isinstance(head, Pooler):
                moves = inside
            if isinstance(head, LanguageModelHead):
                tied = model.backbone.lender.token_embedding.weight
                table: Tensor = getattr(head, "weight", tied)
                inside = inside or self._trains(getattr(head, "norm", None))
                self._product(
                    head_unit(name), table.numel(), moves=inside, trains=self._trains(table)
                )


def head_unit(name: str, inner: str = "") -> str:
    """Return the unit of a row in a head, or in a layer of it."""
    return f"heads.{name}.{inner}".rstrip(".")


def head_products(name: str, head: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers of a head, each with its unit."""
    for inner, part in head.named_modules():
        if isinstance(part, nn.Linear):
            yield head_unit(name, inner), part


class Tally:
    """Counts what passes through a model, and through others beside it, while it is asked to.

    A pass costs a few additions of whole numbers on the host, whatever its size.

    Args:
        model: The model that trains.
        stages: The names of the parameters that train, for each stage.
        beside: Models that losses compare with; nothing in them trains.
    """

    def __init__(
        self,
        model: TransferModel,
        stages: Sequence[Set[str]],
        beside: Sequence[TransferModel] = (),
    ) -> None:
        self._watched: list[tuple[TransferModel, Callable[[Pass], None]]] = []
        others: dict[str, Price] = {}
        for number, other in enumerate(beside):
            prefix = f"beside.{number}."
            self._watch(other, prefix)
            others |= {f"{prefix}{unit}": p for unit, p in prices_of(other, frozenset()).items()}
        self._watch(model, "")
        self.prices: list[Prices] = [{**prices_of(model, trains), **others} for trains in stages]
        self._stage: int | None = None
        self._amounts: dict[int, dict[tuple[str, bool], list[int]]] = {}

    @contextmanager
    def counting(self, stage: int) -> Iterator[None]:
        """Count what passes during the block, at the prices of a stage."""
        self._stage = stage
        for model, note in self._watched:
            model.on_pass = note
        try:
            yield
        finally:
            self._stage = None
            for model, _ in self._watched:
                model.on_pass = None

    def counted(self) -> Flops:
        """Return what was counted since `take`."""
        total = Flops()
        for stage, amounts in self._amounts.items():
            total = total.plus(flops_of(amounts, self.prices[stage]))
        return total

    def take(self) -> Flops:
        """Return what was counted since this was last called."""
        total = self.counted()
        self._amounts = {}
        return total

    def of_passes(self, passes: Iterable[Pass]) -> Flops:
        """Return what passes without a backward one take, which nobody need have made."""
        before, self._amounts = self._amounts, {}
        _, note = self._watched[-1]
        with torch.no_grad(), self.counting(0):
            for each in passes:
                note(each)
        found, self._amounts = self.counted(), before
        return found

    def amounts(self) -> dict[tuple[str, bool], list[int]]:
        """Return what was counted, of all stages together, and forget nothing."""
        found: dict[tuple[str, bool], list[int]] = defaultdict(lambda: [0, 0])
        for amounts in self._amounts.values():
            for key, (done, real) in amounts.items():
                found[key][0] += done
                found[key][1] += real
        return dict(found)

    def _watch(self, model: TransferModel, prefix: str) -> None:
        for inside, inner in models_inside(model):
            self._watch(inner, f"{prefix}{inside}")
        kinds = kinds_of_pairs(model.backbone.shape)
        self._watched.append((model, partial(self._pass, prefix, kinds)))
        for name, head in simple_heads(model):
            for unit, layer in head_products(name, head):
                layer.register_forward_hook(self._rows(f"{prefix}{unit}"))
            if isinstance(head, LanguageModelHead):
                head.on_rows = partial(self._add, f"{prefix}{head_unit(name)}")

    def _rows(self, unit: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self._add(unit, output.numel() // output.shape[-1])

        return note

    def _pass(self, prefix: str, kinds: Mapping[str, "SeenPairs"], made: Pass) -> None:
        lengths, places = made.lengths, made.sequences * made.positions
        real = sum(lengths)
        self._add(f"{prefix}{TOKEN}", made.tokens, real)
        self._add(f"{prefix}{PLACE}", places, real)
        self._add(f"{prefix}{REMEMBERED}", made.sequences * made.earlier)
        self._add(f"{prefix}{DISTANCE}", made.positions + made.earlier)
        for unit, seen in kinds.items():
            done, real_pairs = seen.pairs(
                lengths, made.positions, causal=made.causal, earlier=made.earlier
            )
            self._add(f"{prefix}{unit}", made.sequences * done, real_pairs)

    def _add(self, unit: str, done: int, real: int | None = None) -> None:
        if self._stage is None:
            return
        amounts = self._amounts.setdefault(self._stage, {})
        found = amounts.setdefault((unit, torch.is_grad_enabled()), [0, 0])
        found[0] += done
        found[1] += done if real is None else real


def count(step: TrainStep) -> Tally:
    """Return what counts all that a step computes from now on, in this process."""
    others = {id(each): each for loss in step.losses for each in loss.objective.other_models}
    trains = [span.trains for span in step.stages.spans]
    tally = Tally(step.model, trains, [*others.values()])
    step.counting = tally.counting
    return tally


class SeenPairs(NamedTuple):
    """Which keys queries see.

    Args:
        window: See `pairs_seen`.
        part: The part of sparse attention, if it is one.
    """

    window: int | None = None
    part: SparsePart | None = None

    def pairs(
        self, lengths: Sequence[int], positions: int, *, causal: bool, earlier: int = 0
    ) -> tuple[int, int]:
        """Return how many pairs are computed of a text with padding, and seen in all texts."""
        if self.part is not None:
            return self.part.computed(positions), sum(map(self.part.pairs, lengths))
        seen = pairs_seen(lengths, causal=causal, window=self.window, earlier=earlier)
        return positions * (positions + earlier), seen


def kinds_of_pairs(shape: BackboneShape) -> dict[str, SeenPairs]:
    """Return the units that are pairs in the blocks of this shape."""
    found = {part.name: SeenPairs(part=part) for parts in parts_of(shape) for part in parts}
    if not found:
        found[PAIR] = SeenPairs()
    if any(shape.has_window):
        found[NEAR] = SeenPairs(shape.window)
    return found


def pairs_seen(
    lengths: Sequence[int], *, causal: bool, window: int | None = None, earlier: int = 0
) -> int:
    """Return how many keys all queries of some texts see together, one for each pair.

    Args:
        lengths: Real tokens of each text.
        causal: Whether a query sees no later key.
        window: See `model.patterns.window_mask`; None: every text is seen from end to end.
        earlier: Positions of a memory before each text, which are seen and see nothing.
    """
    if earlier:
        whole = [earlier + length for length in lengths]
        before = pairs_seen([earlier] * len(lengths), causal=causal, window=window)
        return pairs_seen(whole, causal=causal, window=window) - before
    squares, tokens = sum(length * length for length in lengths), sum(lengths)
    all_seen = (squares + tokens) // 2 if causal else squares
    if window is None:
        return all_seen
    # Keys that are farther off than the window reaches, on either side.
    reach = window - 1 if causal else window // 2
    beyond = (length - 1 - reach for length in lengths if length - 1 > reach)
    return all_seen - sum(each * (each + 1) for each in beyond) // (2 if causal else 1)
