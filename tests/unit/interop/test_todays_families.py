"""Llama, its relatives and others, against the reference implementation, in both directions."""

import json
import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.published import (
    FAMILIES,
    HARD_TEXT,
    LLAMAS,
    ROBERTAS,
    publish,
    reference,
    sentence_pieces,
)
from tests.unit.interop.test_import import batch_of, opened
from transfer_cli.data.tokenizer_file import load_tokenizer, save_tokenizer
from transfer_cli.errors import CheckpointError
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.interop.families import families
from transfer_cli.interop.family import LANGUAGE_MODEL, SEQUENCE_CLASSIFICATION
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.published_folder import open_folder
from transfer_cli.interop.saving import Ours, write_folder
from transfer_cli.interop.targets import target_of
from transfer_cli.interop.vocabulary import read_tokenizer
from transfer_cli.model.shape import Rotary, RotaryScaling
from transfer_cli.objectives.classification import Classification

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 20,
}  # fmt: skip
OLD_LLAMA3 = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
VARIANTS = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "wide heads": {"head_dim": 6, "num_key_value_heads": 1},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3},
    "other scale": {"query_pre_attn_scalar": 5},
    "all local": {"layer_types": ["sliding_attention"] * 3},
    "all global": {"sliding_window": None},
    "scaled": {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
        }
    },
    "other order": {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "one after the other": {"use_parallel_residual": False, "tie_word_embeddings": True},
    "whole heads": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 1.0}
    },
    "half heads": {
        "rope_parameters": {
            "rope_type": "linear",
            "rope_theta": 1e4,
            "factor": 2.0,
            "partial_rotary_factor": 0.5,
        }
    },
    "two groups": {"num_hidden_groups": 2},
    "own blocks, relu": {"num_hidden_groups": 3, "hidden_act": "relu"},
    "untied": {"tie_word_embeddings": False, "decoder_bias": False},
}
ENCODERS = (*FAMILIES[:4], "modernbert", "xlm-roberta", "albert", "mpnet")
CASES = [(family, "plain") for family in ("gpt2", "openai-gpt", *LLAMAS[1:], *ENCODERS)]
CASES += [("llama", name) for name in ("plain", "tied", "wide heads", "linear", "llama3")]
CASES += [("gemma3_text", name) for name in ("wide heads", "other scale", "all local", "scaled")]
CASES += [("gpt_neox", name) for name in ("one after the other", "whole heads", "half heads")]
CASES += [("albert", name) for name in ("two groups", "own blocks, relu")]
CASES += [("mistral", "all global"), ("modernbert", "other order"), ("modernbert", "untied")]
OLD_GEMMA3 = {
    "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip
OLD_MODERNBERT = {
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 1e4,
    "global_attn_every_n_layers": 2,
}


def exportable_model(folder, head=LANGUAGE_MODEL):
    start = open_folder(folder, "run")
    return Ours(
        start.description.shape, start.tensors(), start.tokenizer, head, None, "published", 40
    )


@pytest.mark.parametrize(
    ("family", "variant"),
    [c if c[1] == "plain" else pytest.param(*c, marks=pytest.mark.slow) for c in CASES],
)
def test_states_and_tensors_are_those_of_the_reference_there_and_back(tmp_path, family, variant):
    kind = "MaskedLM" if family in ENCODERS else "CausalLM"
    published_kind = "LMHeadModel" if "gpt" in family and family != "gpt_neox" else kind
    theirs = publish(tmp_path / "first", family, published_kind, **VARIANTS[variant])
    start, ours, report = opened(tmp_path / "first")
    rows = theirs.config.vocab_size
    assert start.description.vocabulary == rows + (family == "openai-gpt")
    tokens, mask = batch_of(rows)
    if family in ROBERTAS:
        tokens = torch.where(mask, tokens, 1)

    with torch.no_grad():
        expected = theirs(
            input_ids=tokens, attention_mask=mask.long(), output_hidden_states=True
        ).hidden_states
        states = ours.backbone(tokens, mask)

    assert len(states) == len(expected) == 4
    for state, other in zip(states, expected, strict=True):
        assert other[mask].std() > 0.1
        torch.testing.assert_close(state[mask], other[mask], atol=1e-5, rtol=0)
    assert not report.new

    (tmp_path / "second").mkdir()
    written = write_folder(exportable_model(tmp_path / "first"), tmp_path / "second", family)

    assert written.left_out == ()
    one, other = (open_folder(tmp_path / name, "run") for name in ("first", "second"))
    assert one.description.shape == other.description.shape
    before, after = one.tensors(), other.tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with warnings.catch_warnings(action="ignore"):
        auto = getattr(reference(), f"AutoModelFor{kind}")
        again, told = auto.from_pretrained(tmp_path / "second", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    with torch.no_grad():
        logits = [model(tokens, attention_mask=mask.long()).logits for model in (again, theirs)]
    ours_of_theirs = logits[0][..., :rows]
    torch.testing.assert_close(ours_of_theirs[mask], logits[1][mask], atol=1e-5, rtol=0)
    if family != "modernbert":  # whose tokenizer they make of a tokenizer.json alone
        old, new = (
            reference().AutoTokenizer.from_pretrained(tmp_path / name)
            for name in ("first", "second")
        )
        for text in HARD_TEXT:
            assert (
                old(text, add_special_tokens=False)["input_ids"]
                == new(text, add_special_tokens=False)["input_ids"]
            )


@pytest.mark.parametrize(
    ("family", "old", "rotary", "has_window"),
    [
        ("llama", {"rope_theta": 1e6}, Rotary(1e6), [False] * 3),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0},
                   "rope_parameters": {"rope_type": "default", "rope_theta": 1e3}},
         Rotary(scaling=RotaryScaling("linear", 2.0)), [False] * 3),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
         Rotary(), [False, True, False]),
        ("llama", {"rope_theta": 5e5, "rope_scaling": OLD_LLAMA3},
         Rotary(5e5, scaling=RotaryScaling("llama3", 8.0, 20, 1.0, 4.0)), [False] * 3),
        ("gemma3_text", OLD_GEMMA3,
         Rotary(1e6, scaling=RotaryScaling("linear", 8.0), local_base=1e4), [True, False, True]),
        ("modernbert", OLD_MODERNBERT, Rotary(160_000.0, local_base=1e4), [False, True, False]),
        ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 1e3}, Rotary(1e3, 0.5), [False] * 3),
        ("gpt_neox", {}, Rotary(1e4, 0.25), [False] * 3),
    ],
)  # fmt: skip
def test_configs_from_before_2026_are_read(tmp_path, family, old, rotary, has_window):
    publish(tmp_path, family)
    settings = PublishedConfig.read(tmp_path)
    new = ("rope_parameters", "layer_types")
    values = {key: value for key, value in settings.values.items() if key not in new}

    shape = families()[family].shape(PublishedConfig({**values, **old}, settings.path))

    assert (shape.rotary, shape.has_window) == (rotary, has_window)


def test_both_names_of_the_output_of_gpt_neox_are_read(tmp_path):
    publish(tmp_path, "gpt_neox", "CausalLM")
    new = dict(open_folder(tmp_path, "init_from").tensors())
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    tensors["gpt_neox.layers.0.attention.masked_bias"] = torch.zeros(())
    save_file(tensors, path)

    start = open_folder(tmp_path, "init_from")

    assert start.dropped == ("gpt_neox.layers.0.attention.masked_bias",)
    assert start.tensors().keys() == new.keys()
    assert torch.equal(start.tensors()["heads.lm.weight"], new["heads.lm.weight"])


def test_an_output_layer_that_is_not_the_table_counts_whatever_the_config_says(tmp_path):
    publish(tmp_path, "gpt2", "LMHeadModel", tie_word_embeddings=True)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for turned in ((), (0,)):
        output = tensors["transformer.wte.weight"].flip(turned)
        save_file({**tensors, "lm_head.weight": output}, path)
        start = open_folder(tmp_path, "init_from")
        assert start.description.shape.tie_output != bool(turned)
    assert torch.equal(start.tensors()["heads.lm.weight"], output)


def test_tokens_of_sentence_pieces_are_those_of_the_reference(tmp_path):
    sentence_pieces(tmp_path)
    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)

    ours = read_tokenizer(tmp_path)

    assert ours.pieces([ours.cls, ours.sep, ours.pad, ours.unk]) == ["<s>", "</s>", "</s>", "<unk>"]
    for text in HARD_TEXT:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text
    save_tokenizer(ours, tmp_path / "saved.json")
    assert load_tokenizer(tmp_path / "saved.json").encode("the W") == ours.encode("the W")
    layout = PromptLayout(ours, has_lines=False, before_text=ours.before_text)
    assert layout.encode("the W") == theirs("the W")["input_ids"]
    assert layout.encode("") == []


def test_the_token_before_a_text_is_found_in_a_chain(tmp_path):
    sentence_pieces(tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    bytes_first = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    chain = {"type": "Sequence", "processors": [bytes_first, data["post_processor"]]}
    path.write_text(json.dumps(data | {"post_processor": chain}))

    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.before_text == tokenizer.cls


def test_a_classifier_with_a_bias_is_refused_before_anything_is_written(tmp_path):
    publish(tmp_path, "llama")
    classifier = Classification("cls_last", pooler=False)
    given = exportable_model(tmp_path, SEQUENCE_CLASSIFICATION)
    given = replace(given, classifier=classifier, labels=("a", "b"))
    sizes = {"weight": (2, 16), "bias": (2,)}
    linear = {f"heads.class.linear.{name}": torch.zeros(size) for name, size in sizes.items()}

    with pytest.raises(CheckpointError, match="a classifier with a bias, which has no place"):
        target_of(replace(given, tensors={**given.tensors, **linear}), "llama")
