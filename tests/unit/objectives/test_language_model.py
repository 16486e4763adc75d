"""Language models: next tokens, draws, replies."""

import math

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.data.split import TextStats
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import exp_or_inf, token_logits
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.replies import Continued
from transfer_cli.seeds import ExampleNoise
from transfer_cli.testing.objectives import check_objective

BOTH = pytest.mark.parametrize("objective", [CausalLM(), MaskedLM(0.4)], ids=["clm", "mlm"])
NOISE = ExampleNoise(0, "train", 0)


def prepared(objective, rows):
    return tiny.bound(objective).prepare(tiny.rows_to_batch(rows), ExampleNoise(0))


def drawn(objective, model, batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return objective.with_drawn_targets(model, batch, Encoding(model, batch), generator)


@BOTH
def test_only_real_targets_are_drawn_and_nothing_else_changes(objective):
    model = tiny.model(objective, direction=objective.direction)
    batch = prepared(objective, rows := [[7, 8, 9, 10, 11, 2], [5, 6, 2]])
    before = {key: value.clone() for key, value in batch.items()}

    drawn_batch = drawn(objective, model, batch)

    assert tiny.same(batch, before)
    assert torch.equal(drawn_batch["target"] == IGNORE, before["target"] == IGNORE)
    assert not torch.equal(drawn_batch["target"], before["target"])
    assert ((drawn_batch["target"] == IGNORE) | (drawn_batch["target"] >= 0)).all()
    assert all(drawn_batch[key] is batch[key] for key in batch if key != "target")
    is_kept = torch.equal(batch["tokens"], tiny.rows_to_batch(rows)["tokens"])
    assert objective.keeps_tokens == is_kept


def test_targets_are_drawn_from_what_the_model_predicts():
    model = tiny.model(objective := CausalLM())
    tiny.lively(model)
    batch = prepared(objective, [[5, 6, 7]] * 4000)
    with torch.no_grad():
        probability = token_logits(model, Encoding(model, batch).top[0, 1]).softmax(-1)

    targets = drawn(objective, model, batch)["target"][:, 1]

    share = torch.bincount(targets, minlength=tiny.VOCABULARY.size) / len(targets)
    # Five standard deviations of each share.
    assert ((share - probability).abs() <= 5 * (probability / len(targets)).sqrt() + 1e-9).all()


def test_a_token_without_probability_is_never_drawn_nor_one_beyond_the_last():
    model = tiny.model(objective := CausalLM())
    model.heads["lm"].bias.data = torch.full((48,), -torch.inf)
    model.heads["lm"].bias.data[[20, 30]] = 0.0
    batch = prepared(objective, [[5, 6, 7, 8]] * 500)

    targets = drawn(objective, model, batch)["target"]

    assert set(targets.unique().tolist()) == {IGNORE, 20, 30}


def test_the_same_generator_draws_the_same_targets_and_another_seed_others():
    model = tiny.model(objective := CausalLM())
    batch = prepared(objective, [list(range(5, 25))])

    first, again, other = (drawn(objective, model, batch, seed)["target"] for seed in (0, 0, 1))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_draws_leave_the_gradient_of_the_states_alone():
    model = tiny.model(objective := CausalLM())
    batch = prepared(objective, [[5, 6, 7]])
    encoded = Encoding(model, batch)

    drawn_batch = objective.with_drawn_targets(model, batch, encoded, torch.Generator())
    objective.loss_sums(model, drawn_batch, encoded)["loss"].backward()

    assert model.backbone.blocks[0].attention.output.weight.grad.any()


@BOTH
def test_logits_at_the_targets_alone_give_the_loss_and_gradients_of_all_logits(objective):
    model = tiny.model(objective, direction=objective.direction)
    tiny.lively(model)
    batch = prepared(objective, [[7, 8, 9, 10, 11, 2], [5, 6, 2], [30, 31, 32, 33]])
    parameters = list(model.parameters())

    loss = objective.loss_sums(model, batch, Encoding(model, batch))["loss"]
    gradients = torch.autograd.grad(loss, parameters)
    all_logits = token_logits(model, Encoding(model, batch).top).flatten(0, 1)
    full = torch.nn.functional.cross_entropy(
        all_logits, batch["target"].flatten(), ignore_index=IGNORE, reduction="sum"
    )

    torch.testing.assert_close(loss, full, rtol=1e-6, atol=0)
    for gradient, wanted in zip(gradients, torch.autograd.grad(full, parameters), strict=True):
        torch.testing.assert_close(
            gradient, wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max())
        )


@pytest.mark.parametrize("data", [tiny.blocks(tokens=100), tiny.Questions()])
def test_causal_lm_keeps_the_contract_of_objectives(data):
    last_six = np.arange(len(data))[-6:]

    info = TaskInfo(tiny.VOCABULARY, tiny.LABELS)
    check_objective(CausalLM(), info, data.batch(last_six))


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


def test_measures_of_a_text_without_counts_are_those_of_its_tokens():
    totals = {"loss": torch.tensor(200.0), "right": torch.tensor(25)}
    measures = CausalLM().compute_metrics(totals, {"loss": 100}, TextStats())

    assert measures == {"loss": 2.0, "token_perplexity": math.exp(2), "token_accuracy": 0.25}


def test_the_share_of_right_tokens_is_that_of_the_whole_logits():
    model = tiny.model(objective := CausalLM())
    tiny.lively(model)
    view = prepared(objective, [[5, 6, 7, 8, 9, 10], [11, 12, 13]])
    encoded = Encoding(model, view)

    sums = objective.metric_sums(model, view, encoded)

    has_BT = view["target"] != IGNORE
    logits_NV = token_logits(model, encoded.top[has_BT])
    expected = (logits_NV.argmax(1) == view["target"][has_BT]).sum()
    assert sums["right"] == expected
    assert torch.equal(sums["loss"], objective.loss_sums(model, view, encoded)["loss"])


def test_a_perplexity_too_large_for_a_float_is_infinite():
    assert [exp_or_inf(nats) for nats in (2.0, 1e6)] == [math.exp(2.0), math.inf]


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


TEXTS = [[7, 9, 11, 6, 8], [12, 5], [30, 31, 32, 33, 34, 35, 36, 37, 38]]
MOST = 5
KINDS = {
    "learned": {}, "sinusoidal": {"position_kind": "sinusoidal"},
    "relative_bias": {"position_kind": "relative_bias"}, "modern": tiny.MODERN,
    "shared": {"share": "all"},
}  # fmt: skip


def best(logits):
    return logits.argmax(1)


def of_texts(model, batch, prefix_R=None):
    tokens, lengths = batch["tokens"], torch.tensor([*map(len, TEXTS)])
    return Continued(
        model, tokens, torch.zeros_like(tokens), lengths, max_tokens=MOST, prefix_R=prefix_R
    )


def alone(model, text, prefix):
    """Return the logits after a text and after each of its best continuations, read anew."""
    said, logits = list(text), []
    prefix_1 = None if prefix is None else torch.tensor([prefix])
    for _ in range(MOST):
        tokens = torch.tensor([said])
        with torch.no_grad():
            states = model.backbone(tokens, tokens > 0, prefix_B=prefix_1)
            logits.append(token_logits(model, model.readout(states)[0, -1]))
        said.append(int(logits[-1].argmax()))
    return torch.stack(logits)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_texts_of_different_lengths_get_the_reply_of_each_alone(kind, direction):
    model = tiny.model(CausalLM(), direction=direction, **KINDS[kind])
    tiny.lively(model.eval())
    prefixes = None if direction == "causal" else [len(text) for text in TEXTS]
    batch, seen = tiny.rows_to_batch(TEXTS), []

    def pick(logits):
        seen.append(logits)
        return best(logits)

    prefix_R = None if prefixes is None else torch.tensor(prefixes)
    of_texts(model, batch, prefix_R).pick_tokens(pick)

    for row, text in enumerate(TEXTS):
        expected = alone(model, text, prefixes and prefixes[row])
        assert expected.std() > 0.05
        torch.testing.assert_close(
            torch.stack([step[row] for step in seen]), expected, rtol=1e-4, atol=1e-4
        )


def test_each_token_is_read_once():
    model, read = tiny.model(CausalLM()).eval(), []
    model.backbone.register_forward_pre_hook(lambda _, given: read.append(given[0].shape))
    batch = tiny.rows_to_batch(TEXTS)

    of_texts(model, batch).pick_tokens(best)
    of_texts(model, batch).pick_tokens(lambda logits: logits[:, 0].long() * 0 + 3, end=3)

    assert read == [(3, 9), *[(3, 1)] * (MOST - 1), (3, 9)]


def test_what_has_no_position_takes_passes_all_the_same():
    model, read = tiny.model(CausalLM(), positions=10).eval(), []
    model.backbone.register_forward_pre_hook(lambda _, given: read.append(given[0].shape))
    batch = tiny.rows_to_batch(TEXTS)

    tokens = of_texts(model, batch).pick_tokens(best)

    assert tokens.shape == (3, MOST)
    assert len(read) == MOST
