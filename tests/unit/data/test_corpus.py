import dataclasses
import json
import logging
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import altered, damaged, fuzz
from transfer_cli.batch import IGNORE
from transfer_cli.data import encoding
from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.encoded_text import EncodedText
from transfer_cli.data.encoding import cached_tokenizer
from transfer_cli.data.shards import encode_text
from transfer_cli.data.text_split import TextSplit
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.errors import DataError, RunError

TEXT = [" = Lomta = ", "", " The mayor of <unk> ,  a  harbour , is old . ", "Café\tprices rose"]
WORDPIECE = WordPiece(200).make(lambda: iter(TEXT))
BYTES = BytePairs(300).make(lambda: iter(TEXT))
both = pytest.mark.parametrize("tokenizer", [WORDPIECE, BYTES], ids=["wordpiece", "bpe"])


class Text:
    """Lines that count how often they are read."""

    def __init__(self, lines=TEXT, fingerprint="ab"):
        self.lines = lines
        self.readings = 0
        self.split = TextSplit("train", self.read, fingerprint)

    def read(self):
        self.readings += 1
        return iter(self.lines)


def stream(num_tokens):
    tokens = np.arange(num_tokens, dtype=np.uint16)
    return EncodedText(tokens, 0, 0, 0, 0, Path())


def entries(cache: Path):
    return sorted(p.name for p in (cache / "encoded").iterdir() if not p.name.endswith(".lock"))


@both
def test_tokens_are_the_lines_with_sep_in_front_and_after_each(tokenizer, tmp_path):
    encoded = encode_text(Text().split, tokenizer, tmp_path)

    expected = [tokenizer.sep]
    for row in tokenizer.encode_batch(TEXT):
        expected += [*row, tokenizer.sep]
    assert encoded.tokens.tolist() == expected
    assert encoded.tokens.dtype == np.uint16


@both
def test_many_batches_and_a_small_table_give_the_same_tokens(tokenizer, tmp_path, monkeypatch):
    whole = encode_text(Text().split, tokenizer, tmp_path / "whole")
    monkeypatch.setattr(encoding, "_BATCH_CHARACTERS", 20)
    monkeypatch.setattr(encoding, "_MAX_TABLE_TOKENS", 5)

    parts = encode_text(Text().split, tokenizer, tmp_path / "parts")

    np.testing.assert_array_equal(parts.tokens, whole.tokens)
    assert (parts.num_words, parts.num_bytes) == (whole.num_words, whole.num_bytes)


def test_counts_are_of_the_text(tmp_path):
    encoded = encode_text(Text().split, WORDPIECE, tmp_path)

    assert encoded.num_lines == 4
    assert encoded.num_words == 3 + 0 + 11 + 3 + 4
    assert encoded.num_bytes == sum(len(line.encode()) + 1 for line in TEXT)
    assert encoded.num_unknown == 1


def test_bytes_are_those_of_the_original_where_lines_lose_some(tmp_path):
    split = dataclasses.replace(Text().split, size_bytes=1234)

    made, kept = (encode_text(split, WORDPIECE, tmp_path) for _ in range(2))

    assert made.num_bytes == kept.num_bytes == 1234
    assert made.num_words == 21


def test_a_second_start_reads_no_text(tmp_path):
    first, second = Text(), Text()
    encode_text(first.split, WORDPIECE, tmp_path)

    encode_text(second.split, WORDPIECE, tmp_path)

    assert (first.readings, second.readings) == (1, 0)


def test_another_text_or_tokenizer_is_another_entry(tmp_path):
    for split in (Text().split, Text(fingerprint="cd").split):
        encode_text(split, WORDPIECE, tmp_path)
    encode_text(Text().split, BYTES, tmp_path)

    assert len(entries(tmp_path)) == 3


def test_an_entry_says_what_it_holds(tmp_path):
    encoded = encode_text(Text().split, WORDPIECE, tmp_path)

    meta = json.loads((encoded.path / "meta.json").read_text())
    assert meta["key"]["text"] == "ab"
    assert meta["key"]["tokenizer"] == WORDPIECE.hash
    assert meta["counts"]["num_tokens"] == len(encoded.tokens)


@pytest.mark.parametrize(
    ("damaged", "old", "new"),
    [
        ("tokens.bin", b"\0", b"\x80"),  # a token of a number that there is not
        ("tokens.bin", b"\0", b"\1"),
        ("meta.json", b'"num_words": 2', b'"num_words": 3'),
        ("meta.json", b"uint16", b"uint32"),
    ],
)
def test_a_damaged_entry_is_built_again_with_a_warning(tmp_path, caplog, damaged, old, new):
    encoded = encode_text(Text().split, WORDPIECE, tmp_path)
    expected = encoded.tokens.tolist()
    file = encoded.path / damaged
    whole = file.read_bytes()
    file.write_bytes(whole.replace(old, new, 1))
    assert file.read_bytes() != whole

    again = encode_text(Text().split, WORDPIECE, tmp_path)

    assert again.tokens.tolist() == expected
    assert again.num_words == encoded.num_words
    assert [r.levelno for r in caplog.records].count(logging.WARNING) == 1


@fuzz(30)
@given(data=st.data())
def test_fuzz_descriptions_of_an_entry(tmp_path_factory, data):
    cache = tmp_path_factory.mktemp("cache")
    encoded = encode_text(Text().split, WORDPIECE, cache)
    expected = encoded.tokens.tolist()
    meta = encoded.path / "meta.json"
    whole = json.loads(meta.read_text())
    kinds = altered(whole).map(json.dumps).map(str.encode) | damaged(meta.read_bytes())
    meta.write_bytes(data.draw(kinds))

    again = encode_text(Text().split, WORDPIECE, cache)

    assert again.tokens.tolist() == expected


def test_what_a_killed_run_left_behind_is_removed(tmp_path):
    name = encode_text(Text().split, WORDPIECE, tmp_path / "other").path.name
    leftover = tmp_path / "encoded" / f".{name}-12345"
    leftover.mkdir(parents=True)

    encode_text(Text().split, WORDPIECE, tmp_path)

    assert entries(tmp_path) == [name]


def test_a_text_that_cannot_be_read_to_its_end_leaves_nothing(tmp_path):
    def broken():
        yield "one"
        raise DataError("line 2 is not UTF-8")

    with pytest.raises(DataError, match="line 2"):
        encode_text(TextSplit("train", broken, "ab"), WORDPIECE, tmp_path)

    assert entries(tmp_path) == []


def test_a_text_without_lines_is_refused(tmp_path):
    with pytest.raises(DataError, match="train text is empty"):
        encode_text(Text(lines=[]).split, WORDPIECE, tmp_path)

    assert entries(tmp_path) == []


def test_a_cache_that_cannot_be_written_names_folder_and_key(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")

    with pytest.raises(RunError, match=r"cache.*`data_dir`"):
        encode_text(Text().split, WORDPIECE, tmp_path / "cache")


@pytest.mark.multiprocess
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    lines = ["a b c d e f g h"] * 10_000
    tokenizer = BytePairs(300).make(lambda: iter(lines[:10]))
    split = TextSplit("train", lambda: iter(lines), "ab")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(RunError) as error:
            encode_text(split, tokenizer, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert str(error.value).startswith(
        f"Cannot write the cache in {tmp_path / 'encoded'}: File too large"
    )
    assert entries(tmp_path) == []


@pytest.mark.slow
@pytest.mark.multiprocess
def test_of_two_runs_that_start_at_once_one_encodes_and_the_other_waits(tmp_path):
    code = f"""
import time
from pathlib import Path
from transfer_cli.data.encoding import cached_tokenizer
from transfer_cli.data.shards import encode_text
from transfer_cli.data.text_split import TextSplit
from transfer_cli.data.tokenizer_recipes import BytePairs
folder = Path({str(tmp_path)!r})
def lines():
    with (folder / "readings").open("a") as file:
        file.write("read\\n")
    time.sleep(1.0)
    return iter(["the mayor of Lomta"] * 1000)
(folder / f"ready{{__import__('os').getpid()}}").touch()
while len(list(folder.glob("ready*"))) < 2:
    time.sleep(0.01)
split = TextSplit("train", lines, "ab")
tokenizer = cached_tokenizer(BytePairs(300), split, folder / "cache")
print(tokenizer.hash, encode_text(split, tokenizer, folder / "cache").tokens.sum())
"""
    runs = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)
    ]
    answers = [run.communicate(timeout=120)[0] for run in runs]

    assert [run.returncode for run in runs] == [0, 0]
    assert answers[0] == answers[1]
    # Once for the tokenizer, once to encode.
    assert (tmp_path / "readings").read_text().count("read") == 2


def test_a_tokenizer_is_trained_once_for_a_recipe_and_a_text(tmp_path):
    text, again, other = Text(), Text(), Text(fingerprint="cd")
    first = cached_tokenizer(WordPiece(200), text.split, tmp_path)

    second = cached_tokenizer(WordPiece(200), again.split, tmp_path)
    cached_tokenizer(WordPiece(201), text.split, tmp_path)
    cached_tokenizer(WordPiece(200), other.split, tmp_path)

    assert second.hash == first.hash
    assert (text.readings, again.readings, other.readings) == (2, 0, 1)


def test_a_damaged_cached_tokenizer_is_made_again(tmp_path, caplog):
    first = cached_tokenizer(WordPiece(200), Text().split, tmp_path)
    (file,) = (tmp_path / "tokenizers").glob("*/tokenizer.json")
    text = file.read_text()
    file.write_text(text.replace('"##', '"#', 1))  # a vocabulary that can be read, and is another
    assert Tokenizer.load(file).hash != first.hash

    second = cached_tokenizer(WordPiece(200), Text().split, tmp_path)

    assert second.hash == first.hash
    assert "again" in caplog.text


@given(num_tokens=st.integers(1, 60), length=st.integers(1, 20), batch=st.integers(1, 5))
def test_every_token_but_the_first_is_a_target_once(num_tokens, length, batch):
    blocks = TextBlocks(stream(num_tokens), length, pad=999)

    targets, inputs = [], []
    for start in range(0, len(blocks), batch):
        found = blocks.batch(np.arange(start, min(start + batch, len(blocks))))
        targets += found["next_tokens"][found["mask"]].tolist()
        inputs += found["tokens"][found["mask"]].tolist()

    assert targets == list(range(1, num_tokens))
    assert inputs == list(range(num_tokens - 1))
    assert blocks.num_targets == num_tokens - 1


@given(num_tokens=st.integers(2, 60), length=st.integers(1, 20))
def test_padding_is_masked_and_has_no_target(num_tokens, length):
    blocks = TextBlocks(stream(num_tokens), length, pad=999)
    found = blocks.batch(np.arange(len(blocks)))

    assert ((found["tokens"] == 999) == ~found["mask"]).all()
    assert ((found["next_tokens"] == IGNORE) == ~found["mask"]).all()
    assert found["index"].tolist() == list(range(len(blocks)))


def test_full_blocks_are_all_real_in_any_order():
    found = TextBlocks(stream(13), 4, pad=999).batch(np.array([2, 0]))

    assert found["mask"].all()
    assert found["tokens"].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert found["next_tokens"].tolist() == [[9, 10, 11, 12], [1, 2, 3, 4]]


@pytest.mark.parametrize("index", [-1, 3])
def test_a_block_that_is_not_there_is_refused(index):
    with pytest.raises(IndexError):
        TextBlocks(stream(13), 4, pad=999).batch(np.array([index]))


@given(
    num_tokens=st.integers(2, 60),
    length=st.integers(1, 20),
    history=st.integers(0, 20),
)
def test_in_a_window_every_token_is_a_target_once_after_as_much_history(
    num_tokens, length, history
):
    windows = TextBlocks(stream(num_tokens), length, pad=999, history=history)
    found = windows.batch(np.arange(len(windows)))

    row, place = (found["next_tokens"] != IGNORE).nonzero(as_tuple=True)
    target = found["next_tokens"][row, place]
    assert target.tolist() == list(range(1, num_tokens))
    assert (found["tokens"][row, place] == target - 1).all()
    assert (place >= target.clamp(max=history + 1) - 1).all()
    assert found["tokens"].shape[1] <= length + history
