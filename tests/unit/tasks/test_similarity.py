"""Vectors of texts: tables of pairs, the losses, what is found by them."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.tasks.similarity.contrastive import (
    Contrastive,
    cosent_loss,
    multiple_negatives_loss,
)
from transfer_cli.tasks.similarity.retrieval import retrieval_measures
from transfer_cli.tasks.similarity.task import (
    InferenceTable,
    PairExample,
    PairsTable,
    SimilarityTask,
)

VECTORS_NKD = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0))
TEXTS_NK = torch.arange(12).view(4, 3)


def cosine(one, other):
    return float(one @ other / one.norm() / other.norm())


# ---------------------------------------------------------------------------------- losses


def test_each_anchor_is_told_its_own_text_among_those_of_all():
    texts = TEXTS_NK.clone()
    texts[1, 2] = -1  # has no third text
    texts[3, 1] = texts[0, 1]  # the own text of two anchors
    texts[2, 0] = texts[1, 0]  # an anchor with two texts

    losses = multiple_negatives_loss(VECTORS_NKD, texts, scale=20.0)

    for row in range(4):
        candidates = [(r, k) for k in (1, 2) for r in range(4) if texts[r, k] >= 0]
        shared = {0: (3, 1), 3: (0, 1), 1: (2, 1), 2: (1, 1)}[row]
        powers = {
            candidate: np.exp(20 * cosine(VECTORS_NKD[row, 0], VECTORS_NKD[candidate]))
            for candidate in candidates
            if candidate != shared
        }
        expected = -np.log(powers[row, 1] / sum(powers.values()))
        assert float(losses[row]) == pytest.approx(expected, rel=1e-4)


def test_scores_below_zero_are_as_far_from_it_as_those_above():
    pairs = [PairExample("a", "b", value=value) for value in (-5.0, 3.0)]

    assert SimilarityTask().facts(pairs) == {"scored": True, "highest": 5}


def test_cosines_are_ordered_as_scores_are():
    cosines, scores = torch.tensor([0.5, 0.1, 0.9, 0.3]), torch.tensor([1.0, 0.0, 0.5, 0.5])

    loss = cosent_loss(cosines, scores, scale=20.0)

    wrong = [
        np.exp(20 * float(cosines[j] - cosines[i]))
        for i in range(4)
        for j in range(4)
        if scores[i] > scores[j]
    ]
    assert float(loss) == pytest.approx(np.log(1 + sum(wrong)), rel=1e-5)
    assert float(cosent_loss(cosines, torch.ones(4), 20.0)) == 0  # nothing to order


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("multiple_negatives", "MultipleNegativesRankingLoss"),
        ("cosent", "CoSENTLoss"),
        ("cosine", "CosineSimilarityLoss"),
    ],
)
@pytest.mark.parametrize("sizes", [(), (2, 4)])
def test_losses_are_those_of_sentence_transformers(ours, theirs, sizes):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    scored = ours != "multiple_negatives"
    vectors_NKD = VECTORS_NKD[:, :2] if scored else VECTORS_NKD
    values = torch.tensor([0.1, 0.9, 0.4, 0.6])
    objective = Contrastive(loss=ours, matryoshka=sizes)
    objective.setup(TaskInfo(tiny.VOCABULARY, task=SimilarityTask(scored=scored)))

    mean = objective.losses(vectors_NKD, {"texts": TEXTS_NK, "value": values}).mean()

    class Same(torch.nn.Module):
        """A model whose features are vectors."""

        def forward(self, features):
            return {"sentence_embedding": features["vectors"]}

    loss = getattr(losses, theirs)(Same())
    expected = 0.0
    for size in (None, *sizes):
        columns = [{"vectors": vectors_ND[:, :size]} for vectors_ND in vectors_NKD.unbind(1)]
        expected += float(loss(columns, values if scored else None))
    assert float(mean) == pytest.approx(expected, rel=1e-5)


def test_the_sum_over_sizes_is_that_of_the_first_numbers_alone():
    def loss(vectors, *sizes):
        objective = tiny.bound(Contrastive(matryoshka=sizes))
        return objective.losses(vectors, {"texts": TEXTS_NK})

    assert_close(
        loss(VECTORS_NKD, 2, 4),
        loss(VECTORS_NKD) + loss(VECTORS_NKD[..., :2]) + loss(VECTORS_NKD[..., :4]),
    )


@pytest.mark.parametrize(("loss", "scored"), [("cosine", False), ("multiple_negatives", True)])
def test_a_loss_that_does_not_go_with_the_data_is_refused(loss, scored):
    info = TaskInfo(tiny.VOCABULARY, task=SimilarityTask(scored=scored))

    with pytest.raises(ConfigError, match=r"^objective\.loss: "):
        Contrastive(loss=loss).setup(info)


# ---------------------------------------------------------------------------------- measures


def test_what_is_found_of_known_vectors():
    """Two queries: one finds its documents first and third, the other its one second."""
    documents_MD = np.array([[1, 0], [1, 0.5], [1, 1], [0, 1]], dtype=np.float32)
    queries_QD = np.array([[1, 0.01], [0.01, 1]], dtype=np.float32)

    measures = retrieval_measures(queries_QD, documents_MD, [{0, 2}, {2}], [None, None])

    best = 1 + 1 / np.log2(3)
    assert measures == {
        "mrr": pytest.approx((1 + 1 / 2) / 2),
        "recall_at_1": pytest.approx((1 / 2 + 0) / 2),
        "recall_at_10": 1.0,
        "ndcg_at_10": pytest.approx(((1 + 1 / 2) / best + 1 / np.log2(3)) / 2),
    }
    others = retrieval_measures(documents_MD, documents_MD, [{1}, {2}, {1}, {2}], range(4))
    assert others == dict.fromkeys(others, 1)  # none finds itself


def test_vectors_that_are_all_the_same_find_nothing():
    same = np.ones((40, 3), dtype=np.float32)

    measures = retrieval_measures(same, same, [{n} for n in range(40)], [None] * 40)

    assert measures == {
        "mrr": pytest.approx(1 / 40),
        "recall_at_1": 0,
        "recall_at_10": 0,
        "ndcg_at_10": 0,
    }


# ---------------------------------------------------------------------------------- tables


@pytest.fixture
def read(tmp_path):
    def call(content, kind=PairsTable, **options):
        (tmp_path / "own.csv").write_text(content)
        return kind(train=str(tmp_path / "own.csv"), header=True, **options).given_splits(None)

    return call


def examples_of(data):
    return [
        (example.text, example.pair, example.negative, example.value)
        for example in data.splits["train"]
    ]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("anchor,positive\na,b\nc,d\n", {}, ("a", "b", None, None)),
        ("Query,Passage,negative\na,b,c\nd,e,\n", {}, ("a", "b", "c", None)),
        ("x,y,z\na,b,c\nd,e,f\n", {"text": "x", "pair": "z"}, ("a", "c", None, None)),
        ("sentence1,sentence2,score\na,a,5\nd,e,1.5\n", {}, ("a", "a", None, 5.0)),
        ("question1,question2,is_duplicate\na,b,yes\nd,e,no\n", {}, ("a", "b", None, 1.0)),
    ],
)
def test_pairs_are_read_from_columns_that_are_called_so(read, text, options, expected):
    assert examples_of(read(text, **options))[0] == expected


def test_of_inference_come_pairs_and_triples(read):
    text = (
        "premise,hypothesis,label\np,e1,entailment\np,n,neutral\np,c1,contradiction\n"
        "p,c2,contradiction\np,e2,0\np,e3,entailment\nq,e4,entailment\nq,-,-1\nq,q,0\n"
    )

    assert examples_of(read(text, InferenceTable)) == [
        ("p", "e1", "c1", None), ("p", "e2", "c2", None), ("p", "e3", "c1", None),
        ("q", "e4", None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("anchor,positive,negative\na,b,b\n", PairsTable, "line 2"),
        ("sentence1,sentence2,score\na,b,1\nc,d,\n", PairsTable, "line 3"),
        ("anchor,positive,negative,score\na,b,c,1\n", PairsTable, "line 2"),
        ("premise,hypothesis,label\na,b,maybe\n", InferenceTable, "line 2"),
        ("premise,hypothesis,label\na,b,neutral\nc,d,neutral\n", InferenceTable, "own.csv"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_its_line(read, text, kind, place):
    with pytest.raises(DataError, match=place):
        read(text, kind)


@pytest.mark.parametrize("values", [(None,), (2.0, 2.0)])
def test_pairs_of_which_nothing_can_be_learnt_are_refused(values):
    train = [PairExample("a", "b", value=value) for value in values]

    with pytest.raises(DataError, match=r"^own.csv: "):
        SimilarityTask().check(train, "own.csv")
