"""A corpus of many files: each is encoded alone, and all are read as one text."""

import gzip
import json
import logging
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_cli.data import known_files, shards
from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.encoded_text import JoinedTokens, StoredTokens
from transfer_cli.data.encoding import Shard, TextEncoder
from transfer_cli.data.known_files import KnownFiles
from transfer_cli.data.shards import encode_text
from transfer_cli.data.text import TextFiles
from transfer_cli.data.text_files import expand
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import DataError

WORDS = WordPiece(60).make(lambda: iter(["a b c d e f", "bad cab fed"]))


def write(folder: Path, **files: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "corpus"
    write(
        folder,
        one=["a b", "", "c"] * 40,
        three=["bad cab"] * 150,
        two=["fed"] * 7,
        validation=["a b c"],
    )
    return folder


def files_of(folder, **options):
    return TextFiles(train=str(folder / "[ot]*"), **options)


def encoded(data, cache, name="train"):
    split = data.splits(cache.parent / "nowhere", 0)[name]
    return encode_text(split, WORDS, cache)


def entries(cache):
    return {path.name: path.stat().st_mtime_ns for path in (cache / "encoded").glob("[!.]*")}


def expected_of(lines):
    rows = WORDS.encode_batch(lines)
    return [WORDS.sep, *(token for row in rows for token in [*row, WORDS.sep])]


@pytest.mark.parametrize("documents", ["cross", "separate"])
def test_files_are_encoded_alone_and_read_as_one_text(folder, tmp_path, documents):
    validation = str(folder / "validation.txt")
    data = files_of(folder, validation=validation, documents=documents)

    text = encoded(data, tmp_path / "cache")

    lines = [
        line
        for name in ("one", "three", "two")
        for line in (folder / f"{name}.txt").read_text().splitlines()
    ]
    assert text.tokens[:].tolist() == expected_of(lines)
    assert (text.num_shards, text.num_lines, len(entries(tmp_path / "cache"))) == (3, 277, 3)
    begins = data.splits(tmp_path / "nowhere", 0)["train"].begins
    if documents == "separate":
        ends = np.flatnonzero(text.tokens[:] == WORDS.sep)[:-1]
        assert text.starts.tolist() == ends[list(begins())].tolist()


@pytest.mark.parametrize("pack", [gzip.compress, None])
def test_rows_and_packed_files_are_shards_as_well(folder, tmp_path, pack):
    rows = "".join(json.dumps({"text": text}) + "\n" for text in ("a b\nc", "fed"))
    place = folder / ("rows.jsonl.gz" if pack else "rows.jsonl")
    place.write_bytes(pack(rows.encode()) if pack else rows.encode())

    data = TextFiles(
        train=[str(place), str(folder / "two.txt")], validation=str(folder / "one.txt")
    )

    assert encoded(data, tmp_path / "cache").tokens[:].tolist() == expected_of(
        ["a b", "c", "fed", *["fed"] * 7]
    )


def test_what_is_added_or_changed_is_all_that_is_encoded(folder, tmp_path):
    data, cache = files_of(folder), tmp_path / "cache"
    for name in ("train", "validation"):
        encoded(data, cache, name)
    before = entries(cache)

    write(folder, other=["cab"] * 300)
    (folder / "one.txt").write_text("e f\n" * 200)
    for name in ("train", "validation"):
        encoded(data, cache, name)

    after = entries(cache)
    assert {name: after[name] for name in before} == before
    assert len(after.keys() - before.keys()) == 4


def test_linked_folders_are_read_once_and_a_link_to_nothing_is_refused(folder, tmp_path):
    corpus = tmp_path / "links"
    write(corpus, own=["a b"] * 9)
    (corpus / "far").symlink_to(folder)
    (corpus / "itself").symlink_to(corpus)

    found = expand(str(corpus))

    assert [path.name for path in found] == [
        "one.txt",
        "three.txt",
        "two.txt",
        "validation.txt",
        "own.txt",
    ]
    (corpus / "gone.txt").symlink_to("nowhere.txt")
    with pytest.raises(
        DataError, match=r"gone\.txt is a link to nowhere\.txt, which does not exist"
    ):
        expand(str(corpus))


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("fed\n" * 150)])
def test_a_file_that_changes_before_it_is_encoded_is_refused(folder, tmp_path, change):
    split = files_of(folder).splits(tmp_path / "nowhere", 0)["train"]
    change(folder / "three.txt")

    with pytest.raises(DataError, match=r"three\.txt (has changed while|cannot be read)"):
        encode_text(split, WORDS, tmp_path / "cache")


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

    found = TextFiles(train=str(folder)).splits(tmp_path, 0)["train"].files

    names = [Path(name).name for name in found]
    assert names == ["a.txt", "one.txt", "three.txt", "two.txt", "validation.txt"]


def test_a_folder_without_text_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("a,b")

    with pytest.raises(DataError, match=r"is a folder without a file of text \(\.txt, \.jsonl"):
        TextFiles(train=str(tmp_path)).splits(tmp_path, 0)


def test_a_file_of_empty_lines_is_named(folder, tmp_path):
    write(folder, of=["", " "])

    with pytest.raises(DataError, match=r"of\.txt: nothing but empty lines in the train text"):
        files_of(folder).splits(tmp_path, 0)


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
    before = entries(cache)
    name = min(before)
    tokens = cache / "encoded" / name / "tokens.bin"
    tokens.write_bytes(bytes([tokens.read_bytes()[0] ^ 1]) + tokens.read_bytes()[1:])

    assert encoded(data, cache).tokens[:].tolist() == whole

    assert [key for key, time in entries(cache).items() if time != before[key]] == [name]
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1


def test_a_shard_that_another_process_makes_is_left_to_it(folder, tmp_path):
    split = files_of(folder).splits(tmp_path, 0)["train"].parts[0]
    shard = Shard(split, WORDS, tmp_path / "cache")
    with shards_locked(shard):
        shard.kept_if_free(TextEncoder(WORDS, 1), lambda size: None)
        assert shard.stored() is None

    shard.kept_if_free(TextEncoder(WORDS, 1), lambda size: None)

    assert shard.stored() is not None


def shards_locked(shard):
    from transfer_cli.runs.cache import locked

    return locked(shard.entry)


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
    assert entries(tmp_path / "several").keys() == entries(tmp_path / "alone").keys()
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
        own = (10 * number + place for place in range(1, size - 1))
        tokens = np.array([0, *own, 0], np.uint16)
        tokens.tofile(path / "tokens.bin")
        stored.append(StoredTokens(path, tokens.dtype, {"num_tokens": size}))
        whole += tokens[1:].tolist()
    joined = JoinedTokens(stored)

    places = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=8))
    first, last = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 60))

    assert len(joined) == len(whole)
    assert joined[np.array(places, int)].tolist() == [whole[place] for place in places]
    assert joined[first:last].tolist() == whole[first:last]


def test_a_block_goes_on_in_the_next_file(folder, tmp_path):
    data = files_of(folder, validation=str(folder / "validation.txt"))
    text = encoded(data, tmp_path / "cache")

    blocks = TextBlocks(text, 7, WORDS.pad)
    batch = blocks.batch(np.arange(len(blocks)))

    whole = text.tokens[:].tolist()
    assert batch["tokens"][batch["mask"]].tolist() == whole[:-1]
    assert batch["next_tokens"][batch["mask"]].tolist() == whole[1:]


# -------------------------------------------------------------------------------- known files


def test_what_is_known_of_a_file_is_asked_for_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(known_files, "LEAST_BYTES", 1)
    monkeypatch.setattr(known_files, "_MOMENT_SECONDS", -1)
    path, asked = tmp_path / "a.txt", []

    def ask():
        with KnownFiles(tmp_path / "cache") as known:
            return known.of(path, "content", lambda: asked.append(1) or path.read_text())

    path.write_text("one")
    assert [ask(), ask()] == ["one", "one"]
    path.write_text("two")
    assert [ask(), ask()] == ["two", "two"]
    assert len(asked) == 2


def test_a_damaged_record_is_no_record(tmp_path, monkeypatch):
    monkeypatch.setattr(known_files, "LEAST_BYTES", 1)
    monkeypatch.setattr(known_files, "_MOMENT_SECONDS", -1)
    path = tmp_path / "a.txt"
    path.write_text("one")
    for content in ("{", "[]", '{"a.txt": 3}', '{"a.txt": {"status": [1], "content": "two"}}'):
        for record in (tmp_path / "cache").glob("*.json"):
            record.write_text(content)
        with KnownFiles(tmp_path / "cache") as known:
            assert known.of(path, "content", path.read_text) == "one"


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
    blocks = TextBlocks(text, 8, WORDS.pad)
    assert sum(source.size for source in blocks.sources) == len(blocks)
    assert [source.weight for source in blocks.sources] == [1, 2, 0.5]


def read_lines(folder, name):
    return (folder / f"{name}.txt").read_text().splitlines()


def test_a_source_in_which_no_block_begins_is_refused(folder, tmp_path):
    text = encoded(weighted(folder, [1, 2, 0.5]), tmp_path / "cache")

    with pytest.raises(DataError, match=r"two\.txt has .* tokens, less than a block"):
        TextBlocks(text, 200, WORDS.pad).sources  # noqa: B018 - it is asked for


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": [1]}, "1 for 2 of train"),
        ({"weights": [1, 0]}, "weights: each must be above 0"),
        ({"weights": [1, 2], "pairs": "nsp"}, "pairs are drawn from all of the text"),
    ],
)
def test_weights_that_make_no_sense_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        TextFiles(train=["a.txt", "b.txt"], **options)


def test_a_file_of_two_weighted_sources_is_named(folder, tmp_path):
    data = TextFiles(train=[str(folder), str(folder / "one.txt")], weights=[1, 2])

    with pytest.raises(DataError, match=r"one\.txt is in .*corpus and in .*one\.txt"):
        data.splits(tmp_path, 0)
