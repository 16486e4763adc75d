import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.data.split import TextStats
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import exponential
from transfer_cli.seeds import ExampleNoise
from transfer_cli.testing.objectives import check_objective

FACTS = TaskInfo(tiny.VOCABULARY, tiny.LABELS)
NOISE = ExampleNoise(0, "train", 0)


@pytest.mark.parametrize("data", [tiny.blocks(tokens=100), tiny.Questions()])
def test_causal_lm_keeps_the_contract_of_objectives(data):
    last_six = np.arange(len(data))[-6:]

    check_objective(CausalLM(), FACTS, data.batch(last_six))


def test_every_token_of_a_text_but_the_first_is_a_target_once():
    data, objective = tiny.blocks(tokens=100, length=16), tiny.bound(CausalLM())

    prepared = objective.prepare(tiny.all_of(data), NOISE)

    targets = prepared["target"][prepared["target"] != IGNORE]
    assert targets.tolist() == data.text.tokens[1:].tolist()
    assert objective.counts(prepared) == {"loss": 100}


def test_targets_of_labelled_texts_are_their_own_tokens():
    cls, objective = tiny.VOCABULARY.cls, tiny.bound(CausalLM())
    batch = tiny.rows_to_batch([[7, 8, 9, cls], [5, cls]])

    target = objective.prepare(batch, NOISE)["target"]

    none = IGNORE
    assert target.tolist() == [[8, 9, none, none], [none, none, none, none]]


@pytest.mark.parametrize("vocabulary", [48, 1000])
def test_equal_logits_have_a_loss_of_ln_v_and_perplexities_to_match(vocabulary):
    model, objective = tiny.model(CausalLM()), tiny.bound(CausalLM())
    model.backbone.token_embedding.weight.data = torch.zeros(vocabulary, 16)
    model.heads["lm"].bias.data = torch.full((vocabulary,), 0.3)
    batch = objective.prepare(tiny.all_of(tiny.blocks(tokens=100)), NOISE)

    with torch.no_grad():
        tallies = objective.metric_sums(model, batch, Encoding(model, batch))
    found = objective.compute_metrics(tallies, {"loss": 100}, TextStats(words=40, size_bytes=300))

    assert found["loss"] == pytest.approx(math.log(vocabulary), rel=1e-6)
    assert found["token_perplexity"] == pytest.approx(vocabulary, rel=1e-5)
    assert found["word_perplexity"] == pytest.approx(vocabulary ** (100 / 40), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(100 * math.log2(vocabulary) / 300, rel=1e-6)


def test_measures_of_a_text_without_counts_are_those_of_its_tokens():
    found = CausalLM().compute_metrics({"loss": torch.tensor(200.0)}, {"loss": 100}, TextStats())

    assert found == {"loss": 2.0, "token_perplexity": math.exp(2)}


@given(st.floats(0, 1e6))
def test_a_perplexity_too_large_for_a_float_is_infinite(nats):
    expected = math.exp(nats) if nats < 700 else math.inf

    assert exponential(nats) == expected


def test_logits_are_computed_only_where_there_is_a_target(monkeypatch):
    model, objective = tiny.model(CausalLM()), tiny.bound(CausalLM())
    rows = []
    head = model.heads["lm"]
    plain = head.summed_loss
    monkeypatch.setattr(
        head, "summed_loss", lambda hidden, *rest: rows.append(len(hidden)) or plain(hidden, *rest)
    )
    batch = objective.prepare(tiny.all_of(tiny.Questions(examples=5)), NOISE)

    objective.loss_sums(model, batch, Encoding(model, batch))

    assert rows == [objective.counts(batch)["loss"]]


def test_samples_show_the_likeliest_token_at_the_last_targets():
    model, objective = tiny.model(CausalLM()), tiny.bound(CausalLM())
    model.heads["lm"].bias.data[17] = 100.0
    batch = objective.prepare(tiny.rows_to_batch([[7, 8, 9, 2], [5, 2]]), NOISE)

    first, second = objective.samples(model, batch, Encoding(model, batch))

    assert (first.tokens, first.target, first.prediction) == ([7, 8, 9, 2], [8, 9], [17, 17])
    assert (second.tokens, second.target, second.prediction) == ([5, 2], [], [])
