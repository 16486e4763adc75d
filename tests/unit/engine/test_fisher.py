"""Legend: B sequences, T positions, V vocabulary."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.batch import IGNORE
from transfer_cli.engine.fisher import fisher_information
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.seeds import ExampleNoise, derive

SEED = 3


def two_blocks(objective, **changes):
    """Return a model of two blocks with large random weights, and data that it reads."""
    model = tiny.model(objective, depth=2, direction=objective.direction, **changes)
    tiny.lively(model, std=0.2)
    return model, tiny.Questions(causal=objective.direction == "causal", examples=12)


def cut(data, size):
    numbers = np.arange(len(data))
    return [data.batch(part) for part in np.split(numbers, range(size, len(data), size))]


def drawn_targets(model, objective, prepared):
    """Return the draws that belong to a sequence of its own, `[1, T]`."""
    generator = torch.Generator().manual_seed(derive(SEED, "fisher", int(prepared["index"])))
    encoded = Encoding(model, prepared)
    return objective.with_drawn_targets(model, prepared, encoded, generator)["target"]


def log_likelihood(model, tokens_1T, mask_1T, target_1T):
    """Return the summed log-likelihood of the targets, from all logits, by the definition."""
    top_1TD = model.backbone(tokens_1T, mask_1T)[-1]
    logits_1TV = top_1TD @ model.backbone.token_embedding.weight.T + model.heads["lm"].bias
    probability_1TV = logits_1TV.double().softmax(-1)
    total = 0.0
    for place, target in enumerate(target_1T[0].tolist()):
        if target != IGNORE:
            total = total + probability_1TV[0, place, target].log()
    return total


@pytest.mark.parametrize("kind", ["true", "empirical"])
@pytest.mark.parametrize("objective", [CausalLM(), MaskedLM(0.4)], ids=["clm", "mlm"])
def test_the_information_equals_a_loop_over_sequences(objective, kind):
    model, data = two_blocks(objective)
    expected = {name: torch.zeros_like(p).double() for name, p in model.named_parameters()}
    for number in range(len(data)):
        alone = data.batch(np.array([number]))
        prepared = objective.prepare(alone, ExampleNoise(SEED, "fisher"))
        target = prepared["target"]
        if kind == "true":
            target = drawn_targets(model, objective, prepared)
        model.zero_grad()
        log_likelihood(model, prepared["tokens"], prepared["mask"], target).backward()
        for name, parameter in model.named_parameters():
            expected[name] += parameter.grad.double() ** 2 / len(data)

    fisher = fisher_information(model, objective, cut(data, 5), kind, SEED)

    assert fisher.keys() == expected.keys()
    for name, value in fisher.items():
        wanted = expected[name].float()
        assert_close(value, wanted, rtol=1e-5, atol=1e-5 * float(wanted.max()))


def test_another_seed_draws_other_targets_and_the_text_has_but_its_own():
    objective = CausalLM()
    model, data = two_blocks(objective)

    def total(kind, seed):
        fisher = fisher_information(model, objective, cut(data, 4), kind, seed)
        return sum(float(value.sum()) for value in fisher.values())

    assert total("true", 0) != total("true", 1)
    assert total("empirical", 0) == total("empirical", 1)


def test_a_head_that_the_objective_does_not_use_has_none():
    objective = CausalLM()
    model = tiny.model(objective, Classification(), depth=2)

    fisher = fisher_information(model, objective, cut(tiny.Questions(examples=2), 2), "true", SEED)

    assert not fisher["heads.class.linear.weight"].any()
    assert fisher["backbone.token_embedding.weight"].any()


def test_dropout_is_off_and_what_trains_stays_as_it_was():
    objective = CausalLM()
    model, data = two_blocks(objective, dropout=0.5)
    model.train()
    model.backbone.blocks[0].requires_grad_(False)
    state = torch.get_rng_state()

    first = fisher_information(model, objective, cut(data, 4), "empirical", SEED)
    model.train()
    second = fisher_information(model, objective, cut(data, 4), "empirical", SEED)

    assert tiny.same(first, second)
    assert first["backbone.blocks.0.attention.output.weight"].any()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {
        f"backbone.blocks.0.{name}" for name, _ in model.backbone.blocks[0].named_parameters()
    }
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_no_sequences_are_refused():
    model, _ = two_blocks(CausalLM())

    with pytest.raises(ValueError, match="at least 1 seq"):
        fisher_information(model, CausalLM(), [], "true", SEED)
