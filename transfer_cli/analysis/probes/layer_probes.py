"""Probes: what each layer knows of some labels (Alain and Bengio 2017), beside controls.

A classifier learns labels from the states of one layer, of a model that stays as it is. Its
accuracy alone says little: it is shown beside that of the embeddings (layer 0), of a model with
fresh weights, of shuffled labels and, for words, of labels that belong to word types, which a probe
can only know by heart (Hewitt and Liang 2019).

Legend: S seeds, N units (texts or words), K layers, D width, C labels.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.analysis.analysis import Analysis, Subject
from transfer_cli.analysis.probes import mlp
from transfer_cli.analysis.probes.linear import (
    STRENGTHS,
    LogProbs,
    codelength,
    fit_probe,
    learn_shares,
)
from transfer_cli.analysis.probes.sought import (
    Sought,
    SurfaceTask,
    bag_of_words_accuracy,
    data_labels,
    surface_labels,
)
from transfer_cli.analysis.probes.states import (
    PARTS,
    LayersRead,
    Parts,
    Probed,
    read_parts,
    standardise,
)
from transfer_cli.errors import ConfigError, above_zero, at_least, one_of
from transfer_cli.model.pooling import Pooling
from transfer_cli.progress import progress
from transfer_cli.reports.finding import Finding, FindingTable, Lines
from transfer_cli.seeds import derive

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
        baselines: The accuracies of what reads no state, by name.
        mix: The layers of the learnt mix, their shares and the centre of gravity.
        what: What was looked for, in words.
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
        accuracy_of = {(e["layer"], e["control"]): e["accuracy"] for e in self.entries}
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
                "units": "words" if self.sought.is_by_word else "texts",
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
        mix = self.mix or {"layers": [], "shares": []}
        share_of = dict(zip(mix["layers"], mix["shares"], strict=True))
        columns = [key.replace("macro_f1", "macro-F1") for key in keys]
        columns += [_MEANINGS[name] for name in self.controls]
        columns += ["share of the mix"] if share_of else []
        rows = []
        for entry in real:
            layer = entry["layer"]
            values = [entry.get(key) for key in keys]
            values += [self.accuracy(layer, name) for name in self.controls]
            values += [share_of.get(layer)] if share_of else []
            rounded = [None if value is None else round(value, 4) for value in values]
            rows.append([str(layer), *rounded])
        return FindingTable(["layer", *columns], rows)

    def _summary(self) -> str:
        def clause(name: str, share: float | None) -> str:
            return "" if share is None else f", {name} {share:.3f}"

        best = max(self.layers, key=lambda layer: self.accuracy(layer, None) or 0.0)
        units = "words" if self.sought.is_by_word else "texts"
        return (
            f"The {self.what}: layer {best} tells {self.accuracy(best, None):.3f} of "
            f"{self.units['scored']:,} {units}"
            + (clause("layer 0", self.accuracy(0, None)) if best else "")
            + clause("their mix", self.accuracy("mix", None))
            + "".join(clause(_MEANINGS[name], self.accuracy(best, name)) for name in self.controls)
            + "".join(clause(f"by {name}", share) for name, share in self.baselines.items())
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


CONTROLS = ("random", "shuffled", "types")
"""Fresh weights, labels exchanged among all, labels of word types."""


@dataclass(frozen=True)
class Probes(Analysis):
    """Trains a probe on every layer, and on a mix of them; see `conf/analysis/probes.yaml`."""

    task: SurfaceTask | None = None
    layers: Literal["all"] | tuple[int, ...] = "all"
    probe: Literal["linear", "mlp"] = "linear"
    controls: Literal["auto"] | tuple[str, ...] = "auto"
    pooling: Pooling = "mean"
    mix: bool = True
    mdl: bool = False
    strengths: tuple[float, ...] = STRENGTHS
    seeds: int = 3
    most: int = 10_000

    def __post_init__(self) -> None:
        for name in () if self.controls == "auto" else self.controls:
            one_of("controls", name, CONTROLS, ValueError)
        if self.mdl and self.probe != "linear":
            raise ValueError("mdl is computed with probe=linear")
        if not self.strengths:
            raise ValueError("strengths is empty, expected one or more")
        for strength in self.strengths:
            above_zero("strengths", strength)
        at_least("seeds", self.seeds, 1)
        at_least("most", self.most, 10)

    def __call__(self, subject: Subject) -> Finding:
        layers = self._layers(subject.depth)
        sought = data_labels(subject) if self.task is None else surface_labels(subject, self.task)
        controls, classes, seed = self._controls(sought), len(sought.labels), subject.seed
        selection = LayersRead(layers, self.pooling, self.most)
        parts = read_parts(subject, subject.model, sought.splits, selection)
        task = None if self.task else subject.material.task
        by_words = bag_of_words_accuracy(sought, parts, task) if controls else None
        base = baselines(parts, classes, by_words)
        units = {name: len(part) for name, part in parts.items()}
        entries = list(self._probe_layers(parts, None, layers, classes, seed))
        mix, relabelled_parts = None, parts
        if self.mix and self.probe == "linear" and len(layers) > 1:
            entry, mix = self._probe_mix(parts, layers, classes, seed)
            entries.append(entry)
        for name in controls:
            if name != "random":
                relabelled_parts = relabelled(parts, name, classes, seed)
                entries += self._probe_layers(relabelled_parts, name, layers, classes, seed)
        if "random" in controls:
            # Only then: the states of one model are in memory at a time.
            del parts, relabelled_parts
            parts = read_parts(subject, subject.fresh_model(seed), sought.splits, selection)
            entries += self._probe_layers(parts, "random", layers, classes, seed)
        what = f"made task {self.task}" if self.task else f"labels of {subject.material.name}"
        findings = ProbeFindings(
            entries, layers, controls, base, mix, units, sought, what, self.probe
        )
        return findings.as_finding()

    def _layers(self, depth: int) -> list[int]:
        if self.layers == "all":
            return list(range(depth + 1))
        for layer in self.layers:
            if not -depth - 1 <= layer <= depth:
                raise ConfigError(
                    f"analysis.probes.layers: there is no layer {layer}; 0 are the embeddings, "
                    f"{depth} is the top"
                )
        if not self.layers:
            raise ConfigError("analysis.probes.layers: is empty; name layers, or all")
        return sorted({layer % (depth + 1) for layer in self.layers})

    def _controls(self, sought: Sought) -> list[str]:
        if self.controls == "auto":
            return [name for name in CONTROLS if sought.is_by_word or name != "types"]
        if "types" in self.controls and not sought.is_by_word:
            raise ConfigError(
                "analysis.probes.controls: types are of words, and here texts have labels; what "
                "shuffled says is the control of texts"
            )
        return [name for name in CONTROLS if name in self.controls]

    def _probe_layers(
        self, parts: Parts, name: str | None, layers: Sequence[int], classes: int, seed: int
    ) -> Iterator[Entry]:
        if self.probe == "mlp":
            yield from self._probe_by_mlp(parts, name, layers, classes, seed)
            return
        with progress(f"probes{f' ({name})' if name else ''}", len(layers), "layers") as more:
            for at, layer in enumerate(layers):
                of_layer = {part: parts[part].layer(at) for part in PARTS}
                entry = self._linear_entry(of_layer, layer, name, classes)
                if self.mdl:
                    entry |= self._online_code(of_layer, classes, seed)
                more(1)
                yield entry

    def _linear_entry(
        self, parts: Parts, layer: int | str, control: str | None, classes: int
    ) -> Entry:
        """Return what a linear probe finds of the states of one layer."""
        probe = fit_probe(parts["train"], parts["chosen_on"], classes, self.strengths)
        scored = parts["scored"]
        log_NC = probe.log_probs(scored.states)
        return {
            "layer": layer,
            "control": control,
            **scores(log_NC.argmax(1), scored.label, classes),
            "loss": float(F.nll_loss(log_NC, scored.label)),
            "strength": probe.strength,
            "loss_where_chosen": probe.selection_loss,
            "gradient": probe.gradient,
        }

    def _online_code(self, parts: Parts, classes: int, seed: int) -> Entry:
        train, chosen_on = parts["train"], parts["chosen_on"]
        generator = torch.Generator().manual_seed(derive(seed, "online code"))
        order = torch.randperm(len(train.label), generator=generator)

        def fit(known: Probed) -> LogProbs:
            # The bias has the same prior: a label that has not been sent keeps some probability.
            return fit_probe(known, chosen_on, classes, self.strengths, bias_penalty=1.0).log_probs

        bits = codelength(train.select(order), classes, fit)
        # How many times shorter that is than the uniform code.
        compression = len(order) * math.log2(classes) / bits
        return {"codelength_bits": bits, "compression": compression}

    def _probe_by_mlp(
        self, parts: Parts, name: str | None, layers: Sequence[int], classes: int, seed: int
    ) -> Iterator[Entry]:
        seeds = [derive(seed, "mlp probe", number) for number in range(self.seeds)]
        probes = mlp.fit_probes(parts["train"], parts["chosen_on"], classes, seeds)
        predicted_SKN, label_N = probes.predicted(parts["scored"].states), parts["scored"].label
        for at, layer in enumerate(layers):
            of_seeds = [
                scores(predicted_N, label_N, classes) for predicted_N in predicted_SKN[:, at]
            ]
            accuracy_S = torch.tensor([one["accuracy"] for one in of_seeds], dtype=torch.float64)
            yield {
                "layer": layer,
                "control": name,
                "accuracy": float(accuracy_S.mean()),
                "macro_f1": sum(one["macro_f1"] for one in of_seeds) / len(of_seeds),
                "deviation": float(accuracy_S.std()) if len(of_seeds) > 1 else None,
            }

    def _probe_mix(
        self, parts: Parts, layers: Sequence[int], classes: int, seed: int
    ) -> tuple[Entry, dict[str, Any]]:
        """Return the entry of the learnt mix, and what it is made of.

        Once its shares are learnt, it is probed like a layer.
        """
        share_K = learn_shares(parts["train"], parts["chosen_on"], classes, seed)
        mixed = {
            name: replace(part, states=torch.einsum("nkd,k->nd", part.states, share_K)[:, None])
            for name, part in parts.items()
        }
        standardise(mixed)
        of_mix = {name: part.layer(0) for name, part in mixed.items()}
        shares = share_K.tolist()
        centre = sum(layer * share for layer, share in zip(layers, shares, strict=True))
        made_of = {"layers": list(layers), "shares": shares, "centre_of_gravity": centre}
        return self._linear_entry(of_mix, "mix", None, classes), made_of


# --- controls and baselines --------------------------------------------------------------------


def relabelled(parts: Parts, name: str, classes: int, seed: int) -> Parts:
    """Return the same states with the labels of a control, `shuffle_labels` or `types`."""
    if name == "shuffled":
        return {split: shuffle_labels(part, seed, split) for split, part in parts.items()}
    shares = torch.bincount(parts["train"].label, minlength=classes).tolist()
    return {split: label_word_types(part, shares, seed) for split, part in parts.items()}


def shuffle_labels(probed: Probed, seed: int, split: str) -> Probed:
    """Return the same units with their labels exchanged among them."""
    generator = torch.Generator().manual_seed(derive(seed, "shuffled labels", split))
    order_N = torch.randperm(len(probed), generator=generator)
    return replace(probed, label=probed.label[order_N])


def label_word_types(probed: Probed, shares: Sequence[int], seed: int) -> Probed:
    """Return the same words with a label for each word type (Hewitt and Liang 2019).

    The label is drawn once for a type, as often as it occurs in training, from the seed and the
    type alone: so it is the same in all splits, and can only be known by heart.
    """
    ends = list(accumulate(shares))

    def label(word: str) -> int:
        seeds = 2**63  # `derive` gives numbers below it
        drawn = derive(seed, "label of type", word) * ends[-1] // seeds
        return bisect_right(ends, drawn)

    of_type = {word: label(word) for word in set(probed.words or ())}
    return replace(probed, label=torch.tensor([of_type[word] for word in probed.words or ()]))


def baselines(parts: Parts, classes: int, by_words: float | None) -> dict[str, float]:
    """Return the accuracies of answers that ask no state, by what answers.

    `majority` is the commonest label of training; `word` is that which a word has most often, and
    `words`, of texts, a linear model on words and pairs of words.
    """
    train, scored = parts["train"], parts["scored"]
    commonest = torch.bincount(train.label, minlength=classes).argmax()
    accuracies = {"majority": float((scored.label == commonest).double().mean())}
    if scored.words is not None:
        predicted_N = commonest_labels(train, scored, int(commonest))
        accuracies["word"] = float((scored.label == predicted_N).double().mean())
    return accuracies if by_words is None else {**accuracies, "words": by_words}


def commonest_labels(train: Probed, scored: Probed, otherwise: int) -> Tensor:
    """Return the label that each word has most often in training; of others `otherwise`."""
    of_word: dict[str, Counter[int]] = defaultdict(Counter)
    for word, label in zip(train.words or (), train.label.tolist(), strict=True):
        of_word[word][label] += 1
    best = {
        word: min(counts, key=lambda label: (-counts[label], label))
        for word, counts in of_word.items()
    }
    return torch.tensor([best.get(word, otherwise) for word in scored.words or ()])
