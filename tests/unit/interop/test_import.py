"""What we make of a published model, against the reference implementation."""

import json

import pytest
import torch

from tests.published import FAMILIES, HARD_TEXT, ROBERTAS, publish, reference, wordpiece
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.errors import ConfigError
from transfer_cli.interop.families import families
from transfer_cli.interop.vocabulary import read_tokenizer
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import load_pretrained
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.masked_lm import MaskedLM


def opened(folder):
    start = open_pretrained(str(folder))
    model = TransferModel(Backbone(start.description.shape, start.description.vocabulary), {})
    tensors = start.tensors()
    report = load_pretrained(model, tensors, folder)
    return start, model.eval(), report


def batch_of(vocabulary):
    torch.manual_seed(0)
    tokens = torch.randint(5, vocabulary, (3, 17))
    mask = torch.ones(3, 17, dtype=torch.bool)
    mask[1, 11:] = False
    mask[2, 1:] = False
    return tokens, mask


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_segments_are_those_of_the_reference(tmp_path, family):
    theirs = publish(tmp_path, family)
    _, ours, _ = opened(tmp_path)
    tokens, mask = batch_of(ours.backbone.vocabulary)
    segment = (torch.arange(17) >= 6).long().expand(3, -1) * mask

    with torch.no_grad():
        expected = theirs(
            input_ids=tokens, attention_mask=mask.long(), token_type_ids=segment
        ).last_hidden_state
        states = ours.backbone(tokens, mask, segment)[-1]
        without = ours.backbone(tokens, mask)[-1]

    torch.testing.assert_close(states[mask], expected[mask], atol=1e-5, rtol=0)
    assert (without[mask] - expected[mask]).abs().max() > 1e-3


@pytest.mark.parametrize("has_json", [False, True])
@pytest.mark.parametrize("family", [*FAMILIES, "openai-gpt", "xlm-roberta", "mpnet"])
def test_tokens_are_those_of_the_reference(tmp_path, family, has_json):
    publish(tmp_path, family)
    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)
    folder = tmp_path / "json" if has_json else tmp_path
    if has_json:
        theirs.save_pretrained(folder)
        assert (folder / "tokenizer.json").is_file()

    text_end = families()[family].text_end
    ours = read_tokenizer(folder, text_end=text_end)

    assert ours.size == len(theirs) + bool(text_end)
    assert ours.separators == 1 + (family in ROBERTAS)
    for text in HARD_TEXT:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text


def test_a_cased_vocabulary_keeps_case_and_accents(tmp_path):
    wordpiece(tmp_path, lowercase=False)
    theirs = reference().BertTokenizer.from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path)

    for text in HARD_TEXT:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text
    assert ours.encode("PARIS") != ours.encode("paris")


def test_special_tokens_in_a_text_are_text(tmp_path):
    publish(tmp_path, "roberta")
    ours = read_tokenizer(tmp_path)

    tokens = ours.encode("a <mask> b </s> c <s>")

    assert not set(tokens) & {ours.mask, ours.sep, ours.cls}


def test_gpt2_has_one_special_token_and_nothing_to_hide_with(tmp_path):
    publish(tmp_path, "gpt2")
    ours = read_tokenizer(tmp_path)

    assert ours.special == {ours.cls} == {ours.mask}
    assert ours.cls not in ours.encode("a <|endoftext|> b <unk> c")
    assert ours.decode(ours.encode("a <unk> c")).strip() == "a <unk> c"
    with pytest.raises(ConfigError, match="no mask token of its own"):
        MaskedLM().setup(TaskInfo(ours))


def test_the_first_gpt_gets_a_token_that_ends_a_text(tmp_path):
    publish(tmp_path, "openai-gpt", "LMHeadModel")
    start, model, _ = opened(tmp_path)

    ours, table = start.tokenizer, model.backbone.token_embedding.weight
    assert ours.sep == ours.cls == len(table) - 1 != ours.unk
    torch.testing.assert_close(table[-1], table[:-1].mean(0))
    assert ours.cls not in ours.encode("a <|endoftext|> b")
    assert ours.encode("ж <unk>") == [ours.unk] * 2
    assert ours.decode(ours.encode("The river")) == "the river"


def test_options_beside_a_tokenizer_json_count(tmp_path):
    publish(tmp_path, "bert")
    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path)
    assert read_tokenizer(tmp_path).encode("PARIS") == read_tokenizer(tmp_path).encode("paris")

    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_lower_case": False}))

    cased = reference().AutoTokenizer.from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path)
    assert ours.encode("PARIS the") == cased("PARIS the", add_special_tokens=False)["input_ids"]
    assert ours.encode("PARIS") != ours.encode("paris")


def test_tokens_beside_the_vocabulary_are_taken_up(tmp_path):
    publish(tmp_path, "gpt2")
    size = read_tokenizer(tmp_path).size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[PAD]": size}))

    ours = read_tokenizer(tmp_path)

    assert (ours.size, ours.pad) == (size + 1, size)
