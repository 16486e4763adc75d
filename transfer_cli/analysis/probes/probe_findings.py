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
        accuracy_of = {
            (entry["layer"], entry["control"]): entry["accuracy"] for entry in self.entries
        }
        return accuracy_of.get((layer, control))

    def as_finding(self) -> Finding:
        """Return what the analysis finds."""
        entries = [self._with_selectivity(entry) for entry in self.entries]
        names = self.sought.labels
        return Finding(
            "Probes",
            self._summary(),
            {
                "probe": self.probe,
                "units": "words" if self.sought.of_words else "texts",
                "labels": len(names),
                **{name.replace("_", " "): count for name, count in self.units.items()},
                **{f"accuracy of {name}": share for name, share in self.baselines.items()},
                **({"centre of the mix": self.mix["centre_of_gravity"]} if self.mix else {}),
            },
            [self._table(entries)],
            {"accuracy": self._chart()},
            data={
                "probes": entries,
                "baselines": dict(self.baselines),
                "mix": self.mix,
                "units": dict(self.units),
                "labels": list(names),
            },
        )

    def _with_selectivity(self, entry: Entry) -> Entry:
        """Add how much more accurate a probe of words is than one of their types' labels."""
        by_heart = self.accuracy(entry["layer"], "types")
        if entry["control"] is not None or by_heart is None:
            return entry
        return {**entry, "selectivity": entry["accuracy"] - by_heart}

    def _table(self, entries: Sequence[Entry]) -> FindingTable:
        real = [entry for entry in entries if entry["control"] is None]
        known = ("accuracy", "macro_f1", "deviation", "selectivity", "compression")
        keys = [key for key in known if any(key in entry for entry in real)]
        share_of = (
            dict(zip(self.mix["layers"], self.mix["shares"], strict=True)) if self.mix else {}
        )
        columns = [key.replace("macro_f1", "macro-F1") for key in keys]
        columns += [_MEANINGS[name] for name in self.controls]
        rows = []
        for entry in real:
            layer = entry["layer"]
            values = [entry.get(key) for key in keys]
            values += [self.accuracy(layer, name) for name in self.controls]
            values += [share_of.get(layer)] if share_of else []
            rounded = [None if value is None else round(value, 4) for value in values]
            rows.append([str(layer), *rounded])
        mix = ["share of the mix"] if share_of else []
        return FindingTable(["layer", *columns, *mix], rows)

    def _summary(self) -> str:
        def said(name: str, share: float | None) -> str:
            return "" if share is None else f", {name} {share:.3f}"

        best = max(self.layers, key=lambda layer: self.accuracy(layer, None) or 0.0)
        units = "words" if self.sought.of_words else "texts"
        return (
            f"The {self.what}: layer {best} tells {self.accuracy(best, None):.3f} of "
            f"{self.units['scored']:,} {units}"
            + (said("layer 0", self.accuracy(0, None)) if best else "")
            + said("their mix", self.accuracy("mix", None))
            + "".join(said(_MEANINGS[name], self.accuracy(best, name)) for name in self.controls)
            + "".join(said(f"by {name}", share) for name, share in self.baselines.items())
            + "."
        )

    def _chart(self) -> Lines:
        names = {None: "the model"} | {name: _MEANINGS[name] for name in self.controls}
        series = {
            title: [self.accuracy(layer, name) for layer in self.layers]
            for name, title in names.items()
        }
        flat = {f"by {name}": [share] * len(self.layers) for name, share in self.baselines.items()}
        dashed = [*flat, *(_MEANINGS[name] for name in self.controls)]
        return Lines({**series, **flat}, list(self.layers), "layer", "accuracy", dashed)


def scores(predicted_N: Tensor, label_N: Tensor, classes: int) -> dict[str, float]:
    """Return accuracy and macro-F1, the mean over the labels that are given or said."""
    right_C = torch.bincount(label_N[predicted_N == label_N], minlength=classes)
    both_C = torch.bincount(torch.cat([label_N, predicted_N]), minlength=classes)
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
    layer: int, control: str | None, predicted_SN: Tensor, label_N: Tensor, classes: int
) -> Entry:
    """Return what is found of a layer by several mlp probes: means, and the deviation."""
    of_seeds = [scores(predicted_N, label_N, classes) for predicted_N in predicted_SN]
    accuracy_S = torch.tensor([of_seed["accuracy"] for of_seed in of_seeds], dtype=torch.float64)
    return {
        "layer": layer,
        "control": control,
        "accuracy": float(accuracy_S.mean()),
        "macro_f1": sum(of_seed["macro_f1"] for of_seed in of_seeds) / len(of_seeds),
        "deviation": float(accuracy_S.std()) if len(of_seeds) > 1 else None,
    }
