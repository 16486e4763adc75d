"""Vectors of tokens or texts, for TensorBoard's projector, as a picture, and by their neighbours.

Legend: V vocabulary, N vectors, D width.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from transfer_cli.analysis.analysis import Analysis, Subject, evenly_spread
from transfer_cli.errors import ConfigError, DataError, at_least
from transfer_cli.model.pooling import Pooling
from transfer_cli.objectives.base import Encoding
from transfer_cli.reports.finding import Finding, FindingTable, Points

Order = Literal["auto", "frequent", "first"]
Vectors = npt.NDArray[np.float64]

_MOST_POINTS = 2000
"""Of the picture, that are in the JSON."""

_MOST_CHARACTERS = 200
"""Of a text beside its vector."""

_NUM_DEFAULT_WORDS = 6

_CONFIG = """\
embeddings {{
  tensor_name: "{name}"
  tensor_path: "tensors.tsv"
  metadata_path: "metadata.tsv"
}}
"""


@dataclass(frozen=True)
class _NamedVectors:
    """Vectors, and what they are of.

    Args:
        vectors: `[N, D]`.
        columns: What is said of each.
        rows: That, for each; a name first.
        labels: A label of each; empty: there are none.
    """

    vectors: Vectors
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: Sequence[str]
    extent: str


@dataclass(frozen=True)
class Embeddings(Analysis):
    """The token embeddings, or the vectors of texts, and what is near what.

    For the options see `conf/analysis/embeddings.yaml`. A word of several tokens is their mean.
    """

    of: Literal["tokens", "texts"] = "tokens"
    most: int = 5000
    order: Order = "auto"
    words: Sequence[str] | None = None
    neighbours: int = 8
    pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        at_least("most", self.most, 3)
        at_least("neighbours", self.neighbours, 1)
        if self.of == "texts" and self.words is not None:
            raise ValueError("words have neighbours among tokens; leave of=texts out")

    def __call__(self, subject: Subject) -> Finding:
        if self.of == "tokens":
            tokens, extent = self._chosen_tokens(subject)
            table_VD = _token_table(subject)
            named = _token_vectors(subject, table_VD, tokens, extent)
            near = self._near_words(subject, table_VD, tokens)
        else:
            named = _text_vectors(subject, self.most, self.pooling)
            near = _near_texts(named, self.neighbours)
        places, shares = principal_components(named.vectors, 2)
        explained = " and ".join(f"{100 * share:.1f} %" for share in shares)
        count, width = named.vectors.shape
        values: dict[str, Any] = {"vectors": count, "width": width}
        if named.labels:
            values["nearest of the same label"] = _same_label_share(named)
        rows = [
            [name, ", ".join(f"{other} {cosine:.2f}" for other, cosine in others)]
            for name, others in near
        ]
        most_names = 30  # of points of the picture
        labelled = () if named.labels else named.rows[:most_names]
        return Finding(
            f"Embeddings of {self.of}",
            f"{count:,} vectors of {width} numbers: {named.extent}. Two principal components "
            f"hold {explained} of their variance. Open them all by tensorboard --logdir with "
            "the folder embeddings-projector of these analyses.",
            values,
            [FindingTable(["of", f"nearest {self.of}, by cosine"], rows)],
            {
                "pca": Points(
                    places.tolist(),
                    [f"component {at}, {100 * share:.1f} %" for at, share in enumerate(shares, 1)],
                    named.labels,
                    {at: row[0] for at, row in enumerate(labelled)},
                )
            },
            data={
                "neighbours": {name: [list(pair) for pair in others] for name, others in near},
                "pca": {
                    "shares": [round(share, 6) for share in shares],
                    "names": [row[0][:80] for row in named.rows[:_MOST_POINTS]],
                    "labels": list(named.labels[:_MOST_POINTS]),
                    "places": places[:_MOST_POINTS].round(4).tolist(),
                },
            },
            files=_projector_files(named, f"{self.of} of {subject.opened.path}"),
        )

    def _chosen_tokens(self, subject: Subject) -> tuple[npt.NDArray[np.int64], str]:
        """Return the numbers of the tokens that are shown, and which they are in words."""
        has_data = bool(subject.material.names)
        if self.order == "first" or (self.order == "auto" and not has_data):
            count = min(self.most, subject.tokenizer.size)
            return np.arange(count), "the first tokens of the vocabulary"
        # Of the splits, the one that the model has learnt from says what is frequent.
        preferred = () if len(subject.split_names) == 1 else ("train",)
        split = subject.material.split(*preferred, *subject.split_names)
        counts = np.zeros(subject.tokenizer.size, np.int64)
        rows_counted = 20_000  # rows of the data in which tokens are counted, evenly spread
        rows = evenly_spread(len(split.data), rows_counted)
        for _, batch in subject.batches_of_rows(split, rows):
            tokens_N = batch["tokens"][batch["mask"]].cpu().numpy()
            counts += np.bincount(tokens_N, minlength=len(counts))
        order = np.argsort(-counts, kind="stable")[: self.most]
        return order[counts[order] > 0], f"the most frequent tokens of {split.name}"

    def _near_words(
        self, subject: Subject, table_VD: Vectors, tokens: npt.NDArray[np.int64]
    ) -> list[tuple[str, list[tuple[str, float]]]]:
        tokenizer = subject.tokenizer
        words = _default_words(subject, tokens) if self.words is None else self.words
        unit_VD, near = _normalise(table_VD), []
        for word in map(str, words):
            ids = _tokens_of_word(subject, word)
            vector_D = _normalise(table_VD[ids].mean(0, keepdims=True))[0]
            left_out = [*ids, *sorted(tokenizer.special)]
            others = _nearest(unit_VD, vector_D, self.neighbours, left_out)
            names = tokenizer.pieces(list(others))
            near.append((word, list(zip(names, others.values(), strict=True))))
        return near


def principal_components(vectors_ND: Vectors, count: int) -> tuple[Vectors, list[float]]:
    """Return `[N, count]`, the places of vectors along their main directions, and shares.

    Each direction points to where its largest entry is positive. The shares are those of the
    variance that lies along each.
    """
    centred_ND = vectors_ND - vectors_ND.mean(0)
    _, sizes, directions = np.linalg.svd(centred_ND, full_matrices=False)
    directions = directions[:count]
    largest = directions[np.arange(len(directions)), np.abs(directions).argmax(1)]
    directions = directions * np.where(largest < 0, -1.0, 1.0)[:, None]
    variances = np.square(sizes)
    shares = variances[:count] / max(variances.sum(), np.finfo(float).tiny)
    return centred_ND @ directions.T, shares.tolist()


def _token_table(subject: Subject) -> Vectors:
    backbone = subject.model.backbone
    table_VD = backbone.token_embedding.weight.detach()
    if backbone.new_rows is not None:
        table_VD = backbone.new_rows.with_offsets(table_VD)
    table: Vectors = table_VD.double().cpu().numpy()
    return table


def _token_vectors(
    subject: Subject, table_VD: Vectors, tokens: npt.NDArray[np.int64], extent: str
) -> _NamedVectors:
    if len(tokens) < 3:
        raise DataError("data: fewer than 3 tokens make no picture; show it more text")
    names = subject.tokenizer.pieces(tokens.tolist())
    rows = [[_one_line(name), str(token)] for name, token in zip(names, tokens, strict=True)]
    return _NamedVectors(table_VD[tokens], ["token", "number"], rows, [], extent)


def _text_vectors(subject: Subject, most: int, pooling: Pooling) -> _NamedVectors:
    """Return the vectors of texts as heads read them; of groups those of each sequence."""
    split = subject.split
    texts = subject.material.texts(split)
    task: Any = subject.material.task
    vector_of: dict[tuple[int, int], Vectors] = {}
    for numbers, batch in subject.read_batches(split, evenly_spread(len(split.data), most)):
        mask_S = batch["mask"].flatten(0, -2).any(-1).cpu().numpy()
        vectors = Encoding(subject.model, batch).pooled(pooling).double().cpu().numpy()
        of_S = np.repeat(numbers, len(vectors) // len(numbers))
        for at in np.flatnonzero(mask_S):
            vector_of[int(of_S[at]), int(at)] = vectors[at]
    if len(vector_of) < 3:
        raise DataError("data: fewer than 3 texts make no picture; show it more")
    encoded, rows, labels = split.encoded, [], []
    for row, _ in sorted(vector_of):
        example = int(encoded.example_of[row])
        answers = task.labels_of(encoded.examples[example])
        # Answers that are texts of their own group nothing.
        labels.append(answers[0] if task.labels and len(answers) == 1 else "")
        shown_answers = ", ".join(map(_one_line, answers[:8]))
        rows.append([_one_line(texts[example]), shown_answers, str(example)])
    vectors_ND = np.stack([vector_of[key] for key in sorted(vector_of)])
    return _NamedVectors(
        vectors_ND, ["text", "label", "number"], rows, labels if all(labels) else [],
        f"texts of {split.name}, pooled by {pooling}",
    )  # fmt: skip


def _default_words(subject: Subject, tokens: npt.NDArray[np.int64]) -> list[str]:
    tokenizer, words = subject.tokenizer, list[str]()
    # Of a word that is chosen here: shorter ones are mostly articles and the like.
    least_letters = 4
    for token in tokens.tolist():
        word = tokenizer.decode([token]).strip()
        is_word = tokenizer.starts_word[token] and word.isalpha() and len(word) >= least_letters
        if is_word and token not in tokenizer.special and word not in words:
            words.append(word)
        if len(words) == _NUM_DEFAULT_WORDS:
            break
    return words


def _tokens_of_word(subject: Subject, word: str) -> list[int]:
    tokenizer = subject.tokenizer
    known = [token for token in tokenizer.encode_within(word) if token not in tokenizer.special]
    if not known:
        raise ConfigError(f"analysis.embeddings.words: the model's vocabulary has no {word!r}")
    return known


def _near_texts(named: _NamedVectors, count: int) -> list[tuple[str, list[tuple[str, float]]]]:
    unit_ND = _normalise(named.vectors)
    names = [row[0][:80] + (f" [{row[1]}]" if row[1] else "") for row in named.rows]
    near = {}
    for at in range(min(_NUM_DEFAULT_WORDS, len(names))):
        others = _nearest(unit_ND, unit_ND[at], count, [at])
        near[names[at]] = [(names[other], cosine) for other, cosine in others.items()]
    return list(near.items())


def _nearest(
    unit_ND: Vectors, vector_D: Vectors, count: int, left_out: Sequence[int]
) -> dict[int, float]:
    """Return which vectors are nearest to one, but for some, and their cosines."""
    cosine_N = unit_ND @ vector_D
    cosine_N[left_out] = -np.inf
    nearest = np.argsort(-cosine_N, kind="stable")[:count].tolist()
    return {number: round(float(cosine_N[number]), 4) for number in nearest
            if np.isfinite(cosine_N[number])}  # fmt: skip


def _same_label_share(named: _NamedVectors) -> float:
    """Return the share of vectors whose nearest other one has the same label."""
    unit_ND, labels = _normalise(named.vectors), np.array(named.labels)
    cosine_NN = unit_ND @ unit_ND.T
    np.fill_diagonal(cosine_NN, -np.inf)
    return float((labels[cosine_NN.argmax(1)] == labels).mean())


def _normalise(vectors_ND: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    unit_ND: Vectors = vectors_ND / np.maximum(lengths, np.finfo(float).tiny)
    return unit_ND


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MOST_CHARACTERS] or "·"


def _projector_files(named: _NamedVectors, name: str) -> dict[str, bytes]:
    """Return what TensorBoard's projector reads, in a folder of its own."""
    numbers = io.BytesIO()
    np.savetxt(numbers, named.vectors, fmt="%.5g", delimiter="\t")
    lines = ("\t".join(row) for row in (named.columns, *named.rows))
    quoted = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return {
        "projector/tensors.tsv": numbers.getvalue(),
        "projector/metadata.tsv": ("\n".join(lines) + "\n").encode(),
        "projector/projector_config.pbtxt": _CONFIG.format(name=quoted).encode(),
    }
