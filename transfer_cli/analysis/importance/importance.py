"""Which heads, blocks and sub-layers a model's answers depend on.

Legend: L places of blocks, H heads.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transfer_cli.analysis.analysis import Analysis, Subject
from transfer_cli.analysis.importance.head_gradients import head_gradients, importance_of
from transfer_cli.analysis.importance.judged_split import judged_split, main_measure, scores_of
from transfer_cli.data.split import Split
from transfer_cli.errors import NotFiniteError, at_least, between, one_of
from transfer_cli.metrics import Metric
from transfer_cli.model.probes import all_heads, gated
from transfer_cli.progress import More, progress
from transfer_cli.report.finding import Chart, Finding, FindingTable, Lines, Matrix
from transfer_cli.seeds import derive

Kind = Literal["heads", "blocks", "attention", "feed_forward"]

STEPS = 10
"""Of the pruning curve: a tenth of the heads each."""

_KEEPS_NORMS = ("post", "tutorial")
"""Residual forms whose blocks normalise the stream itself."""

Entry = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """What is left out: a head, or a block or one of its sub-layers.

    Args:
        kind: Its kind.
        layer: The place of its block, from 0.
        head: The number of the head, from 0; None: it is none.
    """

    kind: Kind
    layer: int
    head: int | None = None

    @property
    def place(self) -> dict[str, int]:
        """Its place, as the JSON says it."""
        return {"layer": self.layer} | ({} if self.head is None else {"head": self.head})

    def __str__(self) -> str:
        name = {"heads": "head", "blocks": "block", "feed_forward": "feed-forward"}
        number = self.layer if self.head is None else f"{self.layer}.{self.head}"
        return f"{name.get(self.kind, self.kind)} {number}"


@dataclass(frozen=True)
class Importance(Analysis):
    """Heads, blocks and sub-layers left out one by one, heads by gradients, and a pruning curve.

    Without its update the residual stream passes a block or sub-layer; norms of the stream stay. A
    head without its values still leaves the bias of the output projection.

    Args:
        most: Examples that are scored at most, evenly spread; None: all.
        left_out: The kinds of parts that are left out one at a time.
        prune: Whether heads are left out together, a tenth more each time: the least important
            first, by gradients (Michel et al. 2019, section 4).
        random_orders: Orders drawn at random that this is compared with.
    """

    most: int | None = 1000
    left_out: Sequence[Kind] = get_args(Kind)
    prune: bool = True
    random_orders: int = 3

    def __post_init__(self) -> None:
        if self.most is not None:
            at_least("most", self.most, 1)
        for kind in self.left_out:
            one_of("left_out", kind, get_args(Kind), ValueError)
        between("random_orders", self.random_orders, 0, 1000)

    def __call__(self, subject: Subject) -> Finding:
        """See `Analysis`."""
        split = judged_split(subject, self.most)
        base = scores_of(subject, split)
        metric = main_measure(subject, base)
        if not math.isfinite(base.measures[metric.name]):
            raise NotFiniteError(f"{split.name}: {metric.name}")
        scorer = Scorer(subject, split, metric, base.measures)
        gradients = head_gradients(
            subject.model, subject.objective, split,
            batch=subject.batch, precision=subject.precision,
        )  # fmt: skip
        importance = importance_of(gradients)
        parts = list(_parts(subject, self.left_out))
        with progress("leaving out", len(parts), "parts") as more:
            entries: dict[Kind, list[Entry]] = {kind: [] for kind in self.left_out}
            for part in parts:
                entries[part.kind].append(part.place | scorer.differences(part))
                more(1)
        curve = self._curve(scorer, importance) if self.prune else []
        return _finding(scorer, np.abs(gradients).mean(0), importance, entries, curve)

    def _curve(self, scorer: "Scorer", importance: npt.NDArray[np.float64]) -> list[Entry]:
        """Return the scores without ever more heads."""
        heads = importance.size
        orders = [np.argsort(importance.ravel(), kind="stable")]
        for number in range(self.random_orders):
            seed = derive(scorer.subject.seed, "importance", number)
            orders.append(np.random.default_rng(seed).permutation(heads))
        counts = list(dict.fromkeys(round(step * heads / STEPS) for step in range(STEPS + 1)))
        with progress("pruning", len(counts) * len(orders), "scores") as more:
            return [_point(scorer, count, orders, more) for count in counts]


@dataclass(frozen=True)
class Scorer:
    """Scores the model without some of its parts.

    Args:
        subject: The model.
        split: What it is scored on.
        metric: The measure that it is judged by.
        whole: The measures of the model with all its parts.
    """

    subject: Subject
    split: Split
    metric: Metric
    whole: Mapping[str, float]

    def differences(self, part: Part) -> dict[str, float | None]:
        """Return measure and loss of the whole model, minus those without a part."""
        heads = all_heads(self.subject.model.backbone)
        if part.head is not None:
            heads[part.layer, part.head] = 0
        found = self.measures(
            heads,
            frozenset({part.layer} if part.kind in ("blocks", "attention") else ()),
            frozenset({part.layer} if part.kind in ("blocks", "feed_forward") else ()),
        )
        return {
            "measure": _finite(self.whole[self.metric.name] - found[self.metric.name]),
            "loss": _finite(self.whole["loss"] - found["loss"]),
        }

    def without_heads(self, numbers: npt.NDArray[np.int64]) -> Mapping[str, float]:
        """Return the measures without some heads, numbered through all blocks."""
        heads = all_heads(self.subject.model.backbone)
        heads.view(-1)[torch.from_numpy(numbers)] = 0
        return self.measures(heads)

    def measures(
        self,
        heads: Tensor,
        without_attention: frozenset[int] = frozenset(),
        without_feed_forward: frozenset[int] = frozenset(),
    ) -> Mapping[str, float]:
        """Return the measures of the model with these factors."""
        with gated(
            self.subject.model.backbone, heads,
            without_attention=without_attention, without_feed_forward=without_feed_forward,
        ):  # fmt: skip
            return scores_of(self.subject, self.split).measures


def _parts(subject: Subject, kinds: Sequence[Kind]) -> Iterator[Part]:
    for layer in range(subject.depth):
        for kind in kinds:
            if kind == "heads":
                heads = range(subject.model.backbone.shape.heads)
                yield from (Part(kind, layer, head) for head in heads)
            else:
                yield Part(kind, layer)


def _point(
    scorer: Scorer, count: int, orders: Sequence[npt.NDArray[np.int64]], more: More
) -> Entry:
    """Return the scores without the first `count` heads of each order; all orders end alike."""
    is_end = count in (0, len(orders[0]))
    found = [scorer.without_heads(order[:count]) for order in (orders[:1] if is_end else orders)]
    found += found[:1] * (len(orders) - len(found))
    more(len(orders))
    measures = [_finite(each[scorer.metric.name]) for each in found]
    losses = [_finite(each["loss"]) for each in found]
    return {
        "share": count / len(orders[0]),
        "heads": count,
        "measure": measures[0],
        "loss": losses[0],
        "random": _mean(measures[1:]),
        "random_loss": _mean(losses[1:]),
        "random_measures": measures[1:],
    }


def _finite(value: float) -> float | None:
    """Return a number; None where a perplexity is too large for one."""
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float | None]) -> float | None:
    there = [each for each in values if each is not None]
    return float(np.mean(there)) if there and len(there) == len(values) else None


def _finding(
    scorer: Scorer,
    gradient: npt.NDArray[np.float64],
    importance: npt.NDArray[np.float64],
    entries: Mapping[Kind, list[Entry]],
    curve: Sequence[Entry],
) -> Finding:
    measure, counts = scorer.metric.name, scorer.split.counts()
    return Finding(
        "Importance of heads and blocks",
        _summary(scorer),
        {
            "split": scorer.split.name, counts["unit"]: counts["scored"],
            measure: scorer.whole[measure], "loss": scorer.whole["loss"],
        },
        [_table(measure, entries), _pruning_table(measure, curve)],
        dict(_charts(measure, importance, entries, curve)),
        data={
            "measure": measure,
            "higher_is_better": scorer.metric.higher_is_better,
            "heads": importance.tolist(),
            "gradient": gradient.tolist(),
            "left_out": entries,
            "pruning": curve,
        },
    )  # fmt: skip


def _summary(scorer: Scorer) -> str:
    residual = scorer.subject.model.backbone.shape.residual
    norms = f" The norms of residual={residual} stay." if residual in _KEEPS_NORMS else ""
    better = "higher" if scorer.metric.higher_is_better else "lower"
    return (
        f"The table has {scorer.metric.name} ({better} is better) and loss of the model, minus "
        "those without the part; a part whose loss is below 0 there is needed most. Importance of "
        "heads is the mean over examples of the absolute derivative of the loss by a factor of the "
        f"head, divided by the l2 norm of its block.{norms}"
    )


def _table(measure: str, entries: Mapping[Kind, list[Entry]]) -> FindingTable:
    """Return the parts that were left out, those first without which the loss rises most."""
    rows = [
        [str(Part(kind, entry["layer"], entry.get("head"))), entry["measure"], entry["loss"]]
        for kind, of_kind in entries.items()
        for entry in of_kind
    ]
    rows.sort(key=lambda row: -math.inf if row[2] is None else row[2])
    return FindingTable(["without", f"{measure}, difference", "loss, difference"], rows)


def _pruning_table(measure: str, curve: Sequence[Entry]) -> FindingTable:
    columns = ["% of heads left out", measure, f"{measure}, in random order"]
    rows = [[round(100 * point["share"]), point["measure"], point["random"]] for point in curve]
    return FindingTable(columns, rows, "Without several heads, the least important first")


def _charts(
    measure: str,
    importance: npt.NDArray[np.float64],
    entries: Mapping[Kind, list[Entry]],
    curve: Sequence[Entry],
) -> Iterator[tuple[str, Chart]]:
    yield "importance_by_head", Matrix(importance.tolist(), "block", "head")
    if entries.get("heads"):
        losses = [entry["loss"] for entry in entries["heads"]]
        rises = [math.inf if loss is None else -loss for loss in losses]
        by_block = np.reshape(rises, importance.shape).tolist()
        yield "rise_of_loss_without_head", Matrix(by_block, "block", "head")
    if curve:
        random = "in random order"
        series = {"least important first": [point["measure"] for point in curve]}
        if curve[0]["random"] is not None:
            series[random] = [point["random"] for point in curve]
        shares = [100 * point["share"] for point in curve]
        yield "pruning", Lines(series, shares, "% of heads left out", measure, [random])
