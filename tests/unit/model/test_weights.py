import json
import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from transfer_cli.errors import CheckpointError
from transfer_cli.model.weights import (
    DESCRIPTION,
    WEIGHTS,
    LazyTensors,
    ModelDescription,
    check_finite,
    load_pretrained,
    load_strictly,
    read_description,
    read_weights,
    save_tensors,
    write_description,
)
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification


def saved(model, folder):
    save_tensors(model.state_dict(), folder / WEIGHTS)
    return read_weights(folder)


# Loading a pretrained model.


def test_loading_fills_the_backbone_and_reports_what_is_new_and_what_was_dropped(tmp_path):
    pretrained = tiny.model(CausalLM(), seed=1)
    fresh = tiny.model(Classification(), seed=2)
    new_head = tiny.weights_of(fresh.heads)

    report = load_pretrained(fresh, saved(pretrained, tmp_path), tmp_path)

    assert tiny.same(fresh.backbone.state_dict(), pretrained.backbone.state_dict())
    assert tiny.same(fresh.heads.state_dict(), new_head)
    assert report.loaded == tuple(sorted(f"backbone.{n}" for n in fresh.backbone.state_dict()))
    assert report.new == ("heads.class.linear.bias", "heads.class.linear.weight")
    assert report.dropped == ("heads.lm.bias",)


def test_tensors_that_are_read_when_asked_for_are_loaded_one_by_one():
    theirs, ours = tiny.model(CausalLM()), tiny.model(Classification())
    found, alive, read = theirs.state_dict(), [], []

    def fresh(name):
        assert not [one for one in alive if one() is not None]
        tensor = found[name].clone()
        alive.append(weakref.ref(tensor))
        read.append(name)
        return tensor

    report = load_pretrained(ours, LazyTensors(found, fresh), "")

    assert sorted(read) == list(report.loaded)
    assert "heads.lm.bias" in report.dropped
    assert all(torch.equal(ours.state_dict()[name], found[name]) for name in report.loaded)
    with pytest.raises(KeyError, match="none"):
        LazyTensors(found, fresh)["none"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused(value):
    tensors = {"empty": torch.empty(0), "counts": torch.tensor([3]), "a": torch.tensor([1, -2.0])}
    check_finite(tensors, "")

    with pytest.raises(CheckpointError, match="here: a holds numbers that are not finite"):
        check_finite(tensors | {"a": torch.tensor([1, value, -2.0])}, "here")


def test_a_head_that_fits_is_loaded(tmp_path):
    pretrained, fresh = tiny.model(CausalLM(), seed=1), tiny.model(CausalLM(), seed=2)
    tiny.lively(pretrained)

    report = load_pretrained(fresh, saved(pretrained, tmp_path), tmp_path)

    assert tiny.same(fresh.state_dict(), pretrained.state_dict())
    assert (report.new, report.dropped) == ((), ())


def test_the_table_is_still_tied_after_loading(tmp_path):
    pretrained, fresh = tiny.model(CausalLM(), seed=1), tiny.model(CausalLM(), seed=2)
    load_pretrained(fresh, saved(pretrained, tmp_path), tmp_path)
    table = fresh.backbone.token_embedding.weight

    fresh.heads["lm"].summed_loss(torch.ones(1, 16), table, torch.tensor([7])).backward()

    assert table.grad is not None
    assert len(list(fresh.heads["lm"].parameters())) == 1


def test_a_head_of_another_shape_is_dropped_whole(tmp_path):
    pretrained, fresh = tiny.model(Classification(), seed=1), tiny.model(Classification(), seed=2)
    tensors = saved(pretrained, tmp_path)
    tensors["heads.class.linear.weight"] = torch.zeros(2, 16)  # the bias still fits
    before = tiny.weights_of(fresh.heads)

    report = load_pretrained(fresh, tensors, tmp_path)

    assert tiny.same(fresh.heads.state_dict(), before)
    assert report.new == report.dropped == ("heads.class.linear.bias", "heads.class.linear.weight")


def test_a_head_of_which_the_model_knows_only_a_part_is_dropped_whole(tmp_path):
    pretrained = tiny.model(CausalLM(), seed=1, output_transform=True)
    fresh = tiny.model(CausalLM(), seed=2)

    report = load_pretrained(fresh, saved(pretrained, tmp_path), tmp_path)

    assert report.new == ("heads.lm.bias",)
    assert "heads.lm.bias" in report.dropped


@pytest.mark.parametrize("name", ["backbone.token_embedding.weight", "backbone.final_norm.bias"])
def test_a_missing_tensor_of_the_backbone_is_an_error(tmp_path, name):
    model = tiny.model(CausalLM())
    tensors = saved(model, tmp_path)
    del tensors[name]

    with pytest.raises(CheckpointError, match=f"does not fill this model's backbone: {name}"):
        load_pretrained(model, tensors, tmp_path)


def test_a_refused_load_leaves_the_model_alone(tmp_path):
    other, fresh = tiny.model(CausalLM(), seed=1, depth=2), tiny.model(CausalLM(), seed=2)
    before = tiny.weights_of(fresh)

    with pytest.raises(CheckpointError, match=r"backbone\.blocks\.2"):
        load_pretrained(fresh, saved(other, tmp_path), tmp_path)

    assert tiny.same(fresh.state_dict(), before)


def test_a_backbone_of_another_width_is_an_error(tmp_path):
    tensors = saved(tiny.model(CausalLM(), width=8), tmp_path)

    with pytest.raises(CheckpointError, match=r"and \d+ more missing or of another shape"):
        load_pretrained(tiny.model(CausalLM()), tensors, tmp_path)


# Loading a model's own weights.


def test_saving_and_loading_is_the_identity(tmp_path):
    model, other = tiny.model(CausalLM(), seed=1), tiny.model(CausalLM(), seed=2)

    load_strictly(other, saved(model, tmp_path), tmp_path)

    assert tiny.same(model.state_dict(), other.state_dict())


@pytest.mark.parametrize("fault", ["missing", "left over", "shape"])
def test_own_weights_must_fit_exactly(tmp_path, fault):
    model = tiny.model(CausalLM())
    tensors = saved(model, tmp_path)
    if fault == "missing":
        del tensors["heads.lm.bias"]
    elif fault == "left over":
        tensors["heads.class.bias"] = torch.zeros(3)
    else:
        tensors["heads.lm.bias"] = torch.zeros(3)

    with pytest.raises(CheckpointError, match=r"does not fit this model: heads\.(lm|class)\.bias"):
        load_strictly(model, tensors, tmp_path)


# Files that cannot be read.


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "model.pkl"])
def test_a_pickle_is_named_and_never_opened(tmp_path, name):
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")

    with pytest.raises(CheckpointError, match=f"{name} is a pickle, which could run code"):
        read_weights(tmp_path)


def test_an_empty_folder_holds_no_weights(tmp_path):
    with pytest.raises(CheckpointError, match=f"holds no {WEIGHTS}"):
        read_weights(tmp_path)


def test_a_pickle_under_the_name_of_safetensors_is_refused(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / WEIGHTS)

    with pytest.raises(CheckpointError, match="is damaged or no safetensors file"):
        read_weights(tmp_path)


@settings(max_examples=25)
@given(share=st.floats(0, 0.999))
def test_cut_off_weights_are_refused(tmp_path_factory, share):
    folder = tmp_path_factory.mktemp("cut")
    save_tensors(tiny.model(depth=1).state_dict(), folder / WEIGHTS)
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: int(share * len(content))])

    with pytest.raises(CheckpointError, match="is damaged or no safetensors file"):
        read_weights(folder)


# Descriptions.

DESCRIBED = ModelDescription(
    shape=tiny.shape(),
    vocabulary=48,
    objective={"_target_": "transfer_cli.objectives.causal_lm.CausalLM"},
    labels=("yes", "no"),
    tokenizer_hash="abc",
)


def test_a_description_is_read_as_it_was_written(tmp_path):
    write_description(DESCRIBED, tmp_path)

    assert read_description(tmp_path) == DESCRIBED


def test_a_folder_without_a_description_holds_no_model(tmp_path):
    with pytest.raises(CheckpointError, match=f"holds no model: {DESCRIPTION} is missing"):
        read_description(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"shape": {"width": 3}}', "3", "null"])
def test_a_damaged_description_is_refused(tmp_path, content):
    (tmp_path / DESCRIPTION).write_text(content)

    with pytest.raises(CheckpointError, match="is damaged"):
        read_description(tmp_path)


def test_a_description_of_an_impossible_shape_is_refused(tmp_path):
    write_description(DESCRIBED, tmp_path)
    content = json.loads((tmp_path / DESCRIPTION).read_text())
    content["shape"]["heads"] = 3
    (tmp_path / DESCRIPTION).write_text(json.dumps(content))

    with pytest.raises(CheckpointError, match="must divide width"):
        read_description(tmp_path)


def test_weights_can_be_read_by_whom_the_folder_is_for(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)

    save_tensors(torch.nn.Linear(2, 2).state_dict(), folder / WEIGHTS)

    assert (folder / WEIGHTS).stat().st_mode & 0o777 == 0o644
