"""How right written texts are: our own measures, and those of the libraries of the extra `text`."""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import starmap
from typing import TYPE_CHECKING

from transfer_cli.metrics import Metric, Unit
from transfer_cli.tasks.scoring import exact_match, rouge_l, words

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

OWN_MEASURES = {"exact_match": exact_match, "rouge_l": rouge_l}
"""Measures of a text beside the right one; their mean counts."""


def declared_metrics() -> tuple[Metric, ...]:
    """Return what is measured here: without the extra `text`, our own measures alone."""
    names: dict[str, Unit] = dict.fromkeys(OWN_MEASURES, "fraction")
    if _has_libraries():
        names |= {
            "bleu": "percent",
            "chrf": "percent",
            "rouge_1": "fraction",
            "rouge_2": "fraction",
        }
    return tuple(Metric(name, higher_is_better=True, unit=unit) for name, unit in names.items())


def text_measures(given: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """Return the measures of all texts together, by name.

    BLEU (Papineni et al. 2002) and chrF (Popovic 2015) are of the corpus, as sacrebleu has them by
    default, 0 to 100; ROUGE-1 and ROUGE-2 (Lin 2004) are mean F1 of the same words as ROUGE-L.
    """
    pairs = list(zip(given, predicted, strict=True))
    measures = {name: sum(starmap(of, pairs)) / len(pairs) for name, of in OWN_MEASURES.items()}
    if not _has_libraries():
        return measures
    from rouge_score.rouge_scorer import RougeScorer

    for name, metric in _corpus_metrics().items():
        # Rounding may exceed the bound.
        measures[name] = min(100.0, metric.corpus_score(list(predicted), [list(given)]).score)
    scorer = RougeScorer(["rouge1", "rouge2"], tokenizer=_Words())
    scores = [scorer.score(*pair) for pair in pairs]
    for name, theirs in (("rouge_1", "rouge1"), ("rouge_2", "rouge2")):
        measures[name] = sum(score[theirs].fmeasure for score in scores) / len(scores)
    return measures


def signatures() -> dict[str, str]:
    """Return how measures of corpora are made, in the words of sacrebleu, for papers."""
    if not _has_libraries():
        return {}
    metrics = _corpus_metrics()
    for metric in metrics.values():
        metric.corpus_score([""], [[""]])  # by which it learns that there is one right text
    return {name: str(metric.get_signature()) for name, metric in metrics.items()}


class _Words:
    """What cuts texts into words for rouge-score, whose own way knows letters of ASCII alone."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


def _has_libraries() -> bool:
    return all(find_spec(name) is not None for name in ("sacrebleu", "rouge_score"))


def _corpus_metrics() -> "dict[str, BLEU | CHRF]":
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return {"bleu": BLEU(force=True), "chrf": CHRF()}  # texts of samples are tokenized: no warning
