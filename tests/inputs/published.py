"""Published folders as they are found, for the table beside."""

import json
import warnings

import torch
from safetensors.torch import load_file

from tests.published import publish

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 133466304\n"
)


def model(path, family, options=None, config=None, files=None, without=(), pointer=None):
    """Write a small model.

    Args:
        path: Its folder.
        family: Its `model_type`.
        options: Of the config that it is made with.
        config: What its `config.json` says in addition; "gone": it lacks the key.
        files: Further files, or what replaces those that are there: texts, or JSON objects, which
            a JSON file that is there takes up.
        without: Files to leave out.
        pointer: A file that is a pointer of Git LFS.
    """
    publish(path, family, **(options or {}))
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


def quantized(path):
    """Write a BERT whose weights are a pickle of quantized tensors."""
    publish(path, "bert")
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = {n: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8) for n, t in tensors.items()}
        torch.save(packed, path / "pytorch_model.bin")


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
