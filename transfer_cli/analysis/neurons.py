"""What single feed-forward units respond to.

Legend: N tokens, F units, P properties of tokens, K contexts of a unit.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transfer_cli.analysis.analysis import Analysis, Subject
from transfer_cli.analysis.unit_sums import (
    PropertySums,
    TokenProperties,
    UnitSums,
    contexts_of,
)
from transfer_cli.batch import Batch
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, DataError, at_least, between
from transfer_cli.model.probes import units_by_place
from transfer_cli.objectives.base import Encoding
from transfer_cli.report.finding import Finding, FindingTable

_MOST_JSON = 600_000
"""Characters of the units in the JSON; they lose contexts until they fit."""

_MOST_CHARACTERS = 160
"""Of the text on each side of a token."""

_SHOWN = 4
"""Contexts of a unit in a table."""

Unit = tuple[int, int]
"""The number of a block, and that of a unit in it."""


@dataclass(frozen=True)
class Neurons(Analysis):
    """Means, top contexts and correlations of the units between the two layers of feed-forward.

    A unit is what the second layer reads: after the activation, of gated ones the product with its
    gate (`model.probes.units_by_place`). Special tokens around texts do not count.

    Args:
        blocks: Their numbers, from 0; None: the first, the middle and the last.
        contexts: How many of each unit are kept: those where it is highest.
        beside: Tokens on each side of a context.
        most: Tokens that are read, about; rows are evenly spread over the data.
        shown: How many units a page shows of each property: those of the largest correlation.
    """

    blocks: Sequence[int] | None = None
    contexts: int = 20
    beside: int = 8
    most: int = 100_000
    shown: int = 5

    def __post_init__(self) -> None:
        # Contexts of all units are in memory.
        between("contexts", self.contexts, 1, 1000)
        between("beside", self.beside, 0, 100)
        at_least("most", self.most, 1)
        at_least("shown", self.shown, 1)

    def __call__(self, subject: Subject) -> Finding:
        """See `Analysis`."""
        chosen = self._chosen(subject.depth)
        split, tokenizer = subject.split, subject.tokenizer
        rows = subject.rows_of(split, self.most)
        has_labels = "label" in split.data.batch(rows[:1])
        task = subject.material.task
        properties = TokenProperties(tokenizer, task.labels if task and has_labels else ())
        unit_sums = {block: UnitSums(self.contexts) for block in chosen}
        sums = PropertySums()
        for _, batch in subject.read(split, rows):
            _add(subject, batch, properties, sums, unit_sums, self.beside)
        if sums.count < 2:
            raise DataError("data: there are too few tokens to look at units; show it more text")
        units = _Units(tokenizer, properties.names, sums, unit_sums)
        best = list(units.best(self.shown))
        properties_of: dict[str, list[dict[str, Any]]] = {}
        for name, (block, unit), r in best:
            entry = {"block": block, "unit": unit, "correlation": r}
            properties_of.setdefault(name, []).append(entry)
        shown = {unit: units.described(unit) for unit in sorted({unit for _, unit, _ in best})}
        contexts = [
            [name, *unit, *(context[key] for key in ("value", "before", "token", "after"))]
            for name, unit, _ in best
            for context in shown[unit]["contexts"][:_SHOWN]
        ]
        summary = (
            f"{units.count_units:,} feed-forward units of blocks "
            f"{', '.join(map(str, chosen))} over {sums.count:,} tokens of {split.name}; "
            f"{units.count_silent:,} are never above 0. For each property of tokens, those that "
            "follow it most; all are in neurons-units.jsonl. That a unit goes with a property does "
            "not say that the model uses it."
        )
        every = "".join(
            json.dumps(units.described(unit), ensure_ascii=False) + "\n" for unit in units.all()
        )
        return Finding(
            "Units of the feed-forward layers",
            summary,
            {
                "units": units.count_units,
                "never above 0": units.count_silent,
                "tokens": sums.count,
            },
            [
                FindingTable(
                    ["property", "block", "unit", "correlation", "mean", "share above 0"],
                    [[name, *unit, r, *units.activity(unit)] for name, unit, r in best],
                    "Units that follow a property",
                ),
                FindingTable(
                    ["property", "block", "unit", "value", "before", "token", "after"],
                    contexts,
                    "Where these units are highest",
                ),
            ],
            notes=[] if best else ["No property of these tokens varies."],
            data={
                "blocks": chosen,
                "properties": properties_of,
                "units": _fitting(list(shown.values())),
            },
            files={"units.jsonl": every.encode()},
        )

    def _chosen(self, depth: int) -> list[int]:
        if self.blocks is None:
            return sorted({0, depth // 2, depth - 1})
        wrong = [block for block in self.blocks if type(block) is not int or not 0 <= block < depth]
        if wrong or not self.blocks:
            raise ConfigError(
                f"analysis.neurons.blocks: the model has the blocks 0 to {depth - 1}, got "
                f"{wrong[0] if wrong else 'none'}"
            )
        return sorted(set(self.blocks))


def _add(
    subject: Subject,
    batch: Batch,
    properties: TokenProperties,
    sums: PropertySums,
    units: Mapping[int, UnitSums],
    beside: int,
) -> None:
    """Pass a batch through the model, and add what its units say of tokens of texts."""
    on_host = {name: value.cpu() for name, value in batch.items()}
    is_text_N = properties.is_text(on_host)
    properties_NP = properties.of_batch(on_host)[is_text_N]
    context_NW = contexts_of(on_host, beside)[is_text_N]
    mask_N = batch["mask"].flatten()
    sums.add(properties_NP)

    def look(place: int, values: Tensor) -> None:
        if place not in units:
            return
        found_NF = values.flatten(0, 1)
        # A packed batch has no padding.
        real_NF = found_NF if len(found_NF) == len(is_text_N) else found_NF[mask_N]
        units[place].add(real_NF.float().cpu()[is_text_N], properties_NP, context_NW)

    with units_by_place(subject.model.backbone, look):
        _ = Encoding(subject.model, batch).states


class _Units:
    """What is known of all units."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        names: Sequence[str],
        sums: PropertySums,
        units: Mapping[int, UnitSums],
    ) -> None:
        self._tokenizer, self._names, self._units = tokenizer, names, units
        count = sums.count
        self._mean = {at: block.means(count).tolist() for at, block in units.items()}
        self._share = {at: block.positive_shares(count).tolist() for at, block in units.items()}
        self._follows = {at: block.correlations(sums) for at, block in units.items()}
        self.count_units = sum(map(len, self._mean.values()))
        self.count_silent = sum(share == 0 for shares in self._share.values() for share in shares)

    def all(self) -> Iterator[Unit]:
        """Yield every unit."""
        for block, means in self._mean.items():
            yield from ((block, unit) for unit in range(len(means)))

    def best(self, count: int) -> Iterator[tuple[str, Unit, float]]:
        """Yield each property with the units that follow it most, and their correlations."""
        every = list(self.all())
        for number, name in enumerate(self._names):
            follows = torch.cat([own_PF[number] for own_PF in self._follows.values()])
            strength = follows.abs().nan_to_num(-1.0)
            for at in strength.argsort(descending=True, stable=True)[:count].tolist():
                if strength[at] >= 0:
                    yield name, every[at], round(float(follows[at]), 4)

    def activity(self, unit: Unit) -> tuple[float, float]:
        """Return its mean, and the share of tokens at which it is above 0."""
        block, number = unit
        return round(self._mean[block][number], 5), round(self._share[block][number], 5)

    def described(self, unit: Unit) -> dict[str, Any]:
        """Return all that is known of a unit, as plain values."""
        block, number = unit
        follows = zip(self._names, self._follows[block][:, number].tolist(), strict=True)
        mean, share = self.activity(unit)
        return {
            "block": block,
            "unit": number,
            "mean": mean,
            "share_above_0": share,
            "correlations": {name: round(r, 4) for name, r in follows if math.isfinite(r)},
            "contexts": list(self._contexts(unit)),
        }

    def _contexts(self, unit: Unit) -> Iterator[dict[str, Any]]:
        block, number = unit
        sums = self._units[block]
        values, contexts = sums.top_KF[:, number].tolist(), sums.context_KFW[:, number].tolist()
        for value, tokens in zip(values, contexts, strict=True):
            middle = len(tokens) // 2
            before = [token for token in tokens[:middle] if token >= 0]
            after = [token for token in tokens[middle + 1 :] if token >= 0]
            yield {
                "value": round(value, 4),
                "before": self._tokenizer.decode(before)[-_MOST_CHARACTERS:],
                "token": self._tokenizer.pieces(tokens[middle : middle + 1])[0],
                "after": self._tokenizer.decode(after)[:_MOST_CHARACTERS],
            }


def _fitting(units: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return units with as many contexts as there is room for in the JSON."""
    fitting, kept = list(units), max((len(unit["contexts"]) for unit in units), default=0)
    while kept > 1 and len(json.dumps(fitting)) > _MOST_JSON:
        kept //= 2
        fitting = [unit | {"contexts": unit["contexts"][:kept]} for unit in units]
    return fitting
