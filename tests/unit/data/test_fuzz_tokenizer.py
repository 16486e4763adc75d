"""A stranger's `tokenizer.json` is loaded or refused; what is loaded encodes or says why not."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from tests.fuzzing import altered, damaged, fuzz, memory_up_to
from transfer_cli.data.tokenizer import (
    MAX_FILE_BYTES,
    MAX_VOCABULARY,
    SPECIALS,
    UNKNOWN,
    BytePairs,
    Tokenizer,
    WordPiece,
)
from transfer_cli.errors import DataError

TEXTS = ["hello world <unk>", "a ü [CLS]", " ", "\x01 🙂 aaaa", ""]


def written(backend: tokenizers.Tokenizer) -> dict:
    return json.loads(backend.to_str())


def made(recipe) -> dict:
    return written(recipe.make(lambda: iter(["hello world the of a", "zwei ü 5 @,@ 000"]))._backend)


def unigram() -> dict:
    pieces = [(name, 0.0) for name in SPECIALS] + [("a", -1.0), ("b", -2.0)]
    return written(tokenizers.Tokenizer(models.Unigram(pieces, unk_id=1)))


def word_level() -> dict:
    words = {word: number for number, word in enumerate([*SPECIALS, "a", "b"])}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return written(backend)


FILES = [made(BytePairs(size=300)), made(WordPiece(size=60)), unigram(), word_level()]

files = st.sampled_from(FILES)
contents = st.one_of(
    files.flatmap(altered).map(json.dumps).map(str.encode),
    files.map(json.dumps).map(str.encode).flatmap(damaged),
)


@fuzz(150)
@given(content=contents)
def test_fuzz_tokenizer_files(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "tokenizer.json"
    path.write_bytes(content)
    try:
        tokenizer = Tokenizer.load(path)
        rows = tokenizer.encode_batch(TEXTS)
        for text in TEXTS:
            tokenizer.encode_batch(tokenizer.units(text))
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017 - may also succeed
        return

    assert all(0 <= token < tokenizer.size for row in rows for token in row)
    assert all(len(tokenizer.pieces(row)) == len(row) for row in rows)


@pytest.mark.parametrize("file", FILES[:2], ids=["bpe", "wordpiece"])
@pytest.mark.parametrize("number", [2**32 - 1, MAX_VOCABULARY + 1, -1, 1.5, None])
def test_a_token_whose_number_would_take_all_memory_is_refused(tmp_path, file, number):
    content = json.loads(json.dumps(file))
    content["model"]["vocab"]["a"] = number
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))

    with pytest.raises(DataError, match="a token has the number "):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_an_enormous_file_is_refused_without_being_read_whole(tmp_path):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as stream:
        stream.truncate(2**31)

    with (
        memory_up_to(3 * MAX_FILE_BYTES),
        pytest.raises(DataError, match="it is larger than 65,536 KiB"),
    ):
        Tokenizer.load(path)


def test_what_the_library_panics_at_is_a_damaged_file(tmp_path):
    content = made(WordPiece(size=60))
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))

    with pytest.raises(DataError, match=r"tokenizer\.json is damaged"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_text_that_a_tokenizer_has_no_token_for_is_an_error_of_the_user(tmp_path):
    content = unigram()
    content["model"]["unk_id"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))

    with pytest.raises(DataError, match=r"tokenizer\.json cannot encode the text: .*unk"):
        Tokenizer.load(tmp_path / "tokenizer.json").encode("zzz")


def test_special_tokens_may_stand_among_the_added_tokens_alone(tmp_path):
    content = made(BytePairs(size=300))
    for added in content["added_tokens"]:
        del content["model"]["vocab"][added["content"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))

    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")

    assert len(tokenizer.special) == len(SPECIALS)
    assert tokenizer.encode("<unk>") == [tokenizer.unk]
