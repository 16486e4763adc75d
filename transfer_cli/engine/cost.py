"""What training takes in floating-point operations: counted by a formula, not timed.

Two for each weight of a matrix and each row that it multiplies (a product and a sum), and four a
head, its width and each pair of a query and a key: that is a forward pass. The backward pass takes
the same again for the gradient of a matrix that trains, and the same again for that of its input,
where anything below it trains. Norms, sums and look-ups in tables count nothing, nor do products
that a loss computes beside the model's own.

What is *done* includes padding and keys behind a mask, as torch's `FlopCounterMode` counts it (and
Chowdhery et al. 2022, appendix B); what is *real* are real tokens and the keys that each may see.
What a price is of, a *unit*, and what layers multiply for each says `model.products`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.heads import LanguageModelHead, Pooler
from transfer_cli.model.products import (
    CROSS_PAIR,
    DISTANCE,
    NEAR_PAIR,
    PAIR,
    PLACE,
    REMEMBERED,
    SOURCE,
    TOKEN,
    ProductCounter,
)
from transfer_cli.model.sparse_attention import SparsePart, sparse_parts
from transfer_cli.model.transfer_model import Pass, TransferModel


class Flops(NamedTuple):
    """Floating-point operations `done`; of these, those for `real` tokens and what they may see."""

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
    return _prices(model, {id(p) for name, p in model.named_parameters() if name in trains})


def _prices(model: TransferModel, trained: Set[int]) -> dict[str, Price]:
    counter = ProductCounter(trained)
    needs_grad = counter.count(model.backbone, needs_grad=False)
    _count_heads(counter, model, needs_grad=counter.count(model.readout, needs_grad=needs_grad))
    prices = {unit: Price(*price) for unit, price in counter.prices.items()}
    for prefix, inner in models_inside(model):
        prices |= {f"{prefix}{unit}": price for unit, price in _prices(inner, trained).items()}
    return prices


def models_inside(model: TransferModel) -> Iterator[tuple[str, TransferModel]]:
    """Yield each head that is a model itself, with what its units begin with."""
    for name, head in model.heads.items():
        if isinstance(head, TransferModel):
            yield f"{head_unit(name)}.", head


def simple_heads(model: TransferModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield all other heads, by name."""
    yield from (named for named in model.heads.items() if not isinstance(named[1], TransferModel))


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
        texts: Of a step, without padding.
        length: Of each, in tokens.
        scored: Rows in the heads that are not asked once for each text, by name; of one that is a
            model, those in its own head.
        earlier: Positions that a memory holds of each.
    """
    shape = model.backbone.shape
    length = length // 2 if shape.has_encoder else length  # of a source, and of its target
    tokens = texts * length
    counted = {TOKEN: (tokens, tokens), PLACE: (tokens, tokens)}
    counted[REMEMBERED] = texts * earlier, texts * earlier
    counted[DISTANCE] = earlier + length, earlier + length
    for unit, seen in kinds_of_pairs(shape).items():
        pairs = seen.pairs([length], length, causal=model.backbone.causal, earlier=earlier)
        counted[unit] = texts * pairs[0], texts * pairs[1]
    if shape.has_encoder:
        counted |= {f"{SOURCE}{unit}": of_target for unit, of_target in counted.items()}
        counted[CROSS_PAIR] = texts * length**2, texts * length**2
    for name, head in simple_heads(model):
        rows = scored.get(name, texts)
        units = [head_unit(name), *(unit for unit, _ in head_linears(name, head))]
        counted |= dict.fromkeys(units, (rows, rows))
    amounts: dict[tuple[str, bool], Sequence[float]] = {(u, True): n for u, n in counted.items()}
    for prefix, inner in models_inside(model):
        rows_inside = {name: scored.get(prefix.split(".")[1], texts) for name in inner.heads}
        for (unit, learns), counts in amounts_of_texts(inner, texts, length, rows_inside).items():
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


def _count_heads(counter: ProductCounter, model: TransferModel, *, needs_grad: bool) -> None:
    """Count the heads; a pooler comes before those that read what it returns."""
    heads = sorted(simple_heads(model), key=lambda head: not isinstance(head[1], Pooler))
    for name, head in heads:
        inside = needs_grad
        for unit, part in head_linears(name, head):
            inside = counter.count(part, unit, needs_grad=inside)
        if isinstance(head, Pooler):
            needs_grad = inside
        if isinstance(head, LanguageModelHead):
            table: Tensor = getattr(head, "weight", model.backbone.embedder.token_embedding.weight)
            inside = inside or counter.trains(getattr(head, "norm", None))
            trains = counter.trains(table)
            counter.add(head_unit(name), table.numel(), needs_grad=inside, trains=trains)


def head_unit(name: str, inner: str = "") -> str:
    """Return the unit of a row in a head, or in a layer of it."""
    return f"heads.{name}.{inner}".rstrip(".")


def head_linears(name: str, head: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers of a head, each with its unit."""
    for inner, part in head.named_modules():
        if isinstance(part, nn.Linear):
            yield head_unit(name, inner), part


class FlopCounter:
    """Counts what passes through a model, and through others beside it, while it is asked to.

    A pass costs a few additions of whole numbers on the host, whatever its size.

    Args:
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
        self._is_idle = False
        self._amounts: dict[int, dict[tuple[str, bool], list[int]]] = {}

    @contextmanager
    def counting(self, stage: int | None, *, is_idle: bool = False) -> Iterator[None]:
        """Count what passes during the block, at the prices of a stage.

        Nothing is real of what is idle: a process computes it to keep in step with others.
        """
        self._stage, self._is_idle = stage, is_idle
        for model, note in self._watched:
            model.on_pass = note
        try:
            yield
        finally:
            self._stage = None
            for model, _ in self._watched:
                model.on_pass = None

    def flops(self) -> Flops:
        """Return what was counted since `take_flops`."""
        total = Flops()
        for stage, amounts in self._amounts.items():
            total = total.plus(flops_of(amounts, self.prices[stage]))
        return total

    def take_flops(self) -> Flops:
        """Return what was counted since this was last called."""
        total = self.flops()
        self._amounts = {}
        return total

    def flops_of_passes(self, passes: Iterable[Pass]) -> Flops:
        """Return what passes without a backward one take, which nobody need have made."""
        before, self._amounts = self._amounts, {}
        _, note = self._watched[-1]
        with torch.no_grad(), self.counting(0):
            for passed in passes:
                note(passed)
        flops, self._amounts = self.flops(), before
        return flops

    def amounts(self) -> dict[tuple[str, bool], list[int]]:
        """Return what was counted, of all stages together, and forget nothing."""
        total: dict[tuple[str, bool], list[int]] = defaultdict(lambda: [0, 0])
        for amounts in self._amounts.values():
            for key, (done, real) in amounts.items():
                total[key][0] += done
                total[key][1] += real
        return dict(total)

    def _watch(self, model: TransferModel, prefix: str) -> None:
        for inside, inner in models_inside(model):
            self._watch(inner, f"{prefix}{inside}")
        kinds = kinds_of_pairs(model.backbone.shape)
        self._watched.append((model, partial(self._pass, prefix, kinds)))
        for name, head in simple_heads(model):
            for unit, layer in head_linears(name, head):
                layer.register_forward_hook(self._rows(f"{prefix}{unit}"))
            if isinstance(head, LanguageModelHead):
                head.on_rows = partial(self._add, f"{prefix}{head_unit(name)}")

    def _rows(self, unit: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self._add(unit, output.numel() // output.shape[-1])

        return note

    def _pass(self, prefix: str, kinds: Mapping[str, "SeenPairs"], passed: Pass) -> None:
        lengths, places = passed.lengths, passed.sequences * passed.positions
        real = sum(lengths)
        self._add(f"{prefix}{TOKEN}", passed.tokens, real)
        self._add(f"{prefix}{PLACE}", places, real)
        self._add(f"{prefix}{REMEMBERED}", passed.sequences * passed.earlier)
        self._add(f"{prefix}{DISTANCE}", passed.positions + passed.earlier)
        for unit, seen in kinds.items():
            done, real_pairs = seen.pairs(
                lengths, passed.positions, causal=passed.causal, earlier=passed.earlier
            )
            self._add(f"{prefix}{unit}", passed.sequences * done, real_pairs)
        if passed.source is not None:
            self._pass(f"{prefix}{SOURCE}", kinds, passed.source)
            pairs = zip(lengths, passed.source.lengths, strict=True)
            done = places * passed.source.positions
            self._add(f"{prefix}{CROSS_PAIR}", done, sum(length * read for length, read in pairs))

    def _add(self, unit: str, done: int, real: int | None = None) -> None:
        if self._stage is None:
            return
        amounts = self._amounts.setdefault(self._stage, {})
        counts = amounts.setdefault((unit, torch.is_grad_enabled()), [0, 0])
        counts[0] += done
        if not self._is_idle:
            counts[1] += done if real is None else real


class SeenPairs(NamedTuple):
    """Which keys queries see."""

    window: int | None = None
    part: SparsePart | None = None

    def pairs(
        self, lengths: Sequence[int], positions: int, *, causal: bool, earlier: int = 0
    ) -> tuple[int, int]:
        """Return how many pairs are computed of a text with padding, and seen in all texts."""
        if self.part is not None:
            return self.part.pairs_computed(positions), sum(map(self.part.pairs_seen, lengths))
        seen = pairs_seen(lengths, causal=causal, window=self.window, earlier=earlier)
        return positions * (positions + earlier), seen


def kinds_of_pairs(shape: BackboneShape) -> dict[str, SeenPairs]:
    """Return the units that are pairs in the blocks of this shape."""
    kinds = {part.name: SeenPairs(part=part) for parts in sparse_parts(shape) for part in parts}
    if not kinds:
        kinds[PAIR] = SeenPairs()
    if any(shape.has_window):
        kinds[NEAR_PAIR] = SeenPairs(shape.window)
    return kinds


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
    return all_seen - sum(keys * (keys + 1) for keys in beyond) // (2 if causal else 1)
