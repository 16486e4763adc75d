"""Texts and pairs become the tokens that a published model reads, here and in what is written."""

import itertools
import json
import random
from functools import partial

import numpy as np
import pytest
import tokenizers

from tests.published import HARD_TEXT, TEXT, publish, reference, sentence_pieces
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.errors import CheckpointError, DataError
from transfer_cli.interop import inputs
from transfer_cli.interop.inputs import Inputs
from transfer_cli.interop.published_folder import open_folder
from transfer_cli.interop.vocabulary import LAYOUTS, read_tokenizer

LINES = ["The harbour of Lomta is old , and who built it ?"] * 9
TOKENIZERS = {
    "wordpiece": WordPiece(300).make(lambda: iter(LINES)),
    "bytes": BytePairs(300).make(lambda: iter(LINES)),
}


def written(tmp_path, tokenizer, direction="bidirectional", length=9, **changes):
    path = tmp_path / "tokenizer.json"
    made = Inputs(length, *LAYOUTS["labelled", direction], segments=True)
    made.write(path, tokenizer)
    content = json.loads(path.read_text())
    for key, value in changes.items():
        part, _, name = key.partition("__")
        content[part][name] = value
    path.write_text(json.dumps(content))
    return made, path


@pytest.mark.parametrize("length", [5, 6, 9, 64])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_is_written_is_what_a_run_reads(tmp_path, kind, direction, length):
    made, path = written(tmp_path, TOKENIZERS[kind], direction, length)

    made.check(path, TOKENIZERS[kind], direction, "to")


@pytest.mark.parametrize("truncate", ["first", "second"])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_which_text_is_cut_is_written_too(tmp_path, direction, truncate):
    made = Inputs(9, *LAYOUTS["labelled", direction], segments=True, truncate=truncate)
    made.write(tmp_path / "tokenizer.json", TOKENIZERS["wordpiece"])

    made.check(tmp_path / "tokenizer.json", TOKENIZERS["wordpiece"], direction, "to")

    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert (
        content["truncation"]["strategy"]
        == {"first": "OnlyFirst", "second": "OnlySecond"}[truncate]
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"truncation__max_length": 8},
        {"truncation__max_length": 10},
        {"truncation__direction": "Left"},
        {"post_processor__single": [{"Sequence": {"id": "A", "type_id": 0}}]},
        {"post_processor__pair": [{"Sequence": {"id": each, "type_id": 0}} for each in "AB"]},
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, changes):
    made, path = written(tmp_path, TOKENIZERS["wordpiece"], **changes)

    with pytest.raises(CheckpointError, match="makes another input than the run reads"):
        made.check(path, TOKENIZERS["wordpiece"], "bidirectional", "to")


def test_segments_are_compared_too(tmp_path):
    _, path = written(tmp_path, TOKENIZERS["wordpiece"])
    without = Inputs(9, *LAYOUTS["labelled", "bidirectional"], segments=False)

    with pytest.raises(CheckpointError, match="makes another input"):
        without.check(path, TOKENIZERS["wordpiece"], "bidirectional", "to")


def test_the_words_of_the_check_are_found_in_any_vocabulary():
    for tokenizer in TOKENIZERS.values():
        assert [len(words) for words in inputs._words(tokenizer, [0, 3, -1])] == [0, 3, 0]


def pairs(count):
    """Return pairs of texts of different lengths."""
    draw = random.Random(3)
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


FLAGS = {
    "<new>": {},
    "<Raw>": {"normalized": False},
    "<left>": {"lstrip": True},
    "<right>": {"rstrip": True, "normalized": False},
    "<both>": {"lstrip": True, "rstrip": True},
    "tok": {"single_word": True},
    "Ünï": {"single_word": True, "normalized": False},
    "<|im_start|>": {"special": True, "normalized": False},
}
PLAIN = [*TEXT, *HARD_TEXT, *(f"the {n} films, and {n} more of them" for n in range(7))]


def texts():
    assert len(PLAIN) == 30
    for text in PLAIN:
        yield text
        for name in FLAGS:
            at = len(text) // 2
            yield f"{text[:at]}{name}{text[at:]}"
            yield f"{name} {text}  {name} {name.upper()}{name}"


def write(folder, place):
    """Put the tokens where a folder may have them."""
    size = read_tokenizer(folder).size
    options = json.loads((folder / "tokenizer_config.json").read_text())
    if place == "added_tokens.json":
        added = {name: number for number, name in enumerate(FLAGS, size)}
        (folder / place).write_text(json.dumps(added))
        options["additional_special_tokens"] = ["<|im_start|>", "<left>"]
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
    elif place == "tokenizer_config.json":
        plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "special"), False)
        options["added_tokens_decoder"] = {
            str(number): {"content": name, "normalized": True, **plain, **flags}
            for number, (name, flags) in enumerate(FLAGS.items(), size)
        }
        (folder / place).write_text(json.dumps(options))
    else:
        theirs = reference().AutoTokenizer.from_pretrained(folder)
        theirs.add_tokens([tokenizers.AddedToken(name, **flags) for name, flags in FLAGS.items()])
        theirs.save_pretrained(folder)


@pytest.mark.parametrize(
    ("family", "place"),
    [
        ("bert", "tokenizer_config.json"),
        ("bert", "added_tokens.json"),
        ("gpt2", "added_tokens.json"),
        *(
            pytest.param(family, place, marks=pytest.mark.slow)
            for family in (
                "bert",
                "distilbert",
                "gpt2",
                "roberta",
                "llama",
                "xlm-roberta",
                "pieces",
            )
            for place in ("tokenizer.json", "tokenizer_config.json")
            if (family, place) != ("bert", "tokenizer_config.json")
        ),
    ],
)
def test_added_tokens_in_thirty_texts_are_those_of_the_reference(tmp_path, family, place):
    if family == "pieces":
        sentence_pieces(tmp_path)
    else:
        publish(tmp_path, family)
    write(tmp_path, place)
    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)

    ours = read_tokenizer(tmp_path)

    assert ours.size == len(theirs)
    for text in texts():
        # Special tokens in a text are text.
        expected = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text) == expected, text
