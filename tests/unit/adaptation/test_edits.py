"""Legend: B batch, T positions, D width."""

import re
from dataclasses import replace

import pytest
import torch
import yaml
from torch import nn
from torch.testing import assert_close

from tests import tiny
from transfer_cli.adaptation.edit import Edit, apply_edit
from transfer_cli.adaptation.edits import (
    IA3,
    Adapters,
    FreshTop,
    GatedPrefix,
    LoRA,
    MixLayers,
    NewRows,
    PALs,
    ParallelAdapters,
    Segments,
)
from transfer_cli.adaptation.penalties import EWC, L2SP, Start
from transfer_cli.config.build import build
from transfer_cli.errors import ConfigError
from transfer_cli.model.attention import AttentionInputs
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.edited_linear import EditedLinear
from transfer_cli.model.heads import SequenceHead
from transfer_cli.model.transfer_model import TransferModel, layer_groups
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.testing import edits as contract
from transfer_cli.testing.edits import check_edit
from transfer_cli.testing.penalties import check_penalty

BERT_CASED = 28_996
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
TARGETS = ("query", "key", "value", "output", "feed_forward")
RESIDUALS = ("pre", "post", "tutorial")
EVERY_RESIDUAL = (*RESIDUALS, "pre_first_plain", "sandwich", "reordered", "parallel")
TOKENS = torch.arange(24).view(2, 12)
MASK = torch.arange(12) < torch.tensor([[12], [7]])
EDITS = [
    Adapters(),
    Adapters(size=1, placement="ffn_only", activation="gelu"),
    ParallelAdapters(),
    ParallelAdapters(size=1, scale=0.5, activation="gelu"),
    LoRA(),
    LoRA(rank=1, alpha=0.5, targets=TARGETS),
    LoRA(dora=True, targets=TARGETS),
    LoRA(rank=4, scale="rank_stabilised", lr_ratio=16.0),
    IA3(),
    GatedPrefix(),
    GatedPrefix(1),
    PALs(),
    PALs(3),
    MixLayers(),
    MixLayers(norm=False),
    FreshTop(),
    FreshTop(blocks=3),
    NewRows(),
    NewRows(("sep", "cls", "mask", "unk", "pad")),
    Segments(),
]
ONE_OF_EACH = list({type(edit): edit for edit in EDITS}.values())


def size_of(parameters):
    return sum(parameter.numel() for parameter in parameters)


def edited(*edits, objectives=(), **changes):
    model = tiny.model(*objectives, **changes).eval()
    for edit in edits:
        edit(model, SPECIAL)
    return model.eval()


def states(model):
    return [state.detach() for state in model.backbone(TOKENS, MASK)]


@pytest.mark.parametrize(
    ("edit", "modern"),
    [*((edit, False) for edit in EDITS), *((edit, True) for edit in ONE_OF_EACH)],
    ids=repr,
)
def test_an_edit_keeps_the_contract(edit, modern, monkeypatch):
    if modern:
        monkeypatch.setattr(contract, "SHAPE", replace(contract.SHAPE, **tiny.MODERN))

    check_edit(edit)


STARTS_UNCHANGED = [edit for edit in EDITS if not isinstance(edit, MixLayers | FreshTop)]


@pytest.mark.parametrize(
    ("direction", "residual"),
    [("causal", "pre"), ("bidirectional", "post"), ("causal", "tutorial")],
)
@pytest.mark.parametrize("edit", STARTS_UNCHANGED, ids=repr)
def test_an_edited_model_starts_as_the_pretrained_one(edit, direction, residual):
    plain, model = (
        edited(*edits, direction=direction, residual=residual, dropout=0.3)
        for edits in ((), (edit,))
    )

    assert all(torch.equal(old, new) for old, new in zip(states(plain), states(model), strict=True))
    assert torch.equal(model.readout(states(model)), states(plain)[-1])


def test_edits_that_do_not_share_a_place_combine():
    plain = edited(objectives=(CausalLM(),))
    edits = (
        Adapters(4), ParallelAdapters(4), LoRA(2, targets=TARGETS), IA3(), GatedPrefix(), PALs(),
        NewRows(), MixLayers(),
    )  # fmt: skip
    model = edited(*edits, objectives=(CausalLM(),))

    assert all(torch.equal(old, new) for old, new in zip(states(plain), states(model), strict=True))
    assert plain.state_dict().keys() < model.state_dict().keys()


TWICE = {
    "beside_feed_forward of block 0 is taken by another ParallelAdapter; choose one kind": (
        ParallelAdapters(4), ParallelAdapters(4),
    ),
    "after_feed_forward of block 0 is taken by another Adapter": (Adapters(4), Adapters(8)),
    "block 0: it has LoRA already; give all targets to one": (LoRA(), LoRA(targets=("key",))),
    "block 0: it has LoRA already": (LoRA(dora=True), LoRA()),
    "block 0: it has the factors of (IA)3 already": (IA3(), IA3()),
    "block 0: it has learned keys and values already": (GatedPrefix(), GatedPrefix(2)),
    "heads read a ScalarMix already": (MixLayers(), MixLayers()),
    "name all tokens in one place": (NewRows(), NewRows(("sep",))),
    "has embeddings of 2 segments already": (Segments(), Segments()),
}  # fmt: skip


@pytest.mark.parametrize("said", TWICE)
def test_an_edit_that_is_there_already_is_refused(said):
    first, second = TWICE[said]
    model = edited(first)

    with pytest.raises(ValueError, match=re.escape(said)):
        second(model, SPECIAL)


def test_a_model_with_segments_gets_no_others():
    with pytest.raises(ValueError, match="has embeddings of 2 segments already"):
        edited(Segments(), segments=2)


# Sizes.


def tutorial_on_meta(*edits):
    with torch.device("meta"):
        backbone = Backbone(tiny.preset("tutorial", direction="causal"), BERT_CASED)
        head = SequenceHead(backbone.shape.width, 6, "cls_last")
        model = TransferModel(backbone, {"class": head})
        for edit in edits:
            edit(model, SPECIAL)
    return model


def test_the_tutorial_has_the_published_sizes():
    plain, with_adapters = tutorial_on_meta(), tutorial_on_meta(Adapters())

    groups = layer_groups(with_adapters, set())
    parameters = dict(with_adapters.named_parameters())
    trained = [
        parameters[name]
        for group in groups
        for name in group.parameters
        if group.name == "embeddings" or group.name.split(".")[0] in ("added", "head")
    ]

    assert size_of(plain.backbone.parameters()) == 50_396_360
    assert size_of(plain.parameters()) == 50_398_826
    assert size_of(with_adapters.parameters()) == 51_252_650
    assert size_of(trained) == 12_849_610


def added_to_a_block_of_bert(edit):
    """Return how many parameters an edit adds to each of the twelve blocks of a BERT-base."""
    with torch.device("meta"):
        model = TransferModel(Backbone(tiny.preset("bert-base", direction="bidirectional"), 8), {})
        before = size_of(model.parameters())
        edit(model, SPECIAL)
    return (size_of(model.parameters()) - before) / 12


@pytest.mark.parametrize(
    ("edit", "count"),
    [
        (ParallelAdapters(size=32), 2 * 768 * 32 + 32 + 768),
        (IA3(), 4608),  # 2 h_kv d_h + f
        (GatedPrefix(), 2 * 10 * 768 + 12),  # 2 P h_kv d_h + h
        (PALs(), 3 * 204**2 + 2 * 768 * 204 / 12),  # of which the latter are shared
        (LoRA(), 2 * 8 * (768 + 768)),
        (LoRA(dora=True), 2 * 8 * (768 + 768) + 2 * 768),  # and the rows
    ],
    ids=repr,
)
def test_an_edit_of_a_bert_has_the_published_size(edit, count):
    assert added_to_a_block_of_bert(edit) == count


# Adapters.


def test_adapters_of_the_feed_forward_part_leave_the_other_site_alone():
    model = edited(Adapters(placement="ffn_only"))

    for block in model.backbone.blocks:
        assert isinstance(block.sites["after_attention"], nn.Identity)
        assert not isinstance(block.sites["after_feed_forward"], nn.Identity)


@pytest.mark.parametrize("residual", EVERY_RESIDUAL)
def test_a_parallel_adapter_reads_what_the_feed_forward_layer_reads(residual):
    model = edited(ParallelAdapters(4, scale=3.0), residual=residual)
    block = model.backbone.blocks[1]
    tiny.lively(block)
    beside = block.sites["beside_feed_forward"]
    hidden = torch.randn(2, 5, 16)

    read, seen = [], []
    for part in (block.feed_forward, beside):
        part.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
    beside.register_forward_hook(lambda module, inputs, out: seen.append(out))
    update = block.feed_forward_update(hidden, hidden, AttentionInputs())
    del block.sites["beside_feed_forward"]

    assert torch.equal(*read)
    down, up = beside.down, beside.up
    assert_close(seen[0], 3 * up(torch.relu(down(hidden))))
    assert_close(update, block.feed_forward_update(hidden, hidden, AttentionInputs()) + seen[0])


# LoRA.


def test_lora_touches_its_targets_only():
    model = edited(LoRA(targets=("query", "output")))

    names = [name for name, module in model.named_modules() if isinstance(module, EditedLinear)]
    assert names == [
        f"backbone.blocks.{block}.attention.{part}"
        for block in range(3)
        for part in ("packed", "output")
    ]
    updates = model.backbone.blocks[0].attention.packed.lora
    assert list(updates) == ["query"]
    assert updates["query"].scale == 2


@pytest.mark.parametrize(("scale", "factor"), [("standard", 0.25), ("rank_stabilised", 1.0)])
def test_the_scale_of_an_update_falls_with_the_rank_or_with_its_root(scale, factor):
    model = edited(LoRA(rank=16, alpha=4.0, scale=scale))

    assert model.backbone.blocks[0].attention.packed.lora["query"].scale == factor


# MixLayers.


@pytest.mark.parametrize("residual", RESIDUALS)
def test_a_fresh_mix_averages_the_layers_and_normalises_those_of_pre(residual):
    model = edited(MixLayers(), residual=residual)
    layers = torch.stack(states(model))

    mixed = model.readout(states(model))

    if residual == "pre":
        layers = nn.functional.layer_norm(layers, (16,))
    assert_close(mixed, layers.mean(0))


@pytest.mark.parametrize("norm", [True, False])
def test_a_norm_that_was_asked_for_or_not_is_kept(norm):
    assert [edited(MixLayers(norm), residual=r).readout.norm for r in RESIDUALS] == [norm] * 3


# FreshTop.


@pytest.mark.parametrize("residual", RESIDUALS)
def test_fresh_top_blocks_are_no_longer_inherited_and_the_rest_is(residual):
    model = edited(objectives=(CausalLM(),), residual=residual)
    tiny.lively(model)
    before = tiny.weights_of(model)

    reported = FreshTop(2)(model, SPECIAL)

    groups = layer_groups(model, before.keys() - reported)
    assert {group.name for group in groups if not group.inherited} == {"block.1", "block.2"}
    changed = {n for n, tensor in model.state_dict().items() if not torch.equal(tensor, before[n])}
    assert changed == reported
    assert ("backbone.final_norm.weight" in reported) == (residual == "pre")


def test_fresh_blocks_keep_what_other_edits_put_into_them():
    model = edited(Adapters(4), LoRA(2))
    tiny.lively(model)
    before = tiny.weights_of(model)

    reported = FreshTop()(model, SPECIAL)

    added = {name for name in before if ".sites." in name or ".lora." in name}
    assert not added & reported
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in added)


# NewRows.


@pytest.mark.parametrize(
    ("names", "special", "rows"),
    [(("mask", "cls"), SPECIAL, (2, 4)), (("cls", "sep"), {"cls": 2, "sep": 2}, (2,))],
)
def test_new_rows_are_those_of_the_tokens_named_once_each(names, special, rows):
    model = tiny.model()

    NewRows(names)(model, special)

    assert model.backbone.new_rows.tokens == rows
    assert model.backbone.new_rows.delta.shape == (len(rows), 16)


# Segments.


def test_a_model_without_segments_learns_to_tell_speakers_apart():
    backbone, plain = edited(Segments()).backbone, edited().backbone
    speaker_BT = torch.arange(12).expand(2, -1) % 2

    with torch.no_grad():
        backbone.new_segments.weight[1] = 0.5
        embedded = backbone.embed(TOKENS, MASK.cumsum(1) - 1, speaker_BT)
        wanted = plain.embed(TOKENS, MASK.cumsum(1) - 1)
    without = backbone.embed(TOKENS, MASK.cumsum(1) - 1)

    assert_close(embedded, wanted + 0.5 * speaker_BT[..., None])
    assert torch.equal(without, wanted)
    assert backbone.num_segments == 2


# As configs.


CONFIGS = {
    "adapters": Adapters(), "adapters_houlsby": Adapters(size=64, activation="gelu"),
    "adapters_ffn_only": Adapters(placement="ffn_only"), "parallel_adapters": ParallelAdapters(),
    "lora": LoRA(), "dora": LoRA(dora=True), "ia3": IA3(), "gated_prefix": GatedPrefix(),
    "pals": PALs(), "scalar_mix": MixLayers(), "fresh_top": FreshTop(), "new_rows": NewRows(),
    "segments": Segments(),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (tiny.CONF / "adaptation" / "edits").glob("*.yaml"))
)
def test_a_config_is_the_edit_that_it_names(name):
    text = (tiny.CONF / "adaptation" / "edits" / f"{name}.yaml").read_text()

    assert text.startswith(f"# @package adaptation.edits.{name}\n")
    assert build(yaml.safe_load(text), "edit", Edit) == CONFIGS[name]


# What an edit must account for.


class Hides(Edit):
    def __call__(self, model, special):
        model.backbone.blocks[0].extra = nn.Parameter(torch.zeros(3))
        return set()


class Renames(Edit):
    def __call__(self, model, special):
        model.backbone.drop = nn.Sequential(model.backbone.blocks[2].attention_norm)
        model.backbone.blocks[2].attention_norm = nn.Identity()
        return set()


class MakesUpNames(Edit):
    def __call__(self, model, special):
        return {"backbone.nothing"}


class IsForgotten(Adapters):
    structural = False


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Hides(), r"adds backbone\.blocks\.0\.extra outside of any Added"),
        (Renames(), r"removes backbone\.blocks\.2\.attention_norm\.bias and 1 more, which must"),
        (MakesUpNames(), r"reports backbone\.nothing as drawn anew, which was not there"),
        (IsForgotten(), r"adds backbone\..* and \d+ more, and says that it is not structural"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_edit_that_does_not_account_for_its_parameters_is_refused(edit, message):
    with pytest.raises(ValueError, match=message):
        apply_edit(edit, "own", tiny.model(), SPECIAL)


def test_an_edit_on_an_edited_model_accounts_for_its_own_parameters_alone():
    model = tiny.model()

    apply_edit(Adapters(4), "first", model, SPECIAL)
    apply_edit(NewRows(), "second", model, SPECIAL)

    assert model.backbone.new_rows.edit == "second"
    assert model.backbone.blocks[0].sites["after_attention"].edit == "first"


# --- penalties -----------------------------------------------------------------------------------


def drawn(model, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.rand(p.shape, generator=generator) for n, p in model.named_parameters()}


def started(penalty, model, inherited=None, information=None):
    """Let the penalty see the model; without `inherited`, everything is but the classifier."""
    if inherited is None:
        inherited = {n for n, _ in model.named_parameters() if not n.startswith("heads.class")}
    information = drawn(model) if information is None else information
    penalty.start(Start(model, frozenset(inherited), lambda _sequences, _kind: information))
    return penalty


def moved(model, seed=0):
    """Move every parameter at random; return how far."""
    generator = torch.Generator().manual_seed(seed)
    far = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            before = parameter.clone()
            parameter.add_(torch.randn(parameter.shape, generator=generator))
            far[name] = parameter - before
    return far


@pytest.mark.parametrize(
    "penalty",
    [L2SP(), L2SP(3.0, 0.0), EWC(), EWC(strength=20.0, normalise="none")],
    ids=["l2_sp", "l2_sp strong", "ewc", "ewc as it is"],
)
def test_a_penalty_keeps_the_contract(penalty):
    check_penalty(penalty)


def test_the_gradient_of_l2_sp_is_its_strength_times_the_distance():
    model = tiny.model(CausalLM(), Classification())
    penalty = started(L2SP(strength=0.3, new_strength=0.7), model)
    far = moved(model)

    penalty(model).backward()

    for name, parameter in model.named_parameters():
        wanted = 0.7 * parameter if name.startswith("heads.class") else 0.3 * far[name]
        assert_close(parameter.grad, wanted.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("normalise", ["mean", "none"])
def test_the_gradient_of_ewc_is_strength_times_information_times_the_distance(normalise):
    model = tiny.model(CausalLM())
    information = drawn(model)
    penalty = started(EWC(strength=0.3, normalise=normalise), model, information=information)
    mean = torch.cat([value.flatten() for value in information.values()]).mean()
    scale = 1 / mean if normalise == "mean" else 1.0
    far = moved(model)

    penalty(model).backward()

    for name, parameter in model.named_parameters():
        assert_close(
            parameter.grad, 0.3 * scale * information[name] * far[name], rtol=1e-5, atol=1e-6
        )


def test_normalised_information_is_1_on_average_over_what_is_inherited():
    model = tiny.model(CausalLM(), Classification())
    information = {**drawn(model), "heads.class.linear.weight": torch.full((3, 16), 1e9)}

    penalty = started(EWC(), model, information=information)

    entries = torch.cat([value.flatten() for value in penalty.information.values()])
    assert float(entries.mean()) == pytest.approx(1, rel=1e-5)
    assert not any(name.startswith("heads.class") for name in penalty.information)


def test_ewc_leaves_new_parameters_and_those_without_information_free():
    model = tiny.model(CausalLM(), Classification())
    information = drawn(model)
    del information["backbone.final_norm.weight"]
    penalty = started(EWC(), model, information=information)
    moved(model)

    penalty(model).backward()

    free = {name for name, p in model.named_parameters() if p.grad is None}
    assert free == {
        "backbone.final_norm.weight", "heads.class.linear.weight", "heads.class.linear.bias"
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "asked"), [("true", "true"), (True, "true"), ("empirical",) * 2])
def test_ewc_asks_for_the_information_that_it_is_told_to(kind, asked):
    model, calls = tiny.model(CausalLM()), []

    def fisher(*request):
        calls.append(request)
        return drawn(model)

    EWC(sequences=7, fisher=kind).start(
        Start(model, frozenset(dict(model.named_parameters())), fisher)
    )

    assert calls == [(7, asked)]


def test_a_tied_matrix_counts_once():
    model = tiny.model(CausalLM(), tie_output=True)
    penalty = started(L2SP(strength=2.0), model)
    matrix = model.backbone.token_embedding.weight

    with torch.no_grad():
        matrix.add_(0.5)

    assert float(penalty(model).detach()) == pytest.approx(0.25 * matrix.numel(), rel=1e-5)


@pytest.mark.parametrize("make", [L2SP, EWC])
def test_a_penalty_of_half_precision_weights_is_in_float32(make):
    model = tiny.model(CausalLM()).bfloat16()
    penalty = started(make(), model)
    moved(model)

    value = penalty(model)
    value.backward()

    assert value.dtype == torch.float32
    assert all(anchor.dtype == torch.float32 for anchor in penalty.anchors.values())


def test_a_penalty_on_weights_of_which_none_trains_has_no_gradient():
    model = tiny.model(CausalLM())
    penalty = started(L2SP(), model)
    model.requires_grad_(False)

    value = penalty(model)

    assert float(value) == 0
    assert not value.requires_grad


@pytest.mark.parametrize(("factor", "what"), [(0.0, "0"), (float("nan"), "not finite")])
@pytest.mark.parametrize("normalise", ["mean", "none"])
def test_information_that_holds_nothing_is_refused(factor, what, normalise):
    model = tiny.model(CausalLM())
    information = {name: factor * value for name, value in drawn(model).items()}

    with pytest.raises(ConfigError, match=f"information of the pretraining objective is {what}"):
        started(EWC(normalise=normalise), model, information=information)


def test_only_l2_sp_stands_in_place_of_weight_decay():
    assert L2SP.replaces_weight_decay
    assert not EWC.replaces_weight_decay
