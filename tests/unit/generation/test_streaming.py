import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.generation.streaming import GeneratedText, StopStrings, StreamingDetokenizer

TEXT = 'the cat sat on the mat , the cats are sitting ; a naïve 🙂 cat said " mew " .'
LETTERS = "ab\n."


@pytest.fixture(scope="module")
def word_pieces():
    return WordPiece(size=60).make(lambda: iter([TEXT] * 20))


@pytest.fixture(scope="module")
def byte_pairs():
    return BytePairs(size=280).make(lambda: iter([TEXT] * 20))


def spelt(tokenizer, before, tokens):
    """Return what a detokenizer shows of each token, and at the end."""
    detokenizer = StreamingDetokenizer(tokenizer, tokenizer.sep, before)
    return [*map(detokenizer.add, tokens), detokenizer.flush()]


@pytest.mark.parametrize("kind", ["word_pieces", "byte_pairs"])
def test_a_text_that_comes_by_tokens_is_the_text(kind, request):
    tokenizer = request.getfixturevalue(kind)
    tokens = tokenizer.encode(TEXT)

    for place in range(len(tokens)):
        before, after = tokens[:place], tokens[place:]
        shown = spelt(tokenizer, [tokenizer.sep, *before], after)
        if tokenizer.decode(before).endswith("\ufffd"):
            continue  # a prompt holds no half characters
        assert tokenizer.decode(before) + "".join(shown) == tokenizer.decode(tokens)


def test_half_a_character_waits_for_the_other_half(byte_pairs):
    tokens = byte_pairs.encode("🙂")
    assert len(tokens) > 2

    shown = spelt(byte_pairs, [byte_pairs.sep], tokens)

    assert [each for each in shown if each] == ["🙂"]
    assert "\ufffd" not in "".join(shown)


def test_a_character_that_stays_half_is_shown_at_the_end(byte_pairs):
    tokens = byte_pairs.encode("🙂")[:-1]

    *shown, rest = spelt(byte_pairs, [byte_pairs.sep], tokens)

    assert "".join(shown) == ""
    assert "\ufffd" in rest


@pytest.mark.parametrize("kind", ["word_pieces", "byte_pairs"])
def test_the_end_of_a_line_is_one_and_the_next_line_begins_without_a_space(kind, request):
    tokenizer = request.getfixturevalue(kind)
    the_cat = tokenizer.encode("the cat")

    shown = spelt(tokenizer, [tokenizer.sep], [*the_cat, tokenizer.sep, *the_cat])

    assert "".join(shown) == "the cat\nthe cat"


# --- where a text ends -------------------------------------------------------------------------


def cut_by_definition(text, stops):
    """Return the text before the first string that is complete, the longest that ends there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(LETTERS, max_size=20),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3),
    seed=st.integers(0, 100),
)
def test_a_text_is_cut_by_its_letters_however_they_come(text, stops, seed):
    draws, cut, shown, place = np.random.default_rng(seed), StopStrings(stops), "", 0
    expected, ends = cut_by_definition(text, stops)

    while place < len(text):
        step = int(draws.integers(1, 5))
        shown += cut.add(text[place : place + step])
        place += step
        assert expected.startswith(shown)  # nothing that is taken back has been shown
    shown += cut.flush()

    assert (shown, cut.found is not None) == (expected, ends)


@given(text=st.text(LETTERS, max_size=20), stop=st.text(LETTERS, min_size=1, max_size=4))
def test_no_more_waits_than_may_belong_to_a_stop(text, stop):
    cut = StopStrings([stop])
    shown = cut.add(text)

    if cut.found is None:
        waiting = text.removeprefix(shown)
        assert waiting == "" or stop.startswith(waiting)


# --- a whole text ------------------------------------------------------------------------------


def test_a_stop_of_several_tokens_is_found_and_never_shown(word_pieces):
    generated = GeneratedText(PromptLayout(word_pieces), "the cat", ["the mat"])
    tokens = word_pieces.encode("sat on the mat , the cat")
    shown = [generated.add(token) for token in tokens]

    assert "".join(shown) == generated.text == " sat on "
    assert generated.finish_reason == "stop"
    assert generated.tokens < len(tokens)
    assert generated.flush() == ""


def test_what_waited_in_vain_is_shown_at_the_end(word_pieces):
    generated = GeneratedText(PromptLayout(word_pieces), "the cat", ["the mat is"])
    for token in word_pieces.encode("sat on the mat"):
        generated.add(token)

    assert generated.text == " sat on "
    assert generated.flush() == "the mat"
    assert (generated.text, generated.finish_reason) == (" sat on the mat", "")


def test_the_space_at_the_end_of_a_prompt_is_not_doubled(word_pieces):
    generated = GeneratedText(PromptLayout(word_pieces), "the cat ", [])
    for token in word_pieces.encode("sat on"):
        generated.add(token)

    assert generated.text == "sat on"


@pytest.mark.parametrize("kind", ["word_pieces", "byte_pairs"])
def test_a_prompt_is_laid_out_as_text_to_pretrain_on(kind, request):
    tokenizer = request.getfixturevalue(kind)
    layout = PromptLayout(tokenizer)
    line = tokenizer.encode("the cat")

    assert layout.encode("the cat") == [tokenizer.sep, *line]
    assert layout.encode("the cat\n\nthe cat") == [
        tokenizer.sep, *line, tokenizer.sep, tokenizer.sep, *line,
    ]  # fmt: skip
    assert layout.encode("the cat\n") == [tokenizer.sep, *line, tokenizer.sep]


def test_names_of_special_tokens_in_a_prompt_are_ordinary_text(word_pieces):
    tokens = PromptLayout(word_pieces).encode("[SEP] [MASK] [PAD] [CLS]")

    assert not set(tokens[1:]) & (word_pieces.special - {word_pieces.unk})


def test_a_text_without_tokens_is_no_prompt(word_pieces):
    assert PromptLayout(word_pieces).encode(" \n ") == []


def test_of_the_special_tokens_only_the_end_of_a_line_may_be_said(word_pieces):
    allowed_V = PromptLayout(word_pieces).allowed_tokens()

    said = {token for token in word_pieces.special if allowed_V[token]}
    assert said == {word_pieces.sep}
    assert allowed_V.sum() == word_pieces.size - 4
