import pytest

from tests import tiny
from transfer_cli.adaptation.selection import select
from transfer_cli.errors import SelectionError
from transfer_cli.model.transfer_model import layer_groups
from transfer_cli.objectives.classification import Classification

MODEL = tiny.model(Classification())
GROUPS = layer_groups(MODEL, set())
NAMES = {name for name, _ in MODEL.named_parameters()}


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
    assert select(patterns, GROUPS) == {name for name in NAMES if wanted(name)}


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_and_all_groups():
    with pytest.raises(SelectionError) as refused:
        select(["head.*", "blok.2"], GROUPS)

    text = str(refused.value)
    assert "'blok.2' matches no parameter. Did you mean 'block.2'?" in text
    assert "The groups are embeddings, block.0, block.1, block.2, head.class" in text


def test_what_an_edit_added_has_groups_of_its_own():
    model = tiny.model(Classification())
    model.backbone.blocks[1].sites["after_attention"] = tiny.AddedLinear(16, 16)

    chosen = select(["added.*"], layer_groups(model, set()))

    assert chosen == {
        "backbone.blocks.1.sites.after_attention.weight",
        "backbone.blocks.1.sites.after_attention.bias",
    }


def test_added_modules_are_no_part_of_their_block():
    model = tiny.model(Classification())
    model.backbone.blocks[1].sites["after_attention"] = tiny.AddedLinear(16, 16)

    chosen = select(["block.*"], layer_groups(model, set()))

    assert not any(".sites." in name for name in chosen)


def test_added_is_no_group_where_nothing_was_added():
    with pytest.raises(SelectionError, match=r"'added\.\*' matches no parameter"):
        select(["added.*"], GROUPS)
