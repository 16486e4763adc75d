"""The sizes of published models: their tensors are those that we read, by name and shape."""

import json
import warnings

import pytest
import torch

from tests.fuzzing import read_with_odd_values
from tests.published import LLAMAS, config_of, publish, reference
from tests.unit.interop.test_todays_families import exportable_model
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.interop.families import families
from transfer_cli.interop.family import LANGUAGE_MODEL
from transfer_cli.interop.published_config import PublishedConfig
from transfer_cli.interop.published_folder import open_folder
from transfer_cli.interop.rules import with_prefix
from transfer_cli.interop.saving import write_folder
from transfer_cli.interop.vocabulary import read_tokenizer
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import LanguageModelHead, Pooler
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.transfer_model import TransferModel

_KEYS = {
    "distilbert": ("dim", "n_layers", "n_heads", "hidden_dim", "max_position_embeddings"),
    **dict.fromkeys(
        ("gpt2", "openai-gpt"), ("n_embd", "n_layer", "n_head", "n_inner", "n_positions")
    ),
}
_USUAL = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
_TIED = {"tie_word_embeddings": True}


def _gemma(shared, width, window, scale=256):
    return {"num_key_value_heads": shared, "head_dim": width, "sliding_window": window,
            "query_pre_attn_scalar": scale}  # fmt: skip


def _shared(heads, **others):
    return {"num_key_value_heads": heads, "tie_word_embeddings": False, **others}


def _narrow(width):
    return {"embedding_size": width}


SIZES = {
    "bert": {
        "MiniLM-L6": ((384, 6, 12, 1536, 512), 30_522, {}),
        "base": ((768, 12, 12, 3072, 512), 30_522, {}),
    },
    "distilbert": {
        "base": ((768, 6, 12, 3072, 512), 30_522, {}),
    },
    "roberta": {
        "base": ((768, 12, 12, 3072, 514), 50_265, {"type_vocab_size": 1}),
        "BERTweet": ((768, 12, 12, 3072, 130), 64_001, {"type_vocab_size": 1}),
    },
    "xlm-roberta": {
        "base": ((768, 12, 12, 3072, 514), 250_002, {"type_vocab_size": 1}),
    },
    "electra": {
        "small": ((256, 12, 4, 1024, 512), 30_522, _narrow(128)),
        "base": ((768, 12, 12, 3072, 512), 30_522, _narrow(768)),
        "generator of base": ((256, 12, 4, 1024, 512), 30_522, _narrow(768)),
    },
    "albert": {
        "base": ((768, 12, 12, 3072, 512), 30_000, _narrow(128)),
        "xxlarge": ((4096, 12, 64, 16_384, 512), 30_000, _narrow(128)),
    },
    "mpnet": {
        "base": ((768, 12, 12, 3072, 514), 30_527, {}),
    },
    "modernbert": {
        "base": ((768, 22, 12, 1152, 8192), 50_368, {"local_attention": 128}),
        "large": ((1024, 28, 16, 2624, 8192), 50_368, {"local_attention": 128}),
        "Ettin 17m": ((256, 7, 4, 384, 7999), 50_368, {"local_attention": 128}),
    },
    "openai-gpt": {
        "first": ((768, 12, 12, 3072, 512), 40_478, {}),
    },
    "gpt2": {
        "small": ((768, 12, 12, None, 1024), 50_257, {}),
        "Cerebras 111M": ((768, 10, 12, 3072, 2048), 50_257, {"activation_function": "gelu"}),
    },
    "gpt_neox": {
        "Pythia 14m": ((128, 6, 4, 512, 2048), 50_304, {}),
        "Pythia 160m": ((768, 12, 12, 3072, 2048), 50_304, {}),
        "20b": ((6144, 44, 64, 24_576, 2048), 50_432, {}),
    },
    "llama": {
        "SmolLM2-135M": ((576, 30, 9, 1536, 8192), 49_152, _shared(3, **_TIED)),
        "TinyLlama": ((2048, 22, 32, 5632, 2048), 32_000, _shared(4)),
        "Llama 2 7B": ((4096, 32, 32, 11_008, 4096), 32_000, _shared(32)),
        "Llama 3.2 1B": ((2048, 16, 32, 8192, 131_072), 128_256, _shared(8, **_TIED)),
    },
    "mistral": {
        "7B v0.1": ((4096, 32, 32, 14_336, 32_768), 32_000, _shared(8, sliding_window=4096)),
        "7B v0.2": ((4096, 32, 32, 14_336, 32_768), 32_000, _shared(8, sliding_window=None)),
        "Nemo": ((5120, 40, 32, 14_336, 1_024_000), 131_072,
                 _shared(8, head_dim=128, sliding_window=None)),
        "Small 24B": ((5120, 40, 32, 32_768, 32_768), 131_072,
                      _shared(8, head_dim=128, sliding_window=None)),
    },
    "qwen2": {
        "0.5B": ((896, 24, 14, 4864, 32_768), 151_936, _shared(2, **_TIED)),
        "7B": ((3584, 28, 28, 18_944, 131_072), 152_064, _shared(4)),
    },
    "qwen3": {
        "0.6B": ((1024, 28, 16, 3072, 40_960), 151_936, _shared(8, head_dim=128, **_TIED)),
        "8B": ((4096, 36, 32, 12_288, 40_960), 151_936, _shared(8, head_dim=128)),
    },
    "gemma3_text": {
        "270m": ((640, 18, 4, 2048, 32_768), 262_144, _gemma(1, 256, 512)),
        "27b": ((5376, 62, 32, 21_504, 131_072), 262_208, _gemma(16, 128, 1024, 168)),
    },
}  # fmt: skip
"""By family and model: sizes in the order of `_USUAL`, rows of tokens, other keys of the config."""

PARAMETERS = {
    ("llama", "SmolLM2-135M"): 134_515_008, ("llama", "TinyLlama"): 1_100_048_384,
    ("llama", "Llama 3.2 1B"): 1_235_814_400, ("qwen2", "0.5B"): 494_032_768,
    ("qwen3", "0.6B"): 596_049_920, ("gemma3_text", "270m"): 268_098_176,
    ("gpt_neox", "Pythia 14m"): 14_067_712, ("gpt_neox", "Pythia 160m"): 162_322_944,
    ("modernbert", "base"): 149_014_272, ("modernbert", "large"): 394_781_696,
    ("albert", "base"): 11_683_584, ("albert", "xxlarge"): 222_595_584,
    ("openai-gpt", "first"): 116_534_784,
    ("mpnet", "base"): 109_486_464, ("xlm-roberta", "base"): 278_043_648,
}  # fmt: skip
"""What is said of them, poolers and outputs of their own included."""

CASES = [(family, name) for family, models in SIZES.items() for name in models]


def test_each_family_is_in_the_table():
    known = {name: family.fixed["direction"] for name, family in families().items()}
    assert SIZES.keys() == {n for n in known if n != "mylab_lm" and known[n] != "encoder_decoder"}


def config_with(kind, name, most_blocks):
    """Return the reference's config of a published model, and how many rows of tokens it has."""
    sizes, rows, others = SIZES[kind][name]
    names = _KEYS.get(kind, _USUAL)
    keys = {**dict(zip(names, sizes, strict=True)), names[1]: min(sizes[1], most_blocks)}
    if kind in LLAMAS:
        others = {"head_dim": sizes[0] // sizes[2], **others}
    if kind in ("gemma3_text", "modernbert"):
        others = {"sliding_window_pattern": 6, "global_attn_every_n_layers": 3, **others}
    return config_of(kind, rows, **keys, **others), rows


@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_published_configs_give_published_numbers_of_parameters(kind, name):
    config, rows = config_with(kind, name, 100)
    family = families()[kind]
    shape = family.shape(PublishedConfig(config.to_dict(), "config.json"))

    with without_weights():
        parts = [Backbone(shape, rows)]
        if family.bare_pooler:
            parts.append(Pooler(shape, family.pooler_activation))
        if not shape.tie_output:
            parts.append(LanguageModelHead(shape, rows))

    unread = getattr(family, "first_position", 0) * shape.width  # rows for no position
    total = sum(weight.numel() for part in parts for weight in part.parameters()) + unread
    assert total == PARAMETERS[kind, name]
    assert sum(weight.numel() for weight in parts[0].parameters()) * 4 > shape.matrix_bytes(rows)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_the_tensors_of_published_sizes_are_those_of_the_reference(kind, name):
    """Blocks are alike, so that seven of them hold each kind."""
    config, rows = config_with(kind, name, 7)
    family = families()[kind]

    settings = PublishedConfig(config.to_dict(), "config.json")
    shape = family.shape(settings)
    with without_weights():
        model = TransferModel(Backbone(shape, rows), {"lm": LanguageModelHead(shape, rows)})
        ours = model.state_dict()
        rules = with_prefix(family.import_rules(settings, shape), f"{family.prefix}.")
        rules = [*rules, *family.heads(shape)[LANGUAGE_MODEL].rules]
        expected = {}
        for rule in rules:
            parts = rule.conversion.to_theirs(ours[rule.ours], len(rule.theirs))
            expected |= {name: part.shape for name, part in zip(rule.theirs, parts, strict=True)}
    for head in family.heads(shape).values():
        assert [n for n, f in families().items() if f.has_class(head.architecture)] == [kind]
    lib = reference()
    is_causal = family.is_causal
    auto = lib.AutoModelForCausalLM if is_causal else lib.AutoModelForMaskedLM
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        theirs = auto.from_config(config).state_dict()
    for name, other in family.synonyms.items():
        theirs = {key.replace(name, other): tensor for key, tensor in theirs.items()}

    shapes = {name: expected.get(name) for name in theirs if name in expected}
    assert shapes == {name: theirs[name].shape for name in shapes}
    missing = {name for name in theirs if name not in expected}
    assert expected.keys() <= theirs.keys()
    assert all(name.endswith(("decoder.weight", "decoder.bias", "lm_head.weight", "position_ids",
                              "token_type_embeddings.weight", "projector.weight"))
               for name in missing), missing  # fmt: skip


@pytest.mark.parametrize(
    ("family", "unused"),
    [("qwen2", 399), ("gpt_neox", 411), ("gpt_neox", 155), ("bert", 35), ("llama", 234),
     ("qwen3", 267)],
)  # fmt: skip
def test_rows_past_the_tokenizer_are_dropped_whatever_their_number(tmp_path, family, unused):
    publish(tmp_path / "first", family)
    tokens = open_folder(tmp_path / "first", "init_from").tokenizer.size
    theirs = publish(tmp_path / "padded", family, vocab_size=tokens + unused)

    start = open_folder(tmp_path / "padded", "init_from")

    table = start.tensors()["backbone.token_embedding.weight"]
    assert torch.equal(table, theirs.get_input_embeddings().weight[:tokens])
    assert start.description.vocabulary == tokens


def test_a_padded_model_is_written_with_as_many_rows_as_there_are_tokens(tmp_path):
    theirs = publish(tmp_path / "padded", "qwen2", "CausalLM", vocab_size=433)
    tokens = torch.arange(20)[None]
    (tmp_path / "written").mkdir()

    write_folder(exportable_model(tmp_path / "padded"), tmp_path / "written")

    again = reference().AutoModelForCausalLM.from_pretrained(tmp_path / "written")
    with torch.no_grad():
        logits, expected = again(tokens).logits, theirs(tokens).logits
    torch.testing.assert_close(logits, expected[..., : logits.shape[-1]], atol=1e-5, rtol=0)
    assert logits.shape[-1] == len(reference().AutoTokenizer.from_pretrained(tmp_path / "written"))


# --- damaged folders -----------------------------------------------------------------------------


KINDS = {
    "bert": "SequenceClassification", "roberta": "MaskedLM", "gpt2": "LMHeadModel",
    "gemma3_text": "CausalLM", "mistral": "CausalLM", "gpt_neox": "CausalLM", "albert": "MaskedLM",
    "modernbert": "MaskedLM", "xlm-roberta": "MaskedLM",
}  # fmt: skip


def with_all_files(folder, family):
    """Publish a model with all the JSON files that such a folder may have."""
    model = publish(folder, family, KINDS[family], vocab_size=400)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    described = {"content": "<new>", "special": False, "normalized": True, "lstrip": True}
    options = json.loads((folder / "tokenizer_config.json").read_text())
    vocabulary = read_tokenizer(folder).size
    given = {
        "tokenizer_config.json": {
            **options, "model_max_length": 40, "added_tokens_decoder": {str(vocabulary): described},
        },
        "special_tokens_map.json": {"additional_special_tokens": ["<new>"], "pad_token": "[PAD]"},
        "added_tokens.json": {"<new>": vocabulary},
        "generation_config.json": {"do_sample": True, "temperature": 0.5, "eos_token_id": 1},
    }  # fmt: skip
    for name, content in given.items():
        (folder / name).write_text(json.dumps(content))


def read(folder):
    start = open_pretrained(str(folder))
    assert all(len(tensor.shape) < 5 for tensor in start.tensors().values())
    rows = start.tokenizer.encode_batch(["a <new> text [MASK]", "", "Ünï ﬁ 漢"])
    assert all(0 <= token < start.description.vocabulary for row in rows for token in row)


@pytest.mark.parametrize(
    ("family", "examples"),
    [("bert", 40), *(pytest.param(family, 120, marks=pytest.mark.slow) for family in KINDS)],
)
def test_fuzz_values_of_a_published_folder(tmp_path, family, examples):
    with_all_files(tmp_path, family)
    read_with_odd_values(tmp_path, lambda: read(tmp_path), examples)


def test_fuzz_values_of_an_adapter(tmp_path):
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "bert", "task_type": "SEQ_CLS"})
    )
    read_with_odd_values(tmp_path, lambda: read(tmp_path), 60)
