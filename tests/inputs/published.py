"""Published folders as they are found, for the table beside."""

import json
import os
import warnings

import torch
from safetensors.torch import load_file, save_file

from tests.published import deflate, publish

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 133466304\n"
)


def model(
    path, family, kind="", options=None, config=None, files=None, without=(), pointer=None,
    tensors=None, cut=None,
):  # fmt: skip
    """Write a small model.

    Args:
        path: Its folder.
        family: Its `model_type`.
        kind: What its head is for, as the end of its class is called.
        options: Of the config that it is made with.
        config: What its `config.json` says in addition; "gone": it lacks the key.
        files: Further files, or what replaces those that are there: texts, or JSON objects, which
            a JSON file that is there takes up.
        without: Files to leave out.
        pointer: A file that is a pointer of Git LFS.
        tensors: Shapes of other tensors by their names; "gone": the weights lack it.
        cut: The share of the weights' file that is left.
    """
    publish(path, family, kind, **(options or {}))
    for name, content in {"config.json": config or {}, **(files or {})}.items():
        file = path / name
        if isinstance(content, dict):
            there = json.loads(file.read_text()) if file.exists() else {}
            kept = {k: v for k, v in {**there, **content}.items() if v != "gone"}
            content = json.dumps(kept)
        file.write_text(content)
    for name in without:
        (path / name).unlink()
    if pointer:
        (path / pointer).write_text(POINTER)
    weights = path / "model.safetensors"
    if tensors:
        ours = {n: torch.zeros(shape) for n, shape in tensors.items() if shape != "gone"}
        kept = {n: t for n, t in load_file(weights).items() if tensors.get(n) != "gone"}
        save_file({**kept, **ours}, weights)
    if cut is not None:
        data = weights.read_bytes()
        weights.write_bytes(data[: int(len(data) * cut)])


def token_without_row(path):
    """Write a Gemma 3 whose tokenizer has one token more than the model has rows."""
    publish(path, "gemma3_text")
    file = path / "tokenizer.json"
    data = json.loads(file.read_text())
    rows = json.loads((path / "config.json").read_text())["vocab_size"]
    last = {**data["added_tokens"][0], "id": rows, "content": "<image_soft_token>"}
    file.write_text(json.dumps(data | {"added_tokens": [*data["added_tokens"], last]}))


def cased(path):
    """Write a BERT with capitals in its vocabulary and nothing that says so."""
    publish(path, "bert")
    file = path / "vocab.txt"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:-3], "The", "Film", "Bad"]) + "\n")
    (path / "tokenizer_config.json").unlink()


class Bomb:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("marker",)


def _quantized(tensor):
    with warnings.catch_warnings(action="ignore"):
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


PICKLES = {
    "code": lambda tensors: {"a": Bomb()},
    "quantized": lambda tensors: {name: _quantized(each) for name, each in tensors.items()},
    "meta": lambda tensors: {name: each.to("meta") for name, each in tensors.items()},
    "packed": lambda tensors: {"a": torch.zeros(2**16)},
    "sparse": lambda tensors: {"a": torch.eye(3).to_sparse()},
    "a list": lambda tensors: [torch.ones(1)],
    "integers": lambda tensors: {
        **tensors, "bert.embeddings.LayerNorm.weight": torch.ones(16, dtype=torch.int32)
    },
    "integers in the head": lambda tensors: {
        **tensors, "classifier.weight": torch.zeros(2, 16, dtype=torch.int64)
    },
}  # fmt: skip
"""What a pickle of weights holds, by what is wrong with it."""


def pickled(path, kind):
    """Write a BERT whose weights are a pickle."""
    publish(path, "bert", "SequenceClassification")
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    file = path / "pytorch_model.bin"
    torch.save(PICKLES[kind](tensors), file)
    if kind == "packed":
        deflate(file)


def more_tokens(path):
    """Write a BERT with more tokens in its vocabulary than it has rows."""
    publish(path, "bert")
    file = path / "vocab.txt"
    lines = file.read_text().splitlines()
    more = [f"extra{n}" for n in range(230 - len(lines))]
    file.write_text("\n".join([*lines, *more]) + "\n")


def random_merges(path):
    """Write a Llama whose tokenizer leaves out merges at random."""
    publish(path, "llama")
    file = path / "tokenizer.json"
    data = json.loads(file.read_text())
    data["model"]["dropout"] = 0.5
    file.write_text(json.dumps(data))


def growing(path):
    """Write a Llama whose tokenizer makes 64 letters of one."""
    publish(path, "llama")
    file = path / "tokenizer.json"
    grown = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 64}
    file.write_text(json.dumps({**json.loads(file.read_text()), "normalizer": grown}))
