"""How alike two models are, layer by layer, and what moved between them.

They are shown the same things: tokens that both read alike, or texts.

Legend: L, M states of two models (layer 0 is that of the embeddings), N things, D width,
S sequences, T positions.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.analysis.analysis import Analysis, Numbers, Subject, evenly_spread
from transfer_cli.analysis.cka import MIN_VECTORS, cka
from transfer_cli.assembly.finished_run import open_for_analysis
from transfer_cli.batch import real_sequences
from transfer_cli.errors import ConfigError, DataError, at_least
from transfer_cli.model.added import Mergeable, added_parameters, merged_layers
from transfer_cli.model.attention import SelfAttention
from transfer_cli.model.block import FeedForward
from transfer_cli.model.norms import NORMS
from transfer_cli.model.pooling import Pooling, pool
from transfer_cli.model.transfer_model import TransferModel, layer_groups
from transfer_cli.objectives.base import Encoding
from transfer_cli.reports import formats
from transfer_cli.reports.finding import Chart, Finding, FindingTable, Lines, Matrix
from transfer_cli.runs.directory import CHECKPOINTS

Over = Literal["auto", "tokens", "texts"]


@dataclass(frozen=True)
class ComparedTokens:
    """Tokens drawn from what two models read alike.

    Args:
        rows: The rows of the split that are read.
        places: Of these, which tokens are compared, counted through all in the order of reading.
    """

    rows: Numbers
    places: Numbers

    def states(self, subject: Subject) -> Tensor:
        """Return `[L, N, D]` in float32, on the CPU."""
        parts, begun = list[Tensor](), 0
        for _, batch in subject.read_batches(subject.split, self.rows):
            states = Encoding(subject.model, batch).states
            real_N = batch["mask"].flatten().nonzero().squeeze(1)
            first, last = np.searchsorted(self.places, (begun, begun + len(real_N)))
            chosen = torch.from_numpy(self.places[first:last] - begun).to(real_N.device)
            at_N = real_N[chosen]
            parts.append(torch.stack([state.flatten(0, 1)[at_N].float().cpu() for state in states]))
            begun += len(real_N)
        return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class ComparedTexts:
    """Texts, by one vector each; of an example with several sequences each is a text.

    Args:
        examples: Their numbers in the split; of a long one its first window is read.
    """

    examples: Numbers
    pooling: Pooling

    def states(self, subject: Subject) -> Tensor:
        """Return `[L, N, D]` in float32, on the CPU."""
        parts, numbers = list[Tensor](), list[Tensor]()
        first_rows = _first_rows(subject)[self.examples]
        for rows, batch in subject.read_batches(subject.split, first_rows):
            states = Encoding(subject.model, batch).states
            mask_ST = batch["mask"].flatten(0, -2)
            there_S = real_sequences(batch)
            vectors = [pool(state, mask_ST, self.pooling)[there_S].float() for state in states]
            parts.append(torch.stack(vectors).cpu())
            of_S = torch.from_numpy(rows).repeat_interleave(len(mask_ST) // len(rows))
            numbers.append(of_S[there_S.cpu()])
        # Each model reads them from short to long, by its own tokens.
        return torch.cat(parts, dim=1)[:, torch.cat(numbers).argsort(stable=True)]


def choose_items(
    subject: Subject, other: Subject, over: Over, pooling: Pooling, most: int
) -> ComparedTokens | ComparedTexts:
    """Return what two models are compared by: at most so many tokens, or texts."""
    # Of so many tokens that are read one is compared, since neighbours say much the same.
    tokens_read = 4
    rows = subject.rows_for_tokens(subject.split, tokens_read * most)
    have_equal_tokens = _have_equal_tokens(subject, other, rows)
    if over == "tokens" and not have_equal_tokens:
        raise ConfigError(
            "analysis.similarity.over: the two models do not read these texts as the same tokens; "
            "compare texts (analysis.similarity.over=texts)"
        )
    if have_equal_tokens and over != "texts":
        batches = subject.batches_of_rows(subject.split, rows)
        total = sum(int(batch["mask"].sum()) for _, batch in batches)
        drawn = np.random.default_rng(subject.seed).permutation(total)[:most]
        return ComparedTokens(rows, np.sort(drawn))
    if subject.material.task is None and not have_equal_tokens:
        raise DataError(
            "data: this is running text, which each of the two models cuts by its own tokens; name "
            "labelled data (data=), or a file of texts (input=)"
        )
    return ComparedTexts(evenly_spread(len(_first_rows(subject)), most), pooling)


def _have_equal_tokens(subject: Subject, other: Subject, rows: Numbers) -> bool:
    if len(subject.split.data) != len(other.split.data):
        return False
    sides = (side.batches_of_rows(side.split, rows) for side in (subject, other))
    return all(
        np.array_equal(one, two) and torch.equal(batch["tokens"], other_batch["tokens"])
        for (one, batch), (two, other_batch) in zip(*sides, strict=True)
    )


def _first_rows(subject: Subject) -> Numbers:
    data = subject.split.data
    example_of: Numbers = getattr(data, "example_of", np.arange(len(data)))
    return np.unique(example_of, return_index=True)[1]


DECIMALS = 6

_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Similarity(Analysis):
    """CKA between all layers of two models, and how far the weights of each layer moved.

    For the options see `conf/analysis/similarity.yaml`.
    """

    needs_other: ClassVar[bool] = True

    over: Over = "auto"
    pooling: Pooling = "mean"
    most: int = 4000
    over_time: bool = False

    def __post_init__(self) -> None:
        at_least("most", self.most, MIN_VECTORS)

    def __call__(self, subject: Subject) -> Finding:
        other = subject.other
        if other is None:
            raise ConfigError("other: similarity compares two models; give other=RUN")
        checkpoints = _checkpoints(subject) if self.over_time else {}
        compared = choose_items(subject, other, self.over, self.pooling, self.most)
        own_LND, other_MND = compared.states(subject), compared.states(other)
        count = own_LND.shape[1]
        if count < MIN_VECTORS:
            raise DataError(
                f"data: fewer than {MIN_VECTORS} tokens or texts say nothing about how alike two "
                "models are; show them more, by input=FILE or data="
            )
        # Things for each dimension from which on the plain estimate of CKA is close enough.
        plain_from = 10
        debiased = count < plain_from * max(own_LND.shape[2], other_MND.shape[2])
        matrix = cka(own_LND, other_MND, debiased=debiased)
        moved = moved_weights(subject.model, other.model)
        data: dict[str, Any] = {
            "run": subject.opened.path,
            "other": other.opened.path,
            "over": "tokens" if isinstance(compared, ComparedTokens) else "texts",
            "split": subject.split.name,
            "count": count,
            "estimate": "debiased" if debiased else "plain",
            "cka": _as_json(matrix),
            "cosine": _cosines(own_LND, other_MND),
            "moved": [asdict(weights) for weights in moved],
        }
        for number, path in sorted(checkpoints.items()):
            # One at a time is in memory.
            opened = open_for_analysis(str(path), subject.precision, subject.opened.start.base)
            step = replace(subject, opened=opened)
            pairs = zip(compared.states(step), other_MND, strict=False)
            same = [cka(one[None], two[None], debiased=debiased).item() for one, two in pairs]
            moved = moved_weights(step.model, other.model)
            data.setdefault("over_time", []).append({
                "step": number,
                "cka": _as_json(np.array(same)),
                "moved": {total.group: total.relative for total in moved if total.kind == ALL},
            })  # fmt: skip
        visits = subject.model.backbone.shape.block_order
        return _finding(data, ["embeddings", *(f"block.{at}" for at in visits)])


def _checkpoints(subject: Subject) -> dict[int, Path]:
    start = subject.opened.start
    folder = start.folder.parent / CHECKPOINTS
    steps = {} if start.published else {
        int(step[1]): path for path in folder.glob("*") if (step := _STEP.fullmatch(path.name))
    }  # fmt: skip
    if not steps:
        raise ConfigError(
            f"analysis.similarity.over_time: {subject.opened.path} has no checkpoints of steps"
        )
    return steps


def _cosines(own_LND: Tensor, other_MND: Tensor) -> list[float] | None:
    """Return the mean cosine in each layer; None: layers or dimensions are not the same."""
    if own_LND.shape != other_MND.shape:
        return None
    pairs = zip(own_LND.double(), other_MND.double(), strict=True)
    return [round(float(F.cosine_similarity(*pair, dim=1).mean()), DECIMALS) for pair in pairs]


def _as_json(values: npt.NDArray[np.float64]) -> Any:
    """Return numbers as JSON holds them; None where there is none."""
    rounded = values.round(DECIMALS).astype(object)
    rounded[np.isnan(values)] = None
    return rounded.tolist()


# --- what is shown ----------------------------------------------------------------------------


def _finding(data: Mapping[str, Any], groups: Sequence[str]) -> Finding:
    """Return what is shown of the data; each state is that of a layer group."""
    matrix, cosines = data["cka"], data["cosine"] or []
    same = [row[at] for at, row in enumerate(matrix) if at < len(row)]
    totals = {entry["group"]: entry["relative"] for entry in data["moved"] if entry["kind"] == ALL}
    rows = [
        [_layer_name(at), value, cosines[at] if cosines else None, totals.get(groups[at])]
        for at, value in enumerate(same)
    ]
    moved = _percent(totals.get(ALL))
    tables = [
        FindingTable(["layer", "CKA", "mean cosine", "weights moved"], rows, "The same layers"),
        FindingTable(
            ["run ↓ other →", *map(str, range(len(matrix[0])))],
            [[str(at), *row] for at, row in enumerate(matrix)],
            "CKA between layers; 0 are the embeddings",
            is_shaded=True,
        ),
        _moved_table(data["moved"]),
    ]
    charts: dict[str, Chart] = {
        "cka": Matrix(
            np.array(matrix, float).clip(0, 1).tolist(), "layer of the run",
            "layer of the other model", (0.0, 1.0),
        )
    }  # fmt: skip
    if steps := data.get("over_time"):
        by_layer = list(zip(*(step["cka"] for step in steps), strict=True))
        numbers = [step["step"] for step in steps]
        layers = [_layer_name(at) for at in range(len(by_layer))]
        rows = [[str(step["step"]), *step["cka"]] for step in steps]
        title = "CKA with the same layer of the other model"
        tables.append(FindingTable(["step", *layers], rows, title))
        series = dict(zip(layers, by_layer, strict=True))
        charts["over_time"] = Lines(series, numbers, "step", "CKA with the other model")
    by_how_much = (
        "" if moved is None else f" The weights have moved by {moved:.3g} % of their norm."
    )
    return Finding(
        "Similarity",
        f"Linear CKA of {data['run']} and {data['other']} over {data['count']:,} {data['over']} of "
        f"{data['split']} ({data['estimate']} estimate); the same layers: {formats.cell(same[0])} "
        f"at the embeddings, {formats.cell(same[-1])} at layer {len(same) - 1}.{by_how_much}",
        {key: data[key] for key in ("over", "count", "estimate")},
        tables,
        charts,
        [
            "How far weights have moved is the norm of the change by the norm of the other model's "
            "weights, of those that both have in the same shape. What edits have added is folded "
            "in where it can be."
        ],
        data,
    )


def _layer_name(at: int) -> str:
    return f"layer {at}" if at else "embeddings"


def _percent(share: float | None) -> float | None:
    return None if share is None else float(f"{100 * share:.3g}")


def _moved_table(moved: Sequence[Mapping[str, Any]]) -> FindingTable:
    kinds = list(dict.fromkeys(entry["kind"] for entry in moved))
    by_place = {(entry["group"], entry["kind"]): _percent(entry["relative"]) for entry in moved}
    groups = dict.fromkeys(entry["group"] for entry in moved)
    rows = [[group, *(by_place.get((group, kind)) for kind in kinds)] for group in groups]
    columns = ["group", *(kind.replace("_", "-") for kind in kinds)]
    return FindingTable(columns, rows, "How far weights have moved, %")


ALL = "all"


@dataclass(frozen=True)
class MovedWeights:
    """How far some weights have moved.

    Args:
        group: Their layer group (`model.transfer_model`), or `ALL`.
        kind: attention, feed_forward, norms, embeddings, head, added; or `ALL`.
        compared: How many the other model has in the same shape.
        relative: The norm of their change by that of the other's weights, of those that are
            compared; None: there are none, or all of the other's are 0.
    """

    group: str
    kind: str
    parameters: int
    compared: int
    relative: float | None


def moved_weights(model: TransferModel, start: TransferModel) -> list[MovedWeights]:
    """Return how far each kind of weights in each layer group has moved, with all sums.

    Weights are those that the model computes with: what edits have put beside them is folded in
    where it can be (LoRA), and stands apart, too, as `added`.
    """
    before = {name: weight for _, name, weight in _effective_weights(start)}
    added, modules = added_parameters(model), dict(model.named_modules())
    # Parameters, those that are compared, the squared norms of their change and of what they were.
    sums: dict[tuple[str, str], npt.NDArray[np.float64]] = defaultdict(lambda: np.zeros(4))
    for group, name, weight in _effective_weights(model):
        kind = "added" if name in added else _weight_kind(modules, group, name)
        keys = [(group, ALL), (group, kind)]
        keys += [] if name in added else [(ALL, ALL), (ALL, kind)]
        for key in keys:
            sums[key] += _change_sums(weight, before.get(name))
    return [
        MovedWeights(*key, int(parameters), int(compared), math.sqrt(change / old) if old else None)
        for key, (parameters, compared, change, old) in sorted(
            sums.items(), key=lambda item: item[0][0] == ALL
        )
    ]


def _change_sums(weight: Tensor, before: Tensor | None) -> tuple[float, float, float, float]:
    if before is None or before.shape != weight.shape:
        return weight.numel(), 0, 0, 0
    now, then = weight.detach().double(), before.detach().double()
    change, start = float((now - then).square().sum()), float(then.square().sum())
    return weight.numel(), weight.numel(), change, start


def _effective_weights(model: TransferModel) -> Iterator[tuple[str, str, Tensor]]:
    """Yield group, name and value of each parameter, with what can be folded into it."""
    parameters, layers = dict(model.named_parameters()), merged_layers(model)
    folded: dict[str, nn.Module] = {}
    for group in layer_groups(model, inherited=frozenset()):
        for name in group.parameters:
            place, _, last = name.rpartition(".")
            if place in layers:
                if place not in folded:
                    # One at a time: they are copies.
                    folded = {place: cast("Mergeable", layers[place]).merged()}
                yield group.name, name, folded[place].get_parameter(last)
            else:
                yield group.name, name, parameters[name]


def _weight_kind(modules: Mapping[str, nn.Module], group: str, name: str) -> str:
    if group.startswith("head."):
        return "head"
    parts = name.split(".")[:-1]
    owners = [modules[".".join(parts[: end + 1])] for end in range(len(parts))]
    if isinstance(owners[-1], tuple(NORMS.values())):
        return "norms"
    if any(isinstance(owner, SelfAttention) for owner in owners):
        return "attention"
    if any(isinstance(owner, FeedForward) for owner in owners):
        return "feed_forward"
    return "embeddings"
