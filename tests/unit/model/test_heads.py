"""Legend: B batch, T positions, D width."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests import tiny
from transfer_cli.model.heads import BatchNorm, LanguageModelHead, SequenceHead, pool

POOLINGS = ("cls_first", "cls_last", "mean", "max", "concat")


def hidden(rows, positions, seed=0):
    return torch.randn(rows, positions, 4, generator=torch.Generator().manual_seed(seed))


def expected(real_TD, pooling):
    """Return the pooled vector of one sequence without padding, by its definition."""
    return {
        "cls_first": lambda: real_TD[0],
        "cls_last": lambda: real_TD[-1],
        "mean": lambda: real_TD.mean(0),
        "max": lambda: real_TD.amax(0),
        "concat": lambda: torch.cat([real_TD[-1], real_TD.amax(0), real_TD.mean(0)]),
    }[pooling]()


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
    more=st.integers(0, 5),
    pooling=st.sampled_from(POOLINGS),
    rubbish=st.sampled_from([0.0, 1e4, float("nan")]),
)
def test_pooling_sees_real_positions_only(lengths, side, more, pooling, rubbish):
    positions = max(lengths) + more
    states = hidden(len(lengths), positions)
    real = torch.arange(positions) < torch.tensor(lengths)[:, None]
    real = real.flip(1) if side == "left" else real
    states[~real] = rubbish

    pooled = pool(states, real, pooling)

    wanted = [expected(state[mask], pooling) for state, mask in zip(states, real, strict=True)]
    assert_close(pooled, torch.stack(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_pooled_vectors_do_not_depend_on_padding_or_company(pooling, direction):
    backbone = tiny.backbone(direction=direction)
    tiny.lively(backbone)
    short, long = [7, 11, 30, 2], list(range(5, 16))
    alone, both = tiny.rows_to_batch([short]), tiny.rows_to_batch([short, long])

    pooled = [
        pool(backbone(batch["tokens"], batch["mask"])[-1], batch["mask"], pooling)[0]
        for batch in (alone, both)
    ]

    assert_close(*pooled, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_sends_finite_gradients_to_real_positions_only(pooling):
    states = hidden(2, 5).requires_grad_()
    mask = torch.tensor([[True, True, False, False, False], [True] * 5])

    pool(states, mask, pooling).square().sum().backward()

    assert states.grad.isfinite().all()
    assert states.grad[mask].any()
    assert not states.grad[~mask].any()


def test_a_text_that_holds_the_classification_token_is_pooled_once():
    states = hidden(1, 4)
    mask = torch.tensor([[True, True, True, False]])

    assert torch.equal(pool(states, mask, "cls_last")[0], states[0, 2])


def test_the_classifier_is_dropout_and_a_linear_layer():
    head = SequenceHead(4, 3, "concat", dropout=0.5).eval()
    pooled = pool(hidden(2, 5), torch.ones(2, 5, dtype=torch.bool), "concat")

    logits = head(pooled)

    assert torch.equal(logits, head.linear(pooled))
    assert not torch.equal(logits, head.train()(pooled))
    assert not head.linear.bias.any()


def test_hidden_layers_are_dropout_linear_relu():
    head = SequenceHead(4, 3, "mean", hidden=(7, 5)).eval()
    tiny.lively(head)
    states = hidden(2, 5)
    first, second = (layer for layer in head.hidden if isinstance(layer, torch.nn.Linear))

    logits = head(states.mean(1))

    inner = F.relu(second(F.relu(first(states.mean(1)))))
    assert_close(logits, head.linear(inner))
    assert (first.out_features, second.out_features) == (7, 5)


def test_fresh_hidden_layers_are_drawn_like_every_other_layer():
    head = SequenceHead(400, 3, "mean", hidden=(300,))

    first = next(layer for layer in head.hidden if isinstance(layer, torch.nn.Linear))
    assert float(first.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    assert not first.bias.any()


def test_a_plain_head_has_the_names_it_always_had():
    head = SequenceHead(4, 3, "mean")

    assert sorted(head.state_dict()) == ["linear.bias", "linear.weight"]


def test_the_head_of_ulmfit_is_two_blocks_of_norm_dropout_linear():
    head = SequenceHead(4, 3, "concat", 0.1, hidden=(50,), batch_norm=True)

    kinds = [type(layer).__name__ for layer in (*head.hidden, head.norm, head.drop, head.linear)]

    assert kinds == ["BatchNorm", "Dropout", "Linear", "ReLU", "BatchNorm", "Dropout", "Linear"]
    assert head.hidden[0].num_features == 12
    assert head.norm.num_features == 50


def test_batch_norm_normalises_over_the_batch_in_training():
    norm, rows = BatchNorm(4).train(), 5 + 3 * torch.randn(64, 4)

    normed = norm(rows).detach()

    assert_close(normed.mean(0), torch.zeros(4), rtol=0, atol=1e-5)
    assert_close(normed.std(0, correction=0), torch.ones(4), rtol=0, atol=1e-4)


def test_batch_norm_sees_a_single_row_as_an_evaluation_does():
    norm = BatchNorm(4).train()
    norm(5 + 3 * torch.randn(64, 4))
    row = torch.randn(1, 4)

    single = norm(row)

    assert torch.equal(single, norm.eval()(row))


def test_language_model_logits_use_the_table_they_are_handed():
    head, table = LanguageModelHead(tiny.shape(), 48), torch.randn(48, 16)
    states = torch.randn(5, 16)

    assert torch.equal(head(states, table), F.linear(states, table))


def test_an_untied_head_has_a_table_of_its_own():
    head = LanguageModelHead(tiny.shape(tie_output=False), 48)
    states = torch.randn(5, 16)

    logits = head(states, torch.zeros(48, 16))

    assert torch.equal(logits, F.linear(states, head.weight))


def test_the_output_transform_is_a_normed_gelu_layer():
    head = LanguageModelHead(tiny.shape(output_transform=True), 48)
    tiny.lively(head)
    states, table = torch.randn(5, 16), torch.randn(48, 16)

    transformed = head.norm(F.gelu(head.transform(states)))

    assert_close(head(states, table), F.linear(transformed, table, head.bias))


def test_a_head_that_is_tied_to_narrower_embeddings_brings_states_to_their_size():
    head = LanguageModelHead(tiny.shape(embedding_width=6), 48)

    assert head(torch.randn(5, 16), torch.randn(48, 6)).shape == (5, 48)
    assert not tiny.shape(embedding_width=6, tie_output=False).output_transform


@pytest.mark.parametrize("changes", [{}, {"tie_output": False}, {"output_transform": True}])
def test_the_summed_loss_is_that_of_the_logits(changes):
    head, table = LanguageModelHead(tiny.shape(**changes), 48), torch.randn(48, 16)
    tiny.lively(head)
    states, target = torch.randn(5, 16), torch.arange(5)

    loss = head.summed_loss(states, table, target)

    assert_close(loss, F.cross_entropy(head(states, table), target, reduction="sum"))
