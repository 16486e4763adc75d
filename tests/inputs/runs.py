"""Runs of others as they may be, for the table beside: damaged, changed, or with code in them."""

import hashlib
import json
import pickle
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.origins import CHANGES, rows, write_table
from tests.published import deflate
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.data.tokenizer_file import save_tokenizer
from transfer_cli.data.tokenizer_recipes import WordPiece


class Bomb:
    """Makes a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("marker"),)


def bomb(path, kind="torch"):
    """Write a file with code in it: a bare pickle, or one of torch's files."""
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb(), protocol=2))
        return
    torch.save({"step": Bomb()}, path, _use_new_zipfile_serialization=kind != "old torch")
    if kind == "packed torch":
        deflate(path)


def state(path, kind=None, value=None):
    """Put code or a value in place of the newest training state, and let its list agree."""
    folder = sorted(path.glob("step-*"))[-1]
    file = folder / "train_state.pt"
    if kind is None:
        torch.save(value, file)
    else:
        bomb(file, kind)
    meta = json.loads((folder / "meta.json").read_text())
    digest = hashlib.blake2b(file.read_bytes(), digest_size=32).hexdigest()
    meta["files"][file.name] = {"bytes": file.stat().st_size, "blake2b": digest}
    (folder / "meta.json").write_text(json.dumps(meta))


def flipped(path):
    """Change the last bit of a file."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def tokenizer(path):
    """Write a tokenizer of other words."""
    save_tokenizer(WordPiece(size=600).make(lambda: iter(["entirely other words"])), path)


def weights(path, value, words="we", without=None):
    """Put a number into the weights of some tokens of a model folder, or leave a tensor out."""
    file = path / "weights.safetensors"
    tensors = load_file(file)
    if without is not None:
        del tensors[without]
    else:
        for token in open_pretrained(str(path)).tokenizer.encode(words):
            tensors["backbone.token_embedding.weight"][token] = float(value)
    save_file(tensors, file)
    (path / "meta.json").unlink()


def changed(path, how):
    """Change the tables that a run was made from."""
    for name, count in (("train.csv", None), ("test.csv", 12)):
        if name == "train.csv" or how.startswith("a label"):
            write_table(path / name, CHANGES[how](rows()[:count]))
