import pytest
import torch

from tests import tiny
from transfer_cli.model.picked_blocks import shape_of_blocks, spread, tensors_of_blocks


def test_six_of_twelve_are_every_second_block_from_the_second_on():
    assert spread(12, 6) == (1, 3, 5, 7, 9, 11)


def test_as_many_as_there_are_are_all_of_them_and_one_is_the_middle():
    assert spread(5, 5) == (0, 1, 2, 3, 4)
    assert spread(5, 1) == (2,)


@pytest.mark.parametrize("blocks", [0, 13, -1])
def test_more_blocks_than_there_are_cannot_be_spread(blocks):
    with pytest.raises(ValueError, match=f"{blocks} blocks cannot be picked of 12; give 1 to 12"):
        spread(12, blocks)


def test_picked_blocks_and_all_around_them_are_those_of_the_model_bit_for_bit():
    model = tiny.backbone(depth=5)
    tensors = {f"backbone.{name}": tensor for name, tensor in model.state_dict().items()}

    found = tensors_of_blocks({**tensors, "heads.lm.bias": torch.ones(3)}, (0, 3))

    shallow = tiny.backbone(seed=1, depth=2)
    own = {name.removeprefix("backbone."): found[name] for name in found if name[0] == "b"}
    shallow.load_state_dict(own)
    assert tiny.same(tiny.weights_of(shallow.blocks[0]), tiny.weights_of(model.blocks[0]))
    assert tiny.same(tiny.weights_of(shallow.blocks[1]), tiny.weights_of(model.blocks[3]))
    assert tiny.same(tiny.weights_of(shallow.final_norm), tiny.weights_of(model.final_norm))
    assert torch.equal(found["heads.lm.bias"], torch.ones(3))


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((), "has to name a block or more"),
        ((2, 1), "ascending, each once"),
        ((1, 1), "ascending, each once"),
        ((0, 5), "goes beyond the model's blocks, which are 0 to 4"),
        ((-1, 0), "goes beyond the model's blocks"),
    ],
)
def test_numbers_that_name_no_shallower_model_are_refused(layers, said):
    with pytest.raises(ValueError, match=said):
        shape_of_blocks(tiny.shape(depth=5), layers)


def test_blocks_that_are_one_and_the_same_are_not_picked():
    with pytest.raises(ValueError, match=r"share their weights \(model.share=all\)"):
        shape_of_blocks(tiny.shape(depth=4, share="all"), (0, 1))


def test_a_first_block_that_is_unlike_the_others_stays_the_first():
    shape = tiny.shape(depth=4, residual="pre_first_plain")

    assert shape_of_blocks(shape, (0, 3)).depth == 2
    with pytest.raises(ValueError, match="has to begin with 0"):
        shape_of_blocks(shape, (1, 3))


WINDOWS = {"attention": "window", "window": 4, "depth": 12, "global_every": 3}


@pytest.mark.parametrize("layers", [(0, 2, 4, 6, 8, 10), (1, 2, 4, 5), (0, 3), (0, 2, 3, 5, 6, 8)])
def test_each_picked_block_keeps_its_window_or_goes_without(layers):
    shape = tiny.shape(**WINDOWS)

    found = shape_of_blocks(shape, layers)

    assert found.has_window == [shape.has_window[layer] for layer in layers]


def test_windows_without_a_rhythm_are_refused():
    with pytest.raises(ValueError, match="no rhythm of attention windows"):
        shape_of_blocks(tiny.shape(**WINDOWS), (0, 3, 4, 5, 6))
