"""Legend: B batch, T positions, D width."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from tests import tiny
from transfer_cli.model import block
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.positions import POSITIONS, count_positions, sinusoids
from transfer_cli.objectives.causal_lm import CausalLM

RESIDUALS = tuple(block.RESIDUALS)
BERT_CASED = 28_996
PRESETS = sorted({path.stem for path in (tiny.CONF / "model").glob("*.yaml")} - {"dial"})


def size_of(module):
    return sum(parameter.numel() for parameter in module.parameters())


def by_formula(shape, vocabulary):
    """Return the parameters of a backbone by methods' size formula."""
    d, f, w = shape.width, shape.feedforward, shape.head_size
    positions = shape.positions if shape.position_kind == "learned" else 0
    norms = shape.has_final_norm + shape.has_embedding_norm
    norms += {"sandwich": 2 * shape.depth, "pre_first_plain": -1}.get(shape.residual, 0)
    norm = 2 * d if shape.norm == "layer" else d
    inner = 2 * f if shape.feedforward_kind == "gated" else f
    biases = {"all": 4 * d + inner + d, "feed_forward": inner + d, "none": 0}[shape.biases]
    by_distance = shape.heads * w * shape.projects_distances  # W_R in each block; u, v
    heads = 2 * (shape.heads + shape.kv_heads) * w * d + 2 * w * shape.query_key_norm
    one = heads + inner * d + f * d + biases + 2 * norm + by_distance * d
    rows = vocabulary + positions + shape.segments
    return shape.depth * one + rows * d + norms * norm + 2 * by_distance


def on_meta(name):
    with torch.device("meta"):
        return Backbone(tiny.preset(name, direction="causal"), BERT_CASED)


# Sizes.


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_the_size_of_the_formula(name):
    backbone = on_meta(name)

    assert size_of(backbone) == by_formula(backbone.shape, BERT_CASED)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("tutorial", 50_396_360), ("tiny", 809_728 + 128 * BERT_CASED),
        ("small", 4_804_608 + 256 * BERT_CASED),
    ],
)  # fmt: skip
def test_presets_have_their_published_sizes(name, size):
    assert size_of(on_meta(name)) == size


@pytest.mark.parametrize(
    ("name", "millions"),
    [("base", 50), ("tutorial-fast", 50), ("gpt", 108), ("bert-base", 108), ("bert-large", 333)],
)
def test_large_presets_have_about_their_published_sizes(name, millions):
    # GPT and BERT are 117M, 110M and 340M with their own vocabularies and poolers.
    assert size_of(on_meta(name)) / 1e6 == pytest.approx(millions, rel=0.04)


def test_a_language_model_adds_its_output_bias_and_a_tied_table_counts_once():
    tied, untied = tiny.model(CausalLM()), tiny.model(CausalLM(), tie_output=False)
    bare = tiny.model(CausalLM(), output_bias=False)

    assert size_of(bare) == size_of(bare.backbone)
    assert size_of(tied) - size_of(bare) == tiny.VOCABULARY.size
    assert size_of(untied) - size_of(tied) == tiny.VOCABULARY.size * 16


@settings(max_examples=30)
@given(
    width=st.integers(1, 6).map(lambda n: 4 * n),
    depth=st.integers(1, 4),
    feedforward=st.integers(1, 40),
    positions=st.integers(1, 40),
    residual=st.sampled_from(RESIDUALS),
    position_kind=st.sampled_from(["learned", "sinusoidal"]),
    embedding_norm=st.sampled_from([None, True, False]),
)
def test_any_shape_has_the_size_of_the_formula(**changes):
    shape = tiny.shape(heads=2, **changes)
    with torch.device("meta"):
        backbone = Backbone(shape, 7)

    assert size_of(backbone) == by_formula(shape, 7)


# What may influence what.


@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("position_kind", ["learned", "sinusoidal"])
@pytest.mark.parametrize("padded", [True, False])
def test_changing_a_token_changes_no_causal_state_before_it(residual, position_kind, padded):
    backbone = tiny.lively(tiny.backbone(residual=residual, position_kind=position_kind).eval())
    tokens = torch.randint(5, 48, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    changed = tokens.clone()
    changed[:, 6] = (tokens[:, 6] + 1) % 48

    before, after = (backbone(text, mask, padded=padded) for text in (tokens, changed))

    assert all(torch.equal(old[:, :6], new[:, :6]) for old, new in zip(before, after, strict=True))
    assert not torch.allclose(before[-1][:, 6:], after[-1][:, 6:])


@pytest.mark.parametrize("residual", RESIDUALS)
def test_changing_a_token_changes_bidirectional_states_before_it(residual):
    backbone = tiny.lively(tiny.backbone(residual=residual, direction="bidirectional").eval())
    tokens = torch.full((1, 12), 9)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    changed = tokens.clone()
    changed[:, 6] = 10

    difference = backbone(tokens, mask)[-1] - backbone(changed, mask)[-1]

    assert (difference[:, :6].abs().amax(-1) > 1e-4).all()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize(
    "shape",
    [*({"residual": r} for r in RESIDUALS), tiny.MODERN, {"position_kind": "relative_bias"}],
    ids=str,
)
def test_padding_and_company_change_no_real_state_and_keep_gradients_finite(side, direction, shape):
    backbone = tiny.lively(tiny.backbone(direction=direction, **shape))
    row = torch.tensor([[7, 11, 30, 8, 9]])
    alone = backbone(row, torch.ones_like(row, dtype=torch.bool))[-1]
    long = torch.arange(5, 17)[None]
    before, after = (7, 0) if side == "left" else (0, 7)
    padded = nn.functional.pad(row, (before, after), value=0)
    tokens, mask = torch.cat([padded, long]), torch.cat([padded > 0, long > 0])

    top = backbone(tokens, mask)[-1]
    (top * mask[..., None]).sum().backward()

    assert_close(top[0, mask[0]], alone[0], rtol=0, atol=1e-5)
    assert top.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in backbone.parameters())


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 6))
def test_positions_count_real_tokens_on_either_side_of_padding(real, left, right):
    backbone = tiny.backbone(position_kind="learned", dropout=0.0)
    tokens = torch.full((1, left + real + right), 9)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[:, left : left + real] = True

    embedded = backbone.embed(tokens, count_positions(mask))[mask]

    position = backbone.position_embedding.weight[:real]
    assert torch.equal(embedded, backbone.token_embedding.weight[9] + position)


@pytest.mark.parametrize("kind", POSITIONS)
def test_one_row_of_positions_does_for_texts_without_padding(kind):
    backbone, tokens = (
        tiny.backbone(position_kind=kind).double(),
        5 + torch.arange(240).view(20, 12) % 43,
    )
    results = []
    for padded in (True, False):
        loss = backbone(tokens, tokens > 0, padded=padded)[-1][:, ::2].square().sum()
        gradients = torch.autograd.grad(loss, list(backbone.parameters()))
        results.append([loss, *gradients])

    assert_close(results[0], results[1], rtol=1e-10, atol=1e-10)


def test_a_sequence_longer_than_the_positions_is_refused():
    tokens = torch.full((1, 33), 9)

    with pytest.raises(ValueError, match="33 tokens is longer than the model's 32"):
        tiny.backbone()(tokens, tokens > 0)


# Numbers.


@pytest.mark.parametrize("width", [1, 6, 7])
def test_sinusoids_follow_the_formula(width):
    table = sinusoids(20, width)

    for position, column in itertools.product(range(20), range(width)):
        angle = position / 10_000 ** (column // 2 * 2 / width)
        expected = math.cos(angle) if column % 2 else math.sin(angle)
        assert float(table[position, column]) == pytest.approx(expected, abs=1e-6)


def test_sinusoids_are_no_parameter_and_survive_initialisation():
    backbone = tiny.backbone(position_kind="sinusoidal")

    backbone.initialise()

    assert torch.equal(backbone.position_embedding.table, sinusoids(32, 16))
    assert not [name for name in backbone.state_dict() if "position" in name]


def test_embeddings_are_scaled_up_to_sinusoids():
    backbone = tiny.backbone(position_kind="sinusoidal")
    tokens = torch.tensor([[9, 10]])

    embedded = backbone.embed(tokens, count_positions(tokens > 0))

    expected = backbone.token_embedding(tokens) * 4 + sinusoids(32, 16)[:2]
    assert_close(embedded, expected)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_tutorial_is_post_with_its_norms_shifted_by_one_place(direction):
    tutorial = tiny.lively(tiny.backbone(residual="tutorial", direction=direction).eval())
    post = tiny.backbone(residual="post", direction=direction).eval()
    fills = tiny.weights_of(tutorial)
    norms = [f"blocks.{n}.{part}_norm" for n in range(3) for part in ("attention", "feed_forward")]
    for kind in ("weight", "bias"):
        shifted = [tutorial.state_dict()[f"{norm}.{kind}"] for norm in norms]
        fills[f"embedding_norm.{kind}"] = shifted[0]
        fills |= {f"{n}.{kind}": v for n, v in zip(norms, shifted[1:], strict=False)}
    post.load_state_dict(fills)
    post.blocks[-1].feed_forward_norm = nn.Identity()
    tokens = torch.randint(5, 48, (2, 12), generator=torch.Generator().manual_seed(0))

    outputs = [backbone(tokens, tokens > 0)[-1] for backbone in (tutorial, post)]

    assert_close(*outputs, rtol=1e-6, atol=1e-6)


def test_segments_are_added_to_the_embeddings_and_missing_ones_are_zeros():
    backbone = tiny.backbone(segments=2)
    tokens = torch.tensor([[9, 10, 11]])
    segments = torch.tensor([[0, 1, 1]])
    rows = backbone.segment_embedding.weight

    plain, second, zeros = (
        backbone.embed(tokens, count_positions(tokens > 0), given)
        for given in (None, segments, torch.zeros_like(tokens))
    )

    assert_close(second - plain, (rows[1] - rows[0]) * segments[..., None])
    assert torch.equal(plain, zeros)


# Initialisation.


@pytest.mark.parametrize("residual", RESIDUALS)
def test_fresh_weights_have_their_documented_spread(residual):
    backbone = tiny.backbone(width=128, feedforward=256, depth=2, residual=residual)

    for name, parameter in backbone.named_parameters():
        parameter = parameter.detach()
        if "norm" in name:
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        else:
            into_stream = backbone.shape.has_final_norm and ".output." in name
            expected = 0.02 / math.sqrt(4) if into_stream else 0.02
            assert float(parameter.std()) == pytest.approx(expected, rel=0.1), name
            assert abs(float(parameter.mean())) < 1e-3, name


@pytest.mark.parametrize("residual", RESIDUALS)
def test_top_blocks_drawn_anew_are_as_at_birth(residual):
    changes = {"width": 128, "feedforward": 256, "depth": 3, "residual": residual}
    backbone = tiny.lively(tiny.backbone(**changes))
    before = tiny.weights_of(backbone)

    backbone.reinitialise_top(2)

    fresh = tiny.weights_of(tiny.backbone(seed=1, **changes))
    for name, tensor in backbone.state_dict().items():
        if name.startswith(("blocks.1.", "blocks.2.", "final_norm.")):
            spread, expected = float(tensor.std()), float(fresh[name].std())
            assert spread == pytest.approx(expected, rel=0.1, abs=1e-6), name
            assert not torch.equal(tensor, before[name]), name
            if "norm" in name:
                assert torch.equal(tensor, fresh[name]), name
        else:
            assert torch.equal(tensor, before[name]), name


def test_a_model_needs_its_direction_settled():
    with pytest.raises(ValueError, match="direction must be causal or bidirectional"):
        tiny.backbone(direction="auto")


@pytest.mark.parametrize("padded", [False, True])
def test_positions_that_restart_are_those_of_a_text_that_begins(padded):
    backbone = tiny.lively(tiny.backbone(direction="bidirectional").eval())
    tokens = torch.randint(5, 48, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 6:] = not padded
    restart = (torch.arange(7) >= torch.tensor([[3], [5]])).long()

    with torch.no_grad():
        states = backbone(tokens, mask, restart_BT=restart, padded=padded)[-1]
        plain = backbone(tokens, mask, padded=padded)[-1]
        table = backbone.position_embedding.weight
        for row, begin in enumerate((3, 5)):
            before = table.clone()
            table[begin:7] = before[: 7 - begin]
            row_states = backbone(tokens[[row]], mask[[row]], padded=padded)[-1]
            table.copy_(before)
            assert_close(states[row][mask[row]], row_states[0][mask[row]])
    assert (states - plain).abs().max() > 0.1
