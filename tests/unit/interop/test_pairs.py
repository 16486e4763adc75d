"""Two texts become the tokens that a published model was trained on."""

import random

import numpy as np
import pytest

from tests.published import TEXT, publish, reference, sentence_pieces
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.tasks import Example
from transfer_cli.interop.published_folder import open_folder
from transfer_cli.interop.vocabulary import read_tokenizer


def pairs(count):
    """Return pairs of texts of different lengths."""
    draw = random.Random(3)  # noqa: S311 - for texts
    words = " ".join(TEXT).split()
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(2 * count)]
    return [Example(one, None, other) for one, other in zip(texts[::2], texts[1::2], strict=True)]


@pytest.mark.parametrize("length", [9, 12, 17, 64])
@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", "roberta"])
def test_tokens_and_segments_are_those_of_the_reference(tmp_path, family, length):
    publish(tmp_path, family)
    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)
    ours = open_folder(tmp_path, "init_from")

    rows = encode_texts(pairs(50), ours.tokenizer, length, "bidirectional")

    assert 0 < rows.num_cut <= 50 or length == 64
    for number, example in enumerate(rows.examples):
        wanted = theirs(example.text, example.pair, truncation="longest_first", max_length=length)
        batch = rows.batch(np.array([number]))
        assert batch["tokens"][0].tolist() == wanted["input_ids"]
        if family in ("bert", "electra"):
            assert batch["segment"][0].tolist() == wanted["token_type_ids"]


def test_a_causal_model_that_begins_texts_with_a_token_gets_it(tmp_path):
    sentence_pieces(tmp_path)
    tokenizer = read_tokenizer(tmp_path)
    name = tokenizer.pieces([tokenizer.begin])

    one, two = encode_texts(
        [Example("a", None, None)], tokenizer, 16, "causal"
    ), encode_texts([Example("a", None, "b")], tokenizer, 16, "causal")  # fmt: skip

    a, b, ends = tokenizer.encode("a"), tokenizer.encode("b"), [tokenizer.sep]
    assert name == ["<s>"]
    assert tokenizer.pieces(ends) == ["</s>"]
    begin = [tokenizer.begin]
    assert one.batch(np.array([0]))["tokens"][0].tolist() == [*begin, *a, *ends]
    wanted = [*begin, *a, *ends, *b, *ends]
    assert two.batch(np.array([0]))["tokens"][0].tolist() == wanted


def test_the_run_of_an_earlier_version_keeps_its_one_separator(tmp_path):
    publish(tmp_path, "roberta")
    reference().AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)

    published = read_tokenizer(tmp_path)
    kept = type(published).load(tmp_path / "tokenizer.json")

    assert (published.separators, kept.separators) == (2, 1)
    published.save(tmp_path / "again.json")
    assert type(published).load(tmp_path / "again.json").separators == 2
