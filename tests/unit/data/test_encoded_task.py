import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.data.encoded_task import encode_texts, warn_of_cuts
from transfer_cli.data.labelled import Example
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import ConfigError, DataError

WORDS = ["who", "is", "the", "mayor", "of", "Lomta"]
TOKENIZER = WordPiece(300).make(lambda: iter([" ".join(WORDS)] * 3))
CLS, SEP, PAD = TOKENIZER.cls, TOKENIZER.sep, TOKENIZER.pad


def words(number):
    """A text of as many tokens."""
    return " ".join(WORDS[i % len(WORDS)] for i in range(number))


def tokens(number):
    return TOKENIZER.encode(words(number))


def row(example, direction, length=50):
    return (
        encode_texts([example], TOKENIZER, length, direction)
        .batch(np.array([0]))["tokens"]
        .tolist()[0]
    )


def test_a_causal_text_ends_with_cls():
    assert row(Example(words(3)), "causal") == [*tokens(3), CLS]


def test_a_bidirectional_text_stands_between_cls_and_sep():
    assert row(Example(words(3)), "bidirectional") == [CLS, *tokens(3), SEP]


def test_two_texts_have_sep_between_them():
    pair = Example(words(3), pair=words(2))

    assert row(pair, "causal") == [*tokens(3), SEP, *tokens(2), CLS]
    assert row(pair, "bidirectional") == [CLS, *tokens(3), SEP, *tokens(2), SEP]


def test_a_batch_is_padded_to_its_own_longest_example():
    examples = [Example(words(2), 1), Example(words(4), 0), Example(words(9), 2)]

    batch = encode_texts(examples, TOKENIZER, 50, "causal").batch(np.array([1, 0]))

    assert batch["tokens"].tolist() == [[*tokens(4), CLS], [*tokens(2), CLS, PAD, PAD]]
    assert batch["mask"].sum(1).tolist() == [5, 3]
    assert batch["index"].tolist() == [1, 0]
    assert batch["label"].tolist() == [0, 1]


def test_examples_without_labels_give_batches_without_labels():
    batch = encode_texts([Example("who")], TOKENIZER, 50, "causal").batch(np.array([0]))

    assert set(batch) == {"tokens", "mask", "index"}


def test_labels_for_some_examples_only_are_refused():
    with pytest.raises(DataError, match="Example 2 of 2"):
        encode_texts([Example("who", 1), Example("is")], TOKENIZER, 50, "causal")


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_cut_texts_are_counted_in_one_warning(direction, caplog):
    examples = [Example(words(n)) for n in (3, 30, 40)]
    task = encode_texts(examples, TOKENIZER, 10, direction)

    warn_of_cuts(task.num_cut, len(task), 10)

    assert task.lengths.max() == 10
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "Cut 2 of 3 examples to 10 tokens" in record.getMessage()


def test_texts_that_fit_exactly_are_not_cut():
    one = encode_texts([Example(words(9))], TOKENIZER, 10, "causal")
    two = encode_texts([Example(words(4), pair=words(3))], TOKENIZER, 10, "bidirectional")

    assert (one.num_cut, two.num_cut) == (0, 0)


@given(
    first=st.integers(0, 30),
    second=st.integers(0, 30),
    length=st.integers(5, 40),
    direction=st.sampled_from(["causal", "bidirectional"]),
)
def test_the_longer_of_two_texts_is_cut_first(first, second, length, direction):
    found = row(Example(words(first), pair=words(second)), direction, length)
    num_special = 2 if direction == "causal" else 3
    room = length - num_special
    # The definition, one token at a time; of texts as long, the one that was longer keeps more.
    kept = [first, second]
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] or (kept[0] == kept[1] and first <= second) else 1] -= 1

    expected = [*tokens(kept[0]), SEP, *tokens(kept[1])]
    body = found[:-1] if direction == "causal" else found[1:-1]
    assert body == expected


@pytest.mark.parametrize(
    ("truncate", "first", "second", "kept"),
    [
        ("first", 9, 3, (3, 3)), ("first", 9, 5, (1, 5)), ("second", 3, 9, (3, 3)),
        ("second", 5, 9, (5, 1)), ("first", 0, 6, (0, 6)), ("second", 6, 0, (6, 0)),
    ],
)  # fmt: skip
def test_one_text_alone_is_cut_where_it_is_asked(truncate, first, second, kept):
    example = Example(words(first), pair=words(second))

    found = encode_texts([example], TOKENIZER, 8, "causal", truncate=truncate)

    expected = [*tokens(kept[0]), SEP, *tokens(kept[1]), CLS]
    assert found.batch(np.array([0]))["tokens"].tolist() == [expected]


@pytest.mark.parametrize(
    ("truncate", "first", "second", "message"),
    [
        ("first", 9, 6, "line 7: the second text has 6 tokens, and data.length=8 leaves 6 for"),
        ("second", 60, 3, "the first text has 60 tokens, .* data.truncate=second makes no room"),
        ("second", 8, None, "line 7: the first text has 8 tokens, and data.length=8 leaves 7 for"),
    ],
)  # fmt: skip
def test_a_text_that_would_be_gone_is_refused(truncate, first, second, message):
    example = Example(words(first), pair=None if second is None else words(second), line=7)

    with pytest.raises(DataError, match=message):
        encode_texts([Example("who"), example], TOKENIZER, 8, "causal", truncate=truncate)


def test_lengths_count_the_special_tokens():
    task = encode_texts([Example(words(n)) for n in (0, 2)], TOKENIZER, 10, "bidirectional")

    assert task.lengths.tolist() == [2, 4]
    assert len(task) == 2


def test_a_length_without_room_for_text_is_refused():
    with pytest.raises(ConfigError, match=r"data\.length is 3"):
        encode_texts([Example("who")], TOKENIZER, 3, "causal")
