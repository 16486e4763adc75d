"""`transfer export format=gguf`: what llama.cpp reads, read again tensor by tensor."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.functional.conftest import LOOP, TINY, finished
from tests.published import publish
from transfer_cli.assembly.init_from import open_pretrained

gguf = pytest.importorskip("gguf", reason="the extra `gguf` is not installed")

MODELS = {
    "gpt2": ("model.output_bias=false",),
    "qwen3": ("model=modern", "model.query_key_norm=true", "model.key_value_heads=1"),
    "llama": ("model=modern", "model.query_key_norm=false", "model.key_value_heads=1"),
}
"""Own models, by the family that each is."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a run of each family on the embedded sample."""
    folder = tmp_path_factory.mktemp("causal")
    for name, words in MODELS.items():
        size = [word for word in TINY if "=modern" not in " ".join(words) or word[:7] != "model=t"]
        finished(
            "pretrain", "data=sample_text", "data.length=32", *size, *LOOP, "loop.steps=2", *words,
            "tokenizer=bpe", "objective=clm", f"run.dir={folder / name}",
        )  # fmt: skip
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_a_file_holds_the_model_and_its_tokenizer(family, models, transfer):
    ended = transfer("export", f"run={models / family}", "to=out", "format=gguf").ok()

    assert "llama.cpp" in ended.out
    assert [file.name for file in Path("out").iterdir()] == ["model.gguf"]
    reader, start = gguf.GGUFReader("out/model.gguf"), open_pretrained(str(models / family))
    there, ours = {each.name: each.data for each in reader.tensors}, start.tensors()
    values = {key: reader.fields[key].contents() for key in reader.fields}
    shape = start.description.shape
    assert values["general.architecture"] == family
    assert values[f"{family}.embedding_length"] == shape.width
    assert values[f"{family}.attention.head_count_kv"] == shape.shared_heads
    assert values["tokenizer.ggml.pre"] == "gpt-2"
    assert values["tokenizer.ggml.tokens"] == start.tokenizer.pieces(range(start.tokenizer.size))
    np.testing.assert_array_equal(
        there["token_embd.weight"], ours["backbone.token_embedding.weight"]
    )
    packed = ours["backbone.blocks.0.attention.packed.weight"]
    if family == "gpt2":
        np.testing.assert_array_equal(there["blk.0.attn_qkv.weight"], packed)
        return
    query = packed[: shape.heads * shape.head_size]
    if family == "llama":  # pairs that turn together are neighbours there
        halves = query.view(shape.heads, 2, -1, shape.width)
        query = torch.stack([halves[:, 0], halves[:, 1]], 2).flatten(0, 2)
    np.testing.assert_array_equal(there["blk.0.attn_q.weight"], query)


@pytest.mark.parametrize(
    ("family", "parts"), [("bert", ("format", "causal")), ("gpt_neox", ("format", "GPT-NeoX"))]
)
def test_what_llama_cpp_would_not_read_is_refused(family, parts, transfer, tmp_path):
    publish(tmp_path / "model", family, "CausalLM" if family == "gpt_neox" else "MaskedLM")

    transfer("export", "run=model", "to=out", "format=gguf").refusal(*parts)

    assert not Path("out").exists()
