"""What single feed-forward units respond to: sums, and the contexts of the largest values.

Properties of tokens are seen without a model.

Legend: S sequences, T positions, V vocabulary, N tokens, F units, P properties of tokens,
K contexts of a unit, W tokens of a context.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.analysis.analysis import MOST_JSON, Analysis, Subject, json_lines
from transfer_cli.batch import Batch
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, DataError, at_least, between
from transfer_cli.model.probes import watch_units
from transfer_cli.objectives.base import Encoding
from transfer_cli.reports.finding import Finding, FindingTable

MOST_LABELS = 60
"""With more, labels are no properties here."""

_MARKS = "\u0120\u2581#"
"""By which pieces say whether they begin a word."""


class TokenProperties:
    """Position, kind of token, and the class of the text.

    Args:
        labels: Names of the classes; the batches have them as `label`.

    Attributes:
        names: Of the properties.
    """

    def __init__(self, tokenizer: Tokenizer, labels: Sequence[str]) -> None:
        kinds = {
            "starts a word": tokenizer.starts_word.tolist(),
            **{name: [] for name in ("capital", "number", "punctuation")},
        }
        for piece in tokenizer.pieces(range(tokenizer.size)):
            text = piece.lstrip(_MARKS) or piece
            kinds["capital"].append(text[:1].isupper())
            kinds["number"].append(text.isdigit())
            kinds["punctuation"].append(not any(letter.isalnum() for letter in text))
        self._kinds_VK = torch.tensor(list(kinds.values()), dtype=torch.float64).T
        self._labels = len(labels) if len(labels) <= MOST_LABELS else 0
        self.names = ["position", *kinds, *(f"label {name}" for name in labels[: self._labels])]
        # What makes a row of a text is not the text.
        around = {tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask, tokenizer.begin}
        self._is_text_V = torch.ones(tokenizer.size, dtype=torch.bool)
        self._is_text_V[[*(around - {None})]] = False

    def is_text(self, batch: Batch) -> Tensor:
        """Return which of the real tokens, row by row, are of texts."""
        return self._is_text_V[batch["tokens"].flatten(0, -2)[batch["mask"].flatten(0, -2)]]

    def property_values(self, batch: Batch) -> Tensor:
        """Return the properties of the real tokens, row by row, `[N, P]` in float64."""
        mask_ST, tokens_ST = batch["mask"].flatten(0, -2), batch["tokens"].flatten(0, -2)
        position_ST = (mask_ST.cumsum(1) - 1).double()
        parts = [position_ST[mask_ST][:, None], self._kinds_VK[tokens_ST[mask_ST]]]
        if self._labels:
            sequences = len(mask_ST) // len(batch["label"])
            label_ST = batch["label"].repeat_interleave(sequences)[:, None].expand_as(mask_ST)
            label_NC = F.one_hot(label_ST[mask_ST], self._labels)
            parts.append(label_NC.double())
        return torch.cat(parts, dim=1)


def contexts_of(batch: Batch, beside: int) -> Tensor:
    """Return each real token with `beside` on each side, `[N, 2 beside + 1]`; -1: there is none."""
    mask_ST = batch["mask"].flatten(0, -2)
    tokens_ST = batch["tokens"].flatten(0, -2).where(mask_ST, -1)
    padded = F.pad(tokens_ST, (beside, beside), value=-1)
    return padded.unfold(1, 2 * beside + 1, 1)[mask_ST].int()


class UnitSums:
    """Sums over tokens of a layer's units and of their properties, and each unit's top contexts."""

    def __init__(self, contexts: int) -> None:
        self.count, self._contexts = 0, contexts
        self._sum_F = self._square_F = self._positive_F = torch.zeros(())
        self._sum_P = self._square_P = self._product_PF = torch.zeros(())
        self.top_KF = torch.empty(0)
        """The highest values of each unit, from the highest on."""
        self.context_KFW = torch.empty(0)
        """Their contexts."""

    def add(self, units_NF: Tensor, properties_NP: Tensor, context_NW: Tensor) -> None:
        """Add tokens, with properties in float64."""
        self.count += len(units_NF)
        self._sum_P = self._sum_P + properties_NP.sum(0)
        self._square_P = self._square_P + properties_NP.square().sum(0)
        units_NF = units_NF.double()
        self._sum_F = self._sum_F + units_NF.sum(0)
        self._square_F = self._square_F + units_NF.square().sum(0)
        self._positive_F = self._positive_F + (units_NF > 0).sum(0)
        self._product_PF = self._product_PF + properties_NP.T @ units_NF
        self._keep_top(units_NF.float(), context_NW)

    def _keep_top(self, units_NF: Tensor, context_NW: Tensor) -> None:
        known = len(self.top_KF)
        if known:
            units_NF = torch.cat([self.top_KF, units_NF])
        self.top_KF, place_KF = units_NF.topk(min(self._contexts, len(units_NF)), dim=0)
        new_KFW = context_NW[(place_KF - known).clamp(min=0)]
        if known:
            index_KFW = place_KF.clamp(max=known - 1)[..., None].expand_as(new_KFW)
            old_KFW = self.context_KFW.gather(0, index_KFW)
            new_KFW = torch.where(place_KF[..., None] < known, old_KFW, new_KFW)
        self.context_KFW = new_KFW

    def means(self) -> Tensor:
        """Return the mean of each unit, `[F]`."""
        return self._sum_F / self.count

    def positive_shares(self) -> Tensor:
        """Return the share of tokens at which each unit is above 0, `[F]`."""
        return self._positive_F / self.count

    def correlations(self) -> Tensor:
        """Return Pearson's correlation with each property, `[P, F]`; NaN where one does not vary.

        With a property that a token has or has not, it is the point-biserial correlation.
        """
        count = self.count
        both_PF = count * self._product_PF - self._sum_P[:, None] * self._sum_F
        own_F = count * self._square_F - self._sum_F.square()
        its_P = count * self._square_P - self._sum_P.square()
        # What does not vary leaves rounding errors of sums.
        varies_F = own_F > 1e-12 * count * self._square_F
        varies_P = its_P > 1e-12 * count * self._square_P
        correlation_PF = both_PF / (own_F.clamp(min=0) * its_P.clamp(min=0)[:, None]).sqrt()
        return correlation_PF.where(varies_F & varies_P[:, None], torch.nan).clamp(-1, 1)


_MOST_CHARACTERS = 160
"""Of the text on each side of a token."""

_SHOWN = 4
"""Contexts of a unit in a table."""

Unit = tuple[int, int]
"""The number of a block, and that of a unit in it."""


@dataclass(frozen=True)
class Neurons(Analysis):
    """What units between both layers of feed-forward follow; see `conf/analysis/neurons.yaml`.

    A unit is what the second layer reads: after the activation, of gated ones the product with its
    gate (`model.probes.watch_units`). Special tokens around texts do not count.
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
        chosen = self._chosen_blocks(subject.depth)
        split, tokenizer = subject.split, subject.tokenizer
        rows = subject.rows_for_tokens(split, self.most)
        has_labels = "label" in split.data.batch(rows[:1])
        task = subject.material.task
        properties = TokenProperties(tokenizer, task.labels if task and has_labels else ())
        unit_sums = {block: UnitSums(self.contexts) for block in chosen}
        for _, batch in subject.read_batches(split, rows):
            _add_batch(subject, batch, properties, unit_sums, self.beside)
        count = unit_sums[chosen[0]].count
        if count < 2:
            raise DataError("data: there are too few tokens to look at units; show it more text")
        units = _UnitStatistics(tokenizer, properties.names, unit_sums)
        best = list(units.best(self.shown))
        properties_of: dict[str, list[dict[str, Any]]] = {}
        for name, (block, unit), r in best:
            entry = {"block": block, "unit": unit, "correlation": r}
            properties_of.setdefault(name, []).append(entry)
        shown = {unit: units.unit_record(unit) for unit in sorted({unit for _, unit, _ in best})}
        contexts = [
            [name, *unit, *(context[key] for key in ("value", "before", "token", "after"))]
            for name, unit, _ in best
            for context in shown[unit]["contexts"][:_SHOWN]
        ]
        summary = (
            f"{units.count_units:,} feed-forward units of blocks "
            f"{', '.join(map(str, chosen))} over {count:,} tokens of {split.name}; "
            f"{units.count_silent:,} are never above 0. For each property of tokens, those that "
            "follow it most; all are in neurons-units.jsonl. That a unit goes with a property does "
            "not say that the model uses it."
        )
        return Finding(
            "Units of the feed-forward layers",
            summary,
            {"units": units.count_units, "never above 0": units.count_silent, "tokens": count},
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
                "units": _with_fewer_contexts(list(shown.values())),
            },
            files={"units.jsonl": json_lines(map(units.unit_record, units.all()))},
        )

    def _chosen_blocks(self, depth: int) -> list[int]:
        if self.blocks is None:
            return sorted({0, depth // 2, depth - 1})
        wrong = [block for block in self.blocks if type(block) is not int or not 0 <= block < depth]
        if wrong or not self.blocks:
            raise ConfigError(
                f"analysis.neurons.blocks: the model has the blocks 0 to {depth - 1}, got "
                f"{wrong[0] if wrong else 'none'}"
            )
        return sorted(set(self.blocks))


def _add_batch(
    subject: Subject, batch: Batch, properties: TokenProperties, units: Mapping[int, UnitSums],
    beside: int,
) -> None:  # fmt: skip
    """Pass a batch through the model, and add what its units say of tokens of texts."""
    on_host = {name: value.cpu() for name, value in batch.items()}
    is_text_N = properties.is_text(on_host)
    properties_NP = properties.property_values(on_host)[is_text_N]
    context_NW = contexts_of(on_host, beside)[is_text_N]
    mask_N = batch["mask"].flatten()

    def add_units(place: int, values: Tensor) -> None:
        if place not in units:
            return
        rows_NF = values.flatten(0, 1)
        # A packed batch has no padding.
        real_NF = rows_NF if len(rows_NF) == len(is_text_N) else rows_NF[mask_N]
        units[place].add(real_NF.float().cpu()[is_text_N], properties_NP, context_NW)

    with watch_units(subject.model.backbone, add_units):
        _ = Encoding(subject.model, batch).states


class _UnitStatistics:
    def __init__(
        self, tokenizer: Tokenizer, names: Sequence[str], units: Mapping[int, UnitSums]
    ) -> None:
        self._tokenizer, self._names, self._units = tokenizer, names, units
        self._mean = {at: block.means().tolist() for at, block in units.items()}
        self._share = {at: block.positive_shares().tolist() for at, block in units.items()}
        self._correlations = {at: block.correlations() for at, block in units.items()}
        self.count_units = sum(map(len, self._mean.values()))
        self.count_silent = sum(share == 0 for shares in self._share.values() for share in shares)

    def all(self) -> Iterator[Unit]:
        """Yield every unit."""
        for block, means in self._mean.items():
            yield from ((block, unit) for unit in range(len(means)))

    def best(self, count: int) -> Iterator[tuple[str, Unit, float]]:
        """Yield each property with the units that follow it most, and their correlations."""
        records = list(self.all())
        for number, name in enumerate(self._names):
            follows = torch.cat([own_PF[number] for own_PF in self._correlations.values()])
            strength = follows.abs().nan_to_num(-1.0)
            for at in strength.argsort(descending=True, stable=True)[:count].tolist():
                if strength[at] >= 0:
                    yield name, records[at], round(float(follows[at]), 4)

    def activity(self, unit: Unit) -> tuple[float, float]:
        """Return its mean, and the share of tokens at which it is above 0."""
        block, number = unit
        return round(self._mean[block][number], 5), round(self._share[block][number], 5)

    def unit_record(self, unit: Unit) -> dict[str, Any]:
        """Return all that is known of a unit, as plain values."""
        block, number = unit
        follows = zip(self._names, self._correlations[block][:, number].tolist(), strict=True)
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


def _with_fewer_contexts(units: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return units with as many contexts as there is room for in the JSON."""
    fitting, kept = list(units), max((len(unit["contexts"]) for unit in units), default=0)
    while kept > 1 and len(json.dumps(fitting)) > MOST_JSON:
        kept //= 2
        fitting = [unit | {"contexts": unit["contexts"][:kept]} for unit in units]
    return fitting
