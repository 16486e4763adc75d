"""Encoded texts, and the names of their entries in the cache, as they were before.

A token that moves changes results, and an entry of another name is encoded again. See
`test_losses.py` for how to write the file anew.
"""

import hashlib
import itertools
import json
import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from transfer_cli.data import sample
from transfer_cli.data.corpus import encode_text
from transfer_cli.data.known_texts import SampleText
from transfer_cli.data.shards import cached_tokenizer
from transfer_cli.data.text import TextFiles
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece

PATH = Path(__file__).with_name("tokens.json")
RECIPES = {"wordpiece": WordPiece(500), "bpe": BytePairs(500)}
RULES = ["end", "keep", "join"]
SOURCES = ["sample", "one file", "short files", "rows", "headings"]
FORMS = list(itertools.product(RECIPES, RULES, ["cross", "separate"], SOURCES))


@cache
def articles():
    return sample.encyclopedia(0)["validation"][:600]


@cache
def tokenizer_of(recipe):
    return RECIPES[recipe].make(lambda: iter(articles()))


def text_of(source, documents, folder):
    """Return a text; what is in a file, and not its name, decides the names of entries."""
    lines = articles()
    if source == "sample":
        return SampleText(documents=documents)
    plain = folder / "one.txt"
    plain.write_text("\n".join(lines))
    if source == "one file":
        return TextFiles(train=str(plain), documents=documents, validation_share=0.1)
    if source == "headings":
        return TextFiles(train=str(plain), documents=documents, heading="= [^=].* =",
                         validation_share=0.2)  # fmt: skip
    rows = folder / "rows.jsonl"
    texts = ["\n".join(lines[at : at + 3]) for at in range(0, len(lines), 3)]
    rows.write_text("".join(json.dumps({"id": {"body": text}}) + "\n" for text in texts))
    if source == "rows":
        return TextFiles(train=str(rows), field="id.body", documents=documents,
                         validation_share=0.1)  # fmt: skip
    for at in range(8):
        part = "\r\n".join(lines[7 * at : 7 * at + 7]) + "\r\n"
        (folder / f"part{at}.txt").write_text(part, newline="")
    return TextFiles(train=str(folder / "part*.txt"), documents=documents, validation_share=0.1)


def fingerprint(recipe, rule, documents, source):
    """Return entries and digests of the tokens of each split, and of where documents begin."""
    with tempfile.TemporaryDirectory() as name:
        folder, caches = Path(name), Path(name, "cache")
        splits = text_of(source, documents, folder).splits(folder, 0)
        splits.pop("test", None)
        if source == "sample":
            del splits["train"]  # it is long
        if source == "one file":  # once is enough, since it takes a while
            cached_tokenizer(RECIPES[recipe], splits["train"], caches)
        digest = hashlib.blake2b(digest_size=8)
        for split in splits.values():
            text = encode_text(split.with_rule(rule), tokenizer_of(recipe), caches)
            digest.update(np.asarray(text.tokens[:], np.int64).tobytes())
            digest.update(b"" if text.starts is None else text.starts.tobytes())
            counts = text.num_words, text.num_bytes, text.num_lines, text.num_unknown
            digest.update(repr(counts).encode())
        names = sorted(
            f"{kind}/{path.name}"
            for kind in ("tokenizers", "encoded", "documents")
            for path in (caches / kind).glob("[!.]*")
            if path.is_dir()
        )
        digest.update(repr(names).encode())
        return [len(names), digest.hexdigest()]


def is_quick(form):
    """Tell whether a form is one of those that have each recipe, rule and source between them."""
    recipe, rule, documents, _ = form
    return {recipe, documents} == {"wordpiece", "separate"} or {rule, documents} == {
        "join",
        "cross",
    }


@pytest.mark.parametrize(
    "form",
    [form if is_quick(form) else pytest.param(form, marks=pytest.mark.slow) for form in FORMS],
    ids="-".join,
)
def test_a_text_becomes_the_tokens_and_the_entries_that_it_did_before(form):
    assert fingerprint(*form) == json.loads(PATH.read_text())["-".join(form)]


if os.environ.get("TRANSFER_GOLDEN") == "write":
    tokens = {"-".join(form): fingerprint(*form) for form in FORMS}
    PATH.write_text(json.dumps(tokens) + "\n")
