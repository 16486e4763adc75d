"""A stranger's weights and description are read or refused, before memory is taken for them."""

import json
import struct

import pytest
import torch
from hypothesis import given
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
    ModelDescription,
    load_pretrained,
    load_strictly,
    read_description,
    read_shapes,
    read_weights,
    write_description,
)
from transfer_cli.objectives.causal_lm import CausalLM

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
    return json.loads((folder / DESCRIPTION).read_text())


def file_of(header: dict, content: bytes) -> bytes:
    """Return a safetensors file."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


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
    model = tiny.model(CausalLM())
    for load in (load_pretrained, load_strictly):
        with pytest.raises(CheckpointError):
            load(model, tensors, folder)


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
        found = read_description(folder)
    except CheckpointError:
        return
    assert found.shape.direction in ("causal", "bidirectional")
    assert all(isinstance(label, str) for label in found.labels)
    assert isinstance(found.objective["_target_"], str)


# -------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}",
        file_of({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}, b"1234"),
        file_of({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
        file_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234"),
        file_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}, b"1234"),
        file_of(
            {
                "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},
            },
            b"123456",
        ),
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


def test_whole_numbers_in_place_of_weights_do_not_fit(tmp_path):
    model = tiny.model(CausalLM())
    tensors = tiny.weights_of(model)
    tensors["backbone.final_norm.bias"] = torch.zeros(16, dtype=torch.int64)

    with pytest.raises(CheckpointError, match=r"final_norm\.bias"):
        load_strictly(model, tensors, tmp_path)


# --------------------------------------------------------------------------- descriptions


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("width", 10**9, f"width must be at most {MAX_SIZE:,}"),
        ("depth", 10**9, f"depth must be at most {MAX_DEPTH:,}"),
        ("positions", 2**30, f"positions must be at most {MAX_SIZE:,}"),
        ("width", -16, "width must be at least 1"),
        ("width", "16", "shape.width: expected a whole number, got '16'"),
        ("width", 16.0, "shape.width: expected a whole number, got 16.0"),
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocabulary", -1), ("vocabulary", "48"), ("vocabulary", True), ("labels", "yes"),
        ("labels", [1]), ("labels", ["a", "a"]), ("objective", {}), ("objective", []),
        ("edits", []), ("edits", {"lora": "LoRA"}), ("edits", {"lora": {"rank": 2}}),
        ("base", "/"), ("base", {"path": 1, "relative": "", "hash": ""}), ("tokenizer", "x"),
    ],
)  # fmt: skip
def test_a_description_of_something_else_is_refused(tmp_path, name, value):
    content = described(tmp_path)
    content[name] = value
    (tmp_path / DESCRIPTION).write_text(json.dumps(content))

    assert f"{DESCRIPTION} is damaged: " in refusal(read_description, tmp_path)


@pytest.mark.parametrize("name", ["shape", "vocabulary", "objective", "labels", "tokenizer_hash"])
def test_a_description_without_a_part_says_which(tmp_path, name):
    content = described(tmp_path)
    del content[name]
    (tmp_path / DESCRIPTION).write_text(json.dumps(content))

    assert f"it has no '{name}'" in refusal(read_description, tmp_path)


def test_a_model_that_this_machine_cannot_hold_is_refused_before_memory_is_taken():
    shape = tiny.shape(width=2**20, feedforward=2**22, depth=1000)

    with memory_up_to(2**20), pytest.raises(MemoryError, match="the weights take"):
        Backbone(shape, 48)


def test_a_model_of_any_size_can_be_laid_out_without_weights():
    with without_weights():
        backbone = Backbone(tiny.shape(width=2**20, feedforward=2**22), 48)

    assert all(parameter.is_meta for parameter in backbone.parameters())
