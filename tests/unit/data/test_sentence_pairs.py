"""Pairs of texts: what they are made of, how they are drawn, how they are laid out."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.data.test_text import text_file
from transfer_cli.data import sentence_pairs
from transfer_cli.data.corpus import encode_text
from transfer_cli.data.encoded_task import kept_sizes
from transfer_cli.data.known_files import KnownFiles
from transfer_cli.data.sentence_pairs import draw_pairs, pair_text, units_of
from transfer_cli.data.text import TextFiles
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import ConfigError, DataError

WORDS = WordPiece(300).make(lambda: iter(["a b c d e f g h . ? ! 1 2 3 4 5 6 7 8 9 0"] * 9))
LENGTH = 24


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    """Return how to encode lines whose documents follow empty ones."""
    folder = tmp_path_factory.mktemp("pairs")

    def encode(lines):
        path = text_file(folder, lines)
        data = TextFiles(train=path, validation="other.txt", pairs="nsp")
        split = data._whole_split([folder / "a.txt"], "train", KnownFiles(None))
        return encode_text(split, WORDS, folder / "cache")

    return encode


@pytest.fixture(scope="module")
def many(encoded):
    """Return 160 documents of 1 to 40 sentences, each of its own words, some lines of several."""
    draw, lines = np.random.default_rng(0), []
    for document in range(160):
        for number in range(draw.integers(1, 41)):
            words = " ".join(f"{document:03d}{number:02d}")
            lines.append(f"{words} {'a ' * draw.integers(0, 12)}." * draw.integers(1, 3))
        lines.append("")
    return encoded(lines)


def texts(pairs, numbers=None):
    """Return both texts of pairs, their labels, and whole rows, as the batch has them."""
    batch = pairs.batch(np.arange(len(pairs)) if numbers is None else np.array(numbers))
    for tokens, mask, segment, label in zip(
        batch["tokens"], batch["mask"], batch["segment"], batch["pair"], strict=True
    ):
        row = tokens[mask].tolist()
        first = row[: int((segment[mask] == 0).sum())]
        yield first[1:-1], row[len(first) : -1], int(label), row


def documents_of(tokens):
    """Return the numbers of the documents that whole sentences of `many` are from."""
    said = "".join(piece for piece in WORDS.pieces(tokens) if piece.isdigit())
    return {said[at : at + 3] for at in range(0, len(said), 5)}


def spans(pairs):
    return pairs.drawn.spans.tolist()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sentence", ["a b .", "c d", "e ?", "f ! !", "g . 5 h"]),
        ("line", ["a b . c d", "e ? f ! !", "g . 5 h"]),
    ],
)
def test_units_are_sentences_or_lines_without_the_ends_of_lines(encoded, kind, expected):
    text = encoded(["a b . c d", "", "", "e ? f ! !", "g .5 h"])
    units = units_of(text, WORDS, kind)

    pairs = sentence_pairs.SentencePairs(text, draw_pairs(units, "sop", 9, 0), WORDS, LENGTH)
    joined = [" ".join(WORDS.pieces(pairs.tokens(at, at + 1).tolist())) for at in range(len(units))]

    if kind == "sentence":  # this tokenizer splits all marks off
        expected = [*expected[:-1], "g .", "5 h"]
    assert joined == expected
    assert units.first.tolist() == ([0, 2, 6] if kind == "sentence" else [0, 1, 3])


def test_a_text_is_cut_alike_in_portions(many, monkeypatch):
    whole = units_of(many, WORDS, "sentence")

    monkeypatch.setattr(sentence_pairs, "_PORTION", 101)
    portioned = units_of(many, WORDS, "sentence")

    assert len(whole) > 3000
    for name in ("starts", "reached", "first"):
        assert np.array_equal(getattr(portioned, name), getattr(whole, name))


@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_half_of_the_pairs_do_not_follow(many, kind):
    pairs = pair_text(many, WORDS, LENGTH, kind, "sentence", seed=0, copies=4)

    assert len(pairs) > 2000
    assert float(pairs.drawn.labels[:2000].mean()) == pytest.approx(0.5, abs=0.02)


def test_a_second_text_that_does_not_follow_is_from_another_document(many):
    pairs = pair_text(many, WORDS, LENGTH, "nsp", "sentence", seed=0)
    first = pairs.drawn.units.first

    for (begin, stop, second, last), label in zip(spans(pairs), pairs.drawn.labels, strict=True):
        documents = np.searchsorted(first, [begin, stop - 1, second, last - 1], side="right")
        assert documents[0] == documents[1]
        assert documents[2] == documents[3]
        assert (documents[0] != documents[2]) == bool(label)
        assert label or second == stop
    whole = [pair for pair in texts(pairs) if len(pair[3]) < LENGTH]
    assert len(whole) > 100
    for one, other, label, _ in whole:
        assert (documents_of(one) != documents_of(other)) == bool(label)


@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_tokens_are_those_of_the_text_and_fit(many, kind):
    pairs = pair_text(many, WORDS, LENGTH, kind, "sentence", seed=0)
    lengths, stream = set(), many.tokens.tolist()

    for (begin, stop, second, last), (one, other, _, row) in zip(
        spans(pairs), texts(pairs), strict=True
    ):
        whole, rest = pairs.tokens(begin, stop).tolist(), pairs.tokens(second, last).tolist()
        stays, follows = kept_sizes(len(whole), len(rest), LENGTH - 3)
        assert row == [WORDS.cls, *whole[:stays], WORDS.sep, *rest[:follows], WORDS.sep]
        assert (one, other) == (whole[:stays], rest[:follows])
        assert min(len(one), len(other)) > 0
        at = pairs.drawn.units.starts[begin]
        assert stream[at : at + len(whole)] == whole or WORDS.sep in stream[at : at + len(whole)]
        lengths.add(len(row))

    assert max(lengths) == LENGTH
    assert min(lengths) < LENGTH - 5  # collected short, or at the end of a document


@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_first_texts_and_what_follows_are_the_document_but_for_units_left_alone(many, kind):
    pairs = pair_text(many, WORDS, LENGTH, kind, "sentence", seed=0)
    used = []
    for (begin, stop, second, last), label in zip(spans(pairs), pairs.drawn.labels, strict=True):
        used.append((begin, stop))
        if kind == "sop" or not label:
            used.append((second, last))
    used.sort()

    units = [unit for begin, stop in used for unit in range(begin, stop)]
    left_out = sorted(set(range(len(pairs.drawn.units))) - set(units))

    assert len(units) == len(set(units))
    assert len(left_out) == pairs.drawn.num_left_out > 0
    assert set(np.array(left_out) + 1) <= set(pairs.drawn.units.first.tolist())


def test_swapped_texts_are_the_same_in_another_order(many):
    pairs = pair_text(many, WORDS, LENGTH, "sop", "sentence", seed=0)

    for (begin, stop, second, last), label in zip(spans(pairs), pairs.drawn.labels, strict=True):
        assert (last == begin) if label else (stop == second)


def test_a_long_document_is_walked_in_parts_that_leave_nothing_out(many, monkeypatch):
    monkeypatch.setattr(sentence_pairs, "_LONGEST_WALK", 8)
    units = units_of(many, WORDS, "line")
    drawn = draw_pairs(units, "sop", LENGTH - 3, 0)

    used = {u for a, b, c, d in drawn.spans.tolist() for u in [*range(a, b), *range(c, d)]}

    assert len(used) + drawn.num_left_out == len(units)


def test_pairs_depend_on_the_seed_and_the_text_alone(many):
    def drawn(seed, copies=1):
        pairs = pair_text(many, WORDS, LENGTH, "nsp", "sentence", seed=seed, copies=copies)
        return spans(pairs)

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    twice = drawn(0, 2)
    assert len(twice) > 1.9 * len(drawn(0))
    assert twice[: len(twice) // 2] != twice[len(twice) // 2 :]


def test_a_pair_is_laid_out_alike_in_any_company(many):
    pairs = pair_text(many, WORDS, LENGTH, "nsp", "sentence", seed=0)
    together = list(texts(pairs, [5, 90, 7]))

    assert together == [next(texts(pairs, [number])) for number in (5, 90, 7)]
    assert pairs.batch(np.array([5, 90]))["index"].tolist() == [5, 90]
    with pytest.raises(IndexError):
        pairs.batch(np.array([len(pairs)]))


def test_a_family_with_two_separators_has_both_between_the_texts(many):
    tokenizer = copy.copy(WORDS)
    tokenizer.separators = 2
    pairs = pair_text(many, tokenizer, LENGTH, "sop", "sentence", seed=0)

    for _, _, _, row in texts(pairs):
        at = row.index(tokenizer.sep)
        assert row[at + 1] == tokenizer.sep
        assert row.count(tokenizer.sep) == 3
        assert len(row) <= LENGTH


def test_what_gives_no_pairs_is_refused(encoded, many):
    one = encoded(["a . b .", "c"])
    with pytest.raises(DataError, match="is one document, and second texts are taken from others"):
        pair_text(one, WORDS, LENGTH, "nsp", "sentence", seed=0)
    assert len(pair_text(one, WORDS, LENGTH, "sop", "sentence", seed=0)) == 1
    single = encoded(["a", "", "b"])
    for kind in ("nsp", "sop"):
        with pytest.raises(DataError, match="has no document of two units"):
            pair_text(single, WORDS, LENGTH, kind, "sentence", seed=0)
    with pytest.raises(ConfigError, match=r"data\.length: 4 leaves no room .* give 5 or more"):
        pair_text(many, WORDS, 4, "sop", "sentence", seed=0)
    with pytest.raises(ValueError, match="not told apart"):
        pair_text(replace(one, starts=None), WORDS, LENGTH, "sop", "sentence", seed=0)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_translations_are_both_texts_of_a_row_whose_positions_restart(tmp_path, kind):
    rows = [("a b c .", "1 2 3"), ("d\ne .", "4 5"), ("f", ""), ("g h", "6")]
    path = tmp_path / f"a.{kind}"
    if kind == "txt":
        path.write_text("".join(f"{' '.join(a.split())}\n{b}\n\n" for a, b in rows))
    elif kind == "jsonl":
        path.write_text("".join(f"{json.dumps({'en': a, 'de': b})}\n" for a, b in rows))
    else:
        columns = dict(zip(("en", "de"), map(list, zip(*rows, strict=True)), strict=True))
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").table(columns), path)
    data = TextFiles(
        train=str(path), validation="other.txt", pairs="translation",
        field="text" if kind == "txt" else ["en", "de"],
    )  # fmt: skip
    split = data._whole_split([path], "train", KnownFiles(None))
    text = encode_text(split, WORDS, tmp_path / "cache")

    pairs = pair_text(text, WORDS, 9, "translation", data.units, seed=0)
    batch = pairs.batch(np.arange(len(pairs)))

    joined = [
        " ".join(WORDS.pieces(tokens[mask].tolist()))
        for tokens, mask in zip(batch["tokens"], batch["mask"], strict=True)
    ]
    assert joined == [
        "[CLS] a b c [SEP] 1 2 3 [SEP]", "[CLS] d e . [SEP] 4 5 [SEP]", "[CLS] g h [SEP] 6 [SEP]",
    ]  # fmt: skip
    assert "pair" not in batch
    assert batch["restart"].tolist() == batch["segment"].tolist()
    assert batch["segment"][0].tolist() == [0] * 5 + [1] * 4
    assert pairs.drawn.num_left_out == 1
