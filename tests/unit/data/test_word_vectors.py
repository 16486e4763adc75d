"""Word vectors of a file, and the tokens that they are of."""

import gzip
import lzma
import struct

import numpy as np
import pytest
import tokenizers

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.word_vectors import WordVectors, token_vectors
from transfer_cli.errors import ConfigError, DataError

SPECIAL = ["[PAD]", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
VECTORS = {"Paris": [1, 0, 0.5], "paris": [2, 0, 0.5], "play": [0.5, -3, 0], ". .": [9, 9, 9],
           "ing": [4, 4, 4], "Over": [5, 6, 7]}  # fmt: skip


def wordpiece(*, lowercase):
    words = [*SPECIAL, "Paris", "paris", "play", "##ing", "over"]
    vocabulary = {w: n for n, w in enumerate(words)}
    model = tokenizers.models.WordPiece(vocabulary, unk_token=SPECIAL[1])
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece()
    return Tokenizer(backend)


def byte_level():
    words = [*SPECIAL, "\u0120play", "play", "\u0120\u00c3\u00a9t\u00c3\u00a9"]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({w: n for n, w in enumerate(words)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(backend)


def lines(vectors=VECTORS, end=""):
    return "".join(f"{w} {' '.join(map(str, numbers))}{end}\n" for w, numbers in vectors.items())


def binary(vectors=VECTORS):
    rows = (w.encode() + b" " + struct.pack("<3f", *numbers) for w, numbers in vectors.items())
    return f"{len(vectors)} 3\n".encode() + b"\n".join(rows)


FILES = {
    "glove.txt": lines().encode(),
    "fast.vec": f"{len(VECTORS)} 3\n{lines(end=' ')}".encode(),
    "glove.txt.gz": gzip.compress(lines().encode()),
    "words.bin": binary(),
    "binary": binary(),
}


@pytest.mark.parametrize("name", FILES)
def test_rows_are_of_words_in_every_format(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    vectors = WordVectors.open(tmp_path / name)
    tokenizer = wordpiece(lowercase=True)

    rows = token_vectors(vectors, tokenizer)

    named = {tokenizer.pieces([token])[0]: row.tolist() for token, row in rows.items()}
    # `##ing` continues words; `Over` is `over` where texts are lower-cased.
    assert named == {
        "Paris": [1, 0, 0.5], "paris": [2, 0, 0.5], "play": [0.5, -3, 0], "over": [5, 6, 7]
    }  # fmt: skip


def test_case_is_the_tokenizers(tmp_path):
    (tmp_path / "glove.txt").write_text(lines())

    rows = token_vectors(WordVectors.open(tmp_path / "glove.txt"), wordpiece(lowercase=False))

    assert len(rows) == 3


def test_a_byte_level_word_has_the_mark_of_the_space(tmp_path):
    (tmp_path / "glove.txt").write_text(lines({"play": [1, 2], "été": [3, 4]}))
    tokenizer = byte_level()

    rows = token_vectors(WordVectors.open(tmp_path / "glove.txt"), tokenizer)

    assert {tokenizer.decode([token]): row.tolist() for token, row in rows.items()} == {
        "play": [1, 2], "été": [3, 4]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (lines() + "over 1 2\n", "line 7"),
        (lines({"a": [1, 2, 3]}) + "over 1 2 x\n", "line 2"),
        (lines({"a": [1, 2, 3]}) + "over 1 2 nan\n", "line 2"),
        (binary()[:-8], "word 6"),
        ("just: text\n", "no word vectors"),
    ],
)
def test_broken_files_are_refused_by_line(tmp_path, content, place):
    path = tmp_path / "vectors"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(DataError, match=rf"model\.embeddings: .*{place}"):
        token_vectors(WordVectors.open(path), wordpiece(lowercase=True))


def test_a_damaged_packed_file_is_refused(tmp_path):
    (tmp_path / "vectors.txt.gz").write_bytes(gzip.compress(lines().encode())[:-8])
    rows = np.random.default_rng(0).random((2000, 3))
    many = {f"w{number}": row for number, row in enumerate(rows)}
    (tmp_path / "vectors.bin.xz").write_bytes(lzma.compress(binary(many)[:-8]) + b"no xz")

    with pytest.raises(DataError, match="line 1: cannot be read on"):
        WordVectors.open(tmp_path / "vectors.txt.gz")
    with pytest.raises(DataError, match=r"word 1: expected .* Input format"):
        list(WordVectors.open(tmp_path / "vectors.bin.xz").read(lambda word: True))


def test_another_size_is_refused_with_the_cure(tmp_path):
    (tmp_path / "glove.txt").write_text(lines())

    with pytest.raises(ConfigError, match=r"model\.embedding_width=3"):
        WordVectors.open(tmp_path / "glove.txt").check_size(4)


def test_the_rest_of_a_file_is_not_kept(tmp_path):
    """The last of many words is found; what is returned is as large as what was asked for."""
    many = {f"w{number}": [number, 0, 1] for number in range(20_000)}
    (tmp_path / "words.bin").write_bytes(binary({**many, "over": [1, 2, 3]}))

    vectors = WordVectors.open(tmp_path / "words.bin")
    (row,) = token_vectors(vectors, wordpiece(lowercase=True)).values()

    assert row.base is None
    np.testing.assert_array_equal(row, [1, 2, 3])
