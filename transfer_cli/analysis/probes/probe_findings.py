"""What probes found, as entries of the JSON, and as table, picture and lines.

Legend: S seeds, N units (texts or words), C labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.analysis import pictures
from transfer_cli.analysis.analysis import AnalysisResult
from transfer_cli.analysis.probes.linear import LinearProbe
from transfer_cli.analysis.probes.sought import Sought

Entry = dict[str, Any]
"""What is found of one layer: `layer`, `control`, `accuracy`, `macro_f1`, and more."""

_MEANINGS = {
    "random": "fresh weights", "shuffled": "shuffled labels", "types": "labels of word types",
}  # fmt: skip


@dataclass(frozen=True)
class ProbeFindings:
    """All that was found.

    Args:
        entries: Of layers and mix, of the labels and of each control.
        layers: What was probed.
        controls: Their names.
        baselines: The accuracies of what reads no state, by name.
        mix: The layers of the learnt mix, their shares and the centre of gravity.
        units: How many units each part has.
        sought: What was looked for.
        what: That in words.
        probe: The kind of probe.
    """

    entries: Sequence[Entry]
    layers: Sequence[int]
    controls: Sequence[str]
    baselines: Mapping[str, float]
    mix: Mapping[str, Any] | None
    units: Mapping[str, int]
    sought: Sought
    what: str
    probe: str

    def accuracy(self, layer: int | str, control: str | None) -> float | None:
        """Return the accuracy of a layer; None: it was not probed."""
        found = (each for each in self.entries if each["layer"] == layer)
        return next((each["accuracy"] for each in found if each["control"] == control), None)


def scores(said_N: Tensor, label_N: Tensor, classes: int) -> dict[str, float]:
    """Return accuracy and macro-F1, the mean over the labels that are given or said."""
    right_C = torch.bincount(label_N[said_N == label_N], minlength=classes)
    both_C = torch.bincount(label_N, minlength=classes) + torch.bincount(said_N, minlength=classes)
    f1_C = 2 * right_C[both_C > 0].double() / both_C[both_C > 0]
    return {"accuracy": int(right_C.sum()) / len(label_N), "macro_f1": float(f1_C.mean())}


def linear_entry(
    layer: int | str, control: str | None, probe: LinearProbe, log_NC: Tensor, label_N: Tensor
) -> Entry:
    """Return what is found of a layer by a linear probe that gives these log-probabilities."""
    return {
        "layer": layer,
        "control": control,
        **scores(log_NC.argmax(1), label_N, log_NC.shape[1]),
        "loss": float(F.nll_loss(log_NC, label_N)),
        "strength": probe.strength,
        "loss_where_chosen": probe.chosen_by,
        "gradient": probe.gradient,
    }


def mlp_entry(
    layer: int, control: str | None, said_SN: Tensor, label_N: Tensor, classes: int
) -> Entry:
    """Return what is found of a layer by several mlp probes: means, and the deviation."""
    own = [scores(said_N, label_N, classes) for said_N in said_SN]
    accuracy_S = torch.tensor([each["accuracy"] for each in own], dtype=torch.float64)
    return {
        "layer": layer,
        "control": control,
        "accuracy": float(accuracy_S.mean()),
        "macro_f1": sum(each["macro_f1"] for each in own) / len(own),
        "deviation": float(accuracy_S.std()) if len(own) > 1 else None,
    }


def shown(found: ProbeFindings) -> AnalysisResult:
    """Return the analysis' result."""
    entries = [_with_selectivity(each, found) for each in found.entries]
    table = _table(found, entries)
    names = found.sought.labels
    content = {
        "title": "Probes",
        "summary": _summary(found),
        "values": {
            "probe": found.probe,
            "units": "words" if found.sought.of_words else "texts",
            "labels": len(names),
            **{name.replace("_", " "): count for name, count in found.units.items()},
            **{f"accuracy of {name}": share for name, share in found.baselines.items()},
        },
        "table": table,
        "probes": entries,
        "baselines": dict(found.baselines),
        "mix": found.mix,
        "units": dict(found.units),
        "labels": list(names),
    }
    return AnalysisResult(
        content, pictures.only_drawn(_pictures(found)), lines=_lines(found, table)
    )


def _with_selectivity(entry: Entry, found: ProbeFindings) -> Entry:
    """Add how much more accurate a probe of words is than one of their types' labels."""
    by_heart = found.accuracy(entry["layer"], "types")
    if entry["control"] is not None or by_heart is None:
        return entry
    return {**entry, "selectivity": entry["accuracy"] - by_heart}


def _table(found: ProbeFindings, entries: Sequence[Entry]) -> dict[str, Any]:
    real = [each for each in entries if each["control"] is None]
    own = {"accuracy": "accuracy", "macro_f1": "macro-F1", "deviation": "deviation",
           "selectivity": "selectivity", "compression": "compression"}  # fmt: skip
    own = {key: title for key, title in own.items() if any(key in each for each in real)}
    columns = ["layer", *own.values(), *(_MEANINGS[name] for name in found.controls)]
    rows = [
        [
            str(each["layer"]),
            *(_rounded(each.get(key)) for key in own),
            *(_rounded(found.accuracy(each["layer"], name)) for name in found.controls),
        ]
        for each in real
    ]
    return {"columns": columns, "rows": rows}


def _rounded(value: float | None) -> float | str:
    return "" if value is None else round(value, 4)


def _summary(found: ProbeFindings) -> str:
    def said(name: str, share: float | None) -> str:
        return "" if share is None else f", {name} {share:.3f}"

    best = max(found.layers, key=lambda layer: found.accuracy(layer, None) or 0.0)
    units = "words" if found.sought.of_words else "texts"
    return (
        f"The {found.what}: layer {best} tells {found.accuracy(best, None):.3f} of "
        f"{found.units['scored']:,} {units}"
        + (said("layer 0", found.accuracy(0, None)) if best else "")
        + said("their mix", found.accuracy("mix", None))
        + "".join(said(_MEANINGS[each], found.accuracy(best, each)) for each in found.controls)
        + "".join(said(f"by {name}", share) for name, share in found.baselines.items())
        + "."
    )


def _pictures(found: ProbeFindings) -> dict[str, bytes | None]:
    series = {
        _MEANINGS.get(name or "", "the model"): [
            found.accuracy(layer, name) or 0.0 for layer in found.layers
        ]
        for name in (None, *found.controls)
    }
    flat = {f"by {name}": [share] * len(found.layers) for name, share in found.baselines.items()}
    dashed = [*flat, *(_MEANINGS[name] for name in found.controls)]
    return {"accuracy": pictures.lines(
        {**series, **flat}, list(found.layers), x_title="layer", y_title="accuracy", dashed=dashed
    )}  # fmt: skip


def _lines(found: ProbeFindings, table: Mapping[str, Any]) -> list[str]:
    """Return the table as text, and what the learnt mix is made of."""
    cells = [
        [f"{each:.4f}" if isinstance(each, float) else str(each) for each in row]
        for row in (table["columns"], *table["rows"])
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [found.what]
    lines += [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    lines.append(", ".join(f"by {name} {share:.4f}" for name, share in found.baselines.items()))
    if found.mix is not None:
        shares = " ".join(f"{share:.2f}" for share in found.mix["shares"])
        lines.append(f"mix: {shares}; centre of gravity {found.mix['centre_of_gravity']:.2f}")
    return lines
