"""Edge probing: at which layer spans tell what they are to each other (Tenney et al. 2019).

A probe reads a learnt mix of the layers from 0 to k, for each k. What each further layer adds says
where a kind of label is found: the expected layer is the mean of k, weighted by what k adds.

Labelled spans are in jiant's JSON lines:

```
{"text": "Who wrote it ?", "targets": [{"span1": [1, 2], "span2": [0, 1], "label": "A0"}]}
```

Spans are of the words between blanks: the first one, and the one after the last. Where a target
has a `span2`, all have. A label may be a list of several, or of none.

The classifier projects words, pools them by an attention of the span's own, and goes through a
hidden layer to one answer for each label.

Legend: W words, N targets, B batch, R spans of a target, S words of a span, K layers, D width,
P projected width, C labels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.analysis.analysis import Analysis, Subject
from transfer_cli.analysis.probes.states import (
    LayersRead,
    Probed,
    SoughtSplit,
    read_states,
    standardise,
)
from transfer_cli.assembly.model import direction_of
from transfer_cli.data.json_tables import json_rows
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.split import Split
from transfer_cli.errors import DataError, at_least, list_names
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.optim.eager import AdamW
from transfer_cli.progress import progress
from transfer_cli.reports.finding import Finding, FindingTable, Lines
from transfer_cli.seeds import derive
from transfer_cli.tasks.tagging.readers import TagExample
from transfer_cli.tasks.tagging.task import TaggingTask

WIDTH = 256
DROPOUT = 0.3
LEARNING_RATE = 1e-3
SHARE_RATE = 1e-2
"""That of the mix, see `probes.linear.learn_shares`."""

BATCH = 32
MOST_EPOCHS = 50
PATIENCE = 3
"""Epochs without a lower loss on validation after which it has ended."""


@dataclass(frozen=True)
class Spans:
    """Targets.

    Args:
        states: Of words, `[W, K, D]`.
        words: The words of each span, `[N, R, S]`, -1 behind its last.
        label: Whether each label is one of the target's, `[N, C]`.
    """

    states: Tensor
    words: Tensor
    label: Tensor

    def up_to_layer(self, layer: int) -> "Spans":
        """Return the same targets with the layers from 0 to the one at this place."""
        return Spans(self.states[:, : layer + 1], self.words, self.label)


class SpanProbe(nn.Module):
    """See the top of this module."""

    def __init__(self, like: Spans) -> None:
        super().__init__()
        _, layers, width = like.states.shape
        roles = like.words.shape[1]
        self.raw = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.project = nn.ModuleList(nn.Linear(width, WIDTH) for _ in range(roles))
        self.attend = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(roles))
        self.hidden = nn.Linear(roles * WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, like.label.shape[1])

    def forward(self, states_WKD: Tensor, words_BRS: Tensor) -> Tensor:
        """Return a logit for each label, `[B, C]`."""
        states_BRSKD = states_WKD[words_BRS.clamp(min=0)]
        mixed = self.gamma * torch.einsum("brskd,k->brsd", states_BRSKD, self.raw.softmax(0))
        pooled = []
        for role, (project, attend) in enumerate(zip(self.project, self.attend, strict=True)):
            own_BSP = project(mixed[:, role])
            score_BS = attend(own_BSP)[..., 0].masked_fill(words_BRS[:, role] < 0, -torch.inf)
            pooled.append(torch.einsum("bsp,bs->bp", own_BSP, score_BS.softmax(1)))
        hidden = self.hidden(torch.cat(pooled, 1)).relu()
        logits: Tensor = self.output(F.dropout(hidden, DROPOUT, self.training))
        return logits

    def logits(self, spans: Spans) -> Tensor:
        """Return those of all targets, `[N, C]`."""
        self.eval()
        with torch.no_grad():
            return torch.cat([self(spans.states, part) for part in spans.words.split(8 * BATCH)])


def train_span_probe(train: Spans, validation: Spans, seed: int) -> SpanProbe:
    """Return a probe of standardised states with its best weights on other targets."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "span probe"))
        probe = SpanProbe(train)
        rest = [parameter for parameter in probe.parameters() if parameter is not probe.raw]
        optimizer = AdamW(
            [{"params": [probe.raw], "lr": SHARE_RATE}, {"params": rest, "lr": LEARNING_RATE}],
            lr=LEARNING_RATE, weight_decay=0.0,
        )  # fmt: skip
        best, lowest, waited = probe.state_dict(), float("inf"), 0
        with progress("span probe", None, " epochs") as more:
            for _ in range(MOST_EPOCHS):
                _epoch(probe, train, optimizer)
                validation_loss = float(_loss(probe.logits(validation), validation.label))
                waited += 1
                if validation_loss < lowest:
                    best = {name: value.clone() for name, value in probe.state_dict().items()}
                    lowest, waited = validation_loss, 0
                more(1)
                if waited == PATIENCE:
                    break
        probe.load_state_dict(best)
    return probe.eval()


def _epoch(probe: SpanProbe, train: Spans, optimizer: torch.optim.Optimizer) -> None:
    probe.train()
    for at_B in torch.randperm(len(train.words)).split(BATCH):
        optimizer.zero_grad()
        _loss(probe(train.states, train.words[at_B]), train.label[at_B]).backward()
        optimizer.step()


def _loss(logits_NC: Tensor, label_NC: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits_NC, label_NC)


def micro_f1(logits_NC: Tensor, label_NC: Tensor) -> float:
    """Return the F1 of all labels of all targets; one is said where its probability is over 1/2."""
    predicted_NC, given_NC = logits_NC > 0, label_NC > 0
    both = int(predicted_NC.sum()) + int(given_NC.sum())
    return 2 * int((predicted_NC & given_NC).sum()) / both if both else 1.0


Span = tuple[int, int]


@dataclass(frozen=True)
class EdgeTarget:
    """A span, or two, counted in words of the whole file, with any number of labels."""

    spans: tuple[Span, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class EdgeFile:
    """The sentences of a file, in words, and their targets."""

    sentences: Sequence[Sequence[str]]
    targets: Sequence[EdgeTarget]


def read_edges(path: Path) -> EdgeFile:
    """Return what a file holds."""
    sentences, targets, before = list[list[str]](), list[EdgeTarget](), 0
    for record in json_rows(path):
        words = text_of(record, "text", str(path)).split()
        targets_read = list(_read_targets(record, len(words), before, str(path)))
        targets += targets_read
        sentences.append(words)
        before += len(words)
        if any(len(target.spans) != len(targets[0].spans) for target in targets_read):
            raise DataError(f"{path}, line {record.line}: some targets have a span2 and some none")
    if not targets:
        raise DataError(f"{path} has no targets")
    return EdgeFile(sentences, targets)


def _read_targets(record: Record, words: int, before: int, name: str) -> Iterator[EdgeTarget]:
    where = f"{name}, line {record.line}"
    given = record.fields.get("targets")
    if not isinstance(given, list) or not all(isinstance(target, dict) for target in given):
        raise DataError(f"{where}: there is no list of targets, as jiant's files have")
    for target in given:
        keys = [key for key in ("span1", "span2") if target.get(key) is not None]
        if "span1" not in keys:
            raise DataError(f"{where}: a target has no span1")
        spans = [_read_span(target, key, words, where) for key in keys]
        label = target.get("label")
        labels = label if isinstance(label, list) else [label]
        if not all(isinstance(one, str) for one in labels):
            raise DataError(f"{where}: the label {label!r} is neither a text nor a list of texts")
        yield EdgeTarget(
            tuple((before + first, before + end) for first, end in spans), tuple(labels)
        )


def _read_span(target: Mapping[str, Any], key: str, words: int, where: str) -> Span:
    span = target[key]
    if (
        not isinstance(span, list)
        or [type(end) for end in span] != [int, int]
        or not 0 <= span[0] < span[1] <= words
    ):
        raise DataError(
            f"{where}: {key} is {span!r}, expected the first of the text's {words} words and the "
            "one after the last, counted from 0"
        )
    return span[0], span[1]


@dataclass(frozen=True)
class EdgeProbes(Analysis):
    """Probes spans; see `conf/analysis/edges.yaml`.

    A word is read at one piece, as in tagging: the last in a causal model, else the first. Targets
    of words whose states are not kept are left out.
    """

    train: str
    validation: str
    test: str
    random: bool = True
    most: int = 20_000

    def __post_init__(self) -> None:
        at_least("most", self.most, 10)

    def __call__(self, subject: Subject) -> Finding:
        names = {"train": self.train, "chosen_on": self.validation, "scored": self.test}
        files = {part: read_edges(Path(name).expanduser()) for part, name in names.items()}
        labels = _labels(files, names)
        parts = self._parts(subject, subject.model, files, labels)
        entries, probe = _probe_each_mix(parts, None, subject.seed)
        targets = {name: len(part.words) for name, part in parts.items()}
        del parts
        if self.random:
            fresh = self._parts(subject, subject.fresh_model(subject.seed), files, labels)
            entries += _probe_each_mix(fresh, "random", subject.seed)[0]
        return _finding(entries, probe.raw.softmax(0).tolist(), labels, targets)

    def _parts(
        self, subject: Subject, model: TransferModel, files: Mapping[str, EdgeFile],
        labels: Sequence[str],
    ) -> dict[str, Spans]:  # fmt: skip
        start = subject.opened.start
        direction = direction_of(start.description.shape)
        selection = LayersRead(range(subject.depth + 1), "mean", self.most)
        states = dict[str, Probed]()
        for part, file in files.items():
            examples = [TagExample.of_words(words) for words in file.sentences]
            length = subject.opened.length
            encoded = TaggingTask().encode(examples, start.tokenizer, length, direction)
            words = [word for sentence in file.sentences for word in sentence]
            sought = SoughtSplit(Split(part, encoded), range(len(words)), words)
            states[part] = read_states(subject, model, sought, selection)
        standardise(states)
        return {part: _spans(files[part], probed, labels) for part, probed in states.items()}


def _labels(files: Mapping[str, EdgeFile], names: Mapping[str, str]) -> list[str]:
    train = files["train"]
    labels = sorted({label for target in train.targets for label in target.labels})
    if not labels:
        raise DataError(f"{names['train']}: no target has a label; give them some")
    for part, file in files.items():
        others = {label for target in file.targets for label in target.labels} - set(labels)
        if others:
            raise DataError(f"{names[part]}: training has no label {list_names(sorted(others))}")
        if len(file.targets[0].spans) != len(train.targets[0].spans):
            raise DataError(f"{names[part]}: its targets have a span more or less than in training")
    return labels


def _spans(file: EdgeFile, probed: Probed, labels: Sequence[str]) -> Spans:
    """Return the targets whose words are all among those that were kept."""
    place = {word: at for at, word in enumerate(probed.label.tolist())}
    words_of = [
        [[place.get(word, -1) for word in range(*span)] for span in target.spans]
        for target in file.targets
    ]
    pairs = zip(file.targets, words_of, strict=True)
    kept = [(target, words) for target, words in pairs if min(map(min, words)) >= 0]
    if not kept:
        raise DataError("analysis.edges.most: no target has all of its words kept; raise it")
    longest = max(len(span) for _, words in kept for span in words)
    words_NRS = torch.tensor(
        [[span + [-1] * (longest - len(span)) for span in words] for _, words in kept]
    )
    number = {label: at for at, label in enumerate(labels)}
    label_NC = torch.zeros(len(kept), len(labels))
    for row, (target, _) in enumerate(kept):
        label_NC[row, [number[label] for label in target.labels]] = 1.0
    return Spans(probed.states, words_NRS, label_NC)


def _probe_each_mix(
    parts: Mapping[str, Spans], control: str | None, seed: int
) -> tuple[list[dict[str, Any]], SpanProbe]:
    """Return what is found with the layers up to each, and the probe of all."""
    entries = []
    for layer in range(parts["train"].states.shape[1]):
        known = {part: spans.up_to_layer(layer) for part, spans in parts.items()}
        probe = train_span_probe(known["train"], known["chosen_on"], seed)
        f1 = micro_f1(probe.logits(known["scored"]), known["scored"].label)
        entries.append({"layers_up_to": layer, "control": control, "micro_f1": f1})
    return entries, probe


def expected_layer(scores: Sequence[float]) -> float | None:
    """Return the mean of k from 1, weighted by what layer k adds; None: all of them add nothing."""
    added = [higher - lower for lower, higher in pairwise(scores)]
    total = sum(added)
    return sum(k * gain for k, gain in enumerate(added, 1)) / total if total else None


def _finding(
    entries: Sequence[dict[str, Any]], shares: Sequence[float], labels: Sequence[str],
    targets: Mapping[str, int],
) -> Finding:  # fmt: skip
    scores, fresh = (
        [entry["micro_f1"] for entry in entries if entry["control"] == control]
        for control in (None, "random")
    )
    expected = expected_layer(scores)
    centre = sum(layer * share for layer, share in enumerate(shares))
    compared = {"fresh weights": fresh} if fresh else {}
    by_layer = enumerate(zip(scores, *compared.values(), strict=True))
    rows = [[str(layer), *(round(f1, 4) for f1 in both)] for layer, both in by_layer]
    layer = "unknown" if expected is None else f"{expected:.2f}"
    summary = (
        f"Spans: micro-F1 {scores[-1]:.3f} of {targets['scored']:,} targets with all layers, "
        f"{scores[0]:.3f} with the embeddings alone; the expected layer is {layer}, the centre of "
        f"gravity of the learnt mix {centre:.2f}."
    )
    series, layers = {"the model": scores, **compared}, list(range(len(scores)))
    return Finding(
        "Edge probes",
        summary,
        {"labels": len(labels), **targets},
        [FindingTable(["layers up to", "micro-F1", *compared], rows)],
        {"micro_f1": Lines(series, layers, "layers up to", "micro-F1", [*compared])},
        data={
            "probes": list(entries),
            "labels": list(labels),
            "mix": {"shares": list(shares), "centre_of_gravity": centre},
            "expected_layer": expected,
            "targets": dict(targets),
        },
    )
