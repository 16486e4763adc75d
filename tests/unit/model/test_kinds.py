"""Kinds of position, norm, feed-forward part, residual form and attention pattern, by formula.

Legend: B batch, H heads, T positions, D width, W width of a head.
"""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from tests import tiny
from transfer_cli.engine.compiling import compile_passes
from transfer_cli.interop.decoders import Gpt2
from transfer_cli.model.attention import AttentionInputs, SelfAttention
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.block import FEED_FORWARDS, RESIDUALS, Block, FeedForward
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.lora import LowRank, add_lora
from transfer_cli.model.norms import NORMS
from transfer_cli.model.patterns import PATTERNS, AttentionPattern, window_mask
from transfer_cli.model.positions import POSITIONS, Positions, RotaryPositions, rotary_frequencies
from transfer_cli.model.shape import CHOICES, FORMS, ResidualForm, Rotary, RotaryScaling
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.optim.schedules import Constant

FIELDS = {
    "position_kind": POSITIONS, "norm": NORMS, "feedforward_kind": FEED_FORWARDS,
    "residual": RESIDUALS, "attention": PATTERNS,
}  # fmt: skip
TOKENS = torch.randint(5, 48, (2, 12), generator=torch.Generator().manual_seed(0))
ALL = torch.ones_like(TOKENS, dtype=torch.bool)


class Slanted(Positions):
    """Scores that fall with distance (Press et al. 2022)."""

    def __init__(self, shape):
        super().__init__()
        self.slope = 1 / shape.positions

    def add_to_attention(self, inputs, position_BT):
        distance_B1TT = (position_BT[:, None, :, None] - position_BT[:, None, None, :]).float()
        scores = (-self.slope * distance_B1TT).masked_fill(distance_B1TT < 0, -torch.inf)
        return [AttentionInputs(scores) for _ in inputs]


class Doubled(FeedForward):
    """A product whose negative half is doubled."""

    def forward(self, hidden_BTD):
        return self.output(torch.maximum(self.inner(hidden_BTD), 2 * self.inner(hidden_BTD)))


class PlainNorm(nn.LayerNorm):
    """A norm of somebody else's."""


class Parallel(Block):
    """Both sub-layers of one block read the same state."""

    def update(self, z, inputs):
        read = self.attention_norm(z)
        fed = self.feed_forward_update(self.feed_forward_norm(z), read, inputs)
        return z + self.attention_update(read, inputs) + fed


class Window(AttentionPattern):
    """Every other block sees three positions only."""

    def __init__(self, shape):
        super().__init__(shape)
        self.kinds = [place % 2 for place in range(shape.depth)]

    def forward(self, mask_BT, *, padded, cached, prefix_B=None):
        size = mask_BT.shape[1]
        near = torch.ones(size, size, dtype=torch.bool).tril().triu(-2)
        return [AttentionInputs(causal=True), AttentionInputs(near)]


OWN = {
    "position_kind": {"slanted": Slanted}, "norm": {"plain": PlainNorm},
    "feedforward_kind": {"doubled": Doubled}, "residual": {"both": Parallel},
    "attention": {"near": Window},
}  # fmt: skip
MODERN = {**tiny.MODERN, "residual": "parallel"}
BUILT = [
    {"norm": "layer_no_bias"}, {"norm": "rms_unit"}, {"biases": "qkv"},
    {"feedforward_kind": "gated", "biases": "all"}, {"residual": "pre_first_plain"},
    {"residual": "sandwich", "embedding_scale": 50.0},
    {"residual": "reordered", "embedding_scale": 50.0}, tiny.MODERN,
]  # fmt: skip


@pytest.fixture
def own_kinds(monkeypatch):
    for field, kinds in OWN.items():
        for name, kind in kinds.items():
            monkeypatch.setitem(FIELDS[field], name, kind)
        if field != "residual":
            monkeypatch.setitem(CHOICES, field, (*CHOICES[field], *kinds))
    monkeypatch.setitem(FORMS, "both", ResidualForm(final_norm=True))


@pytest.mark.parametrize("field", FIELDS)
def test_every_name_that_a_shape_takes_has_a_class(field):
    assert set(CHOICES[field]) == set(FIELDS[field])


@pytest.mark.parametrize("field", FIELDS)
def test_an_unknown_kind_is_refused_with_those_that_there_are(field):
    known = next(iter(FIELDS[field]))

    with pytest.raises(ValueError, match=f"^{field}: '{known}s' is not one of {known}") as error:
        tiny.shape(**{field: f"{known}s"})
    assert f"Did you mean '{known}'?" in str(error.value)


@pytest.mark.slow
@pytest.mark.usefixtures("own_kinds")
@pytest.mark.parametrize(
    "changes", [{field: name} for field, kinds in OWN.items() for name in kinds] + BUILT
)
def test_a_class_and_its_name_make_a_kind_that_learns(changes):
    run = tiny.run(CausalLM(), tiny.blocks(), tiny.Recipe(total=40, schedule=Constant()), **changes)

    before = tiny.weights_of(run.step.model)
    losses = run.go().losses

    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    after = tiny.weights_of(run.step.model)
    assert not [name for name in before if torch.equal(before[name], after[name])]


@pytest.mark.usefixtures("own_kinds")
def test_own_kinds_work_with_cache_recomputation_and_fresh_top_blocks():
    backbone = tiny.lively(tiny.backbone(**MODERN))
    whole = backbone(TOKENS, ALL, padded=False)
    backbone.set_activation_checkpointing(True)
    assert_close(backbone(TOKENS, ALL, padded=False), whole)

    parts = tiny.read_in_parts(backbone, TOKENS, [5, 1, 6], KVCache(3, 12))
    assert_close(parts, whole[-1], rtol=1e-4, atol=1e-5)

    backbone.reinitialise_top(1)
    assert (backbone.blocks[2].attention_norm.weight == 1).all()
    assert (backbone.final_norm.weight == 1).all()
    assert not (backbone.blocks[1].attention_norm.weight == 1).any()


def test_a_window_hides_what_lies_before_it():
    backbone = tiny.backbone(attention="window", window=3, global_every=2, depth=2).eval()
    tiny.lively(backbone)
    backbone.blocks[0] = RESIDUALS["pre"](tiny.shape())
    torch.nn.init.zeros_(backbone.blocks[0].attention.output.weight)
    changed = TOKENS.clone()
    changed[:, 3] = (TOKENS[:, 3] + 1) % 48

    before, after = (backbone(tokens, ALL, padded=False)[-1] for tokens in (TOKENS, changed))

    assert not torch.isclose(before[:, 3:6], after[:, 3:6]).all(-1).any()
    assert torch.equal(before[:, 6:], after[:, 6:])


@pytest.mark.usefixtures("own_kinds")
@pytest.mark.parametrize("field", ["norm", "feedforward_kind", "attention", "residual"])
def test_no_published_family_takes_a_kind_that_it_does_not_have(field):
    name = next(iter(OWN[field]))

    assert f"{field}={name}" in " ".join(Gpt2().misfits(tiny.shape(**{field: name}), None))


@pytest.mark.usefixtures("own_kinds")
@pytest.mark.slow
@pytest.mark.timeout(600)
# torch's compiler leaves a source file open, which is found whenever memory is tidied up.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("recomputed", [False, True])
def test_own_kinds_compile_to_one_graph(recomputed):
    model = tiny.model(CausalLM(), **MODERN)
    model.backbone.set_activation_checkpointing(recomputed)
    eager = model.backbone(TOKENS, ALL, padded=False)[-1]

    compile_passes(model, torch.device("cpu"), lengths_vary=False)
    compiled = model.backbone(TOKENS, ALL, padded=False)[-1]
    compiled.sum().backward()

    assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


LLAMA3 = RotaryScaling("llama3", 8.0, original_positions=64)


def drawn(*size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(1))


def turned(states_BHTW, first=0, **changes):
    positions = RotaryPositions(tiny.shape(depth=1, **changes))
    position_BT = torch.arange(first, first + states_BHTW.shape[2])[None]
    [inputs] = positions.add_to_attention([AttentionInputs()], position_BT)
    return inputs.rotate(states_BHTW, states_BHTW)[0]


@pytest.mark.parametrize(("share", "pairs"), [(1.0, 4), (0.5, 2), (0.25, 1)])
def test_a_pair_of_numbers_is_turned_by_its_angle_and_the_rest_stays(share, pairs):
    states = drawn(1, 2, 6, 8)

    rotated = turned(states, rotary=Rotary(base=100.0, share=share))

    for position in range(6):
        for pair in range(pairs):
            angle = position * 100.0 ** (-pair / pairs)
            x, y = states[0, :, position, pair], states[0, :, position, pair + pairs]
            cos, sin = math.cos(angle), math.sin(angle)
            assert_close(rotated[0, :, position, pair], x * cos - y * sin)
            assert_close(rotated[0, :, position, pair + pairs], y * cos + x * sin)
    assert torch.equal(rotated[..., 2 * pairs :], states[..., 2 * pairs :])


@pytest.mark.parametrize("scaling", [None, RotaryScaling("linear", 4.0), LLAMA3])
def test_scores_of_rotated_positions_depend_on_distances_alone(scaling):
    query, key = drawn(2, 1, 2, 6, 8)
    changes = {"rotary": Rotary(scaling=scaling)}

    near, far = (
        turned(query, first, **changes) @ turned(key, first, **changes).mT for first in (0, 100)
    )

    assert_close(far, near, rtol=1e-4, atol=1e-4)


def test_linear_scaling_divides_positions():
    states = drawn(1, 2, 9, 8)

    slow = turned(states, rotary=Rotary(scaling=RotaryScaling("linear", 4.0)))

    every = turned(states[:, :, ::4].contiguous(), rotary=Rotary())
    assert_close(slow[:, :, ::4], every)


def test_llama3_scaling_slows_down_long_waves_alone():
    plain, scaled = (
        rotary_frequencies(Rotary(base=1000.0, scaling=scaling), 16) for scaling in (None, LLAMA3)
    )

    for before, after in zip(plain.tolist(), scaled.tolist(), strict=True):
        wave = 2 * math.pi / before
        if wave < 64 / 4:
            expected = before
        elif wave > 64 / 1:
            expected = before / 8
        else:
            smooth = (64 / wave - 1) / (4 - 1)
            expected = (1 - smooth) * before / 8 + smooth * before
        assert after == pytest.approx(expected, rel=1e-6)
    assert (scaled == plain).any()
    assert torch.isclose(scaled, plain / 8).any()


def test_angles_are_exact_in_half_precision():
    states = drawn(1, 2, 6, 8).bfloat16()

    rotated = turned(states, first=5000, rotary=Rotary())

    exact = turned(states.float(), first=5000, rotary=Rotary())
    assert rotated.dtype == torch.bfloat16
    assert_close(rotated.float(), exact, rtol=0.01, atol=0.02)


@pytest.mark.parametrize("name", ["rms", "rms_unit"])
def test_an_rms_norm_divides_by_the_root_mean_square(name):
    norm, z = NORMS[name](8, eps=1e-3), drawn(3, 8)
    plain = z / (z.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    assert_close(norm(z), plain)

    torch.nn.init.constant_(norm.weight, 0.5)

    assert_close(norm(z), plain * (1.5 if name == "rms_unit" else 0.5))
    assert norm(z.bfloat16()).dtype == torch.bfloat16


def test_a_gated_layer_activates_its_first_half():
    layer = FEED_FORWARDS["gated"](tiny.shape(activation="silu", biases="none"))
    hidden = drawn(2, 16)
    gate, up = layer.inner.weight.chunk(2)

    expected = (F.silu(hidden @ gate.T) * (hidden @ up.T)) @ layer.output.weight.T

    assert_close(layer(hidden), expected)


def test_consecutive_heads_share_keys_and_values():
    shared = SelfAttention(tiny.shape(heads=4, key_value_heads=2, head_width=6))
    whole = SelfAttention(tiny.shape(heads=4, head_width=6))
    for kind in ("weight", "bias"):
        rows = getattr(shared.packed, kind).split(shared.rows)
        copies = [
            part.unflatten(0, (2, 6)).repeat_interleave(2, dim=0).flatten(0, 1) for part in rows[1:]
        ]
        getattr(whole.packed, kind).data = torch.cat([rows[0], *copies])
    whole.output = shared.output
    hidden = drawn(2, 5, 16)

    output = shared(hidden, AttentionInputs(causal=True))

    assert_close(output, whole(hidden, AttentionInputs(causal=True)))


def test_the_cache_holds_shared_heads():
    backbone, kv_cache = tiny.backbone(**tiny.MODERN), KVCache(3, 12)

    backbone(TOKENS, ALL, padded=False, kv_cache=kv_cache)

    new = torch.zeros(2, 1, 0, 12)
    assert [layer.extend(new, new)[0].shape for layer in kv_cache.layers] == [(2, 1, 12, 12)] * 3


@pytest.mark.parametrize("cached", [0, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_is_as_wide_as_it_says(causal, cached):
    seen = window_mask(6, cached, 4, causal=causal, device=torch.device("cpu"))

    for query in range(6):
        for key in range(cached + 6):
            distance = query + cached - key
            assert seen[query, key] == (0 <= distance < 4 if causal else abs(distance) <= 2)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_only_blocks_with_a_window_have_a_mask_and_angles_of_their_own(direction):
    backbone = tiny.backbone(**tiny.MODERN, direction=direction)
    inputs = backbone.attention_pattern(ALL, padded=False, cached=0)

    assert backbone.attention_pattern.kinds == [0, 1, 0]
    assert [kind.attn_mask is not None for kind in inputs] == [False, True]
    rotated = backbone.position_embedding.add_to_attention(inputs, torch.arange(12)[None])
    states = drawn(1, 2, 12, 12)
    whole, local = (kind.rotate(states, states)[0] for kind in rotated)
    assert not torch.isclose(whole, local).all()


def test_a_text_within_the_window_needs_no_mask():
    pattern = tiny.backbone(**{**tiny.MODERN, "window": 12}).attention_pattern

    assert all(inputs.attn_mask is None for inputs in pattern(ALL, padded=False, cached=0))


def by_hand(residual, z, block):
    """Return what a residual form makes of a state, with A and F and norms 1 to 4 of a block."""
    attend = partial(block.attention, inputs=AttentionInputs(causal=True))
    one, two = block.attention_norm, block.feed_forward_norm
    if residual == "sandwich":
        z = z + one(attend(block.attention_first_norm(z)))
        return z + two(block.feed_forward(block.feed_forward_first_norm(z)))
    if residual == "reordered":
        z = z + one(attend(z))
        return z + two(block.feed_forward(z))
    if residual == "parallel":
        return z + attend(one(z)) + block.feed_forward(two(z))
    z = z + attend(z)
    return z + block.feed_forward(two(z))


@pytest.mark.parametrize("residual", ["sandwich", "reordered", "parallel", "pre_first_plain"])
def test_a_residual_form_is_its_formula(residual):
    backbone = tiny.lively(tiny.backbone(residual=residual))
    z, block = drawn(2, 5, 16), backbone.blocks[0]

    output = block(z, AttentionInputs(causal=True))

    assert_close(output, by_hand(residual, z, block))


@pytest.mark.parametrize("biases", ["all", "qkv", "none"])
def test_biases_are_where_they_are_asked_for(biases):
    names = {name for name, _ in tiny.backbone(biases=biases, norm="rms").named_parameters()}

    suffixes = {name.removeprefix("blocks.0.") for name in names if name.startswith("blocks.0.")}
    linear = {"attention.packed", "attention.output", "feed_forward.inner", "feed_forward.output"}
    expected = {"all": linear, "qkv": {"attention.packed"}, "none": set()}[biases]
    assert {name for name in suffixes if name.endswith("bias")} == {f"{n}.bias" for n in expected}


def test_low_rank_updates_find_the_rows_of_shared_heads():
    backbone = tiny.backbone(**tiny.MODERN)
    block = backbone.blocks[0]

    make = partial(LowRank, rank=2, scale=1.0, dropout=0.0)
    add_lora(block, ("query", "key", "value"), make)

    rows = {name: part.rows for name, part in block.attention.packed.lora.items()}
    assert rows == {"query": slice(0, 24), "key": slice(24, 36), "value": slice(36, 48)}


@pytest.mark.parametrize("pair", [("base", "modern"), ("tiny", "modern-tiny")])
def test_a_modern_preset_has_the_parameters_of_its_plain_one_in_matrices(pair):
    def matrices(name):
        with torch.device("meta"):
            parameters = Backbone(tiny.preset(name, direction="causal"), 100).blocks.parameters()
        return sum(parameter.numel() for parameter in parameters if parameter.ndim > 1)

    assert matrices(pair[0]) == matrices(pair[1])
