import copy

import pytest
import torch
from torch import nn

from tests import tiny
from transfer_cli.adaptation.edit import make_edit
from transfer_cli.adaptation.edits import Adapters, LoRA, MixLayers, NewRows, Segments
from transfer_cli.model.added import (
    Added,
    Mergeable,
    added_modules,
    added_parameters,
    lasting_parameters,
    merge,
    unmerge,
    unmergeable_edits,
)
from transfer_cli.objectives.causal_lm import CausalLM

EVERY = {"lora": LoRA(), "bottleneck": Adapters(4), "rows": NewRows(), "mix": MixLayers(),
         "segments": Segments()}  # fmt: skip


def edited(**edits):
    model = tiny.model(CausalLM()).eval()
    for name, edit in edits.items():
        make_edit(edit, name, model, {"cls": 2})
    return model


def names_of(model):
    return {name for name, _ in model.named_parameters()}


def test_added_parameters_are_those_that_a_plain_model_has_not():
    plain, model = edited(), edited(**EVERY)

    assert not added_parameters(plain)
    assert added_parameters(model).keys() == names_of(model) - names_of(plain)


def test_what_is_added_knows_the_name_of_its_edit():
    model = edited(**EVERY)

    of_group = {name: part.edit for name, part in added_parameters(model).items()}

    assert set(of_group.values()) == EVERY.keys()
    assert of_group["readout.gamma"] == "mix"
    assert of_group["backbone.new_rows.delta"] == "rows"


def test_a_copy_of_a_model_is_marked_as_well():
    model = edited(**EVERY)

    copied = added_modules(copy.deepcopy(model))

    wanted = {name: part.describe() for name, part in added_modules(model).items()}
    assert {name: part.describe() for name, part in copied.items()} == wanted


def test_only_edits_that_can_be_merged_are():
    model = edited(**EVERY)

    merge(model)

    assert {part.edit for part in added_modules(model).values()} == EVERY.keys() - {"lora"}
    assert unmergeable_edits(model) == {
        "bottleneck": "adapters between its layers (adaptation.edits.bottleneck)",
        "rows": "embeddings that are added to others (adaptation.edits.rows)",
        "mix": "a mix of its layers (adaptation.edits.mix)",
        "segments": "embeddings of segments (adaptation.edits.segments)",
    }


class Doubled(nn.Linear):
    """A layer that can be merged, with a part that an edit has added."""

    def __init__(self):
        super().__init__(4, 4)
        self.extra = Extra()

    def merged(self):
        return nn.Linear(4, 4)


class Extra(Added):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


def test_an_edit_that_could_be_merged_in_part_is_not_merged_at_all():
    half = nn.ModuleDict({"layer": Doubled(), "alone": Extra()})

    assert isinstance(half["layer"], Mergeable)
    assert not merge(half)
    assert unmergeable_edits(half) == {"": "Extra (adaptation.edits.)"}


def test_what_lasts_is_what_a_merge_leaves():
    model = edited(**EVERY)

    lasting = lasting_parameters(model)

    merge(model)
    assert lasting == added_parameters(model)
    assert {part.edit for part in lasting.values()} == EVERY.keys() - {"lora"}


def test_unmerging_puts_back_what_was_there():
    model = nn.ModuleDict({"layer": Doubled()})
    before = model["layer"]

    replaced = merge(model)
    assert type(model["layer"]) is nn.Linear
    unmerge(model, replaced)

    assert model["layer"] is before


@pytest.mark.parametrize("edit", [LoRA(), Adapters(4), NewRows()], ids=repr)
def test_what_is_added_keeps_the_outputs_at_birth(edit):
    assert all(part.keeps_outputs for part in added_modules(edited(one=edit)).values())


def test_a_mix_of_layers_changes_what_heads_read():
    assert not any(part.keeps_outputs for part in added_modules(edited(mix=MixLayers())).values())
