"""Tokenizers: made of a text or read from a file, and what they promise."""

import base64
import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from tests.fuzzing import altered, damaged, fuzz, memory_up_to
from transfer_cli.data.tokenizer import SPECIALS, UNKNOWN, Tokenizer
from transfer_cli.data.tokenizer_file import (
    MAX_FILE_BYTES,
    MAX_VOCABULARY,
    load_tokenizer,
    save_tokenizer,
)
from transfer_cli.data.tokenizer_recipes import (
    BytePairs,
    FromFile,
    SizedByText,
    TokenizerRecipe,
    WordPiece,
    vocabulary_size,
)
from transfer_cli.errors import DataError

TEXT = [
    " = The harbour of Lomta = ",
    "",
    " The mayor of Lomta , a well @-@ known <unk> , spent 5 @,@ 000 marks ( 3 @.@ 5 % ) . ",
    "Café prices rose by £ 3 ; the mayors of <unk> didn't pay.",
] * 5


def lines():
    return iter(TEXT)


WORDPIECE = WordPiece(400).make(lines)
BYTES = BytePairs(400).make(lines)
WITH_SENTINELS = [WordPiece(400, sentinels=3).make(lines), BytePairs(400, sentinels=3).make(lines)]
both = pytest.mark.parametrize("tokenizer", [WORDPIECE, BYTES], ids=["wordpiece", "bpe"])

# Text that finds what letters alone do not: spaces in a row, tabs, controls, marks, our names.
texts = st.lists(
    st.sampled_from([
        " ", "  ", "\t", "\x00", "\xa0", "<unk>", "<extra_id_0>", "[CLS]", "@-@", "'s", "Lomta", "",
    ])
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=6)
).map("".join)  # fmt: skip


@pytest.fixture
def load(tmp_path):
    """Return how to read a tokenizer.json of given content."""

    def call(content):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "tokenizer.json").write_text(text)
        return load_tokenizer(tmp_path / "tokenizer.json")

    return call


def strange_file(**changes):
    """A tokenizer.json with other names than ours."""
    vocabulary = {name: i for i, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    vocabulary |= {"a": 5, "b": 6, "##b": 7}
    content = {
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }
    return json.dumps(content | changes)


@both
def test_special_tokens_are_the_first_five(tokenizer: Tokenizer):
    numbers = [tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask]

    assert numbers == [0, 1, 2, 3, 4]
    assert tokenizer.pieces(numbers) == list(SPECIALS)
    assert tokenizer.special == {0, 1, 2, 3, 4}


@both
def test_unk_in_a_text_is_one_token(tokenizer: Tokenizer):
    assert tokenizer.encode("<unk>") == [tokenizer.unk]
    assert tokenizer.encode("a <unk> b").count(tokenizer.unk) == 1
    assert len(tokenizer.encode("the <unk>")) == len(tokenizer.encode("the")) + 1


@both
@pytest.mark.parametrize("name", ["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
def test_special_names_in_a_text_are_text(tokenizer: Tokenizer, name: str):
    tokens = tokenizer.encode(f"{name} the mayor{name} {name}")

    assert not {tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask} & set(tokens)


def test_wordpiece_keeps_wikitext_marks_and_splits_symbols_off():
    pieces = WORDPIECE.pieces(WORDPIECE.encode("5 @,@ 000 known @-@ 3 @.@ 5%;£3"))

    assert [p for p in pieces if not p[-1].isalnum()] == ["@,@", "@-@", "@.@", "%", ";", "£"]


def test_wordpiece_keeps_case_and_accents_unless_told():
    lower = WordPiece(400, lowercase=True).make(lines)

    assert WORDPIECE.decode(WORDPIECE.encode("Café")) == "Café"
    assert lower.decode(lower.encode("Café")) == "cafe"


@both
def test_starts_word_is_false_on_later_pieces(tokenizer: Tokenizer):
    tokens = tokenizer.encode("the mayor of Lomtaharbour")

    assert len(tokens) > 4
    assert tokenizer.starts_word[tokens].sum() == 4
    assert tokenizer.starts_word.shape == (tokenizer.size,)


def test_bpe_gives_a_word_the_same_tokens_everywhere():
    assert BYTES.encode("mayor of") == BYTES.encode(" mayor of")
    assert BYTES.encode("the mayor of") == BYTES.encode("the") + BYTES.encode("mayor of")
    assert BYTES.encode("<unk> mayor") == [BYTES.unk, *BYTES.encode("mayor")]


@given(texts.filter(lambda text: "<unk>" not in text))
def test_bpe_gives_the_text_back(text: str):
    # A space in front is what every text gets anyway.
    assert BYTES.decode(BYTES.encode(text)) == text.removeprefix(" ")


@both
def test_words_with_spaces_between_come_back(tokenizer: Tokenizer):
    text = "The mayor of <unk> , a well @-@ known harbour ."

    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("tokenizer", [WORDPIECE, BYTES, *WITH_SENTINELS])
@given(line=texts)
def test_units_encoded_one_by_one_give_the_line(tokenizer: Tokenizer, line: str):
    parts = tokenizer.encode_batch(tokenizer.units(line))

    assert list(chain(*parts)) == tokenizer.encode(line)


@both
@pytest.mark.parametrize(
    "text", ["", " ", "\x00\x1b", "\ud800", "a" * 200_000, "日本語", "e\u0301"]
)
def test_unusual_text_is_encoded(tokenizer: Tokenizer, text: str):
    tokens = tokenizer.encode(text)

    assert all(0 <= token < tokenizer.size for token in tokens)


@both
def test_a_lone_surrogate_in_one_text_leaves_the_others_alone(tokenizer: Tokenizer):
    good, bad = tokenizer.encode_batch(["the mayor", "\udcff the"])

    assert good == tokenizer.encode("the mayor")
    assert bad == tokenizer.encode("? the")


@pytest.mark.parametrize(("recipe", "size"), [(WordPiece, 110), (BytePairs, 300)])
def test_size_is_what_was_asked_for_or_what_the_text_holds(recipe, size: int):
    assert recipe(size).make(lines).size == size
    assert recipe(30_000).make(lines).size < 1000
    assert WordPiece(25).make(lines).size <= 25  # some letters are left out


@pytest.mark.parametrize("recipe", [WordPiece(400), BytePairs(400)])
def test_an_empty_text_gives_a_tokenizer(recipe: TokenizerRecipe):
    assert recipe.make(lambda: iter([])).size >= 5


@pytest.mark.slow
@pytest.mark.multiprocess
def test_training_is_the_same_in_every_process():
    code = (
        "import random; from transfer_cli.data.tokenizer_recipes import *;"
        "r = random.Random(1);"
        "text = [''.join(r.choices('abcdefgh ', k=60)) for _ in range(300)];"
        "print(WordPiece(500).make(lambda: iter(text)).hash);"
        "print(BytePairs(500).make(lambda: iter(text)).hash)"
    )
    run = [sys.executable, "-c", code]
    hashes = {subprocess.run(run, check=True, capture_output=True).stdout for _ in range(3)}

    assert len(hashes) == 1


@both
def test_save_and_load_is_the_identity(tokenizer: Tokenizer, tmp_path: Path):
    save_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")

    assert loaded.hash == tokenizer.hash
    assert loaded.encode_batch(TEXT) == tokenizer.encode_batch(TEXT)
    assert loaded.encode("[CLS] <unk>") == tokenizer.encode("[CLS] <unk>")
    np.testing.assert_array_equal(loaded.starts_word, tokenizer.starts_word)
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]


def test_hash_ignores_the_format_of_the_file_and_sees_its_content(load):
    content = json.loads(WORDPIECE._backend.to_str(pretty=True))

    compact = load(content).hash
    content["normalizer"]["lowercase"] = True

    assert compact == WORDPIECE.hash
    assert load(content).hash != WORDPIECE.hash


def test_a_file_with_berts_names_keeps_our_promises(load):
    tokenizer = load(strange_file())

    assert tokenizer.pieces(tokenizer.encode("a <unk> ab")) == ["a", "[UNK]", "a", "##b"]
    assert not {tokenizer.cls, tokenizer.mask} & set(tokenizer.encode("[CLS] [MASK]"))


def test_entries_that_look_like_special_tokens_are_none_beside_those_that_are(tmp_path: Path):
    content = json.loads(strange_file())  # MPNet's: BERT's entries, and special ones around them
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    content["model"]["vocab"] |= {name: 8 + number for number, name in enumerate(names)}
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<mask>"])

    tokenizer = Tokenizer(backend)

    numbers = [getattr(tokenizer, kind) for kind in ("pad", "unk", "cls", "sep", "mask")]
    assert tokenizer.pieces(numbers) == ["<pad>", "[UNK]", "<s>", "</s>", "<mask>"]
    save_tokenizer(tokenizer, tmp_path / "stored.json")
    assert load_tokenizer(tmp_path / "stored.json").hash == tokenizer.hash


def test_a_file_that_does_not_split_brackets_keeps_special_names_out(load):
    tokenizer = load(strange_file(pre_tokenizer={"type": "WhitespaceSplit"}))

    assert tokenizer.encode("[CLS] a") == [tokenizer.unk, 5]


def test_padding_and_truncation_of_a_file_are_switched_off(load):
    backend = tokenizers.Tokenizer.from_str(strange_file())
    backend.enable_truncation(2)
    backend.enable_padding()

    assert load(backend.to_str()).encode_batch(["a a a", "b"]) == [[5, 5, 5], [6]]


def test_a_file_without_a_special_token_is_refused_by_name(load):
    with pytest.raises(DataError, match=r"\.json has no token `\[SEP\]`.*, no token `\[MASK\]`"):
        load(strange_file().replace("[MASK]", "[NO]").replace("[SEP]", "[NIX]"))


@pytest.mark.parametrize("content", [None, b"", b"{", b"{}", b"\xff\xfe"])
def test_a_missing_or_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes | None):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(DataError, match=r"tokenizer\.json"):
        load_tokenizer(path)


def test_a_recipe_from_a_file_is_keyed_by_what_the_file_does(tmp_path: Path):
    save_tokenizer(WORDPIECE, tmp_path / "one.json")
    save_tokenizer(BYTES, tmp_path / "two.json")
    one, two = FromFile(str(tmp_path / "one.json")), FromFile(str(tmp_path / "two.json"))

    backend = tokenizers.Tokenizer.from_file(one.path)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", WORDPIECE.cls)]
    )
    backend.save(str(tmp_path / "begun.json"))
    begun = FromFile(str(tmp_path / "begun.json"))

    assert one.make(lines).hash == begun.make(lines).hash == WORDPIECE.hash
    assert len({one.key(), two.key(), begun.key()}) == 3


def test_sentinels_stand_behind_the_others_and_are_in_no_text():
    for plain, grown in zip([WORDPIECE, BYTES], WITH_SENTINELS, strict=True):
        assert grown.sentinels == (plain.size, plain.size + 1, plain.size + 2)
        assert grown.pieces(grown.sentinels) == ["<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
        assert grown.encode("the <extra_id_1> the") == plain.encode("the <extra_id_1> the")
        assert len(grown.units("the mayor of")) == 3  # words by heart, as without them
        assert plain.sentinels == ()
    assert WordPiece(400).key() == WordPiece(400, sentinels=0).key()
    assert WordPiece(400).key() != WordPiece(400, sentinels=3).key()


@both
def test_added_tokens_stand_behind_the_others_and_are_in_no_text(tokenizer):
    grown = tokenizer.with_added(["<speaker1>", "<speaker2>"])

    assert grown.size == tokenizer.size + 2
    assert [grown.token(f"<speaker{n}>") for n in (1, 2)] == [tokenizer.size, tokenizer.size + 1]
    text = "the <speaker1> the<speaker2>"
    assert grown.encode(text) == tokenizer.encode(text)
    assert grown.hash != tokenizer.hash
    for kind in ("pad", "cls", "special"):
        assert getattr(grown, kind) == getattr(tokenizer, kind)
    for name, why in (("<speaker1>", "it is there"), ("", "it is empty")):
        with pytest.raises(DataError, match=f"cannot get the token '{name}': {why}"):
            grown.with_added([name])


LINES = [
    "The Rhine flows past Cologne, and Düsseldorf .", "naïve café 5 @,@ 000 well @-@ known",
    "<unk> lives in the old town [CLS] [SEP]", "the end , the end", "Ünïcödé öf thé wörld",
]  # fmt: skip


def published(tokenizer):
    """Return the tokenizer as others write it: what is unknown is called `[UNK]`."""
    data = json.loads(tokenizer._backend.to_str())
    text = json.dumps(data, ensure_ascii=False).replace("<unk>", "[UNK]")
    return Tokenizer(type(tokenizer._backend).from_str(text))


TOKENIZERS = {
    "wordpiece": WordPiece(size=160).make(lambda: iter(LINES)),
    "lowercase": WordPiece(size=160, lowercase=True).make(lambda: iter(LINES)),
    "bytes": BytePairs(size=330).make(lambda: iter(LINES)),
}
TOKENIZERS["published"] = published(TOKENIZERS["wordpiece"])


def pieces(name, text):
    """Return what each token covers of a text; hold its number to `encode_batch`."""
    tokenizer = TOKENIZERS[name]
    ((tokens, places),) = tokenizer.encode_with_offsets([text])
    assert tokens == tokenizer.encode(text)
    return [text[start:end] for start, end in places]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", LINES)
def test_tokens_cover_every_character_but_spaces(name, text):
    ((_, places),) = TOKENIZERS[name].encode_with_offsets([text])

    covered = {at for start, end in places for at in range(start, end)}
    assert covered == {at for at, character in enumerate(text) if character != " "}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_spaces_around_and_between_words_belong_to_no_token(name):
    assert [part for part in pieces(name, "  the   end ") if part] == ["the", "end"]


def test_an_accent_that_the_tokenizer_drops_stays_with_its_letter_where_both_are_one_character():
    assert "".join(pieces("lowercase", "CAFÉ Düsseldorf")) == "CAFÉDüsseldorf"
    assert "".join(pieces("lowercase", "cafe\u0301 x")) == "cafex"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_text_of_the_unknown_token_is_one_token_and_moves_nothing(name):
    parts = pieces(name, "the <unk> end <unk><unk> the")

    assert [part for part in parts if part] == [
        "the", "<unk>", "end", "<unk>", "<unk>", "the",
    ]  # fmt: skip


def test_the_bytes_of_one_character_all_lie_where_it_is():
    parts = pieces("bytes", "the 😀 end")

    assert [part for part in dict.fromkeys(parts) if part] == ["the", "😀", "end"]
    assert parts.count("😀") > 1


def test_half_a_surrogate_pair_is_one_character():
    tokenizer = TOKENIZERS["bytes"]

    ((tokens, places),) = tokenizer.encode_with_offsets(["a \ud800 the"])

    assert tokens == tokenizer.encode("a \ud800 the")
    assert places[-1] == (4, 7)


@given(text=st.text(max_size=30))
@pytest.mark.parametrize("name", TOKENIZERS)
def test_places_are_in_order_and_within_any_text(name, text):
    tokenizer = TOKENIZERS[name]

    ((tokens, places),) = tokenizer.encode_with_offsets([text])

    assert tokens == tokenizer.encode(text)
    assert len(tokens) == len(places)
    for start, end in places:
        assert 0 <= start <= end <= len(text)
    assert [start for start, _ in places] == sorted(start for start, _ in places)


# --- fuzz tokenizer ------------------------------------------------------------------------------


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
        tokenizer = load_tokenizer(path)
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
def test_a_token_whose_number_would_take_all_memory_is_refused(load, file, number):
    content = json.loads(json.dumps(file))
    content["model"]["vocab"]["a"] = number

    with pytest.raises(DataError, match="a token has the number "):
        load(content)


def test_an_enormous_file_is_refused_without_being_read_whole(tmp_path):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as stream:
        stream.truncate(2**31)

    with (
        memory_up_to(3 * MAX_FILE_BYTES),
        pytest.raises(DataError, match="it is larger than 65,536 KiB"),
    ):
        load_tokenizer(path)


def test_what_the_library_panics_at_is_a_damaged_file(load):
    panicking = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}

    with pytest.raises(DataError, match=r"tokenizer\.json is damaged"):
        load(made(WordPiece(size=60)) | {"normalizer": panicking})


def test_a_text_that_a_tokenizer_has_no_token_for_is_an_error_of_the_user(load):
    content = unigram()
    content["model"]["unk_id"] = None

    with pytest.raises(DataError, match=r"tokenizer\.json cannot encode the text: .*unk"):
        load(content).encode("zzz")


def test_a_tokenizer_drops_no_merges_at_random(load, tmp_path, caplog):
    content = made(BytePairs(size=300))
    content["model"]["dropout"] = 0.5

    tokenizer = load(content)

    assert "dropout" in caplog.text
    assert len({tuple(tokenizer.encode("hello world of the")) for _ in range(30)}) == 1
    save_tokenizer(tokenizer, tmp_path / "saved.json")
    caplog.clear()
    assert load_tokenizer(tmp_path / "saved.json").hash == tokenizer.hash
    assert not caplog.text


def test_special_tokens_may_stand_among_the_added_tokens_alone(load):
    content = made(BytePairs(size=300))
    for added in content["added_tokens"]:
        del content["model"]["vocab"][added["content"]]

    tokenizer = load(content)

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
def test_a_file_that_makes_too_much_of_a_text_is_refused(load, kind):
    part, node = GROWING[kind]

    with pytest.raises(DataError, match=r"tokenizer\.json is damaged.*(its|makes bytes)"):
        load(made(BytePairs(size=300)) | {part: node})


def with_normalizers(parts):
    return made(BytePairs(size=300)) | {"normalizer": chain_of("normalizers", parts)}


def test_a_text_that_would_grow_too_much_is_refused_and_others_are_not(load):
    parts = [replaced("q", "a" * 20), {"type": "Lowercase"}, replaced("a", "b" * 20)]
    tokenizer = load(with_normalizers(parts))

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
def test_the_normalizers_of_known_models_are_let_through(load, parts):
    assert load(with_normalizers(parts)).encode("Some words, e\u0301tc.")


# --- the size that nobody typed ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_bytes", "room", "size"),
    [
        (1_000_000, 6272, 6272), (500_000, 6272, 4000), (540_000_000, 70_000, 28_996),
        (2_000, 6272, 1000), (1_000_000, 40, 1000),
    ],
)  # fmt: skip
def test_a_vocabulary_has_room_in_its_model_and_a_piece_for_some_bytes(num_bytes, room, size):
    assert vocabulary_size(num_bytes, room, 28_996) == size


@pytest.mark.parametrize("recipe", [WordPiece(), BytePairs()])
def test_a_tokenizer_is_made_as_if_its_size_had_been_typed(recipe):
    words = [f"w{number}x{number % 7}" for number in range(24_000)]  # some 210 KB

    sized = SizedByText(recipe, 1500)

    assert sized.make(lambda: iter(words)).hash == type(recipe)(1500).make(lambda: iter(words)).hash
    assert sized.key() != SizedByText(recipe, 1600).key()
