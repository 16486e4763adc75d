"""Llama, its relatives and ModernBERT, against the reference implementation, in both directions."""

import json
import warnings
from dataclasses import replace

import pytest
import torch

from tests.published import HARD_TEXT, LLAMAS, publish, reference, sentence_pieces
from tests.unit.interop.test_import import batch_of, opened
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import CheckpointError
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.interop.families import families
from transfer_cli.interop.family import LANGUAGE_MODEL, SEQUENCE_CLASSIFICATION
from transfer_cli.interop.llama import Llama
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.published_folder import open_folder
from transfer_cli.interop.saving import Ours, write_folder
from transfer_cli.interop.targets import target_of
from transfer_cli.interop.vocabulary import begins_with, read_tokenizer
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.positions import Rotary, RotaryScaling
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
    "all local": {"layer_types": ["sliding_attention"] * 3},
    "all global": {"sliding_window": None},
    "scaled": {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
        }
    },
    "other order": {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "untied": {"tie_word_embeddings": False, "decoder_bias": False},
}
CASES = [(family, "plain") for family in (*LLAMAS[1:], "modernbert")]
CASES += [("llama", name) for name in ("plain", "tied", "wide heads", "linear", "llama3")]
CASES += [("gemma3_text", name) for name in ("wide heads", "all local", "scaled")]
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
SIZES = {
    "SmolLM2-135M": ((576, 30, 9, 3, 1536, 49_152), 134_515_008),
    "SmolLM2-360M": ((960, 32, 15, 5, 2560, 49_152), 361_821_120),
    "Llama-3.2-1B": ((2048, 16, 32, 8, 8192, 128_256), 1_235_814_400),
}


def ours_of(folder, head=LANGUAGE_MODEL):
    found = open_folder(folder, "run")
    return Ours(
        found.description.shape, found.tensors(), found.tokenizer, head, None, "published", 40
    )


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_states_and_tensors_are_those_of_the_reference_there_and_back(tmp_path, family, variant):
    kind = "MaskedLM" if family == "modernbert" else "CausalLM"
    theirs = publish(tmp_path / "first", family, kind, **VARIANTS[variant])
    start, ours, report = opened(tmp_path / "first")
    tokens, mask = batch_of(start.description.vocabulary)

    with torch.no_grad():
        expected = theirs(
            input_ids=tokens, attention_mask=mask.long(), output_hidden_states=True
        ).hidden_states
        states = ours.backbone(tokens, mask)

    assert len(states) == len(expected) == 4
    for own, other in zip(states, expected, strict=True):
        assert other[mask].std() > 0.1
        torch.testing.assert_close(own[mask], other[mask], atol=1e-5, rtol=0)
    assert not report.new

    (tmp_path / "second").mkdir()
    written = write_folder(ours_of(tmp_path / "first"), tmp_path / "second", family)

    assert written.left_out == ()
    one, other = (open_folder(tmp_path / name, "run") for name in ("first", "second"))
    assert one.description.shape == other.description.shape
    before, after = one.tensors(), other.tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        auto = getattr(reference(), f"AutoModelFor{kind}")
        again, told = auto.from_pretrained(tmp_path / "second", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, theirs(tokens).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("old", "rotary"),
    [
        ({"rope_theta": 1e6}, Rotary(1e6)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}},
         Rotary(scaling=RotaryScaling("linear", 2.0))),
        ({"rope_theta": 5e5, "rope_scaling": OLD_LLAMA3},
         Rotary(5e5, scaling=RotaryScaling("llama3", 8.0, 20, 1.0, 4.0))),
    ],
)  # fmt: skip
def test_configs_from_before_2026_are_read(tmp_path, old, rotary):
    publish(tmp_path, "llama")
    settings = PublishedConfig.read(tmp_path)
    values = {key: value for key, value in settings.values.items() if key != "rope_parameters"}

    shape = Llama().shape(PublishedConfig({**values, **old}, settings.path))

    assert shape.rotary == rotary


@pytest.mark.parametrize(
    ("family", "old", "rotary", "has_window"),
    [
        ("gemma3_text", OLD_GEMMA3,
         Rotary(1e6, scaling=RotaryScaling("linear", 8.0), local_base=1e4), [True, False, True]),
        ("modernbert", OLD_MODERNBERT, Rotary(160_000.0, local_base=1e4), [False, True, False]),
    ],
)  # fmt: skip
def test_older_configs_with_two_kinds_of_blocks_are_read(tmp_path, family, old, rotary, has_window):
    publish(tmp_path, family)
    settings = PublishedConfig.read(tmp_path)
    new = ("rope_parameters", "layer_types")
    values = {key: value for key, value in settings.values.items() if key not in new}

    shape = families()[family].shape(PublishedConfig({**values, **old}, settings.path))

    assert (shape.rotary, shape.has_window) == (rotary, has_window)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
         "rope_type is 'yarn', expected one of default, linear, llama3"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "has no factor"),
        ("llama", {"rope_scaling": "linear", "rope_parameters": None}, "expected a mapping"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1.0"),
        ("llama", {"attention_bias": True}, "attention_bias is True, expected False"),
        ("llama", {"num_key_value_heads": 3}, r"key_value_heads \(3\) must divide heads \(4\)"),
        ("gemma3_text", {"query_pre_attn_scalar": 9}, "query_pre_attn_scalar is 9, expected 4"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("gemma3_text", {"layer_types": ["full_attention"]}, "layer_types is .* a list of 3 times"),
        ("modernbert", {"norm_bias": True}, "norm_bias is True, expected False"),
        ("modernbert", {"layer_types": ["full_attention"] * 2 + ["sliding_attention"]},
         "layer_types is .* expected full_attention at equal distances"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window is True, expected False"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_by_its_key(tmp_path, family, changes, message):
    publish(tmp_path, family)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    with pytest.raises(CheckpointError, match=message):
        open_folder(tmp_path, "init_from")


@pytest.mark.parametrize("name", SIZES)
def test_published_configs_give_published_sizes(name):
    (*sizes, vocabulary), parameters = SIZES[name]
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "intermediate_size", "max_position_embeddings")  # fmt: skip
    config = dict(zip(keys, (*sizes, 8192), strict=True))
    shape = Llama().shape(PublishedConfig(config, "config.json"))

    with without_weights():
        backbone = Backbone(shape, vocabulary)

    assert sum(each.numel() for each in backbone.parameters()) == parameters


def test_tokens_of_sentence_pieces_are_those_of_the_reference(tmp_path):
    sentence_pieces(tmp_path)
    theirs = reference().AutoTokenizer.from_pretrained(tmp_path)

    ours = read_tokenizer(tmp_path)

    assert ours.pieces([ours.cls, ours.sep, ours.pad, ours.unk]) == ["<s>", "</s>", "</s>", "<unk>"]
    for text in HARD_TEXT:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], text
    ours.save(tmp_path / "saved.json")
    assert Tokenizer.load(tmp_path / "saved.json").encode("the W") == ours.encode("the W")
    assert begins_with(tmp_path) == "<s>"
    layout = PromptLayout(ours, has_lines=False, before_text=ours.cls)
    assert layout.encode("the W") == theirs("the W")["input_ids"]
    assert layout.encode("") == []


def test_the_token_before_a_text_is_found_in_a_chain(tmp_path):
    sentence_pieces(tmp_path)
    path = tmp_path / "tokenizer.json"
    data = json.loads(path.read_text())
    bytes_first = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    chain = {"type": "Sequence", "processors": [bytes_first, data["post_processor"]]}
    path.write_text(json.dumps(data | {"post_processor": chain}))

    assert begins_with(tmp_path) == "<s>"


def test_a_classifier_with_a_bias_is_refused_before_anything_is_written(tmp_path):
    publish(tmp_path, "llama")
    given = ours_of(tmp_path, None)
    tensors = {
        **given.tensors,
        "heads.class.linear.weight": torch.zeros(2, 16),
        "heads.class.linear.bias": torch.zeros(2),
    }
    classifier = Classification("cls_last", pooler=False)

    with pytest.raises(CheckpointError, match="a classifier with a bias, which has no place"):
        target_of(
            replace(given, tensors=tensors, head=SEQUENCE_CLASSIFICATION, classifier=classifier,
                    labels=("a", "b")),
            "llama",
        )  # fmt: skip


def test_parts_in_half_precision_give_the_same_numbers(tmp_path):
    model = publish(tmp_path, "llama", "CausalLM").to(torch.bfloat16)
    whole = {name: tensor.float() for name, tensor in model.state_dict().items()}
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    found = open_folder(tmp_path, "init_from")

    tensors = found.tensors()

    for rule in found.rules:
        assert torch.equal(
            tensors[rule.ours], rule.conversion.take([whole[n] for n in rule.theirs])
        )
    assert tensors["backbone.final_norm.weight"].dtype == torch.float32
