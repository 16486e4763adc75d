"""Which heads, blocks, sub-layers and units a model's answers depend on.

Legend: N examples, L places of blocks, H heads, B examples of a batch, S sequences.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transfer_cli.analysis.analysis import Analysis, Subject, check_task, json_lines
from transfer_cli.batch import Batch, batch_size, to_device, with_facts
from transfer_cli.data.labelled import INPUT
from transfer_cli.data.split import Split, subsample
from transfer_cli.engine.evaluation import Scores, evaluate, evaluation_noise, index_batches
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import ConfigError, NotFiniteError, at_least, between
from transfer_cli.metrics import Metric, headlines_first
from transfer_cli.model.probes import head_ones, set_gates, zero_unit
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective, declared_metrics
from transfer_cli.objectives.replaced_tokens import ReplacedTokens
from transfer_cli.progress import Advance, progress
from transfer_cli.reports.finding import Chart, Finding, FindingTable, Lines, Matrix
from transfer_cli.seeds import derive


def head_gradients(
    model: TransferModel, objective: Objective, split: Split, *, batch: int, precision: Precision
) -> npt.NDArray[np.float64]:
    """Return d loss / d factor of each head at 1, for each scored example, `[N, L, H]`.

    Source: Michel et al. 2019.

    The loss is the sum over an example's targets. One backward pass does for a batch: each example
    has factors of its own, which no other one's loss depends on.
    """
    rows, gradients = [], []
    batches = index_batches(split.data, split.order, batch)
    with progress("gradients", len(batches), "batches") as more:
        for indices in batches:
            prepared = objective.prepare(split.data.batch(indices), evaluation_noise())
            view = to_device(with_facts(prepared), precision.device)
            with precision.context():
                gradient_LBH = _batch_gradients(model, objective, view)
            gradients.append(gradient_LBH.transpose(0, 1).double().cpu().numpy())
            rows.append(indices)
            more(1)
    gradient_NLH, row_N = np.concatenate(gradients), np.concatenate(rows)
    if split.example_of is None:
        return gradient_NLH
    # Windows of one example, whose losses add up.
    examples, place_N = np.unique(split.example_of[row_N], return_inverse=True)
    summed = np.zeros((len(examples), *gradient_NLH.shape[1:]))
    np.add.at(summed, place_N, gradient_NLH)
    return summed


def _batch_gradients(model: TransferModel, objective: Objective, view: Batch) -> Tensor:
    shape, device = model.backbone.shape, view["tokens"].device
    examples, sequences = batch_size(view), view["mask"].flatten(0, -2).shape[0]
    factors_LBH = torch.ones(shape.depth, examples, shape.heads, device=device, requires_grad=True)
    factors_LSH = factors_LBH.repeat_interleave(sequences // examples, dim=1)

    def summed(called: TransferModel) -> Tensor:
        encoded = Encoding(called, view)
        with set_gates(called.backbone, factors_LSH):
            _ = encoded.states
        # Outside: what a dialog says is generated from fewer sequences.
        return objective.metric_sums(called, view, encoded)["loss"]

    loss = model(summed)
    gradient_LBH: Tensor = torch.autograd.grad(loss, factors_LBH)[0]
    return gradient_LBH


def head_importance(gradient_NLH: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean of the absolute gradients by head, `[L, H]`; each block's has norm 1.

    The absolute value is that of each example: gradients of a batch's loss would cancel out.
    Blocks are normalised as in Michel et al. (2019, section 4.1); one without gradients stays 0.
    """
    mean_LH = np.abs(gradient_NLH).mean(0)
    norm_L1 = np.linalg.norm(mean_LH, axis=1, keepdims=True)
    importance_LH: npt.NDArray[np.float64] = mean_LH / np.where(norm_L1 > 0, norm_L1, 1.0)
    return importance_LH


def split_to_score(subject: Subject, most: int | None) -> Split:
    """Return the split that was asked for, or `most` of its examples, evenly spread."""
    if subject.objective.task is not None and tuple(subject.material.names) == (INPUT,):
        raise ConfigError(
            "input: texts of a file have no answers to judge a model by; name labelled data (data=)"
        )
    if isinstance(subject.objective, ReplacedTokens):
        raise ConfigError(
            f"run: {subject.opened.path} was trained on tokens that a generator replaces, which is "
            "no part of the model; adapt it to a task (transfer finetune), and ask that run"
        )
    check_task(subject)
    split = subject.split
    return split if most is None else subsample(split, most)


def evaluate_subject(subject: Subject, split: Split) -> Scores:
    """Return what `transfer evaluate` measures on a split."""
    return evaluate(
        subject.model, subject.objective, split, batch=subject.batch, precision=subject.precision
    )


Kind = Literal["heads", "blocks", "attention", "feed_forward", "embeddings", "units"]
"""Of a part that is left out: a head, a block or one of its sub-layers, or a single number of the
embeddings or of the states behind each block (Li et al. 2016)."""

UNIT_KINDS: tuple[Kind, ...] = ("embeddings", "units")
"""Of these there are as many as states are wide, too many for the JSON: they have a file."""

Entry = dict[str, Any]

_NAMES = {"heads": "head", "blocks": "block", "feed_forward": "feed-forward"}

STEPS = 10
"""Of the pruning curve: a tenth of the heads each."""

_KEEPS_NORMS = ("post", "tutorial")
"""Residual forms whose blocks normalise the stream itself."""


@dataclass(frozen=True)
class Importance(Analysis):
    """Parts left out, heads by gradients, a pruning curve; see `conf/analysis/importance.yaml`.

    Without its update the residual stream passes a block or sub-layer; norms of the stream stay. A
    head without its values still leaves the bias of the output projection. A unit is 0 in the state
    of each token. The curve leaves out a tenth more heads each time, the least important first, by
    gradients (Michel et al. 2019, section 4).
    """

    most: int | None = 1000
    left_out: Sequence[Kind] = ("heads", "blocks", "attention", "feed_forward")
    prune: bool = True
    random_orders: int = 3

    def __post_init__(self) -> None:
        if self.most is not None:
            at_least("most", self.most, 1)
        between("random_orders", self.random_orders, 0, 1000)

    def __call__(self, subject: Subject) -> Finding:
        split = split_to_score(subject, self.most)
        whole = evaluate_subject(subject, split).measures
        declared = headlines_first(declared_metrics({"main": subject.objective}))
        metric = next(candidate for candidate in declared if candidate.name in whole)
        if not math.isfinite(whole[metric.name]):
            raise NotFiniteError(f"{split.name}: {metric.name}")
        # Of vectors that are compared, the squared error stands for it.
        losses = ("loss", *(own.name for own in subject.objective.declared_metrics()))
        loss = next(name for name in losses if name in whole)
        scorer = Scorer(subject, split, metric, loss, whole)
        gradients = head_gradients(
            subject.model, subject.objective, split,
            batch=subject.batch, precision=subject.precision,
        )  # fmt: skip
        importance = head_importance(gradients)
        places = list(_parts(subject, self.left_out))
        entries: dict[Kind, list[Entry]] = {kind: [] for kind in self.left_out}
        with progress("leaving out", len(places), "parts") as more:
            for kind, place in places:
                entries[kind].append({**place, **scorer.without(kind, **place)})
                more(1)
        curve = self._pruning_curve(scorer, importance) if self.prune else []
        return _finding(scorer, np.abs(gradients).mean(0), importance, entries, curve)

    def _pruning_curve(self, scorer: "Scorer", importance: npt.NDArray[np.float64]) -> list[Entry]:
        heads = importance.size
        orders = [np.argsort(importance.ravel(), kind="stable")]
        for number in range(self.random_orders):
            seed = derive(scorer.subject.seed, "importance", number)
            orders.append(np.random.default_rng(seed).permutation(heads))
        counts = list(dict.fromkeys(round(step * heads / STEPS) for step in range(STEPS + 1)))
        with progress("pruning", len(counts) * len(orders), "scores") as more:
            return [_pruning_point(scorer, count, orders, more) for count in counts]


def _parts(subject: Subject, kinds: Sequence[Kind]) -> Iterator[tuple[Kind, dict[str, int]]]:
    shape = subject.model.backbone.shape
    if "embeddings" in kinds:
        yield from (("embeddings", {"unit": unit}) for unit in range(shape.embedding_size))
    for layer in range(subject.depth):
        for kind in kinds:
            if kind == "heads":
                yield from ((kind, {"layer": layer, "head": head}) for head in range(shape.heads))
            elif kind == "units":
                yield from ((kind, {"layer": layer, "unit": unit}) for unit in range(shape.width))
            elif kind != "embeddings":
                yield kind, {"layer": layer}


@dataclass(frozen=True)
class Scorer:
    """Scores the model without some of its parts.

    Args:
        loss: What the loss is called among the measures.
    """

    subject: Subject
    split: Split
    metric: Metric
    loss: str
    whole: Mapping[str, float]

    def without(
        self, kind: Kind, *, layer: int = 0, head: int | None = None, unit: int | None = None
    ) -> dict[str, float | None]:
        """Return measure and loss of the whole model, minus those without a part."""
        backbone = self.subject.model.backbone
        if unit is None:
            heads = head_ones(backbone)
            if head is not None:
                heads[layer, head] = 0
            part = set_gates(
                backbone, heads,
                without_attention={layer} if kind in ("blocks", "attention") else frozenset(),
                without_feed_forward={layer} if kind in ("blocks", "feed_forward") else frozenset(),
            )  # fmt: skip
        else:
            part = zero_unit(backbone, unit, None if kind == "embeddings" else layer)
        with part:
            measures = evaluate_subject(self.subject, self.split).measures
        names = {"measure": self.metric.name, "loss": self.loss}
        return {
            key: _finite(self.whole.get(name, math.nan) - measures.get(name, math.nan))
            for key, name in names.items()
        }

    def without_heads(self, numbers: npt.NDArray[np.int64]) -> Mapping[str, float]:
        """Return the measures without some heads, numbered through all blocks."""
        heads = head_ones(self.subject.model.backbone)
        heads.view(-1)[torch.from_numpy(numbers)] = 0
        with set_gates(self.subject.model.backbone, heads):
            return evaluate_subject(self.subject, self.split).measures


def _pruning_point(
    scorer: Scorer, count: int, orders: Sequence[npt.NDArray[np.int64]], more: Advance
) -> Entry:
    """Return the scores without the first `count` heads of each order; all orders end alike."""
    is_end = count in (0, len(orders[0]))
    scores = [scorer.without_heads(order[:count]) for order in (orders[:1] if is_end else orders)]
    scores += scores[:1] * (len(orders) - len(scores))
    more(len(orders))
    # A correlation is none where all answers are equal.
    measures = [_finite(score.get(scorer.metric.name, math.nan)) for score in scores]
    losses = [_finite(score[scorer.loss]) for score in scores]
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
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _part_name(kind: Kind, entry: Entry) -> str:
    number = ".".join(str(entry[key]) for key in ("layer", "head") if key in entry)
    return f"{_NAMES.get(kind, kind)} {number}"


def _finding(
    scorer: Scorer,
    gradient: npt.NDArray[np.float64],
    importance: npt.NDArray[np.float64],
    entries: Mapping[Kind, list[Entry]],
    curve: Sequence[Entry],
) -> Finding:
    measure, loss, counts = scorer.metric.name, scorer.loss, scorer.split.counts()
    residual = scorer.subject.model.backbone.shape.residual
    norms = f" The norms of residual={residual} stay." if residual in _KEEPS_NORMS else ""
    better = "higher" if scorer.metric.higher_is_better else "lower"
    units = [entry for kind in UNIT_KINDS for entry in entries.get(kind, [])]
    parts = [
        [_part_name(kind, entry), entry["measure"], entry["loss"]]
        for kind, of_kind in entries.items()
        for entry in of_kind
        if kind not in UNIT_KINDS
    ]
    # Those first without which the loss rises most.
    parts.sort(key=lambda row: -math.inf if row[2] is None else row[2])
    columns = ["% of heads left out", measure, f"{measure}, in random order"]
    pruned = [[round(100 * point["share"]), point["measure"], point["random"]] for point in curve]
    return Finding(
        "Importance of heads and blocks",
        f"The table has {measure} ({better} is better) and {loss} of the model, minus those "
        f"without the part; a part whose {loss} is below 0 there is needed most. Importance of "
        f"heads is the mean over examples of the absolute derivative of the {loss} by a factor of "
        f"the head, divided by the l2 norm of its block.{norms}",
        {
            "split": scorer.split.name, counts["unit"]: counts["scored"],
            measure: scorer.whole[measure], loss: scorer.whole[loss],
        },
        [
            FindingTable(["without", f"{measure}, difference", f"{loss}, difference"], parts),
            FindingTable(columns, pruned, "Without several heads, the least important first"),
            *_unit_tables(units),
        ],
        dict(_charts(measure, importance, entries, curve)),
        data={
            "measure": measure,
            "higher_is_better": scorer.metric.higher_is_better,
            "heads": importance.tolist(),
            "gradient": gradient.tolist(),
            "left_out": {kind: entries[kind] for kind in entries if kind not in UNIT_KINDS},
            "pruning": curve,
        },
        files={"units.jsonl": json_lines(units)} if units else {},
    )  # fmt: skip


def _unit_tables(units: Sequence[Entry]) -> Iterator[FindingTable]:
    """Yield the table of the units without which the loss rises most, by where they are."""
    falls = defaultdict(list)
    for entry in units:
        fall = -math.inf if entry["loss"] is None else entry["loss"]
        falls[entry.get("layer")].append((fall, entry["unit"]))
    rows: list[list[Any]] = []
    named = 5  # of each block
    for layer, of_layer in falls.items():
        most = ", ".join(f"{unit} ({-fall:.3g})" for fall, unit in sorted(of_layer)[:named])
        of = "embeddings" if layer is None else f"block {layer}"
        rows.append([of, most, -float(np.median([fall for fall, _ in of_layer]))])
    if rows:
        columns = ["of", "needed most (and how far the loss rises without it)", "median of all"]
        yield FindingTable(columns, rows, "Without a single unit")


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
