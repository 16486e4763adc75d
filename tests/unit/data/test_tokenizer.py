"""Tokenizers: made of a text or read from a file, and what they promise."""

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

from transfer_cli.data.library_tokenizer import SPECIALS, LibraryTokenizer
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_recipes import BytePairs, FromFile, TokenizerRecipe, WordPiece
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
recipes = pytest.mark.parametrize("recipe", [WordPiece(400), BytePairs(400)])

# Text that finds what letters alone do not: spaces in a row, tabs, controls, marks, our names.
texts = st.lists(
    st.sampled_from(
        [
            " ",
            "  ",
            "\t",
            "\x00",
            "\xa0",
            "<unk>",
            "<extra_id_0>",
            "[CLS]",
            "@-@",
            "'s",
            "Lomta",
            "",
        ]
    )
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=6)
).map("".join)


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


def test_a_small_wordpiece_vocabulary_leaves_out_letters():
    tokenizer = WordPiece(25).make(lines)

    assert tokenizer.size <= 25


@recipes
def test_an_empty_text_gives_a_tokenizer(recipe: TokenizerRecipe):
    tokenizer = recipe.make(lambda: iter([]))

    assert tokenizer.size >= 5


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
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = LibraryTokenizer.load(tmp_path / "tokenizer.json")

    assert loaded.hash == tokenizer.hash
    assert loaded.encode_batch(TEXT) == tokenizer.encode_batch(TEXT)
    assert loaded.encode("[CLS] <unk>") == tokenizer.encode("[CLS] <unk>")
    np.testing.assert_array_equal(loaded.starts_word, tokenizer.starts_word)
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]


def test_hash_ignores_the_format_of_the_file_and_sees_its_content(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    WORDPIECE.save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content))

    compact = LibraryTokenizer.load(path).hash
    content["normalizer"]["lowercase"] = True
    path.write_text(json.dumps(content))

    assert compact == WORDPIECE.hash
    assert LibraryTokenizer.load(path).hash != WORDPIECE.hash


def test_a_file_with_berts_names_keeps_our_promises(tmp_path: Path):
    path = tmp_path / "bert.json"
    path.write_text(strange_file())

    tokenizer = LibraryTokenizer.load(path)

    assert tokenizer.pieces(tokenizer.encode("a <unk> ab")) == ["a", "[UNK]", "a", "##b"]
    assert not {tokenizer.cls, tokenizer.mask} & set(tokenizer.encode("[CLS] [MASK]"))


def test_a_file_that_does_not_split_brackets_keeps_special_names_out(tmp_path: Path):
    path = tmp_path / "words.json"
    path.write_text(strange_file(pre_tokenizer={"type": "WhitespaceSplit"}))

    tokenizer = LibraryTokenizer.load(path)

    assert tokenizer.encode("[CLS] a") == [tokenizer.unk, 5]


def test_padding_and_truncation_of_a_file_are_switched_off(tmp_path: Path):
    path = tmp_path / "bert.json"
    path.write_text(strange_file())
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.enable_truncation(2)
    backend.enable_padding()
    backend.save(str(path))

    assert LibraryTokenizer.load(path).encode_batch(["a a a", "b"]) == [[5, 5, 5], [6]]


def test_a_file_without_a_special_token_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "bert.json"
    path.write_text(strange_file().replace("[MASK]", "[NO]").replace("[SEP]", "[NIX]"))

    with pytest.raises(
        DataError, match=r"bert\.json has no token `\[SEP\]`.*, no token `\[MASK\]`"
    ):
        LibraryTokenizer.load(path)


@pytest.mark.parametrize("content", [None, b"", b"{", b"{}", b"\xff\xfe"])
def test_a_missing_or_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes | None):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(DataError, match=r"tokenizer\.json"):
        LibraryTokenizer.load(path)


def test_a_recipe_from_a_file_is_keyed_by_what_the_file_does(tmp_path: Path):
    WORDPIECE.save(tmp_path / "one.json")
    BYTES.save(tmp_path / "two.json")
    one, two = FromFile(str(tmp_path / "one.json")), FromFile(str(tmp_path / "two.json"))

    assert one.make(lines).hash == WORDPIECE.hash
    assert one.key() != two.key()


@pytest.mark.parametrize("recipe", [WordPiece, BytePairs])
def test_a_size_without_room_for_letters_is_refused(recipe):
    with pytest.raises(ValueError, match="size is 6"):
        recipe(size=6)


def test_sentinels_stand_behind_the_others_and_are_in_no_text():
    for own, grown in zip([WORDPIECE, BYTES], WITH_SENTINELS, strict=True):
        assert grown.sentinels == (own.size, own.size + 1, own.size + 2)
        assert grown.pieces(grown.sentinels) == ["<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
        assert grown.encode("the <extra_id_1> the") == own.encode("the <extra_id_1> the")
        assert len(grown.units("the mayor of")) == 3  # words by heart, as without them
        assert own.sentinels == ()
    assert (
        WordPiece(400, sentinels=3).key()
        != WordPiece(400).key()
        == WordPiece(400, sentinels=0).key()
    )


@both
def test_added_tokens_stand_behind_the_others_and_are_in_no_text(tokenizer):
    grown = tokenizer.with_added(["<speaker1>", "<speaker2>"])

    assert grown.size == tokenizer.size + 2
    assert [grown.token(f"<speaker{n}>") for n in (1, 2)] == [tokenizer.size, tokenizer.size + 1]
    text = "the <speaker1> the<speaker2>"
    assert grown.encode(text) == tokenizer.encode(text)
    assert grown.hash != tokenizer.hash
    assert (grown.pad, grown.cls, grown.special) == (
        tokenizer.pad,
        tokenizer.cls,
        tokenizer.special,
    )
    with pytest.raises(DataError, match="cannot get the token '<speaker1>': it is there"):
        grown.with_added(["<speaker1>"])


LINES = [
    "The Rhine flows past Cologne, and Düsseldorf .", "naïve café 5 @,@ 000 well @-@ known",
    "<unk> lives in the old town [CLS] [SEP]", "the end , the end", "Ünïcödé öf thé wörld",
]  # fmt: skip


def published(tokenizer):
    """Return the tokenizer as others write it: what is unknown is called `[UNK]`."""
    data = json.loads(tokenizer._backend.to_str())
    text = json.dumps(data, ensure_ascii=False).replace("<unk>", "[UNK]")
    return LibraryTokenizer(type(tokenizer._backend).from_str(text))


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


def test_words_are_cut_where_their_pieces_meet():
    assert "".join(pieces("wordpiece", LINES[0])) == LINES[0].replace(" ", "")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_spaces_around_and_between_words_belong_to_no_token(name):
    assert [each for each in pieces(name, "  the   end ") if each] == ["the", "end"]


def test_an_accent_that_the_tokenizer_drops_stays_with_its_letter_where_both_are_one_character():
    assert "".join(pieces("lowercase", "CAFÉ Düsseldorf")) == "CAFÉDüsseldorf"
    assert "".join(pieces("lowercase", "cafe\u0301 x")) == "cafex"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_text_of_the_unknown_token_is_one_token_and_moves_nothing(name):
    found = pieces(name, "the <unk> end <unk><unk> the")

    assert [each for each in found if each] == [
        "the", "<unk>", "end", "<unk>", "<unk>", "the",
    ]  # fmt: skip


def test_texts_of_special_tokens_are_texts():
    for name in ("wordpiece", "published"):
        assert "".join(pieces(name, "a [CLS] b [MASK]")) == "a[CLS]b[MASK]"


def test_the_bytes_of_one_character_all_lie_where_it_is():
    found = pieces("bytes", "the 😀 end")

    assert [each for each in dict.fromkeys(found) if each] == ["the", "😀", "end"]
    assert found.count("😀") > 1


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
