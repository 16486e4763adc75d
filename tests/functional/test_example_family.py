"""The family of published models in `docs/example`: what a plugin alone adds to `init_from=`."""

import importlib
import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from tests.functional.conftest import LOOP
from tests.published import byte_pairs
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.errors import ConfigError
from transfer_cli.interop.decoders import Gpt2
from transfer_cli.interop.families import families, register_family
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import load_pretrained

pytestmark = pytest.mark.usefixtures("mylab")

PLUGIN = ("--plugin", "mylab")
WIDTH, HEADS, DEPTH, INNER, POSITIONS = 16, 4, 2, 24, 40


@pytest.fixture
def published(tmp_path):
    """Return a folder in the format of the plugin's family, and its tensors."""
    folder = tmp_path / "given"
    folder.mkdir()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    size = byte_pairs(folder, names, "GPT2Tokenizer")
    config = {
        "model_type": "mylab_lm", "architectures": ["MylabForCausalLM"], "vocab_size": size,
        "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": DEPTH,
        "ffn_dim": INNER, "max_position_embeddings": POSITIONS,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tensors = random_tensors(size)
    save_file(tensors, folder / "model.safetensors")
    return folder, tensors


def random_tensors(vocabulary):
    shapes = {"embed_tokens.weight": (vocabulary, WIDTH), "embed_positions.weight": (40, WIDTH)}
    shapes |= {"final_layer_norm.weight": (WIDTH,), "final_layer_norm.bias": (WIDTH,)}
    for n in range(DEPTH):
        layers = {f"self_attn.{part}_proj": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")}
        layers |= {"fc1": (INNER, WIDTH), "fc2": (WIDTH, INNER)}
        for name, shape in layers.items():
            shapes |= {f"layers.{n}.{name}.weight": shape, f"layers.{n}.{name}.bias": shape[:1]}
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            shapes |= {f"layers.{n}.{name}.{kind}": (WIDTH,) for kind in ("weight", "bias")}
    torch.manual_seed(3)
    return {f"model.decoder.{name}": torch.randn(shape) * 0.3 for name, shape in shapes.items()}


def states(tensors, tokens):
    """Return the last hidden states of `tokens` `[B, T]`, from the tensors alone."""

    def linear(name, x):
        return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def norm(name, x):
        return F.layer_norm(x, (WIDTH,), tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    stem, length = "model.decoder", tokens.shape[1]
    x = tensors[f"{stem}.embed_tokens.weight"][tokens]
    x = x + tensors[f"{stem}.embed_positions.weight"][:length]
    for n in range(DEPTH):
        block = f"{stem}.layers.{n}"
        seen = norm(f"{block}.self_attn_layer_norm", x)
        q, k, v = (
            linear(f"{block}.self_attn.{part}_proj", seen)
            .unflatten(-1, (HEADS, WIDTH // HEADS))
            .transpose(1, 2)
            for part in ("q", "k", "v")
        )
        score = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        later = torch.ones(length, length).triu(1).bool()
        read = score.masked_fill(later, -torch.inf).softmax(-1) @ v
        x = x + linear(f"{block}.self_attn.out_proj", read.transpose(1, 2).flatten(2))
        inner = F.gelu(linear(f"{block}.fc1", norm(f"{block}.final_layer_norm", x)))
        x = x + linear(f"{block}.fc2", inner)
    return norm(f"{stem}.final_layer_norm", x)


def our_states(folder, tokens):
    start = open_pretrained(str(folder))
    model = TransferModel(Backbone(start.description.shape, start.description.vocabulary), {})
    assert not load_pretrained(model, start.tensors(), folder).new
    with torch.no_grad():
        return model.eval().backbone(tokens, torch.ones_like(tokens).bool())[-1]


def test_a_model_of_the_plugins_family_has_the_states_of_its_tensors(published):
    importlib.import_module("mylab")  # registers the family

    folder, tensors = published
    tokens = torch.arange(5, 35).view(2, 15)

    ours, expected = our_states(folder, tokens), states(tensors, tokens)

    assert expected.std() > 0.1
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_a_run_on_it_is_exported_as_its_family_and_as_causal(transfer, published, corpus, tmp_path):
    _, tensors = published
    words = ("objective=clm", "data=text", f"data.train={corpus}", "data.length=16", *LOOP)

    transfer("pretrain", *PLUGIN, "init_from=given", *words, "loop.steps=2", "run.dir=run").ok()
    ended = transfer("export", *PLUGIN, "run=run", "to=out", "family=mylab_lm").ok()

    assert "MylabForCausalLM" in ended.out
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == tensors.keys()
    assert any(not torch.equal(written[name], tensors[name]) for name in tensors)
    run, out = open_pretrained("run"), open_pretrained("out")
    assert out.description.objective["_target_"].endswith("CausalLM")
    before, again = run.tensors(), out.tensors()
    assert again.keys() == before.keys()
    assert all(torch.equal(before[name], again[name]) for name in before)
    tokens = torch.arange(5, 35).view(2, 15)
    torch.testing.assert_close(
        our_states(tmp_path / "out", tokens), states(written, tokens), atol=1e-5, rtol=0
    )


def test_a_published_folder_is_written_again_as_what_it_is(transfer, published, tmp_path):
    folder, tensors = published

    transfer("export", *PLUGIN, f"run={folder}", "to=out").ok()

    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(torch.equal(written[name], tensors[name]) for name in tensors)


def test_a_classifier_of_the_family_gives_up_its_bias(transfer, published, questions, tmp_path):
    words = ("data=table", f"data.train={questions}", *LOOP, "loop.steps=2", "run.dir=run")

    transfer("finetune", *PLUGIN, "init_from=given", *words).ok()
    transfer("export", *PLUGIN, "run=run", "to=out", "family=mylab_lm").ok()

    written = load_file(tmp_path / "out" / "model.safetensors")
    assert "score.weight" in written
    assert "score.bias" not in written
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["MylabForSequenceClassification"]


def test_a_block_too_many_is_refused(transfer, published, questions):
    folder, tensors = published
    surplus = {
        name.replace("layers.1.", "layers.2."): tensor.clone()
        for name, tensor in tensors.items()
        if ".layers.1." in name
    }
    save_file(tensors | surplus, folder / "model.safetensors")

    words = ("init_from=given", "data=table", f"data.train={questions}", "run.dir=run")

    refused = transfer("finetune", *PLUGIN, *words)

    refused.refusal("num_hidden_layers=2, and the weights hold model.decoder.layers.2.")


def test_without_the_plugin_the_family_is_unknown(transfer, published, questions):
    planned = ("plan", "finetune", "init_from=given", "data=table", f"data.train={questions}")

    transfer(*planned).refusal("'mylab_lm' (model_type in config.json), which is not read")
    transfer("export", "run=given", "to=out", "family=mylab_lm").refusal()


def test_a_family_that_is_there_is_not_replaced():
    class Other(Gpt2):
        pass

    with pytest.raises(ConfigError, match=r"'gpt2' is that of .*decoders\.Gpt2"):
        register_family(Other)
    assert type(families()["gpt2"]) is Gpt2
    register_family(Gpt2)  # the same class, once more
