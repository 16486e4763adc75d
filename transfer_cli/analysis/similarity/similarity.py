"""How alike two models are, layer by layer, and what moved between them.

Legend: L, M states of two models (layer 0 is that of the embeddings), N things, D width.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.analysis import pictures
from transfer_cli.analysis.analysis import Analysis, AnalysisResult, Subject
from transfer_cli.analysis.similarity.cka import LEAST, cka
from transfer_cli.analysis.similarity.compared_states import (
    ComparedTexts,
    ComparedTokens,
    Over,
    choose_compared,
)
from transfer_cli.analysis.similarity.moved_weights import ALL, MovedWeights, moved_weights
from transfer_cli.assembly.finished_run import open_to_look_into
from transfer_cli.errors import ConfigError, DataError, at_least, one_of
from transfer_cli.model.heads import Pooling
from transfer_cli.report import formats
from transfer_cli.report.html.markup import Html, PageColumn, joined, macro, note, table
from transfer_cli.runs.directory import CHECKPOINTS

PLAIN_FROM = 10
"""Things for each dimension from which on the plain estimate of CKA is close enough."""

DECIMALS = 6

_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Similarity(Analysis):
    """CKA between all layers of two models, and how far the weights of each layer moved.

    Args:
        over: What is compared: the states of tokens, which both have to read alike, or those of
            texts, pooled; auto: of tokens, where that is so.
        pooling: Of texts.
        most: Tokens or texts that are compared, at most.
        over_time: Whether each checkpoint of the run is compared with the other model, too.
    """

    needs_other: ClassVar[bool] = True

    over: Over = "auto"
    pooling: Pooling = "mean"
    most: int = 4000
    over_time: bool = False

    def __post_init__(self) -> None:
        one_of("over", self.over, get_args(Over), ValueError)
        one_of("pooling", self.pooling, get_args(Pooling), ValueError)
        at_least("most", self.most, LEAST)

    def __call__(self, subject: Subject) -> AnalysisResult:
        """See `Analysis`."""
        other = subject.other
        if other is None:
            raise ConfigError("other: similarity compares two models; give other=RUN")
        later = list(_checkpoints(subject)) if self.over_time else []
        compared = choose_compared(subject, other, self.over, self.pooling, self.most)
        own_LND, other_MND = compared.states(subject), compared.states(other)
        count = own_LND.shape[1]
        if count < LEAST:
            raise DataError(
                f"data: fewer than {LEAST} tokens or texts say nothing about how alike two models "
                "are; show them more, by input=FILE or data="
            )
        debiased = count < PLAIN_FROM * max(own_LND.shape[2], other_MND.shape[2])
        found = cka(own_LND, other_MND, debiased=debiased)
        moved = moved_weights(subject.model, other.model)
        content: dict[str, Any] = {
            "title": "Similarity",
            "run": subject.opened.path,
            "other": other.opened.path,
            "over": "tokens" if isinstance(compared, ComparedTokens) else "texts",
            "split": subject.split.name,
            "count": count,
            "estimate": "debiased" if debiased else "plain",
            "cka": _plain(found),
            "cosine": _cosines(own_LND, other_MND),
            "moved": [each.as_json() for each in moved],
        }
        if later:
            content["over_time"] = [
                _at_step(number, step, other, compared, other_MND, debiased=debiased)
                for number, step in later
            ]
        visits = subject.model.backbone.shape.visits
        content |= _shown(content, ["embeddings", *(f"block.{at}" for at in visits)])
        images = {"cka": _picture(found)}
        if later:
            images["over_time"] = _picture_over_time(content["over_time"])
        drawn = pictures.only_drawn(images)
        section = _section(content, moved)
        return AnalysisResult(content, drawn, section=section, lines=list(_lines(content)))


def _checkpoints(subject: Subject) -> Iterator[tuple[int, Subject]]:
    """Yield the step of each checkpoint of the run, and it.

    Raises:
        ConfigError: There are none.
    """
    start = subject.opened.start
    folder = start.folder.parent / CHECKPOINTS
    steps = {} if start.published else {
        int(step[1]): path for path in folder.glob("*") if (step := _STEP.fullmatch(path.name))
    }  # fmt: skip
    if not steps:
        raise ConfigError(
            f"analysis.similarity.over_time: {subject.opened.path} has no checkpoints of steps"
        )
    for number, path in sorted(steps.items()):
        opened = open_to_look_into(str(path), subject.precision, start.base)
        yield number, replace(subject, opened=opened)


def _at_step(
    number: int,
    step: Subject,
    other: Subject,
    compared: ComparedTokens | ComparedTexts,
    other_MND: Tensor,
    *,
    debiased: bool,
) -> dict[str, Any]:
    """Return how far a checkpoint is from the other model, layer by layer."""
    pairs = zip(compared.states(step), other_MND, strict=False)
    by_layer = [cka(one[None], two[None], debiased=debiased).item() for one, two in pairs]
    moved = moved_weights(step.model, other.model)
    return {
        "step": number,
        "cka": _plain(np.array(by_layer)),
        "moved": {each.group: each.relative for each in moved if each.kind == ALL},
    }


def _cosines(own_LND: Tensor, other_MND: Tensor) -> list[float] | None:
    """Return the mean cosine in each layer; None: layers or dimensions are not the same."""
    if own_LND.shape != other_MND.shape:
        return None
    pairs = zip(own_LND.double(), other_MND.double(), strict=True)
    return [round(float(F.cosine_similarity(*pair, dim=1).mean()), DECIMALS) for pair in pairs]


def _plain(found: npt.NDArray[np.float64]) -> Any:
    """Return numbers as JSON holds them; None where there is none."""
    rounded = found.round(DECIMALS).astype(object)
    rounded[np.isnan(found)] = None
    return rounded.tolist()


# --- what is shown ----------------------------------------------------------------------------


def _shown(content: Mapping[str, Any], groups: Sequence[str]) -> dict[str, Any]:
    """Return the keys of the content that every report shows."""
    same = [
        content["cka"][at][at] for at in range(min(map(len, (content["cka"], content["cka"][0]))))
    ]
    totals = {each["group"]: each["relative"] for each in content["moved"] if each["kind"] == ALL}
    cosines = content["cosine"] or []
    rows = [
        [_layer(at), value, cosines[at] if cosines else None, totals.get(groups[at])]
        for at, value in enumerate(same)
    ]
    moved = totals.get(ALL)
    by_how_much = (
        "" if moved is None else f" The weights have moved by {_share(moved)} of their norm."
    )
    return {
        "summary": (
            f"Linear CKA of {content['run']} and {content['other']} over {content['count']:,} "
            f"{content['over']} of {content['split']} ({content['estimate']} estimate); the same "
            f"layers: {_number(same[0])} at the embeddings, {_number(same[-1])} at layer "
            f"{len(same) - 1}.{by_how_much}"
        ),
        "values": {key: content[key] for key in ("over", "count", "estimate")},
        "table": {"columns": ["layer", "CKA", "mean cosine", "weights moved"], "rows": rows},
    }


def _lines(content: Mapping[str, Any]) -> Iterator[str]:
    yield content["summary"]
    for layer, alike, cosine, moved in content["table"]["rows"]:
        yield (
            f"{layer:10s} cka {_number(alike):>6s}  cosine {_number(cosine):>6s}  "
            f"moved {_share(moved)}"
        )


def _layer(at: int) -> str:
    return f"layer {at}" if at else "embeddings"


def _number(value: float | None) -> str:
    return formats.NOTHING if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return formats.NOTHING if value is None else f"{100 * value:.3g} %"


def _section(content: Mapping[str, Any], moved: Sequence[MovedWeights]) -> Html:
    rows = content["cka"]
    names = [str(at) for at in range(len(rows[0]))]
    cells = [
        (str(at), [(_number(value), min(1.0, max(0.0, value or 0.0))) for value in row])
        for at, row in enumerate(rows)
    ]
    shaded = macro(
        "shades.html", "shades", "CKA between layers; 0 are the embeddings", "run ↓ other →", names,
        cells,
    )  # fmt: skip
    titles = content["table"]["columns"]
    by_layer = (
        (layer, _number(alike), _number(cosine), _share(part))
        for layer, alike, cosine, part in content["table"]["rows"]
    )
    columns = [titles[0], *(PageColumn(title, is_number=True) for title in titles[1:])]
    steps = content.get("over_time")
    return joined([
        Html("<p>{}</p>").format(content["summary"]),
        shaded,
        Html("<h3>The same layers</h3>"),
        table("The same layers", columns, by_layer),
        Html("<h3>How far weights have moved</h3>"),
        _moved_table(moved),
        note(
            "The norm of the change by the norm of the other model's weights, of those that both "
            "have in the same shape. What edits have added is folded in where it can be."
        ),
        *([Html("<h3>Over time</h3>"), _over_time_table(steps)] if steps else []),
    ])  # fmt: skip


def _moved_table(moved: Sequence[MovedWeights]) -> Html:
    kinds = list(dict.fromkeys(each.kind for each in moved))
    found = {(each.group, each.kind): each.relative for each in moved}
    groups = dict.fromkeys(each.group for each in moved)
    rows = ((group, *(_share(found.get((group, kind))) for kind in kinds)) for group in groups)
    names = [PageColumn(kind.replace("_", "-"), is_number=True) for kind in kinds]
    return table("How far weights have moved", ["group", *names], rows)


def _over_time_table(steps: Sequence[Mapping[str, Any]]) -> Html:
    names = [PageColumn(_layer(at), is_number=True) for at in range(len(steps[0]["cka"]))]
    rows = ((str(each["step"]), *map(_number, each["cka"])) for each in steps)
    return table("CKA with the same layer of the other model", ["step", *names], rows)


def _picture(found: npt.NDArray[np.float64]) -> bytes | None:
    rows, columns = ([str(at) for at in range(size)] for size in found.shape)
    return pictures.matrix(
        found.clip(0, 1), rows, columns, row_title="layer of the run",
        column_title="layer of the other model", bounds=(0.0, 1.0),
    )  # fmt: skip


def _picture_over_time(steps: Sequence[Mapping[str, Any]]) -> bytes | None:
    layers = zip(*(each["cka"] for each in steps), strict=True)
    series = {
        _layer(at): [float("nan") if value is None else value for value in heights]
        for at, heights in enumerate(layers)
    }
    return pictures.lines(
        series, [each["step"] for each in steps], x_title="step", y_title="CKA with the other model"
    )
