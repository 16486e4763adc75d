"""Weights and descriptions on disk, and files of strangers."""

import json
import math
import struct
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from tests import tiny
from tests.fuzzing import altered, damaged, fuzz, memory_up_to
from transfer_cli.errors import CheckpointError
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.shape import MAX_DEPTH, MAX_SIZE
from transfer_cli.model.weights import (
    DESCRIPTION,
    MAX_HEADER_BYTES,
    WEIGHTS,
    Base,
    LazyTensors,
    ModelDescription,
    check_finite,
    load_pretrained,
    load_strictly,
    read_description,
    read_shapes,
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
    tensors, alive, read = theirs.state_dict(), [], []

    def fresh(name):
        assert not [one for one in alive if one() is not None]
        tensor = tensors[name].clone()
        alive.append(weakref.ref(tensor))
        read.append(name)
        return tensor

    report = load_pretrained(ours, LazyTensors(tensors, fresh), "")

    assert sorted(read) == list(report.loaded)
    assert "heads.lm.bias" in report.dropped
    assert all(torch.equal(ours.state_dict()[name], tensors[name]) for name in report.loaded)
    with pytest.raises(KeyError, match="none"):
        LazyTensors(tensors, fresh)["none"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused(value):
    tensors = {"empty": torch.empty(0), "counts": torch.tensor([3]), "a": torch.tensor([1, -2.0])}
    check_finite(tensors, "")

    with pytest.raises(CheckpointError, match="here: a holds numbers that are not finite"):
        check_finite(tensors | {"a": torch.tensor([1, value, -2.0])}, "here")


def test_a_head_that_fits_is_loaded(tmp_path):
    pretrained, fresh = tiny.lively(tiny.model(CausalLM())), tiny.model(CausalLM(), seed=2)

    report = load_pretrained(fresh, saved(pretrained, tmp_path), tmp_path)

    assert tiny.same(fresh.state_dict(), pretrained.state_dict())
    assert (report.new, report.dropped) == ((), ())


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"depth": 2}, r"backbone\.blocks\.2"), ({"width": 8}, r"and \d+ more missing or of another")],
)
def test_a_backbone_of_another_shape_is_refused_and_leaves_the_model_alone(tmp_path, changes, said):
    other, fresh = tiny.model(CausalLM(), seed=1, **changes), tiny.model(CausalLM(), seed=2)
    before = tiny.weights_of(fresh)

    with pytest.raises(CheckpointError, match=said):
        load_pretrained(fresh, saved(other, tmp_path), tmp_path)

    assert tiny.same(fresh.state_dict(), before)


# Loading a model's own weights.


def test_saving_and_loading_is_the_identity(tmp_path):
    model, other = tiny.model(CausalLM(), seed=1), tiny.model(CausalLM(), seed=2)

    load_strictly(other, saved(model, tmp_path), tmp_path)

    assert tiny.same(model.state_dict(), other.state_dict())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heads.lm.bias", None), ("heads.class.bias", torch.zeros(3)),
        ("heads.lm.bias", torch.zeros(3)),
        ("backbone.final_norm.bias", torch.zeros(16, dtype=torch.int64)),
    ],
    ids=["missing", "left over", "shape", "whole numbers"],
)  # fmt: skip
def test_own_weights_must_fit_exactly(tmp_path, name, value):
    model = tiny.model(CausalLM())
    tensors = {**tiny.weights_of(model), name: value}
    if value is None:
        del tensors[name]

    with pytest.raises(CheckpointError, match=f"does not fit this model: {name}"):
        load_strictly(model, tensors, tmp_path)


# Files that cannot be read.


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "model.pkl"])
def test_a_pickle_is_named_and_never_opened(tmp_path, name):
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")

    with pytest.raises(CheckpointError, match=f"{name} is a pickle, which could run code"):
        read_weights(tmp_path)


def test_files_that_may_not_be_read_are_not_called_damaged(tmp_path, monkeypatch):
    (tmp_path / WEIGHTS).touch()
    (tmp_path / DESCRIPTION).touch()

    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    for read in (read_weights, read_description):
        with pytest.raises(
            CheckpointError, match=r"cannot be read: \[Errno 13\] Permission denied"
        ):
            read(tmp_path)


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


def test_a_folder_without_a_description_holds_no_model(tmp_path):
    with pytest.raises(CheckpointError, match=f"holds no model: {DESCRIPTION} is missing"):
        read_description(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"shape": {"width": 3}}', "3", "null"])
def test_a_damaged_description_is_refused(tmp_path, content):
    (tmp_path / DESCRIPTION).write_text(content)

    with pytest.raises(CheckpointError, match="is damaged"):
        read_description(tmp_path)


def test_weights_can_be_read_by_whom_the_folder_is_for(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)

    save_tensors(torch.nn.Linear(2, 2).state_dict(), folder / WEIGHTS)

    assert (folder / WEIGHTS).stat().st_mode & 0o777 == 0o644


TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
FILE = save(TENSORS)
LORA = {"_target_": "transfer_cli.adaptation.edits.LoRA", "rank": 2}


def described(folder) -> dict:
    objective = {"_target_": "transfer_cli.objectives.causal_lm.CausalLM", "hidden": [1]}
    base = Base("/somewhere", "../somewhere", "abc")
    description = ModelDescription(
        tiny.shape(), 48, objective, ("yes", "no"), "abc", {"lora": LORA}, base
    )
    write_description(description, folder)
    assert read_description(folder) == description
    return json.loads((folder / DESCRIPTION).read_text())


def file_of(header: dict, content: bytes) -> bytes:
    """Return a safetensors file."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def floats(shape: list[int], offsets: list[int]) -> dict:
    return {"dtype": "F32", "shape": shape, "data_offsets": offsets}


def refusal(read, folder) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(folder)
    assert len(str(caught.value)) < 3000
    return str(caught.value)


@fuzz(200)
@given(content=damaged(FILE) | st.binary(max_size=100))
def test_fuzz_weights(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / WEIGHTS).write_bytes(content)
    try:
        shapes, tensors = read_shapes(folder), read_weights(folder)
    except CheckpointError:
        return
    assert {n: t.shape for n, t in shapes.items()} == {n: t.shape for n, t in tensors.items()}
    for load in (load_pretrained, load_strictly):
        with pytest.raises(CheckpointError):
            load(tiny.model(CausalLM()), tensors, folder)


@pytest.mark.slow
@fuzz(200)
@given(data=st.data())
def test_fuzz_descriptions(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    whole = described(folder)
    text = json.dumps(whole).encode()
    content = data.draw(altered(whole).map(json.dumps).map(str.encode) | damaged(text))
    (folder / DESCRIPTION).write_bytes(content)
    try:
        description = read_description(folder)
    except CheckpointError:
        return
    assert description.shape.direction in ("causal", "bidirectional")
    assert all(isinstance(label, str) for label in description.labels)
    assert isinstance(description.objective["_target_"], str)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}",
        file_of({"a": floats([2**40, 2**40], [0, 4])}, b"1234"),
        file_of({"a": floats([-1], [0, 4])}, b"1234"),
        file_of({"a": floats([1], [4, 0])}, b"1234"),
        file_of({"a": floats([1], [0, 400])}, b"1234"),
        file_of({"a": floats([1], [0, 4]), "b": floats([1], [2, 6])}, b"123456"),
    ],
    ids=["endless", "long", "overflow", "negative", "backwards", "beyond", "overlapping"],
)
def test_a_list_of_tensors_that_cannot_be_is_refused(tmp_path, content):
    (tmp_path / WEIGHTS).write_bytes(content)

    with memory_up_to(2**20):
        for read in (read_shapes, read_weights):
            assert "is damaged or no safetensors file" in refusal(read, tmp_path)


@pytest.mark.parametrize("kind", ["I8", "U8", "BOOL", "F8_E4M3", "I32"])
def test_numbers_that_are_no_weights_are_refused(tmp_path, kind):
    size = 4 if kind == "I32" else 1
    header = {"a": {"dtype": kind, "shape": [1], "data_offsets": [0, size]}}
    (tmp_path / WEIGHTS).write_bytes(file_of(header, bytes(size)))

    for read in (read_shapes, read_weights):
        assert f"holds numbers of type {kind}; expected F32" in refusal(read, tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("width", 10**9, f"width must be at most {MAX_SIZE:,}"),
        ("depth", 10**9, f"depth must be at most {MAX_DEPTH:,}"),
        ("positions", 2**30, f"positions must be at most {MAX_SIZE:,}"),
        ("width", -16, "width must be at least 1"),
        ("width", "16", "shape.width: expected a whole number, got '16'"),
        ("width", 16.0, "shape.width: expected a whole number, got 16.0"),
        ("heads", 3, "must divide width"),
        ("dropout", float("nan"), "dropout must be in"),
        ("causal", True, "BackboneShape has no option 'causal'"),
        ("direction", "auto", "direction is not settled"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(tmp_path, name, value, message):
    content = described(tmp_path)
    content["shape"][name] = value
    (tmp_path / DESCRIPTION).write_text(json.dumps(content))

    assert message in refusal(read_description, tmp_path)


GONE = object()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocabulary", -1), ("vocabulary", "48"), ("vocabulary", True), ("labels", "yes"),
        ("labels", [1]), ("labels", ["a", "a"]), ("objective", {}), ("objective", []),
        ("edits", []), ("edits", {"lora": "LoRA"}), ("edits", {"lora": {"rank": 2}}),
        ("base", "/"), ("base", {"path": 1, "relative": "", "hash": ""}), ("tokenizer", "x"),
        *((n, GONE) for n in ("shape", "vocabulary", "objective", "labels", "tokenizer_hash")),
    ],
)  # fmt: skip
def test_a_description_of_something_else_is_refused(tmp_path, name, value):
    content = {**described(tmp_path), name: value}
    (tmp_path / DESCRIPTION).write_text(
        json.dumps({key: entry for key, entry in content.items() if entry is not GONE})
    )

    said = f"it has no '{name}'" if value is GONE else f"{DESCRIPTION} is damaged: "
    assert said in refusal(read_description, tmp_path)


def test_a_model_that_this_machine_cannot_hold_is_refused_before_memory_is_taken():
    shape = tiny.shape(width=2**20, feedforward=2**22, depth=1000)

    with memory_up_to(2**20), pytest.raises(MemoryError, match="the weights take"):
        Backbone(shape, 48)


def test_a_model_of_any_size_can_be_laid_out_without_weights():
    with without_weights():
        backbone = Backbone(tiny.shape(width=2**20, feedforward=2**22), 48)

    assert all(parameter.is_meta for parameter in backbone.parameters())
