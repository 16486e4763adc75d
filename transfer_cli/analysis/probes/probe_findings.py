"""What probes found, as entries of the JSON, and as table, picture and lines.

Legend: S seeds, N units (texts or words), C labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.analysis.probes.linear import LinearProbe
from transfer_cli.analysis.probes.sought import Sought
from transfer_cli.report.finding import Finding, FindingTable, Lines

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


def shown(found: ProbeFindings) -> Finding:
    """Return what the analysis finds."""
    entries = [_with_selectivity(each, found) for each in found.entries]
    names = found.sought.labels
    return Finding(
        "Probes",
        _summary(found),
        {
            "probe": found.probe,
            "units": "words" if found.sought.of_words else "texts",
            "labels": len(names),
            **{name.replace("_", " "): count for name, count in found.units.items()},
            **{f"accuracy of {name}": share for name, share in found.baselines.items()},
            **({} if found.mix is None else {"centre of the mix": found.mix["centre_of_gravity"]}),
        },
        [_table(found, entries)],
        {"accuracy": _chart(found)},
        data={
            "probes": entries,
            "baselines": dict(found.baselines),
            "mix": found.mix,
            "units": dict(found.units),
            "labels": list(names),
        },
    )


def _with_selectivity(entry: Entry, found: ProbeFindings) -> Entry:
    """Add how much more accurate a probe of words is than one of their types' labels."""
    by_heart = found.accuracy(entry["layer"], "types")
    if entry["control"] is not None or by_heart is None:
        return entry
    return {**entry, "selectivity": entry["accuracy"] - by_heart}


def _table(found: ProbeFindings, entries: Sequence[Entry]) -> FindingTable:
    real = [each for each in entries if each["control"] is None]
    own = {"accuracy": "accuracy", "macro_f1": "macro-F1", "deviation": "deviation",
           "selectivity": "selectivity", "compression": "compression"}  # fmt: skip
    own = {key: title for key, title in own.items() if any(key in each for each in real)}
    mix = None if found.mix is None else dict(zip(found.mix["layers"], found.mix["shares"],
                                                  strict=True))  # fmt: skip
    rows = [
        [
            str(each["layer"]),
            *(_rounded(each.get(key)) for key in own),
            *(_rounded(found.accuracy(each["layer"], name)) for name in found.controls),
            *([] if mix is None else [_rounded(mix.get(each["layer"]))]),
        ]
        for each in real
    ]
    controls = [_MEANINGS[name] for name in found.controls]
    return FindingTable(
        ["layer", *own.values(), *controls, *([] if mix is None else ["share of the mix"])], rows
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


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


def _chart(found: ProbeFindings) -> Lines:
    series = {
        _MEANINGS.get(name or "", "the model"): [
            found.accuracy(layer, name) for layer in found.layers
        ]
        for name in (None, *found.controls)
    }
    flat = {f"by {name}": [share] * len(found.layers) for name, share in found.baselines.items()}
    dashed = [*flat, *(_MEANINGS[name] for name in found.controls)]
    return Lines({**series, **flat}, list(found.layers), "layer", "accuracy", dashed)
