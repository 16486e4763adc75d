"""Where documents begin in running text."""

import json

import numpy as np
import pytest
import torch

from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.known_files import KnownFiles
from transfer_cli.data.shards import encode_text
from transfer_cli.data.text import SampleText, TextFiles
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.tasks.text_to_text.objective import PrefixLM

WORDS = WordPiece(60).make(lambda: iter(["a b c d e f"]))


def begins(data, tmp_path, split="train"):
    """Return the first lines of the documents of a split."""
    found = data.splits(tmp_path, 0)[split]
    return [line for line, first in zip(found.lines(), found.begins(), strict=True) if first]


def text_file(tmp_path, lines, name="a.txt"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def own(path, **options):
    return TextFiles(train=path, validation_share=0.5, documents="separate", **options)


WIKI = ["= One =", "", "a b", " = = Part = = ", "c", "", "= Two =", "", "d e"]


def test_documents_are_told_apart_only_where_it_is_asked_for(tmp_path):
    path = text_file(tmp_path, WIKI)

    assert TextFiles(train=path, validation=path + "x").documents == "cross"
    assert SampleText().splits(tmp_path, 0)["train"].begins is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["= One =", "a b", "= Two =", "d e"]),
        ({"heading": "= [^=].* ="}, ["= One =", "= Two ="]),
    ],
)
def test_a_document_of_own_text_follows_an_empty_line_or_has_a_heading(tmp_path, options, expected):
    path, other = text_file(tmp_path, WIKI), text_file(tmp_path, ["x"], "b.txt")
    data = TextFiles(train=path, validation=other, documents="separate", **options)

    assert begins(data, tmp_path) == expected
    assert begins(data, tmp_path, "validation") == ["x"]


def test_each_row_of_json_lines_is_a_document(tmp_path):
    rows = [json.dumps({"text": text}) for text in ("a\n\nb", "c", "d\ne")]
    path = text_file(tmp_path, rows, "a.jsonl")
    other = text_file(tmp_path, ["x"], "b.txt")
    data = TextFiles(train=[path, other], validation=other + "x", documents="separate")

    found = data._whole([tmp_path / "a.jsonl", tmp_path / "b.txt"], "train", KnownFiles(None))

    firsts = [line for line, first in zip(found.lines(), found.begins(), strict=True) if first]
    assert firsts == ["a", "c", "d", "x"]


def test_what_is_held_out_begins_anew(tmp_path):
    lines = [f"line {number}" for number in range(40)]
    data = own(text_file(tmp_path, lines))

    train, validation = begins(data, tmp_path), begins(data, tmp_path, "validation")

    for part in (train, validation):
        numbers = [int(line.split()[1]) for line in part]
        assert len(numbers) > 1
    kept = list(data.splits(tmp_path, 0)["train"].lines())
    jumps = [
        line
        for before, line in zip(["", *kept], kept, strict=False)
        if not before or int(line.split()[1]) != int(before.split()[1]) + 1
    ]
    assert train == jumps


def test_articles_of_the_sample_are_its_documents(tmp_path):
    found = begins(SampleText(documents="separate"), tmp_path, "validation")

    assert len(found) > 20
    assert all(line.startswith("= ") and line.endswith(" =") for line in found)


def test_blocks_say_which_document_each_input_predicts(tmp_path):
    data = own(text_file(tmp_path, ["a b", "", "c d e", "", "f"]))
    split = data._whole([tmp_path / "a.txt"], "train", KnownFiles(None))
    text = encode_text(split, WORDS, tmp_path / "cache")

    blocks = TextBlocks(text, 4, WORDS.pad)
    batch = blocks.batch(np.arange(len(blocks)))

    ends = [place for place, token in enumerate(text.tokens) if token == WORDS.sep]
    assert text.starts.tolist() == [ends[0], ends[2], ends[4]]
    documents = batch["document"][batch["mask"]].tolist()
    assert documents == [
        int(np.searchsorted(text.starts, place, side="right")) for place in range(len(documents))
    ]
    assert set(documents) == {1, 2, 3}


def test_what_cannot_be_done_is_refused(tmp_path):
    with pytest.raises(ValueError, match="documents: 'apart' is not one of cross, separate"):
        SampleText(documents="apart")
    with pytest.raises(ValueError, match="heading is no regular expression"):
        TextFiles(train="a.txt", heading="(")
    path = text_file(tmp_path, ["a b", "c"])
    split = own(path)._whole([tmp_path / "a.txt"], "train", KnownFiles(None))
    wrong = encode_text(split, WORDS, tmp_path / "cache")
    assert wrong.starts is not None
    object.__setattr__(split, "begins", lambda: iter([True]))
    with pytest.raises(DataError, match="1 lines, and the token that ends them"):
        encode_text(split, WORDS, tmp_path / "other cache")


def test_corrupted_blocks_have_no_documents():
    objective = PrefixLM(corrupt=0.15)
    batch = {"tokens": torch.zeros(1, 4), "document": torch.zeros(1, 4)}

    with pytest.raises(ConfigError, match="corrupt hides spans of whole blocks; say cross"):
        objective.prepare(batch, None)
