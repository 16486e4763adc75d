"""Which words of a text speak for a model's answer, which against it, and whether that is faithful.

Faithfulness is that of DeYoung et al. 2020 (ERASER), section 4.2. Of a text's words, by falling
score: comprehensiveness is how much less sure the model is without the first of them, sufficiency
how much less with these alone. The first should be large and the second small, by comparison with a
random order.

Gradients take what the model says as a function of embeddings, and nothing else of the model.

Legend: W words, K points of a path, T positions, E size of an embedding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transfer_cli.analysis.analysis import Analysis, Subject, json_lines, records_that_fit
from transfer_cli.analysis.explained_text import (
    FEWEST_WORDS,
    Baseline,
    ChosenTexts,
    ExplainedText,
    Explainer,
    Removal,
)
from transfer_cli.errors import DataError, at_least, between
from transfer_cli.progress import progress
from transfer_cli.reports import formats
from transfer_cli.reports.finding import Finding, FindingTable, FindingView
from transfer_cli.seeds import derive

FIRST_STEPS, MOST_STEPS = 50, 400
TOLERANCE = 0.05
"""Of the change between baseline and text: the residue below which there are steps enough."""

EmbeddingFunction = Callable[[Tensor], Tensor]
"""Returns the number for each of K texts, `[K]`, from `[K, T, E]`."""


@dataclass(frozen=True)
class PathAttribution:
    """Attributions along a path from a baseline to a text.

    Args:
        scores: One for each token, `[T]`.
        change: By how much the number changes along the path; without an error of the integral,
            the scores add up to it.
        steps: Points at which gradients were taken.
    """

    scores: Tensor
    change: float
    steps: int

    @property
    def residue(self) -> float:
        """What the scores lack of the change, signed."""
        return self.change - float(self.scores.sum())

    @property
    def is_complete(self) -> bool:
        """Whether the residue is within the tolerance."""
        return abs(self.residue) <= TOLERANCE * abs(self.change)


def gradient_times_input(function: EmbeddingFunction, text_TE: Tensor) -> Tensor:
    """Return the gradient of the number by each embedding, times that embedding, `[T]`."""
    return (_gradients(function, text_TE[None])[0] * text_TE).sum(-1)


def integrated_gradients(
    function: EmbeddingFunction, text_TE: Tensor, baseline_TE: Tensor, *, at_once: int = 32
) -> PathAttribution:
    """Return the mean gradient on the straight line from a baseline, times the difference.

    The integral is taken by Gauss-Legendre, with 50 points, then twice as many until the scores add
    up to the change of the number within 5 %, or there are 400. Sundararajan et al. 2017.

    Args:
        baseline_TE: Where the line begins; equal to the text where that is to stay.
        at_once: Points that pass through the model together.
    """
    with torch.no_grad():
        ends = torch.cat([function(end_TE[None]) for end_TE in (baseline_TE, text_TE)])
    change, steps = float(ends[1] - ends[0]), FIRST_STEPS
    while True:
        scores_T = _line_integral(function, text_TE, baseline_TE, steps, at_once)
        path = PathAttribution(scores_T, change, steps)
        if path.is_complete or steps >= MOST_STEPS:
            return path
        steps *= 2


def _line_integral(
    function: EmbeddingFunction, text_TE: Tensor, baseline_TE: Tensor, steps: int, at_once: int
) -> Tensor:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    # From [-1, 1], where they are tabulated, to [0, 1].
    share_K, weight_K = (
        torch.as_tensor(values, dtype=text_TE.dtype, device=text_TE.device)
        for values in ((nodes + 1) / 2, weights / 2)
    )
    difference_TE, mean_TE = text_TE - baseline_TE, torch.zeros_like(text_TE)
    for shares, weight in zip(share_K.split(at_once), weight_K.split(at_once), strict=True):
        points_KTE = baseline_TE + shares[:, None, None] * difference_TE
        mean_TE += torch.einsum("kte,k->te", _gradients(function, points_KTE), weight)
    return (mean_TE * difference_TE).sum(-1)


def _gradients(function: EmbeddingFunction, points_KTE: Tensor) -> Tensor:
    points_KTE = points_KTE.detach().requires_grad_()
    with torch.enable_grad():
        gradient_KTE: Tensor = torch.autograd.grad(function(points_KTE).sum(), points_KTE)[0]
    return gradient_KTE


METHODS = ("erasure", "gradient_input", "integrated_gradients")
RANDOM = "random"
KINDS = ("comprehensiveness", "sufficiency")
"""Of faithfulness."""

_DIGITS = 6


@dataclass(frozen=True)
class TextAttribution:
    """A text with a score for each word by each method, `[W]`, signed.

    Args:
        output: What the model says; the scores are its parts.
        path: Of integrated gradients, by token.
    """

    text: ExplainedText
    output: float
    scores: Mapping[str, npt.NDArray[np.float64]]
    path: PathAttribution

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        text = self.text
        return {
            "example": text.example,
            "label": text.label,
            "prediction": text.prediction,
            "explained": text.explained,
            "output": _rounded(self.output),
            "words": [word.shown for word in text.words],
            "scores": {name: list(map(_rounded, values)) for name, values in self.scores.items()},
            "change": _rounded(self.path.change),
            "residue": _rounded(self.path.residue),
            "steps": self.path.steps,
        }


@dataclass(frozen=True)
class Attributions(Analysis):
    """Words by how much they speak for an answer; see `conf/analysis/attributions.yaml`.

    What is explained is the logit of the predicted label, since probabilities saturate; of numbers
    the value in the unit of the head, of choices the logit of the one taken, of a causal language
    model the log-probability of the token that it would go on with. All texts are in `texts.jsonl`,
    and as many of the first in the JSON as it has room for.
    """

    most: int = 10
    only_wrong: bool = False
    label: str | None = None
    removal: Removal | None = None
    baseline: Baseline | None = None
    faithfulness: int = 30
    random_orders: int = 5

    def __post_init__(self) -> None:
        at_least("most", self.most, 1)
        at_least("faithfulness", self.faithfulness, 0)
        between("random_orders", self.random_orders, 1, 1000)

    def __call__(self, subject: Subject) -> Finding:
        explainer = Explainer(subject, self.removal, self.baseline)
        texts = ChosenTexts(subject, explainer, self.label)
        choose = texts.wrong_answers if self.only_wrong else texts.evenly_spread
        attributions: dict[int, TextAttribution] = {}

        def explain(text: ExplainedText) -> TextAttribution:
            if text.example not in attributions:
                attributions[text.example] = attribute_words(explainer, text, at_once=subject.batch)
            return attributions[text.example]

        with progress("explaining", min(self.most, len(texts)), "texts") as more:
            shown = []
            for text in choose(self.most):
                shown.append(explain(text))
                more(1)
        if not shown:
            what = "that is answered wrongly" if self.only_wrong else f"of {FEWEST_WORDS} words"
            raise DataError(f"analysis.attributions: there is no text {what}")
        measured = []
        with progress("faithfulness", min(self.faithfulness, len(texts)), "texts") as more:
            for text in texts.evenly_spread(self.faithfulness) if self.faithfulness else ():
                measured.append(self._method_faithfulness(explainer, explain(text), subject.seed))
                more(1)
        table = _faithfulness_table(measured) if measured else []
        return _finding(explainer, subject, shown, table, len(measured))

    def _method_faithfulness(
        self, explainer: Explainer, attribution: TextAttribution, seed: int
    ) -> npt.NDArray[np.float64]:
        """Return the faithfulness of each method, then of random orders' mean."""
        text = attribution.text
        generator = np.random.default_rng(derive(seed, "attributions", text.example))
        drawn = [generator.permutation(len(text.words)) for _ in range(self.random_orders)]
        falling = [np.argsort(-attribution.scores[name], kind="stable") for name in METHODS]
        all_orders = faithfulness(explainer, text, [order.tolist() for order in (*falling, *drawn)])
        ours = len(METHODS)
        return np.concatenate([all_orders[:ours], all_orders[ours:].mean(0, keepdims=True)])


def attribute_words(explainer: Explainer, text: ExplainedText, *, at_once: int) -> TextAttribution:
    """Return the scores of a text's words by all methods."""
    removed = [frozenset[int](), *(frozenset({number}) for number in range(len(text.words)))]
    outputs, _ = explainer.score_without(text, removed)
    text_TE, baseline_TE = explainer.embeddings(text)
    function = explainer.embedding_function(text)
    path = integrated_gradients(function, text_TE, baseline_TE, at_once=at_once)
    scores = {
        "erasure": (outputs[0] - outputs[1:]).numpy(),
        "gradient_input": _by_word(gradient_times_input(function, text_TE), text),
        "integrated_gradients": _by_word(path.scores, text),
    }
    return TextAttribution(text, float(outputs[0]), scores, path)


def _by_word(scores_T: Tensor, text: ExplainedText) -> npt.NDArray[np.float64]:
    by_token = scores_T.double().cpu().numpy()
    return np.array([by_token[list(word.places)].sum() for word in text.words])


def _faithfulness_table(measured: Sequence[npt.NDArray[np.float64]]) -> list[dict[str, Any]]:
    """Return the means over texts; those over shares of words are the AOPC of the paper."""
    table = []
    for name, both in zip((*METHODS, RANDOM), np.mean(measured, axis=0), strict=True):
        means = zip(KINDS, both.mean(1), strict=True)
        by_share = [
            {"share": share, KINDS[0]: _rounded(first), KINDS[1]: _rounded(second)}
            for share, first, second in zip(SHARES, *both, strict=True)
        ]
        of_method = {kind: _rounded(mean) for kind, mean in means}
        table.append({"method": name, **of_method, "by_share": by_share})
    return table


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _finding(
    explainer: Explainer, subject: Subject, shown: Sequence[TextAttribution],
    table: Sequence[Mapping[str, Any]], measured: int,
) -> Finding:  # fmt: skip
    texts = [attribution.as_json() for attribution in shown]
    complete = sum(attribution.path.is_complete for attribution in shown)
    summary = (
        f"{formats.several(len(texts), 'text')} of {subject.split.name}. A word that is taken away "
        f"is {'replaced by the mask token' if explainer.removal == 'mask' else 'deleted'}. For "
        f"{complete} integrated gradients add up to the change from the baseline within 5 %."
    )
    if measured:
        summary += (
            f" Faithfulness is the mean over {formats.several(measured, 'text')} and over 10 to "
            "50 % of their words: comprehensiveness should be above that of a random order, "
            "sufficiency below."
        )
    columns = ["method", *KINDS]
    return Finding(
        "Words that speak for an answer, or against it",
        summary,
        {"split": subject.split.name, "texts": len(texts), "measured on": measured},
        [
            FindingTable(columns, [[row[key] for key in columns] for row in table], "Faithfulness"),
            _strongest_words(texts),
        ],
        data={
            "removal": explainer.removal,
            "baseline": explainer.baseline,
            "texts": records_that_fit(texts),
            "faithfulness": table,
        },
        files={"texts.jsonl": json_lines(texts)},
        view=FindingView("words", {"texts": texts}),
    )


def _strongest_words(texts: Sequence[Mapping[str, Any]]) -> FindingTable:
    rows = [
        [
            f"{text['example'] + 1:,}",
            text["prediction"],
            text["label"],
            text["explained"],
            *(_strongest(text["words"], scores) for scores in text["scores"].values()),
            *(text[key] for key in ("residue", "change", "steps")),
        ]
        for text in texts
    ]
    columns = ["example", "prediction", "right", "explained"]
    return FindingTable([*columns, *METHODS, "residue", "change", "steps"], rows, "Strongest words")


def _strongest(words: Sequence[str], scores: Sequence[float]) -> str:
    shown_words = 3  # of a text, in a table
    order = np.argsort(-np.abs(scores), kind="stable")[:shown_words]
    return "  ".join(f"{words[at]} {scores[at]:+.3g}" for at in order)


SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Of a text's words, one at least. The paper goes from 1 % to 50 %; questions are too short."""


def faithfulness(
    explainer: Explainer, text: ExplainedText, orders: Sequence[Sequence[int]]
) -> npt.NDArray[np.float64]:
    """Return comprehensiveness and sufficiency of orders of a text's words, `[orders, 2, shares]`.

    They are probabilities, where the model gives some, else in the unit of what it says.
    """
    cuts = [max(1, round(share * len(text.words))) for share in SHARES]
    removed = [
        [[frozenset(order[:cut]) for cut in cuts], [frozenset(order[cut:]) for cut in cuts]]
        for order in orders
    ]
    whole: frozenset[int] = frozenset()
    word_sets = (words for sets in removed for kind in sets for words in kind)
    distinct = list(dict.fromkeys([whole, *word_sets]))
    _, shares = explainer.score_without(text, distinct)
    sure = dict(zip(distinct, shares.tolist(), strict=True))
    return np.array([[[sure[whole] - sure[words] for words in kind] for kind in sets]
                     for sets in removed])  # fmt: skip
