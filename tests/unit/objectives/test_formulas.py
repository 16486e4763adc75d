"""Each formula by other means: numpy, counting or a closed form, on inputs without symmetry.

What is missing here stands beside its part: schedules, LoRA, prefixes, language models' losses ...
"""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.data.split import TextStats
from transfer_cli.metrics import wilson_interval
from transfer_cli.model.adapters import Adapter, ParallelAdapter
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.consistency import Consistency
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.relation_distillation import RelationDistillation
from transfer_cli.objectives.replaced_tokens import ReplacedTokens, area_under_curve, binary_entropy
from transfer_cli.objectives.sentence_pair import SentencePair
from transfer_cli.objectives.with_teachers import DistilLM, SourceDistillation
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.multilabel import Multilabel
from transfer_cli.tasks.regression import Regression, RegressionTask
from transfer_cli.tasks.scoring import rouge_l
from transfer_cli.tasks.span.task import SpanExtraction, SpanTask
from transfer_cli.tasks.span.windows import owned_pieces

DRAW = np.random.default_rng(7)
TABLE = np.array([[5, 2, 1], [0, 7, 3], [9, 1, 2]])
"""Labels in rows, answers in columns: no two margins are the same."""
GIVEN, SAID = (
    np.repeat(np.indices(TABLE.shape)[axis].ravel(), TABLE.ravel()) for axis in (0, 1)
)  # fmt: skip
FIRST, SECOND = torch.tensor(DRAW.normal(size=(2, 4, 3)) * 2)
P, Q = FIRST.tolist(), SECOND.tolist()
PAIRS = list(zip(P, Q, strict=True))


def measured(judged_by, table):
    objective = Classification()
    labels = tuple("abc"[: len(table)])
    objective.setup(
        TaskInfo(tiny.VOCABULARY, labels, task=ClassificationTask(labels, judged_by=judged_by))
    )
    totals = {"confusion": torch.tensor(table), "loss": torch.tensor(3.0)}
    return objective.compute_metrics(totals, {"loss": int(table.sum())}, TextStats())


def f1_of(number, given=GIVEN, said=SAID):
    precision = np.mean(given[said == number] == number)
    recall = np.mean(said[given == number] == number)
    return 2 * precision * recall / (precision + recall)


def correlation(given, said):
    """Return Gorodkin's R_K from covariances of columns of 0 and 1."""
    one, other = (np.eye(3)[classes] - np.eye(3)[classes].mean(0) for classes in (given, said))
    return (one * other).sum() / math.sqrt((one**2).sum() * (other**2).sum())


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def softmax(values):
    raised = [math.exp(value) for value in values]
    return [power / sum(raised) for power in raised]


def logistic(value):
    return 1 / (1 + math.exp(-value))


def both(value):
    return logistic(value), logistic(-value)


def longest_common(one, other):
    def parts(words, n):
        return set(itertools.combinations(words, n))

    return max(n for n in range(len(one) + 1) if n == 0 or parts(one, n) & parts(other, n))


def wilson_by_roots(right, total, z=1.96):
    """Return both shares p with (right / total - p)^2 = z^2 p (1 - p) / total."""
    share = right / total
    roots = np.roots([1 + z * z / total, -2 * share - z * z / total, share * share])
    return tuple(sorted(roots.real.tolist()))


def spans(**options):
    objective = SpanExtraction(n_best=3, **options)
    objective.setup(TaskInfo(tiny.VOCABULARY, task=SpanTask(unanswerable=True)))
    return objective


MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])


def multilabel():
    return tiny.bound(Multilabel())


def regression():
    objective = Regression()
    objective.setup(TaskInfo(tiny.VOCABULARY, task=RegressionTask(mean=3.0, scale=2.5)))
    return objective


ENDS = [[0, 2], [1, 1], [2, 0], [0, 1]]
WINDOW = {"tokens": torch.zeros(1, 6), "window": torch.tensor([[0, 2, 6, 2, 6]])}
"""A question, then a text of four pieces: [CLS] q a b c d."""
ANSWERS = torch.tensor([[[0.3, 0.9], [0, 0], [1, 2], [4, 3], [2, 5], [0.5, 1]]])
TWO = TABLE[:2, :2] + [[3, 0], [1, 2]]
LOGITS = torch.tensor([[2.0, 1.0, -1.0], [0.5, 0.7, 0.5], [-torch.inf, 1.0, 3.0]])
CHOSEN = torch.tensor([1, 2, 2])
CHOICES = MultipleChoice().tallies(LOGITS, {"label": CHOSEN})

FORMULAS = {
    # measures
    "accuracy": lambda: (measured("error_rate", TABLE)["accuracy"], np.mean(GIVEN == SAID)),
    "accuracy of a label": lambda: (
        [measured("error_rate", TABLE)[f"accuracy/{n}"] for n in "abc"],
        [np.mean(SAID[n == GIVEN] == n) for n in range(3)],
    ),
    "macro-F1": lambda: (
        measured("error_rate", TABLE)["macro_f1"], np.mean([f1_of(n) for n in range(3)]),
    ),
    "matthews": lambda: (measured("matthews", TABLE)["matthews"], correlation(GIVEN, SAID)),
    "matthews of two": lambda: (
        measured("matthews", TWO)["matthews"],
        np.corrcoef(np.repeat([[0, 0, 1, 1], [0, 1, 0, 1]], TWO.ravel(), axis=1))[0, 1],
    ),
    "matthews of one answer": lambda: (measured("matthews", TWO * [1, 0])["matthews"], 0),
    "F1 of two": lambda: (
        measured("f1", TWO)["f1"], 2 * TWO[1, 1] / (TWO[1].sum() + TWO[:, 1].sum()),
    ),
    "confusion": lambda: (
        Classification().tallies(torch.tensor(np.eye(3)[SAID]), {"label": torch.tensor(GIVEN)})[
            "confusion"
        ],
        TABLE,
    ),
    "hits of choices": lambda: (CHOICES["accuracy"], 0 + 0 + 1),
    "ranks of choices": lambda: (CHOICES["mean_rank"], 2 + 2.5 + 1),
    "guesses of choices": lambda: (CHOICES["chance"], 2 / 3 + 1 / 2),
    "loss of choices": lambda: (
        MultipleChoice().tallies(LOGITS[:2], {"label": CHOSEN[:2]})["loss"],
        -math.log(softmax([2, 1, -1])[1]) - math.log(softmax([0.5, 0.7, 0.5])[2]),
    ),
    "area": lambda: (
        area_under_curve(torch.tensor([[3, 1, 2], [1, 4, 2]])),
        np.mean([(a > b) + (a == b) / 2 for a in [0, *4 * [1], 2, 2] for b in [0, 0, 0, 1, 2, 2]]),
    ),
    "entropy": lambda: (
        [binary_entropy(share) for share in (0.2, 0.0, 1.0)],
        [0.2 * math.log(5) + 0.8 * math.log(1.25), 0, 0],
    ),
    "wilson": lambda: (wilson_interval(7, 40), wilson_by_roots(7, 40)),
    "rouge-l": lambda: (
        rouge_l("the cat sat on a mat", "A cat on the old mat sat"),
        2 * longest_common("tcsoam", "acotxms") / 13,  # a letter for each word
    ),
    "perplexities": lambda: (
        [*CausalLM().compute_metrics(
            {"loss": 60.0, "right": 5}, {"loss": 20}, TextStats(12, 75)
        ).values()],
        [3.0, math.e**3, 0.25, math.e**5, 60 / 75 * math.log2(math.e)],
    ),
    # objectives
    "divergence": lambda: (
        tiny.bound(Classification()).divergence(FIRST, SECOND),
        [kl(softmax(p), softmax(q)) for p, q in PAIRS],
    ),
    "confidence": lambda: (
        tiny.bound(Classification()).confidence(FIRST), [max(softmax(row)) for row in P],
    ),
    "temperature": lambda: (
        tiny.bound(Classification()).soften(FIRST, 0.4).softmax(1),
        [[v**2.5 / sum(u**2.5 for u in p) for v in p] for p in map(softmax, P)],
    ),
    "divergence of labels": lambda: (
        multilabel().divergence(FIRST, SECOND),
        [sum(map(kl, map(both, p), map(both, q)))
         for p, q in PAIRS],
    ),
    "confidence of labels": lambda: (
        multilabel().confidence(FIRST),
        [min(max(both(a)) for a in row) for row in P],
    ),
    "scores of labels": lambda: (
        multilabel().answer_scores(torch.tensor([[0.2, 0.9]])), [[math.log(0.25), math.log(9)]],
    ),
    "divergence of numbers": lambda: (
        regression().divergence(FIRST[:, :1], SECOND[:, :1]), (FIRST[:, 0] - SECOND[:, 0]) ** 2,
    ),
    "scores of numbers": lambda: (regression().answer_scores(torch.tensor([[8.0]])), [[2.0]]),
    "loss of a span": lambda: (
        spans().losses(torch.stack([FIRST, SECOND], 2), {"span": torch.tensor(ENDS)}),
        [-math.log(softmax(p)[a] * softmax(q)[b]) / 2
         for (p, q), (a, b) in zip(PAIRS, ENDS, strict=True)],
    ),
    "score of no answer": lambda: (
        spans(null_threshold=1.5).answers(ANSWERS, WINDOW)["null"], [0.3 + 0.9 - 1.5],
    ),
    "scores of answers": lambda: (
        spans(longest_answer=2).answers(ANSWERS, WINDOW)["score"], [[4 + 5, 2 + 5, 4 + 3]],
    ),
    # a piece 49 from the end of a window of 300 and 50 from the start of one of 150
    "share of the length": lambda: (owned_pieces(350, 300, [0, 200]), [(0, 251), (251, 350)]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_gives_what_other_means_do(name):
    ours, expected = (
        torch.as_tensor(np.asarray(result), dtype=torch.float64) for result in FORMULAS[name]()
    )

    assert_close(ours, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("confidence", [0.0, 0.5, 0.7, 0.95])
def test_consistency_is_sharpened_and_asks_for_confidence_before_that(confidence, monkeypatch):
    objective = Consistency("none", temperature=0.4, confidence=confidence)
    main = tiny.bound(Classification())
    tiny.bound(objective, main)
    scores = iter((FIRST, SECOND))
    monkeypatch.setattr(main, "scores", lambda *_: next(scores))
    expected = [
        kl(softmax([value / 0.4 for value in p]), softmax(q))
        for p, q in PAIRS
        if max(softmax(p)) > confidence
    ]

    batch = {"tokens": FIRST, "mask": MASK}
    loss = objective.loss_sums(None, batch, None)["loss"]

    assert loss.item() == pytest.approx(sum(expected))
    assert objective.counts(batch) == {"loss": 4}  # those that are left out count, too


@pytest.mark.parametrize(("make", "beside"), [(Adapter, 1), (ParallelAdapter, 0)])
def test_a_bottleneck_is_two_products_with_an_activation_between(make, beside):
    adapter = make(3, 2, "relu", *(() if beside else (0.3,)))
    tiny.lively(adapter)
    down, down_bias, up, up_bias = (tensor.detach().numpy() for tensor in adapter.parameters())
    z = FIRST.float().numpy()

    squeezed = np.maximum(z @ down.T + down_bias, 0) @ up.T + up_bias

    assert_close(adapter(FIRST.float()), torch.tensor(z + squeezed if beside else 0.3 * squeezed))


# --- encodings -----------------------------------------------------------------------------------


def test_an_encoding_is_computed_once_and_only_when_asked():
    model = tiny.model(Classification())
    calls = []
    model.backbone.register_forward_hook(lambda *_: calls.append(1))
    first, second = (Encoding(model, tiny.all_of(tiny.Questions(examples=4))) for _ in range(2))

    assert not calls
    states, top = first.states, first.top
    assert len(calls) == 1
    alone = second.top, second.top

    assert len(calls) == 2
    assert torch.equal(top, states[-1])
    assert all(torch.equal(state, top) for state in alone)


def test_in_an_evaluation_a_head_runs_once_for_measures_and_results():
    objective = Classification()
    model = tiny.model(objective).eval()
    calls = []
    model.heads["class"].register_forward_hook(lambda *_: calls.append(1))
    batch = tiny.all_of(tiny.Questions(examples=4))
    encoding = Encoding(model, batch)

    sums = objective.metric_sums(model, batch, encoding)
    results = objective.example_results(model, batch, encoding)

    assert len(calls) == 1
    torch.testing.assert_close(results.loss.sum(), sums["loss"])


# Which end of each measure is good decides the best weights, a search and a report's order.
OBJECTIVES = (
    Classification, CausalLM, MaskedLM, lambda: SourceDistillation(CausalLM()),
    lambda: DistilLM(("RUN",), MaskedLM()), lambda: RelationDistillation(("RUN",)), SentencePair,
    ReplacedTokens, lambda: ReplacedTokens("replace"),
)  # fmt: skip


SHARES = ("accuracy", "token_accuracy", "macro_f1", "auc")


@pytest.mark.parametrize("make", OBJECTIVES)
def test_shares_that_are_right_are_better_when_higher_and_nothing_else_is(make):
    declared = tiny.bound(make(), MaskedLM()).declared_metrics()

    assert declared
    for metric in declared:
        assert metric.higher_is_better == (metric.name in SHARES), metric.name
