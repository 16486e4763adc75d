"""Text is encoded once, a file at a time, kept in the cache, and read as blocks."""

import dataclasses
import gzip
import json
import logging
import multiprocessing
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import altered, damaged, fuzz
from transfer_cli.batch import IGNORE
from transfer_cli.data import encode, known_files, shards
from transfer_cli.data.corpus import EncodedText, JoinedTokens, TextBlocks, encode_text
from transfer_cli.data.documents import TextSplit, expand_paths
from transfer_cli.data.encode import TextEncoder
from transfer_cli.data.known_files import KnownFiles
from transfer_cli.data.shards import Shard, StoredTokens, cached_tokenizer
from transfer_cli.data.text import TextFiles
from transfer_cli.data.tokenizer_file import load_tokenizer
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.errors import DataError, RunError
from transfer_cli.runs.cache import locked

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
    monkeypatch.setattr(encode, "_BATCH_CHARACTERS", 20)
    monkeypatch.setattr(encode, "_MAX_TABLE_TOKENS", 5)

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


def test_another_text_or_tokenizer_is_another_entry_which_says_what_it_holds(tmp_path):
    for split in (Text(fingerprint="cd").split, Text().split):
        encoded = encode_text(split, WORDPIECE, tmp_path)
    encode_text(Text().split, BYTES, tmp_path)

    assert len(entries(tmp_path)) == 3
    meta = json.loads((encoded.path / "meta.json").read_text())
    assert (meta["key"]["text"], meta["key"]["tokenizer"]) == ("ab", WORDPIECE.hash)
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


def broken():
    yield "one"
    raise DataError("line 2 is not UTF-8")


@pytest.mark.parametrize(
    ("read", "message"), [(broken, "line 2"), (lambda: iter([]), "train text is empty")]
)
def test_a_text_without_lines_or_that_cannot_be_read_to_its_end_leaves_nothing(
    tmp_path, read, message
):
    with pytest.raises(DataError, match=message):
        encode_text(TextSplit("train", read, "ab"), WORDPIECE, tmp_path)

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
    assert load_tokenizer(file).hash != first.hash

    second = cached_tokenizer(WordPiece(200), Text().split, tmp_path)

    assert second.hash == first.hash
    assert "again" in caplog.text


@given(num_tokens=st.integers(2, 60), length=st.integers(1, 20))
def test_padding_is_masked_and_has_no_target(num_tokens, length):
    blocks = TextBlocks(stream(num_tokens), length, pad=999)
    batch = blocks.batch(np.arange(len(blocks)))

    assert ((batch["tokens"] == 999) == ~batch["mask"]).all()
    assert ((batch["next_tokens"] == IGNORE) == ~batch["mask"]).all()
    assert batch["index"].tolist() == list(range(len(blocks)))


def test_full_blocks_are_all_real_in_any_order():
    batch = TextBlocks(stream(13), 4, pad=999).batch(np.array([2, 0]))

    assert batch["mask"].all()
    assert batch["tokens"].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert batch["next_tokens"].tolist() == [[9, 10, 11, 12], [1, 2, 3, 4]]


@pytest.mark.parametrize("index", [-1, 3])
def test_a_block_that_is_not_there_is_refused(index):
    with pytest.raises(IndexError):
        TextBlocks(stream(13), 4, pad=999).batch(np.array([index]))


@given(num_tokens=st.integers(2, 60), length=st.integers(1, 20), history=st.integers(0, 20))
def test_in_a_window_every_token_is_a_target_once_after_as_much_history(
    num_tokens, length, history
):
    windows = TextBlocks(stream(num_tokens), length, pad=999, history=history)
    batch = windows.batch(np.arange(len(windows)))

    row, place = (batch["next_tokens"] != IGNORE).nonzero(as_tuple=True)
    target = batch["next_tokens"][row, place]
    assert target.tolist() == list(range(1, num_tokens))
    assert windows.num_targets == len(target)
    assert (batch["tokens"][row, place] == target - 1).all()
    assert (place >= target.clamp(max=history + 1) - 1).all()
    assert batch["tokens"].shape[1] <= length + history


LETTERS = WordPiece(60).make(lambda: iter(["a b c d e f", "bad cab fed"]))


def write(folder: Path, **files: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "corpus"
    files = {"one": ["a b", "", "c"] * 40, "three": ["bad cab"] * 150, "two": ["fed"] * 7}
    write(folder, **files, validation=["a b c"])
    return folder


def files_of(folder, **options):
    return TextFiles(train=str(folder / "[ot]*"), **options)


def encoded(data, cache, name="train"):
    split = data.splits(cache.parent / "nowhere", 0)[name]
    return encode_text(split, LETTERS, cache)


def entry_times(cache):
    return {path.name: path.stat().st_mtime_ns for path in (cache / "encoded").glob("[!.]*")}


def expected_of(lines):
    rows = LETTERS.encode_batch(lines)
    return [LETTERS.sep, *(token for row in rows for token in [*row, LETTERS.sep])]


@pytest.mark.parametrize("documents", ["cross", "separate"])
def test_files_are_encoded_alone_and_read_as_one_text(folder, tmp_path, documents):
    validation = str(folder / "validation.txt")
    data = files_of(folder, validation=validation, documents=documents)

    text = encoded(data, tmp_path / "cache")

    lines = [line for name in ("one", "three", "two") for line in read_lines(folder, name)]
    assert text.tokens[:].tolist() == expected_of(lines)
    assert (text.num_shards, text.num_lines, len(entry_times(tmp_path / "cache"))) == (3, 277, 3)
    begins = data.splits(tmp_path / "nowhere", 0)["train"].begins
    if documents == "separate":
        ends = np.flatnonzero(text.tokens[:] == LETTERS.sep)[:-1]
        assert text.starts.tolist() == ends[list(begins())].tolist()


@pytest.mark.parametrize("pack", [gzip.compress, None])
def test_rows_and_packed_files_are_shards_as_well(folder, tmp_path, pack):
    rows = "".join(json.dumps({"text": text}) + "\n" for text in ("a b\nc", "fed"))
    place = folder / ("rows.jsonl.gz" if pack else "rows.jsonl")
    place.write_bytes(pack(rows.encode()) if pack else rows.encode())

    train = [str(place), str(folder / "two.txt")]
    data = TextFiles(train=train, validation=str(folder / "one.txt"))

    tokens = encoded(data, tmp_path / "cache").tokens[:].tolist()
    assert tokens == expected_of(["a b", "c", *["fed"] * 8])


def test_what_is_added_or_changed_is_all_that_is_encoded(folder, tmp_path):
    data, cache = files_of(folder), tmp_path / "cache"
    for name in ("train", "validation"):
        encoded(data, cache, name)
    before = entry_times(cache)

    write(folder, other=["cab"] * 300)
    (folder / "one.txt").write_text("e f\n" * 200)
    for name in ("train", "validation"):
        encoded(data, cache, name)

    after = entry_times(cache)
    assert {name: after[name] for name in before} == before
    assert len(after.keys() - before.keys()) == 4


def test_linked_folders_are_read_once_and_a_link_to_nothing_is_refused(folder, tmp_path):
    corpus = tmp_path / "links"
    write(corpus, own=["a b"] * 9)
    (corpus / "far").symlink_to(folder)
    (corpus / "itself").symlink_to(corpus)

    paths = expand_paths(str(corpus))

    assert [path.stem for path in paths] == ["one", "three", "two", "validation", "own"]
    (corpus / "gone.txt").symlink_to("nowhere.txt")
    with pytest.raises(DataError, match=r"gone\.txt is a link to nowhere\.txt, which does not"):
        expand_paths(str(corpus))


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("fed\n" * 150)])
def test_a_file_that_changes_before_it_is_encoded_is_refused(folder, tmp_path, change):
    split = files_of(folder).splits(tmp_path / "nowhere", 0)["train"]
    change(folder / "three.txt")

    with pytest.raises(DataError, match=r"three\.txt (has changed while|cannot be read)"):
        encode_text(split, LETTERS, tmp_path / "cache")


def test_what_is_held_out_of_a_file_does_not_depend_on_the_others(folder, tmp_path):
    alone = TextFiles(train=str(folder / "three.txt")).splits(tmp_path, 0)
    together = files_of(folder).splits(tmp_path, 0)

    for name in ("train", "validation"):
        assert alone[name].fingerprint in [part.fingerprint for part in together[name].shards]
    everything = [*together["train"].lines(), *together["validation"].lines()]
    assert len(everything) == 277


def test_of_files_that_are_all_short_a_line_of_each_is_held_out(tmp_path):
    write(tmp_path, a=["a", "b", "c"], b=["d", "e"], c=["f"])

    splits = TextFiles(train=str(tmp_path)).splits(tmp_path, 0)

    assert list(splits["validation"].lines()) == ["b", "e"]
    assert list(splits["train"].lines()) == ["a", "c", "d", "f"]


def test_a_short_file_among_longer_ones_is_drawn_as_a_whole(tmp_path):
    short = {f"s{number}": [f"{number}"] * 5 for number in range(60)}
    write(tmp_path, long=["a"] * 100, **short)

    splits = TextFiles(train=str(tmp_path), validation_share=0.1).splits(tmp_path, 0)

    held_out = [line for line in splits["validation"].lines() if line != "a"]
    assert 0 < len(set(held_out)) < 20
    assert all(held_out.count(line) == 5 for line in held_out)
    assert not set(held_out) & set(splits["train"].lines())


def test_files_of_a_folder_are_those_of_text(folder, tmp_path):
    (folder / "notes.md").write_text("not this")
    (folder / ".hidden.txt").write_text("nor this")
    (folder / "below").mkdir()
    write(folder / "below", a=["f"])

    files = TextFiles(train=str(folder)).splits(tmp_path, 0)["train"].files

    names = [Path(name).name for name in files]
    assert names == ["a.txt", "one.txt", "three.txt", "two.txt", "validation.txt"]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a/train.txt", "a/Dev.txt"], r"a has splits; name one: \S*a/Dev\*'?, \S*a/train\*"),
        (["train/1.txt", "test/1.txt"], r"name one: \S*/test, \S*/train$"),
        (["trains.txt", "testimony.txt", "train/1.txt", "a/test.txt"], None),
    ],
)
def test_a_folder_with_a_split_to_score_is_not_trained_on(tmp_path, names, shown):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a\n")

    if shown is None:
        assert len(expand_paths(str(tmp_path))) == len(names)
    else:
        with pytest.raises(DataError, match=shown):
            expand_paths(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "train", "message"),
    [
        ("a.csv", "a,b\n", "", r"is a folder without a file that is read \(\.txt, \.jsonl"),
        ("a.csv", "a,b\n", "a.csv", r"a table, .* data=table_text data\.task\.train=\S*a\.csv"),
        ("a.jsonl", '{"body": "a"}\n', "a.jsonl", r"no column 'text'; there are 'body'.*=COLUMN"),
        ("a.txt", "\n \n", "a.txt", r"a\.txt: nothing but empty lines in the train text"),
        ("a.txt", "", "a.txt", r"a\.txt is empty"),
        ("a.txt", "a\n" * 50, "a.txt", r"a\.txt: validation_share=0.01 .* less than one line"),
        ("a.txt", "a\n", "*.text", r"No file matches .*\*\.text"),
        ("corpus.txt", "a\n", "corpsu.txt", r"Did you mean 'corpus\.txt'"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, name, content, train, message):
    (tmp_path / name).write_text(content)

    with pytest.raises(DataError, match=message):
        TextFiles(train=f"{tmp_path}/{train}").splits(tmp_path, 0)


def test_a_file_that_cannot_be_read_is_named_with_its_line_and_the_others_stay(folder, tmp_path):
    (folder / "three.txt").write_bytes(b"a\n" * 100 + b"\xff\n" + b"b" * 600)
    data = files_of(folder, validation=str(folder / "validation.txt"))

    with pytest.raises(DataError, match=r"three\.txt, line 101: byte 0xFF"):
        encoded(data, tmp_path / "cache")

    assert not list((tmp_path / "cache" / "encoded").glob(".*[0-9]"))


def test_files_of_one_content_are_said_and_read_as_often(folder, tmp_path, caplog):
    write(folder, other=["fed"] * 7)
    data = files_of(folder, validation=str(folder / "validation.txt"))

    text = encoded(data, tmp_path / "cache")

    assert "two.txt hold the same text" in caplog.text
    assert text.num_lines == 284


def test_a_damaged_shard_is_made_again_alone(folder, tmp_path, caplog):
    data, cache = files_of(folder), tmp_path / "cache"
    whole = encoded(data, cache).tokens[:].tolist()
    before = entry_times(cache)
    name = min(before)
    tokens = cache / "encoded" / name / "tokens.bin"
    tokens.write_bytes(bytes([tokens.read_bytes()[0] ^ 1]) + tokens.read_bytes()[1:])

    assert encoded(data, cache).tokens[:].tolist() == whole

    assert [key for key, time in entry_times(cache).items() if time != before[key]] == [name]
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1


def test_a_shard_that_another_process_makes_is_left_to_it(folder, tmp_path):
    split = files_of(folder).splits(tmp_path, 0)["train"].parts[0]
    shard = Shard(split, LETTERS, tmp_path / "cache")
    with locked(shard.entry):
        shard.encode_if_free(TextEncoder(LETTERS, 1), lambda size: None)
        assert shard.load_if_sound() is None

    shard.encode_if_free(TextEncoder(LETTERS, 1), lambda size: None)

    assert shard.load_if_sound() is not None


@pytest.mark.multiprocess
@pytest.mark.slow
def test_several_processes_make_the_same_and_name_what_they_cannot_read(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(shards, "LEAST_BYTES", 100)
    data = files_of(folder, validation=str(folder / "validation.txt"), workers=2)
    alone = encoded(files_of(folder, validation=data.validation, workers=1), tmp_path / "alone")

    several = encoded(data, tmp_path / "several")

    assert several.tokens[:].tolist() == alone.tokens[:].tolist()
    assert entry_times(tmp_path / "several").keys() == entry_times(tmp_path / "alone").keys()
    (folder / "other.txt").write_bytes(b"a\n" * 200 + b"\0\n")
    with pytest.raises(DataError, match=r"other\.txt, line 201: NUL byte"):
        encoded(data, tmp_path / "several")
    assert multiprocessing.active_children() == []
    assert not list((tmp_path / "several" / "encoded").glob(".*[0-9]"))


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(2, 9), min_size=1, max_size=6), data=st.data())
def test_joined_tokens_are_those_of_one_array(tmp_path_factory, sizes, data):
    stored, whole = [], [0]
    for number, size in enumerate(sizes):
        path = tmp_path_factory.mktemp("shard")
        inner = (10 * number + place for place in range(1, size - 1))
        tokens = np.array([0, *inner, 0], np.uint16)
        tokens.tofile(path / "tokens.bin")
        stored.append(StoredTokens(path, tokens.dtype, {"num_tokens": size}))
        whole += tokens[1:].tolist()
    joined = JoinedTokens(stored)

    places = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=8))
    first, last = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 60))

    assert len(joined) == len(whole)
    assert joined[np.array(places, int)].tolist() == [whole[place] for place in places]
    assert joined[first:last].tolist() == whole[first:last]


# -------------------------------------------------------------------------------- known files


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(known_files, "LEAST_BYTES", 1)
    monkeypatch.setattr(known_files, "_MOMENT_SECONDS", -1)


def test_what_is_known_of_a_file_is_asked_for_once_until_it_changes(tmp_path, small_files):
    path, asked = tmp_path / "a.txt", []

    def ask():
        with KnownFiles(tmp_path / "cache") as known:
            return known.fact(path, "content", lambda: asked.append(1) or path.read_text())

    path.write_text("one")
    assert [ask(), ask()] == ["one", "one"]
    path.write_text("two")
    assert [ask(), ask()] == ["two", "two"]
    assert len(asked) == 2


def test_a_damaged_record_is_no_record(tmp_path, small_files):
    path = tmp_path / "a.txt"
    path.write_text("one")
    for content in ("{", "[]", '{"a.txt": 3}', '{"a.txt": {"status": [1], "content": "two"}}'):
        for record in (tmp_path / "cache").glob("*.json"):
            record.write_text(content)
        with KnownFiles(tmp_path / "cache") as known:
            assert known.fact(path, "content", path.read_text) == "one"


# ------------------------------------------------------------------------------------ weights


def weighted(folder, weights, **options):
    train = [str(folder / f"{name}.txt") for name in ("one", "three", "two")][: len(weights)]
    return TextFiles(
        train=train, weights=weights, validation=str(folder / "validation.txt"), **options
    )


def test_sources_are_counted_in_tokens_and_in_blocks(folder, tmp_path):
    text = encoded(weighted(folder, [1, 2, 0.5]), tmp_path / "cache")

    sizes = [len(expected_of(read_lines(folder, name))) for name in ("one", "three", "two")]
    assert [source.size for source in text.sources] == [sizes[0], sizes[1] - 1, sizes[2] - 1]
    blocks = TextBlocks(text, 8, LETTERS.pad)
    assert sum(source.size for source in blocks.sources) == len(blocks)
    assert [source.weight for source in blocks.sources] == [1, 2, 0.5]


def read_lines(folder, name):
    return (folder / f"{name}.txt").read_text().splitlines()


def test_a_source_in_which_no_block_begins_is_refused(folder, tmp_path):
    text = encoded(weighted(folder, [1, 2, 0.5]), tmp_path / "cache")

    with pytest.raises(DataError, match=r"two\.txt has .* tokens, less than a block"):
        _ = TextBlocks(text, 200, LETTERS.pad).sources


def test_a_file_of_two_weighted_sources_is_named(folder, tmp_path):
    data = TextFiles(train=[str(folder), str(folder / "one.txt")], weights=[1, 2])

    with pytest.raises(DataError, match=r"one\.txt is in .*corpus and in .*one\.txt"):
        data.splits(tmp_path, 0)
