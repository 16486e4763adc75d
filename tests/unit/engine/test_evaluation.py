import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests import tiny
from transfer_cli.data.split import Split, TextStats
from transfer_cli.engine.evaluation import EachExample, evaluate, predictions, samples
from transfer_cli.errors import ConfigError, DataError, RunError
from transfer_cli.model.unigram import unigram_model
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.replaced_tokens import ReplacedTokens
from transfer_cli.objectives.with_teachers import SourceDistillation

CASES = {
    "clm": (CausalLM, lambda: tiny.blocks(tokens=1100), {}),
    "mlm": (MaskedLM, lambda: tiny.blocks(tokens=1100), {"direction": "bidirectional"}),
    "classification": (Classification, lambda: tiny.Questions(examples=101), {}),
}


def at_work(case):
    objective, data, changes = CASES[case]
    objective = objective()
    model = tiny.lively(tiny.model(objective, **changes))
    return model, objective, data()


def scored(model, objective, data, *, batch=16, order=None, each=None):
    split = Split("test", data, order=order)
    return evaluate(model, objective, split, batch=batch, precision=tiny.FP32, each=each)


@pytest.mark.parametrize("case", CASES)
def test_measures_do_not_depend_on_the_order(case):
    model, objective, data = at_work(case)
    order = np.random.default_rng(0).permutation(len(data))

    shuffled = scored(model, objective, data, order=order)

    expected = tiny.measures(model, objective, data, batch=16)
    assert shuffled.measures == pytest.approx(expected, rel=1e-5)


def test_word_perplexity_is_that_of_the_dumped_losses_of_every_token():
    model, objective, data = at_work("clm")
    facts = TextStats(words=400, size_bytes=3000)
    batch = tiny.all_of(data)
    with torch.no_grad():
        top = Encoding(model.eval(), batch).top
        every = model.heads["lm"](top, model.backbone.token_embedding.weight).double()
    dump = F.cross_entropy(every.flatten(0, 1), batch["next_tokens"].flatten(), reduction="none")

    measures = tiny.measures(model, objective, data, facts=facts)

    total = float(dump.sum())
    assert measures["loss"] == pytest.approx(total / 1100, rel=1e-6)
    assert measures["token_perplexity"] == pytest.approx(math.exp(total / 1100), rel=1e-5)
    assert math.log(measures["word_perplexity"]) == pytest.approx(total / 400, rel=1e-6)
    assert measures["bits_per_byte"] == pytest.approx(total / 3000 / math.log(2), rel=1e-6)


def test_the_unigram_model_scores_what_a_direct_count_says():
    train, test = tiny.text(5000, seed=0).tokens[1:], tiny.blocks(tokens=1100, seed=1)
    vocabulary = tiny.VOCABULARY.size
    counts = np.bincount(train, minlength=vocabulary) + 1
    nats = -np.log(counts / counts.sum())[test.text.tokens[1:]].sum()
    model = unigram_model(np.array_split(train, 7), vocabulary)
    facts = TextStats(words=test.text.num_words)

    measures = tiny.measures(model, tiny.bound(CausalLM()), test, facts=facts)

    assert measures["token_perplexity"] == pytest.approx(math.exp(nats / 1100), rel=1e-6)
    assert measures["word_perplexity"] == pytest.approx(math.exp(nats / 550), rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_an_evaluation_changes_no_weight_and_draws_no_random_number(case):
    model, objective, data = at_work(case)
    before = tiny.weights_of(model)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    tiny.measures(model, objective, data)

    assert torch.equal(torch.rand(2), expected)
    assert tiny.same(model.state_dict(), before)
    assert not model.training


def test_dropout_is_off_in_an_evaluation():
    objective = Classification(dropout=0.9)
    model = tiny.model(objective, dropout=0.9).train()
    data = tiny.Questions(examples=20)

    assert tiny.measures(model, objective, data) == tiny.measures(model, objective, data)


def noted(model, objective, data, **options):
    results = EachExample()
    return scored(model, objective, data, each=results, **options), results.gathered()


@pytest.mark.parametrize("case", CASES)
def test_single_examples_are_noted_once_and_add_up_to_the_measure_which_they_do_not_change(case):
    model, objective, data = at_work(case)
    order = np.random.default_rng(0).permutation(len(data))

    scores, outcomes = noted(model, objective, data, order=order)

    plain = scored(model, objective, data, order=order)
    assert (scores.measures, scores.tables) == (plain.measures, plain.tables)
    assert [outcome.index for outcome in outcomes] == list(range(len(data)))
    total, targets = (
        sum(getattr(outcome, name) for outcome in outcomes) for name in ("loss", "targets")
    )
    assert total / targets == pytest.approx(scores.measures["loss"], rel=1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch", [7, 200])
def test_single_examples_do_not_depend_on_the_batch_size(case, batch):
    model, objective, data = at_work(case)

    (plain, expected), (cut, outcomes) = (
        noted(model, objective, data, batch=size) for size in (32, batch)
    )

    assert cut.measures == pytest.approx(plain.measures, rel=1e-5)
    for one, other in zip(expected, outcomes, strict=True):
        assert (one.index, one.targets, one.predicted.get("label")) == (
            other.index, other.targets, other.predicted.get("label"),
        )  # fmt: skip
        assert one.loss == pytest.approx(other.loss, rel=1e-4, abs=1e-5)
        assert one.predicted == pytest.approx(other.predicted, rel=1e-4)


def test_the_share_of_wrong_examples_is_the_error_rate():
    model, objective, data = at_work("classification")

    scores, outcomes = noted(model, objective, data)

    wrong = sum(outcome.predicted["label"] != data.labels[outcome.index] for outcome in outcomes)
    assert 100 * wrong / len(data) == pytest.approx(scores.measures["error_rate"])
    assert 0 < wrong < len(data)
    for outcome in outcomes:
        label, probability = outcome.predicted["label"], outcome.predicted["probability"]
        assert 1 / 3 < probability <= 1
        if label == data.labels[outcome.index]:
            assert probability == pytest.approx(math.exp(-outcome.loss), rel=1e-4)


def test_an_objective_that_says_nothing_of_examples_leaves_nothing():
    objective = SourceDistillation(CausalLM())
    model = tiny.model(objective)
    objective.on_train_start(model, {name for name, _ in model.named_parameters()})

    scores, outcomes = noted(model, objective, tiny.blocks())

    assert outcomes == []
    assert scores.measures["loss"] == pytest.approx(0, abs=1e-6)


def test_predictions_come_with_the_numbers_of_their_rows():
    model, objective, data = at_work("classification")
    order = np.arange(len(data))[::-1].copy()

    batches = list(predictions(model, objective, data, batch=16, precision=tiny.FP32, order=order))

    assert np.concatenate([indices for indices, _ in batches]).tolist() == order.tolist()
    probabilities = torch.cat([said["probabilities"] for _, said in batches])
    batch = data.batch(order)
    expected = objective.outputs(model, batch, Encoding(model, batch)).softmax(1).detach()
    torch.testing.assert_close(probabilities, expected, rtol=0, atol=1e-4)


def test_an_objective_that_predicts_nothing_is_refused():
    model, objective, data = at_work("clm")

    with pytest.raises(ConfigError, match="objective: CausalLM has no predictions"):
        list(predictions(model, objective, data, batch=16, precision=tiny.FP32))


@pytest.mark.parametrize("case", CASES)
def test_samples_show_the_first_examples(case):
    model, objective, data = at_work(case)

    first, more = (
        samples(model, objective, Split("test", data), count=count, precision=tiny.FP32)
        for count in (3, 5)
    )

    assert len(first) == 3
    assert first == more[:3]


class OneUnknownToken:
    """Texts of a token that no model knows, and nothing behind it."""

    def __len__(self):
        return 3

    def batch(self, indices):
        return tiny.rows_to_batch([[tiny.VOCABULARY.unk]] * len(indices), indices)


@pytest.mark.parametrize("case", ["clm", "mlm"])
def test_a_split_without_any_token_to_predict_is_refused(case):
    model, objective, _ = at_work(case)

    with pytest.raises(DataError, match=r"^validation: its texts have no token to predict"):
        tiny.measures(model, objective, OneUnknownToken())


def test_an_error_in_an_evaluation_is_left_to_the_command(caplog):
    objective = ReplacedTokens(width=None)
    model = tiny.model(objective, direction="bidirectional")

    with pytest.raises(RunError, match="there is no generator"):
        tiny.measures(model, objective, tiny.blocks(tokens=100), batch=32)

    assert not caplog.records
