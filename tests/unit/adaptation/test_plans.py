"""Plans, the stages of a run, and what patterns select."""

import itertools
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import tiny
from transfer_cli.adaptation.adaptation import Adaptation, select_parameters
from transfer_cli.adaptation.plans import (
    AllAtOnce,
    Biases,
    ChainThaw,
    GradualUnfreezing,
    NewWeights,
    Only,
    SequentialUnfreezing,
    Stage,
    TopBlocks,
)
from transfer_cli.errors import ConfigError, SelectionError
from transfer_cli.lengths import Length
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import SequenceHead
from transfer_cli.model.transfer_model import TransferModel, layer_groups
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.optim.layer_scale import Uniform
from transfer_cli.testing.plans import check_plan

REMAINDER = Length(None)
AUTO = Length.parse("auto")


def adapted(*, pretrained=True, edited=False, inherited=("backbone.",)):
    """Return a model of three blocks with two heads, and its groups; one head was pretrained."""
    model = tiny.model(Classification(), CausalLM())
    loaded = {name for name, _ in model.named_parameters() if name.startswith(inherited)}
    if edited:
        model.backbone.blocks[1].sites["after_attention"] = tiny.AddedLinear(16, 16)
    return model, layer_groups(model, loaded if pretrained else set())


MODEL, GROUPS = adapted()
EDITED, EDITED_GROUPS = adapted(edited=True)
HEADS = ("head.class", "head.lm")
UP = ("embeddings", "block.0", "block.1", "block.2")


def trains(plan, groups=GROUPS):
    return [stage.train for stage in plan(groups)]


def lengths(plan, groups=GROUPS):
    return [stage.length for stage in plan(groups)]


@pytest.mark.parametrize(
    "plan",
    [
        AllAtOnce(), Only(("head.*", "*")), NewWeights(), NewWeights(norms=True), Biases(),
        NewWeights(also=("embeddings",)), TopBlocks(1), TopBlocks(3), GradualUnfreezing(),
        GradualUnfreezing("7 steps"), GradualUnfreezing("1 epoch", always=("embeddings",)),
        ChainThaw(), ChainThaw("5%", patience=None, with_new=True), SequentialUnfreezing(),
        SequentialUnfreezing("1 epoch", "3 epochs"),
    ],
    ids=repr,
)  # fmt: skip
def test_every_plan_keeps_the_contract(plan):
    check_plan(plan)


# --- one stage ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "train"),
    [(AllAtOnce(), ("*",)), (Only(["head.*", "block.2"]), ("head.*", "block.2"))],
)
def test_everything_or_what_is_named_trains_in_one_stage(plan, train):
    assert plan(GROUPS) == [Stage(train, REMAINDER)]


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        (GROUPS, HEADS),
        (EDITED_GROUPS, ("added.1", *HEADS)),
        # A head that pretraining filled is a head all the same.
        (adapted(inherited=("backbone.", "heads.lm"))[1], HEADS),
        # From scratch everything is new.
        (adapted(pretrained=False)[1], (*UP, *HEADS)),
        # So is a block that was drawn anew.
        (
            adapted(inherited=("backbone.token", "backbone.pos", "backbone.blocks.0"))[1],
            ("block.1", "block.2", *HEADS),
        ),
    ],
    ids=["plain", "added", "inherited head", "scratch", "fresh blocks"],
)
def test_new_is_what_pretraining_did_not_fill_with_heads_and_added_modules(groups, wanted):
    assert trains(NewWeights(), groups) == [wanted]


@pytest.mark.parametrize(
    ("plan", "mark"), [(NewWeights(norms=True), r"norm"), (Biases(), r"\.bias$")], ids=repr
)
def test_norms_or_biases_train_beside_all_that_is_new(plan, mark):
    (patterns,) = trains(plan, EDITED_GROUPS)

    chosen = select_parameters(patterns, EDITED_GROUPS)

    names = [name for name, _ in EDITED.named_parameters()]
    assert chosen == {name for name in names if re.search(rf"{mark}|\.sites\.|^heads\.", name)}


def test_a_model_without_biases_is_told_what_else_trains_little():
    model = tiny.model(Classification(), biases="none", norm="rms")

    with pytest.raises(
        ConfigError, match=r"^adaptation.plan: .* this model has none; adaptation=lora"
    ):
        Biases()(layer_groups(model, set()))


@pytest.mark.parametrize(
    ("count", "groups", "wanted"),
    [
        (1, GROUPS, ("block.2", *HEADS)),
        (2, GROUPS, ("block.1", "block.2", *HEADS)),
        (3, EDITED_GROUPS, ("block.0", "block.1", "block.2", "added.1", *HEADS)),
        (1, adapted(pretrained=False)[1], ("block.2", *HEADS)),
        # A tied output layer without a bias has no parameter, and its group is not there.
        (1, [group for group in GROUPS if group.name not in HEADS], ("block.2",)),
    ],
)
def test_top_blocks_train_with_the_heads(count, groups, wanted):
    assert trains(TopBlocks(count), groups) == [wanted]


# --- several stages ----------------------------------------------------------------------------


def test_gradual_unfreezing_adds_a_layer_a_stage_from_the_top():
    stages = trains(GradualUnfreezing())

    assert stages[0] == HEADS
    assert stages[1] == (*HEADS, "block.2")
    assert stages[-1] == (*HEADS, "block.2", "block.1", "block.0", "embeddings")
    assert len(stages) == 5
    assert lengths(GradualUnfreezing()) == [AUTO, AUTO, AUTO, AUTO, REMAINDER]
    assert lengths(GradualUnfreezing("1 epoch"))[:2] == [Length(1, "epochs")] * 2


def test_what_always_trains_gets_no_stage_of_its_own():
    stages = trains(GradualUnfreezing(always=("embeddings", "block.*/*norm*")))

    assert stages[0] == (*HEADS, "embeddings", "block.*/*norm*")
    assert [stage[-1] for stage in stages[1:]] == ["block.2", "block.1", "block.0"]


def test_added_modules_train_from_the_first_stage_on():
    for plan in (GradualUnfreezing(), ChainThaw(), SequentialUnfreezing()):
        assert trains(plan, EDITED_GROUPS)[0] == ("added.1", *HEADS)


@pytest.mark.parametrize("plan", [GradualUnfreezing(), ChainThaw(), SequentialUnfreezing()])
def test_from_scratch_there_is_one_stage_of_everything(plan):
    (stage,) = plan(adapted(pretrained=False)[1])

    assert (set(stage.train), stage.length) == ({*UP, *HEADS}, REMAINDER)


def test_without_a_head_unfreezing_begins_with_the_top_block():
    groups = [group for group in GROUPS if group.name not in HEADS]

    assert trains(GradualUnfreezing(), groups)[0] == ("block.2",)
    assert trains(ChainThaw(), groups)[0] == ("embeddings",)


def test_chain_thaw_trains_new_layers_then_each_alone_then_all():
    stages = ChainThaw()(GROUPS)

    assert [stage.train for stage in stages] == [HEADS, *((name,) for name in UP), ("*",)]
    assert [stage.rate for stage in stages] == [1.0, *[0.1] * 5]
    assert {stage.patience for stage in stages} == {3}
    assert [stage.length for stage in stages] == [*[AUTO] * 5, REMAINDER]


def test_chain_thaw_can_train_the_head_in_every_stage():
    stages = trains(ChainThaw(with_new=True))

    assert stages == [HEADS, *((*HEADS, name) for name in UP), ("*",)]


def test_sequential_unfreezing_holds_back_the_embeddings():
    stages = SequentialUnfreezing()(EDITED_GROUPS)

    assert [stage.train for stage in stages] == [
        ("added.1", *HEADS), ("block.0", "block.1", "block.2", "added.1", *HEADS), ("*",),
    ]  # fmt: skip
    assert [stage.length.resolve(8, 50, 3) for stage in stages] == [10, 30, None]


@pytest.mark.parametrize("value", ["rate", "patience"])
def test_a_stage_without_a_rate_or_patience_is_refused_by_name(value):
    with pytest.raises(ValueError, match=f"{value} must be"):
        Stage(("*",), REMAINDER, **{value: 0})


@given(st.integers(5, 3000))
def test_stages_of_equal_length_fill_the_run(total):
    spans = Adaptation(GradualUnfreezing(), Uniform()).plan_stages(GROUPS, total, 8)

    sizes = [span.end - span.begin for span in spans]
    assert set(sizes[:-1]) == {total // 5}
    assert total // 5 <= sizes[-1] < total // 5 + 5
    assert all(lower.trains < upper.trains for lower, upper in itertools.pairwise(spans))


# --- the published numbers ---------------------------------------------------------------------

VOCABULARY, LABELS = 28_996, 6
EMBEDDINGS_AND_HEAD, BLOCK, EVERYTHING = 11_995_786, 2_400_190, 50_398_826


@pytest.fixture(scope="module")
def tutorial():
    """Return the tutorial's model for TREC-6, without memory for its weights."""
    with torch.device("meta"):
        backbone = Backbone(tiny.preset("tutorial", direction="causal"), VOCABULARY)
        return TransferModel(backbone, {"class": SequenceHead(410, LABELS, "cls_last")})


def stages_of(plan, model, total):
    """Return each stage's number of steps and of parameters that train."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    groups = layer_groups(model, {name for name in sizes if name.startswith("backbone.")})
    spans = Adaptation(plan, Uniform()).plan_stages(groups, total, total // 3)
    return [(s.end - s.begin, sum(sizes[name] for name in s.trains)) for s in spans]


def test_the_tutorials_unfreezing_adds_a_block_every_54_steps(tutorial):
    stages = stages_of(GradualUnfreezing(always=("embeddings",)), tutorial, 921)

    assert [steps for steps, _ in stages] == [54] * 16 + [921 - 16 * 54]
    assert [count for _, count in stages] == [EMBEDDINGS_AND_HEAD + k * BLOCK for k in range(17)]
    assert stages[-1][1] == EVERYTHING


def test_sequential_unfreezing_has_a_fifth_three_fifths_and_the_rest(tutorial):
    stages = stages_of(SequentialUnfreezing(), tutorial, 921)

    head = 410 * LABELS + LABELS
    assert stages == [(184, head), (552, head + 16 * BLOCK), (185, EVERYTHING)]


SCRATCH_MODEL = tiny.model(Classification())
SCRATCH_GROUPS = layer_groups(SCRATCH_MODEL, set())
ALL = {name for name, _ in SCRATCH_MODEL.named_parameters()}


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        (["*"], lambda name: True),
        (["head.*"], lambda name: name.startswith("heads.")),
        (["head.class", "block.1"], lambda name: name.startswith(("heads.", "backbone.blocks.1."))),
        (["block.*"], lambda name: ".blocks." in name or "final_norm" in name),
        (["*/*norm*"], lambda name: "norm" in name),
        (["block.*/*attention.packed.bias"], lambda name: name.endswith("attention.packed.bias")),
        ([], lambda name: False),
    ],
)
def test_patterns_match_groups_and_with_a_slash_parameters(patterns, wanted):
    assert select_parameters(patterns, SCRATCH_GROUPS) == {name for name in ALL if wanted(name)}


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_and_all_groups():
    with pytest.raises(SelectionError) as refused:
        select_parameters(["head.*", "blok.2"], SCRATCH_GROUPS)

    text = str(refused.value)
    assert "'blok.2' matches no parameter. Did you mean 'block.2'?" in text
    assert "The groups are embeddings, block.0, block.1, block.2, head.class" in text


def test_added_is_no_group_where_nothing_was_added():
    with pytest.raises(SelectionError, match=r"'added\.\*' matches no parameter"):
        select_parameters(["added.*"], SCRATCH_GROUPS)


HEAD = {name for name in ALL if name.startswith("heads.")}


def spans(*stages, total=20, epoch=8):
    return Adaptation(tiny.Given(*stages), Uniform()).plan_stages(SCRATCH_GROUPS, total, epoch)


HEAD_FIRST = (("head.*",), ("block.2", "head.*"), ("*",))


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [
        (["3 steps", "1 epoch", "rest"], [(0, 3), (3, 11), (11, 20)]),
        (["3 steps", "1 epoch", "2 steps"], [(0, 3), (3, 11), (11, 20)]),  # the last has the rest
        (["auto", "auto", "auto"], [(0, 6), (6, 12), (12, 20)]),
        (["20%", "10%", "rest"], [(0, 4), (4, 6), (6, 20)]),
    ],
)
def test_stages_follow_each_other_without_a_gap_to_the_end(lengths, steps):
    stages = spans(*zip(HEAD_FIRST, lengths, strict=True))

    assert [(span.begin, span.end) for span in stages] == steps
    assert stages[0].trains == HEAD
    assert stages[0].trains < stages[1].trains < stages[2].trains == ALL


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("20 steps", "stage 2 of 2 would last from step 20 to 20, but the run has 20"),
        ("25 steps", "stage 1 of 2 would last from step 0 to 25, but the run has 20"),
        ("rest", "stage 2 of 2 would last from step 20 to 20, but the run has 20"),
    ],
)
def test_stages_that_are_longer_than_the_run_are_refused(first, said):
    with pytest.raises(ConfigError, match=said):
        spans((("head.*",), first), (("*",), "rest"))


def test_a_head_that_trains_in_any_stage_is_enough():
    assert spans((("block.*",), "3 steps"), (("head.*",), "rest"))


def test_an_inherited_head_may_stay_as_it_is():
    groups = layer_groups(SCRATCH_MODEL, ALL)

    (span,) = Adaptation(Only(("block.2",)), Uniform()).plan_stages(groups, 20, 8)

    assert not span.trains & HEAD


@given(st.lists(st.integers(1, 10), min_size=1, max_size=5), st.integers(1, 60))
def test_stages_cover_every_step_once_or_the_plan_is_refused(lengths, total):
    stages = [(("*",), f"{length} steps") for length in lengths]

    if sum(lengths[:-1]) >= total or sum(lengths) > total:
        with pytest.raises(ConfigError, match="would last from step"):
            spans(*stages, total=total)
    else:
        covered = [
            step for span in spans(*stages, total=total) for step in range(span.begin, span.end)
        ]
        assert covered == list(range(total))
