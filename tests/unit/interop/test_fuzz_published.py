"""A stranger's published folder, with odd values in its JSON files, is read or refused."""

import json

import pytest

from tests.fuzzing import read_with_odd_values
from tests.published import publish
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.interop.vocabulary import read_tokenizer

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
