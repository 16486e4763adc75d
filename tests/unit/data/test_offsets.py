"""Where in a text the characters of each token lie."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece

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
