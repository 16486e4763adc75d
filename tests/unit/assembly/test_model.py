"""A model and its edits, from config nodes."""

import pytest
import torch
from omegaconf import OmegaConf

from tests import configs, tiny
from transfer_cli.assembly.model import build_model, edit_nodes, make_edits, special_tokens
from transfer_cli.objectives.base import Loss
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification

SIZE = tiny.VOCABULARY.size
ADAPTERS = {"_target_": f"{configs.EDITS}.Adapters", "size": 2}
LORA = {"_target_": f"{configs.EDITS}.LoRA", "rank": 2}
FRESH_TOP = {"_target_": f"{configs.EDITS}.FreshTop", "blocks": 1}
MIX = {"_target_": f"{configs.EDITS}.MixLayers"}


def losses(*objectives):
    names = ["main", *(f"further{n}" for n in range(len(objectives)))]
    return [Loss(name, tiny.bound(each)) for name, each in zip(names, objectives, strict=False)]


def test_the_same_seed_draws_the_same_weights_whatever_was_drawn_before():
    drawn = []
    for seed, before in [(0, 1), (0, 2), (1, 1)]:
        torch.manual_seed(before)
        drawn.append(build_model(tiny.shape(), SIZE, losses(Classification()), seed).state_dict())

    assert tiny.same(drawn[0], drawn[1])
    assert not tiny.same(drawn[0], drawn[2])


def test_further_losses_do_not_change_what_the_backbone_draws():
    one = build_model(tiny.shape(), SIZE, losses(Classification()), 0)
    two = build_model(tiny.shape(), SIZE, losses(Classification(), CausalLM()), 0)

    assert tiny.same(one.backbone.state_dict(), two.backbone.state_dict())
    assert tiny.same(one.heads["class"].state_dict(), two.heads["class"].state_dict())
    assert set(two.heads) == {"class", "lm"}


def test_losses_that_name_the_same_head_share_it():
    model = build_model(tiny.shape(), SIZE, losses(CausalLM(), CausalLM()), 0)

    assert list(model.heads) == ["lm"]


def test_edits_are_made_in_their_order_and_tell_what_they_are():
    model = tiny.model(Classification())

    fresh, structure = make_edits(
        model, {"mix": MIX, "fresh": FRESH_TOP, "lora": LORA}, tiny.VOCABULARY
    )

    assert list(structure.items()) == [("mix", MIX), ("lora", LORA)]
    top = {n for n, _ in model.named_parameters() if ".blocks.2." in n and ".lora." not in n}
    assert top <= fresh
    assert not any("blocks.0" in name for name in fresh)


@pytest.mark.parametrize(
    ("edits", "names"),
    [
        (None, []),
        ({}, []),
        ({"b": ADAPTERS, "a": LORA}, ["b", "a"]),
        ({"a": None, "b": LORA}, ["b"]),
    ],
)
def test_edits_are_asked_for_in_their_order_and_null_takes_one_away(edits, names):
    config = OmegaConf.create({"adaptation": {"edits": edits}})

    assert list(edit_nodes(config.adaptation)) == names


def test_edits_know_the_special_tokens_by_name():
    own = tiny.VOCABULARY

    assert special_tokens(own) == {
        "cls": own.cls, "sep": own.sep, "mask": own.mask, "unk": own.unk, "pad": own.pad,
    }  # fmt: skip
