"""Legend: B batch, T positions."""

import pytest
import torch

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.seeds import ExampleNoise


def prepared(objective, rows):
    return tiny.bound(objective).prepare(tiny.rows_to_batch(rows), ExampleNoise(0))


def drawn(objective, model, batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return objective.with_drawn_targets(model, batch, Encoding(model, batch), generator)


@pytest.mark.parametrize("objective", [CausalLM(), MaskedLM(0.4)], ids=["clm", "mlm"])
def test_only_real_targets_are_drawn_and_nothing_else_changes(objective):
    model = tiny.model(objective, direction=objective.direction)
    batch = prepared(objective, [[7, 8, 9, 10, 11, 2], [5, 6, 2]])
    before = {key: value.clone() for key, value in batch.items()}

    found = drawn(objective, model, batch)

    assert tiny.same(batch, before)
    assert torch.equal(found["target"] == IGNORE, before["target"] == IGNORE)
    assert not torch.equal(found["target"], before["target"])
    assert ((found["target"] == IGNORE) | (found["target"] >= 0)).all()
    assert all(found[key] is batch[key] for key in batch if key != "target")


def test_targets_are_drawn_from_what_the_model_predicts():
    model = tiny.model(objective := CausalLM())
    tiny.lively(model)
    batch = prepared(objective, [[5, 6, 7]] * 4000)
    encoded = Encoding(model, batch)
    with torch.no_grad():
        logits = model.heads["lm"](encoded.top[0, 1], model.backbone.token_embedding.weight)

    targets = drawn(objective, model, batch)["target"][:, 1]

    share = torch.bincount(targets, minlength=tiny.VOCABULARY.size) / len(targets)
    probability = logits.softmax(-1)
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

    found = objective.with_drawn_targets(model, batch, encoded, torch.Generator())
    objective.loss_sums(model, found, encoded)["loss"].backward()

    assert model.backbone.blocks[0].attention.output.weight.grad.any()


def test_a_causal_model_predicts_at_every_real_token():
    batch = prepared(CausalLM(), [[7, 8, 9, 2], [5, 2]])

    assert torch.equal(CausalLM().predicts(batch), batch["mask"])


def test_a_masked_model_predicts_where_tokens_are_hidden():
    objective = MaskedLM(0.4)
    batch = prepared(objective, [[7, 8, 9, 2], [5, 2]])

    assert torch.equal(objective.predicts(batch), batch["target"] != IGNORE)


@pytest.mark.parametrize("objective", [CausalLM(), MaskedLM(0.4)], ids=["clm", "mlm"])
def test_an_objective_says_whether_it_keeps_the_tokens(objective):
    batch = tiny.rows_to_batch([list(range(5, 25)), [5, 2]])

    kept = torch.equal(prepared(objective, [list(range(5, 25)), [5, 2]])["tokens"], batch["tokens"])

    assert objective.keeps_tokens == kept


@pytest.mark.parametrize("objective", [CausalLM(), MaskedLM(0.4)], ids=["clm", "mlm"])
def test_logits_at_the_targets_alone_give_the_loss_and_gradients_of_all_logits(objective):
    model = tiny.model(objective, direction=objective.direction)
    tiny.lively(model)
    batch = prepared(objective, [[7, 8, 9, 10, 11, 2], [5, 6, 2], [30, 31, 32, 33]])
    table = model.backbone.token_embedding.weight
    parameters = list(model.parameters())

    own = objective.loss_sums(model, batch, Encoding(model, batch))["loss"]
    own_gradients = torch.autograd.grad(own, parameters)
    all_logits = model.heads["lm"](Encoding(model, batch).top, table).flatten(0, 1)
    full = torch.nn.functional.cross_entropy(
        all_logits, batch["target"].flatten(), ignore_index=IGNORE, reduction="sum"
    )

    torch.testing.assert_close(own, full, rtol=1e-6, atol=0)
    for found, wanted in zip(own_gradients, torch.autograd.grad(full, parameters), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))
