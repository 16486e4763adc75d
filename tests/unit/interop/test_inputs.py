"""What a `tokenizer.json` says about inputs, against what a run reads."""

import json

import pytest

from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.errors import CheckpointError
from transfer_cli.interop import inputs
from transfer_cli.interop.inputs import Inputs
from transfer_cli.interop.vocabulary import LAYOUTS

LINES = ["The harbour of Lomta is old , and who built it ?"] * 9
TOKENIZERS = {
    "wordpiece": WordPiece(300).make(lambda: iter(LINES)),
    "bytes": BytePairs(300).make(lambda: iter(LINES)),
}


def written(tmp_path, tokenizer, direction="bidirectional", length=9, **changes):
    path = tmp_path / "tokenizer.json"
    made = Inputs(length, *LAYOUTS["labelled", direction], segments=True)
    made.write(path, tokenizer)
    content = json.loads(path.read_text())
    for key, value in changes.items():
        part, _, name = key.partition("__")
        content[part][name] = value
    path.write_text(json.dumps(content))
    return made, path


@pytest.mark.parametrize("length", [5, 6, 9, 64])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_is_written_is_what_a_run_reads(tmp_path, kind, direction, length):
    made, path = written(tmp_path, TOKENIZERS[kind], direction, length)

    made.check(path, TOKENIZERS[kind], direction, "to")


@pytest.mark.parametrize("truncate", ["first", "second"])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_which_text_is_cut_is_written_too(tmp_path, direction, truncate):
    made = Inputs(9, *LAYOUTS["labelled", direction], segments=True, truncate=truncate)
    made.write(tmp_path / "tokenizer.json", TOKENIZERS["wordpiece"])

    made.check(tmp_path / "tokenizer.json", TOKENIZERS["wordpiece"], direction, "to")

    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert (
        content["truncation"]["strategy"]
        == {"first": "OnlyFirst", "second": "OnlySecond"}[truncate]
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"truncation__max_length": 8},
        {"truncation__max_length": 10},
        {"truncation__direction": "Left"},
        {"post_processor__single": [{"Sequence": {"id": "A", "type_id": 0}}]},
        {"post_processor__pair": [{"Sequence": {"id": each, "type_id": 0}} for each in "AB"]},
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, changes):
    made, path = written(tmp_path, TOKENIZERS["wordpiece"], **changes)

    with pytest.raises(CheckpointError, match="makes another input than the run reads"):
        made.check(path, TOKENIZERS["wordpiece"], "bidirectional", "to")


def test_segments_are_compared_too(tmp_path):
    _, path = written(tmp_path, TOKENIZERS["wordpiece"])
    without = Inputs(9, *LAYOUTS["labelled", "bidirectional"], segments=False)

    with pytest.raises(CheckpointError, match="makes another input"):
        without.check(path, TOKENIZERS["wordpiece"], "bidirectional", "to")


def test_the_words_of_the_check_are_found_in_any_vocabulary():
    for tokenizer in TOKENIZERS.values():
        assert [len(words) for words in inputs._words(tokenizer, [0, 3, -1])] == [0, 3, 0]
