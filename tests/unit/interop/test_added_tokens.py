"""Added tokens with all their flags, in texts of all kinds, number for number."""

import json

import pytest
import tokenizers

from tests.published import HARD_TEXT, TEXT, publish, reference, sentence_pieces
from transfer_cli.interop.vocabulary import read_tokenizer

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
