"""Two texts become the tokens that a published model was trained on."""

import itertools
import random
from functools import partial

import numpy as np
import pytest

from tests.published import TEXT, publish, reference, sentence_pieces
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.errors import DataError
from transfer_cli.interop.published_folder import open_folder
from transfer_cli.interop.vocabulary import read_tokenizer


def pairs(count):
    """Return pairs of texts of different lengths."""
    draw = random.Random(3)  # noqa: S311 - for texts
    words = " ".join(TEXT).split()
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(2 * count)]
    return [Example(one, None, other) for one, other in zip(texts[::2], texts[1::2], strict=True)]


THEIRS = {"longest_first": "longest_first", "first": "only_first", "second": "only_second"}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", "roberta"])
def test_tokens_and_segments_are_those_of_the_reference(tmp_path, family):
    publish(tmp_path, family)
    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)
    ours = open_folder(tmp_path, "init_from").tokenizer
    num_refused = 0

    for truncate, length in itertools.product(THEIRS, [9, 12, 17, 64]):
        for example in pairs(50):
            options = {"truncation": THEIRS[truncate], "max_length": length}
            asked = partial(
                encode_texts, [example], ours, length, "bidirectional", truncate=truncate
            )
            try:
                wanted = theirs(example.text, example.pair, **options)
            except Exception:
                num_refused += 1
                with pytest.raises(DataError, match=f"data.truncate={truncate} makes no room"):
                    asked()
                continue
            batch = asked().batch(np.array([0]))
            assert batch["tokens"][0].tolist() == wanted["input_ids"]
            if family in ("bert", "electra"):
                assert batch["segment"][0].tolist() == wanted["token_type_ids"]

    assert 20 < num_refused < 300


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
