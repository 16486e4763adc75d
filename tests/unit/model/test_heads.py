"""Heads, and losses over a vocabulary.

Legend: N rows, D width, V vocabulary, B batch, T positions, C classes.
"""

from functools import cache, partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests import tiny
from transfer_cli.model import vocabulary_loss
from transfer_cli.model.heads import BatchNorm, LanguageModelHead, SequenceHead
from transfer_cli.model.pooling import pool
from transfer_cli.model.unigram import unigram_model
from transfer_cli.model.vocabulary_loss import (
    summed_copy_loss,
    summed_cross_entropy,
    summed_divergence,
)

POOLINGS = ("cls_first", "cls_last", "mean", "max", "concat")


def hidden(rows, positions, seed=0):
    return torch.randn(rows, positions, 4, generator=torch.Generator().manual_seed(seed))


def expected(real_TD, pooling):
    """Return the pooled vector of one sequence without padding, by its definition."""
    first, last, mean, top = real_TD[0], real_TD[-1], real_TD.mean(0), real_TD.amax(0)
    vectors = first, last, mean, top, torch.cat([last, top, mean])
    return vectors[POOLINGS.index(pooling)]


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
def test_pooling_sends_finite_gradients_to_real_positions_only(pooling):
    states = hidden(2, 5).requires_grad_()
    mask = torch.tensor([[True, True, False, False, False], [True] * 5])

    pool(states, mask, pooling).square().sum().backward()

    assert states.grad.isfinite().all()
    assert states.grad[mask].any()
    assert not states.grad[~mask].any()


def test_the_classifier_is_dropout_and_a_linear_layer():
    head = SequenceHead(4, 3, "concat", dropout=0.5).eval()
    pooled = pool(hidden(2, 5), torch.ones(2, 5, dtype=torch.bool), "concat")

    logits = head(pooled)

    assert torch.equal(logits, head.linear(pooled))
    assert not torch.equal(logits, head.train()(pooled))
    assert not head.linear.bias.any()


def test_hidden_layers_are_dropout_linear_relu():
    head = tiny.lively(SequenceHead(4, 3, "mean", hidden=(7, 5)).eval())
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


@pytest.mark.parametrize("changes", [{}, {"tie_output": False}, {"output_transform": True}])
def test_the_summed_loss_is_that_of_the_logits(changes):
    head, table = LanguageModelHead(tiny.shape(**changes), 48), torch.randn(48, 16)
    tiny.lively(head)
    states, target = torch.randn(5, 16), torch.arange(5)

    loss = head.summed_loss(states, table, target)

    assert_close(loss, F.cross_entropy(head(states, table), target, reduction="sum"))


UPSTREAM = 0.37
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def inputs(rows, vocabulary, dtype=torch.float64, seed=0):
    """Return hidden states, a table and a bias that all want gradients, and targets."""
    generator = torch.Generator().manual_seed(seed)
    hidden, table, bias = (
        torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()
        for shape in ((rows, 6), (vocabulary, 6), (vocabulary,))
    )
    return hidden, table, bias, torch.randint(vocabulary, (rows,), generator=generator)


def plain(hidden_ND, table_VD, bias_V, target_N):
    return F.cross_entropy(F.linear(hidden_ND, table_VD, bias_V), target_N, reduction="sum")


def with_gradients(function, tensors, target_N):
    """Return the loss and every gradient of a scaled loss; None where none is wanted."""
    for tensor in tensors:
        if tensor is not None:
            tensor.grad = None
    loss = function(*tensors, target_N)
    (UPSTREAM * loss).backward()
    return loss.detach(), [None if t is None else t.grad for t in tensors]


def assert_same(tensors, target_N, tolerance, function=summed_cross_entropy):
    expected, expected_gradients = with_gradients(plain, tensors, target_N)
    loss, gradients = with_gradients(function, tensors, target_N)

    assert_close(loss, expected, rtol=tolerance, atol=tolerance, check_dtype=False)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        assert (gradient is None) == (wanted is None)
        if wanted is not None:
            assert_close(gradient, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("elements", [1, 7 * 20, 7 * 49, 7 * 50, 7 * 51, 2**23])
def test_value_and_gradients_are_those_of_plain_cross_entropy(
    monkeypatch, elements, has_bias, dtype
):
    monkeypatch.setitem(vocabulary_loss.CHUNK_ELEMENTS, "cpu", elements)
    hidden, table, bias, target = inputs(50, 7, dtype)

    assert_same((hidden, table, bias if has_bias else None), target, TOLERANCE[dtype])


@pytest.fixture
def graphs(monkeypatch):
    """Return the list of graphs that are compiled, which run eagerly, by their inputs' shapes."""
    graphs = []

    def recorded(graph, inputs):
        given = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
        graphs.append([value.shape for value in given if isinstance(value, torch.Tensor)])
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=recorded))
    monkeypatch.setattr(vocabulary_loss, "_compile", cache(vocabulary_loss._compile.__wrapped__))
    return graphs


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_compiled_loss_is_one_graph_of_known_columns_and_any_number_of_rows(graphs, dtype):
    for rows in (64, 37):
        *tensors, target = inputs(rows, 7, dtype)
        compiled = partial(summed_cross_entropy, compiled=True)
        assert_same(tensors, target, TOLERANCE[dtype], compiled)

    (((rows, columns), _),) = graphs
    assert isinstance(rows, torch.SymInt)
    assert type(columns) is int


@pytest.mark.parametrize(
    ("rows", "vocabulary", "sizes"),
    [
        (16384, 29056, [4096] * 4), (2457, 29056, [2457]), (4700, 29056, [2432, 2268]),
        (300, 2**21, [128, 128, 44]), (0, 29056, []),
    ],
)  # fmt: skip
def test_chunks_on_a_gpu_are_alike_and_of_whole_tiles(rows, vocabulary, sizes):
    chunks = vocabulary_loss._chunks(rows, vocabulary, "cuda")

    assert [len(range(rows)[chunk]) for chunk in chunks] == sizes


@settings(max_examples=30)
@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 99))
def test_any_number_of_rows_and_tokens_is_right(rows, vocabulary, seed):
    *tensors, target = inputs(rows, vocabulary, seed=seed)

    assert_same(tensors, target, 1e-12)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_frozen_inputs_get_no_gradient_and_the_others_the_right_one(frozen):
    *tensors, target = inputs(50, 7)
    for number in frozen:
        tensors[number].requires_grad_(False)

    # Where only the bias learns, there is nothing to save: plain cross-entropy in float32.
    assert_same(tensors, target, 1e-6 if frozen == (0, 1) else 1e-12)


def test_inputs_are_left_as_they_were():
    *tensors, target = inputs(50, 7)
    before = [tensor.detach().clone() for tensor in tensors]

    with_gradients(summed_cross_entropy, tensors, target)

    assert all(map(torch.equal, tensors, before))


def test_huge_logits_stay_finite():
    hidden, table, bias, target = inputs(20, 7)
    hidden = (1e4 * hidden.detach()).requires_grad_()

    loss, gradients = with_gradients(summed_cross_entropy, (hidden, table, bias), target)

    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_bfloat16_is_roughly_right_and_leaves_gradients_in_float32():
    *tensors, target = inputs(50, 7, torch.float32)
    expected, expected_gradients = with_gradients(plain, tensors, target)

    with torch.autocast("cpu", torch.bfloat16):
        loss, gradients = with_gradients(summed_cross_entropy, tensors, target)

    assert_close(loss, expected, rtol=0.01, atol=0)
    assert_close(gradients, expected_gradients, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_vocabulary_that_is_padded_has_the_same_loss_and_gradients(
    monkeypatch, graphs, compiled, has_bias
):
    monkeypatch.setattr(vocabulary_loss, "_padded_columns", lambda vocabulary, kind: 64)
    monkeypatch.setitem(vocabulary_loss.CHUNK_ELEMENTS, "cpu", 16 * 64)
    hidden, table, bias, target = inputs(50, 7)
    seen = []

    padded = partial(
        summed_cross_entropy, compiled=compiled, on_logits=lambda logits, rows: seen.append(logits)
    )
    assert_same((hidden, table, bias if has_bias else None), target, 1e-12, padded)

    assert {tuple(logits.shape) for logits in seen} == {(16, 7), (2, 7)}


@pytest.mark.parametrize(
    ("kind", "vocabulary", "columns"),
    [(torch.bfloat16, 28996, 29056), (torch.float16, 29056, 29056), (torch.float32, 28996, 28996)],
)
def test_half_precision_pads_a_vocabulary_to_a_multiple_of_64(kind, vocabulary, columns):
    assert vocabulary_loss._padded_columns(vocabulary, kind) == columns


def added_wide(total, left, right, *, out_dtype, out):
    """Do what a GPU does: multiply in half precision and add in float32."""
    assert left.dtype == right.dtype == torch.bfloat16
    assert total is out
    assert out.dtype == out_dtype == torch.float32
    out.copy_(left.double() @ right.double() + out)


def test_products_that_are_added_in_float32_are_nearer_to_float64(monkeypatch):
    monkeypatch.setitem(vocabulary_loss.CHUNK_ELEMENTS, "cpu", 16 * 7)
    *exact, target = inputs(50, 7)
    _, wanted = with_gradients(plain, exact, target)
    tensors = [tensor.detach().float().requires_grad_() for tensor in exact]
    errors = []
    for adds_wide in (False, True):
        monkeypatch.setattr(vocabulary_loss, "_adds_wide", lambda device, adds=adds_wide: adds)
        monkeypatch.setattr(torch, "addmm", added_wide)
        with torch.autocast("cpu", torch.bfloat16):
            _, gradients = with_gradients(summed_cross_entropy, tensors, target)
        pairs = zip(gradients, wanted, strict=True)
        errors.append([float((gradient.double() - exact).norm()) for gradient, exact in pairs])

    (of_hidden, rounded, of_bias), wide_errors = errors
    assert wide_errors == [of_hidden, pytest.approx(wide_errors[1]), of_bias]
    assert wide_errors[1] < rounded


# --- divergence from a teacher -------------------------------------------------------------------


def plain_divergence(hidden_ND, table_VD, bias_V, teacher_NV, temperature):
    own_NV = (F.linear(hidden_ND, table_VD, bias_V).float() / temperature).log_softmax(-1)
    theirs_NV = (teacher_NV.float() / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(own_NV, theirs_NV, reduction="sum", log_target=True)


def chunked(hidden_ND, table_VD, bias_V, teacher_NV, temperature):
    return summed_divergence(hidden_ND, table_VD, bias_V, teacher_NV.__getitem__, temperature)


def divergence_and_gradients(function, *tensors, precision=None):
    for tensor in tensors[:3]:
        tensor.grad = None
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = function(*tensors, 2.0)
    (UPSTREAM * loss).backward()
    return [loss.detach(), *(tensor.grad for tensor in tensors[:3])]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("elements", [1, 7 * 20, 2**23])
def test_a_divergence_in_chunks_is_that_of_the_plain_formula(monkeypatch, elements, precision):
    monkeypatch.setitem(vocabulary_loss.CHUNK_ELEMENTS, "cpu", elements)
    *tensors, _ = inputs(50, 7, torch.float32)
    teacher_NV = torch.randn(50, 7, generator=torch.Generator().manual_seed(1))

    expected = divergence_and_gradients(plain_divergence, *tensors, teacher_NV, precision=precision)
    results = divergence_and_gradients(chunked, *tensors, teacher_NV, precision=precision)

    # Gradients by logits are rounded to bf16 before the products, in either order.
    coarse = 1e-5 if precision == "fp32" else 2e-2
    assert_close(results[0], expected[0], rtol=1e-5, atol=1e-5, check_dtype=False)
    assert_close(results[1:], expected[1:], rtol=coarse, atol=coarse, check_dtype=False)


def test_a_student_that_predicts_as_its_teacher_has_divergence_0_and_gradient_0():
    hidden, table, bias, _ = inputs(50, 7, torch.float32)
    teacher_NV = F.linear(hidden, table, bias).detach()

    value, *gradients = divergence_and_gradients(chunked, hidden, table, bias, teacher_NV)

    assert float(value) == 0
    assert not any(gradient.any() for gradient in gradients)


def test_where_the_bias_alone_learns_a_divergence_still_has_its_gradient():
    hidden, table, bias, _ = inputs(50, 7, torch.float32)
    hidden, table = hidden.detach(), table.detach()
    teacher_NV = torch.randn(50, 7, generator=torch.Generator().manual_seed(1))

    chunked(hidden, table, bias, teacher_NV, 2.0).backward()
    gradient, bias.grad = bias.grad, None
    plain_divergence(hidden, table, bias, teacher_NV, 2.0).backward()

    assert_close(gradient, bias.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("elements", [1, 7 * 20, 2**23])
def test_the_loss_of_a_model_that_may_copy_is_its_formula(monkeypatch, elements):
    monkeypatch.setitem(vocabulary_loss.CHUNK_ELEMENTS, "cpu", elements)
    hidden, table, bias, target = inputs(50, 7)
    gate = torch.linspace(-9, 9, 50, dtype=torch.float64).requires_grad_()
    is_read = torch.arange(50) % 3 > 0

    def by_formula(hidden_ND, table_VD, bias_V, gate_N, target_N):
        written_N = F.linear(hidden_ND, table_VD, bias_V).softmax(-1)[range(50), target_N]
        copied_N = gate_N.sigmoid()
        return -(copied_N * is_read + (1 - copied_N) * written_N).log().sum()

    def in_chunks(*tensors):
        return summed_copy_loss(*tensors, is_read)

    tensors = (hidden, table, bias, gate)
    expected, expected_gradients = with_gradients(by_formula, tensors, target)
    loss, gradients = with_gradients(in_chunks, tensors, target)

    assert_close(loss, expected)
    assert_close(gradients, expected_gradients)


def test_logits_are_shown_on_their_way():
    hidden, table, bias, target = inputs(50, 7)
    seen = torch.zeros(50, 7, dtype=torch.float64)

    def look(logits_RV, rows):
        seen[rows] = logits_RV.detach()

    loss = summed_cross_entropy(hidden, table, bias, target, on_logits=look)
    with torch.no_grad():
        again = summed_cross_entropy(hidden, table, bias, target, on_logits=look)

    assert_close(seen, F.linear(hidden, table, bias).detach(), rtol=1e-6, atol=1e-6)
    assert_close(loss.detach(), again, rtol=1e-6, atol=1e-6, check_dtype=False)


def test_the_unigram_model_says_the_add_one_shares_everywhere():
    chunks = [np.array([0, 1, 1], np.uint16), np.array([3, 1], np.uint16)]
    model = unigram_model(chunks, vocabulary=5)
    tokens = torch.tensor([[4, 2, 0]])

    top = model.readout(model.backbone(tokens, tokens >= 0))
    shares = model.heads["lm"](top, model.backbone.token_embedding.weight).softmax(-1)

    expected = torch.tensor([2, 4, 1, 2, 1]) / 10
    assert torch.allclose(shares, expected.expand(1, 3, 5))
