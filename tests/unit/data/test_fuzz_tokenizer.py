"""A stranger's `tokenizer.json` is loaded or refused; what is loaded encodes or says why not."""

import base64
import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from tests.fuzzing import altered, damaged, fuzz, memory_up_to
from transfer_cli.data.library_tokenizer import (
    MAX_FILE_BYTES,
    MAX_VOCABULARY,
    SPECIALS,
    UNKNOWN,
    LibraryTokenizer,
)
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
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
        tokenizer = LibraryTokenizer.load(path)
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
        LibraryTokenizer.load(tmp_path / "tokenizer.json")


def test_an_enormous_file_is_refused_without_being_read_whole(tmp_path):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as stream:
        stream.truncate(2**31)

    with (
        memory_up_to(3 * MAX_FILE_BYTES),
        pytest.raises(DataError, match="it is larger than 65,536 KiB"),
    ):
        LibraryTokenizer.load(path)


def test_what_the_library_panics_at_is_a_damaged_file(tmp_path):
    content = made(WordPiece(size=60))
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))

    with pytest.raises(DataError, match=r"tokenizer\.json is damaged"):
        LibraryTokenizer.load(tmp_path / "tokenizer.json")


def test_a_text_that_a_tokenizer_has_no_token_for_is_an_error_of_the_user(tmp_path):
    content = unigram()
    content["model"]["unk_id"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))

    with pytest.raises(DataError, match=r"tokenizer\.json cannot encode the text: .*unk"):
        LibraryTokenizer.load(tmp_path / "tokenizer.json").encode("zzz")


def test_a_tokenizer_drops_no_merges_at_random(tmp_path, caplog):
    content = made(BytePairs(size=300))
    content["model"]["dropout"] = 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))

    tokenizer = LibraryTokenizer.load(tmp_path / "tokenizer.json")

    assert "dropout" in caplog.text
    assert len({tuple(tokenizer.encode("hello world of the")) for _ in range(30)}) == 1
    tokenizer.save(tmp_path / "saved.json")
    caplog.clear()
    assert LibraryTokenizer.load(tmp_path / "saved.json").hash == tokenizer.hash
    assert not caplog.text


def test_special_tokens_may_stand_among_the_added_tokens_alone(tmp_path):
    content = made(BytePairs(size=300))
    for added in content["added_tokens"]:
        del content["model"]["vocab"][added["content"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))

    tokenizer = LibraryTokenizer.load(tmp_path / "tokenizer.json")

    assert len(tokenizer.special) == len(SPECIALS)
    assert tokenizer.encode("<unk>") == [tokenizer.unk]


# ------------------------------------------------------------------------- what grows


def replaced(letter, content):
    return {"type": "Replace", "pattern": {"String": letter}, "content": content}


def chain_of(kind, parts):
    return {"type": "Sequence", kind: parts}


A_BYTE_LEVEL = {
    "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True,
}  # fmt: skip
ANY = {"type": "Replace", "pattern": {"Regex": ""}, "content": " "}
TEXT_AGAIN = {"Sequence": {"id": "A", "type_id": 0}}
PRECOMPILED = base64.b64encode(bytes(4) + b"x" * 10_000 + b"\0").decode()

GROWING = {
    "once": ("normalizer", replaced("a", "a" * 10_000)),
    "chain": ("normalizer", chain_of("normalizers", [replaced("a", "aa")] * 40)),
    "chain in a chain": (
        "normalizer",
        chain_of("normalizers", [chain_of("normalizers", [replaced("a", "a" * 9)] * 9)] * 9),
    ),
    "nothing": ("normalizer", chain_of("normalizers", [ANY] * 40)),
    "decomposed again and again": (
        "normalizer",
        chain_of("normalizers", [replaced("\u0644", "\ufdfa"), {"type": "NFKD"}] * 9),
    ),
    "prepended": (
        "normalizer", chain_of("normalizers", [{"type": "Prepend", "prepend": "a" * 9000}])
    ),
    "table": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": PRECOMPILED}),
    "parts": ("normalizer", chain_of("normalizers", [{"type": "Lowercase"}] * 10_000)),
    "bytes": ("normalizer", chain_of("normalizers", [{"type": "ByteLevel"}] * 40)),
    "bytes of words": ("pre_tokenizer", chain_of("pretokenizers", [A_BYTE_LEVEL] * 40)),
    "template": (
        "post_processor",
        {
            "type": "TemplateProcessing", "single": [TEXT_AGAIN] * 3, "pair": [TEXT_AGAIN],
            "special_tokens": {},
        },
    ),
    "decoder": ("decoder", chain_of("decoders", [replaced("a", "aa")] * 40)),
}  # fmt: skip


@pytest.mark.parametrize("kind", GROWING)
def test_a_file_that_makes_too_much_of_a_text_is_refused(tmp_path, kind):
    part, node = GROWING[kind]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(made(BytePairs(size=300)) | {part: node}))

    with pytest.raises(DataError, match=r"tokenizer\.json is damaged.*(its|makes bytes)"):
        LibraryTokenizer.load(path)


def test_a_text_that_would_grow_too_much_is_refused_and_others_are_not(tmp_path):
    parts = [replaced("q", "a" * 20), {"type": "Lowercase"}, replaced("a", "b" * 20)]
    path = tmp_path / "tokenizer.json"
    whole = made(BytePairs(size=300)) | {"normalizer": chain_of("normalizers", parts)}
    path.write_text(json.dumps(whole))
    tokenizer = LibraryTokenizer.load(path)

    assert len(tokenizer.encode("q")) > 10
    assert len(tokenizer.encode("Who is it? " * 10_000)) > 10_000
    with pytest.raises(DataError, match=r"its normalizers make .* bytes of"):
        tokenizer.encode("q" * 50_000)


@pytest.mark.parametrize(
    "parts",
    [
        [replaced("``", '"'), replaced("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"},
         {"type": "Lowercase"}],
        [{"type": "Prepend", "prepend": "\u2581"}, replaced(" ", "\u2581")],
        [{"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
         {"type": "Lowercase"}],
        [{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
          "strip_accents": None, "lowercase": True}],
    ],
    ids=["ALBERT", "LLaMA", "CLIP", "BERT"],
)  # fmt: skip
def test_the_normalizers_of_known_models_are_let_through(tmp_path, parts):
    path = tmp_path / "tokenizer.json"
    whole = made(BytePairs(size=300)) | {"normalizer": chain_of("normalizers", parts)}
    path.write_text(json.dumps(whole))

    assert LibraryTokenizer.load(path).encode("Some words, e\u0301tc.")
