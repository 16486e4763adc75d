"""Published models that cannot be read, models that cannot be written: one line, exit code 2."""

import json
import math
import os
import resource
import sys
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.functional.conftest import LOOP
from tests.published import FAMILIES, publish

pytestmark = pytest.mark.functional


@pytest.fixture
def refused(transfer, tmp_path, questions):
    """Return how to start from a folder that is refused; checks the form and gives the line."""

    def call(folder="given", *words):
        words = words or ("data=table", f"data.train={questions}", *LOOP, "run.dir=run")
        ended = transfer("finetune", f"init_from={folder}", *words)
        lines = ended.err.splitlines()
        assert ended.code == 2, ended.err
        assert len(lines) == 1, ended.err
        assert lines[0].startswith("transfer finetune: ")
        assert not (tmp_path / "run").exists()
        return lines[0]

    return call


def change_config(folder, **values):
    path = folder / "config.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (found | values).items() if v != "gone"}))


@pytest.mark.parametrize("kind", ["t5", "bloom"])
def test_another_family(tmp_path, refused, kind):
    publish(tmp_path / "given", "bert")
    change_config(tmp_path / "given", model_type=kind)

    line = refused()

    assert repr(str(kind)) in line
    for name in ("BERT (bert)", "GPT-2 (gpt2)", "ELECTRA", "RoBERTa", "DistilBERT"):
        assert name in line


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"vocab_size": 999}, ("word_embeddings.weight", "999", "vocab_size=999")),
        ({"hidden_size": 32, "num_attention_heads": 4}, ("32", "hidden_size=32")),
        ({"intermediate_size": 25}, ("intermediate.dense.weight", "intermediate_size=25")),
        ({"max_position_embeddings": 64}, ("position_embeddings", "max_position_embeddings=64")),
        ({"type_vocab_size": 3}, ("token_type_embeddings", "type_vocab_size=3")),
        ({"num_hidden_layers": 4}, ("lack", "encoder.layer.3", "num_hidden_layers=4")),
        ({"num_hidden_layers": 2}, ("hold", "encoder.layer.2", "num_hidden_layers=2")),
        ({"num_attention_heads": 5}, ("heads (5) must divide width (16)",)),
        ({"num_attention_heads": "four"}, ("num_attention_heads", "'four'", "whole number")),
        ({"hidden_size": "gone"}, ("no hidden_size",)),
        ({"hidden_act": "mish"}, ("hidden_act", "'mish'", "gelu")),
        ({"position_embedding_type": "relative_key"}, ("position_embedding_type", "'absolute'")),
        ({"is_decoder": True}, ("is_decoder",)),
        ({"num_hidden_layers": 10**8}, ("depth must be at most",)),
        ({"hidden_size": 10**9}, ("width must be at most",)),
        ({"vocab_size": -1}, ("vocab_size is -1",)),
        ({"vocab_size": 2**62}, ("vocab_size is",)),
        ({"layer_norm_eps": "small"}, ("layer_norm_eps", "'small'")),
        ({"hidden_act": ["gelu"]}, ("hidden_act",)),
    ],
)
def test_a_config_that_contradicts_the_weights_or_us(tmp_path, refused, values, told):
    publish(tmp_path / "given", "bert")
    change_config(tmp_path / "given", **values)

    line = refused()

    assert "config.json" in line
    for part in told:
        assert part in line, line


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_tensor_of_the_backbone(tmp_path, refused, family):
    publish(tmp_path / "given", family)
    path = tmp_path / "given" / "model.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[len(tensors) // 2]
    del tensors[name]
    save_file(tensors, path)

    line = refused()

    assert f"lack {name}" in line


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_weights_that_are_cut_off(tmp_path, refused, keep):
    publish(tmp_path / "given", "bert")
    path = tmp_path / "given" / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])

    line = refused()

    assert "model.safetensors is damaged" in line


def test_a_tokenizer_of_more_tokens(tmp_path, refused):
    publish(tmp_path / "given", "bert")
    path = tmp_path / "given" / "vocab.txt"
    lines = path.read_text().splitlines()
    more = [f"extra{n}" for n in range(230 - len(lines))]
    path.write_text("\n".join([*lines, *more]) + "\n")

    line = refused()

    assert "the tokenizer has 230 tokens" in line
    assert f"{len(lines)} rows" in line


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "vocab.txt"])
def test_a_file_that_is_missing(tmp_path, refused, file):
    publish(tmp_path / "given", "bert")
    (tmp_path / "given" / file).unlink()

    assert "given" in refused()


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ({"weight_map": {"a": "../../outside.safetensors"}}, "not beside it"),
        ({"weight_map": {"a": "absent.safetensors"}}, "absent.safetensors, which is missing"),
        ({"weight_map": ["a"]}, "no `weight_map`"),
        ({}, "no `weight_map`"),
    ],
)
def test_a_broken_index_of_parts(tmp_path, refused, index, told):
    publish(tmp_path / "given", "bert")
    (tmp_path / "given" / "model.safetensors").unlink()
    (tmp_path / "given" / "model.safetensors.index.json").write_text(json.dumps(index))

    assert told in refused()


class RunsCode:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


def test_a_pickle_with_code_in_it_is_not_opened(tmp_path, refused):
    publish(tmp_path / "given", "bert")
    (tmp_path / "given" / "model.safetensors").unlink()
    marker = tmp_path / "marker"
    torch.save({"a": RunsCode(marker)}, tmp_path / "given" / "pytorch_model.bin")

    line = refused()

    assert "pytorch_model.bin is a pickle that holds more than tensors" in line
    assert not marker.exists()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("claim", ["stride", "storage"])
def test_weights_that_claim_more_than_their_file_holds(tmp_path, refused, claim, half):
    publish(tmp_path / "given", "bert")
    change_config(tmp_path / "given", intermediate_size=2**22)
    path = tmp_path / "given" / "model.safetensors"
    shapes = {name: tensor.shape for name, tensor in load_file(path).items()}
    path.unlink()
    kind = torch.float16 if half else torch.float32
    shared = torch.zeros(2**22 * 16 if claim == "storage" else 1, dtype=kind)
    wide = {24: 2**22}
    tensors = {}
    for name, shape in shapes.items():
        claimed = [wide.get(size, size) for size in shape]
        count = math.prod(claimed)
        tensors[name] = (
            shared[:count].view(claimed) if claim == "storage" else shared.expand(claimed)
        )
    torch.save(tensors, tmp_path / "given" / "pytorch_model.bin")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    line = refused()

    assert "its tensors would take" in line
    if claim == "stride":
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 200 * 2**10


def test_tensors_without_numbers_are_refused(tmp_path, refused):
    publish(tmp_path / "given", "bert")
    path = tmp_path / "given" / "model.safetensors"
    tensors = {name: tensor.to("meta") for name, tensor in load_file(path).items()}
    path.unlink()
    torch.save(tensors, tmp_path / "given" / "pytorch_model.bin")

    assert "something else than plain tensors" in refused()


def test_hf_without_the_client(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    line = refused("hf:owner/name")

    assert "huggingface_hub" in line
    assert "install it with pip install 'huggingface_hub>=" in line


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("LocalEntryNotFoundError", "cannot be reached"),
        ("RepositoryNotFoundError", "there is no model 'owner/name'"),
        ("GatedRepoError", "agreed to its terms"),
        ("HFValidationError", "expected hf:owner/name"),
        ("OSError", "cannot be fetched"),
        ("a kind of nobody's", "cannot be fetched"),
    ],
)
def test_hf_that_cannot_be_fetched(refused, monkeypatch, error, told):
    import huggingface_hub
    from huggingface_hub import errors

    kind = getattr(errors, error, {"OSError": OSError}.get(error, Exception))

    def fails(*words, **named):
        made = kind.__new__(kind)
        made.args = ("no",)
        raise made

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)

    assert told in refused("hf:owner/name")


def test_hf_takes_what_the_client_fetched(transfer, tmp_path, questions, monkeypatch):
    import huggingface_hub

    publish(tmp_path / "cache", "bert")
    asked = []

    def snapshot(repository, *, revision, allow_patterns):
        asked.append((repository, revision, "pytorch_model.bin" in allow_patterns))
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    words = ("data=table", f"data.train={questions}", *LOOP, "loop.steps=1", "run.dir=run")

    ended = transfer("finetune", "init_from=hf:owner/name@v2", *words)

    assert ended.code == 0, ended.err
    assert set(asked) == {("owner/name", "v2", False)}


# ---------------------------------------------------------------------------------- writing


@pytest.fixture
def unwritten(transfer, tmp_path):
    """Return how to export what is refused; checks the form and gives the line."""

    def call(*words, there=()):
        ended = transfer("export", *words)
        lines = ended.err.splitlines()
        assert ended.code == 2, ended.err
        assert len(lines) == 1, ended.err
        assert [path.name for path in tmp_path.iterdir()] == [*there]
        return lines[0]

    return call


def test_a_target_that_is_there(unwritten, finetuned, tmp_path):
    (tmp_path / "out").mkdir()

    line = unwritten(f"run={finetuned}", "to=out", there=["out"])

    assert "to: out is there already" in line
    assert not list((tmp_path / "out").iterdir())


def test_another_format(unwritten, finetuned):
    assert "Did you mean 'onnx'?" in unwritten(f"run={finetuned}", "to=out", "format=onxx")


def test_a_head_that_has_no_place(unwritten, pretrained):
    line = unwritten(f"run={pretrained}", "to=out", "family=gpt2")

    assert "run: it is no GPT-2: the language-model head (heads.lm.bias; head=false leaves" in line


def test_the_backbone_alone(transfer, pretrained):
    ended = transfer("export", f"run={pretrained}", "to=out", "head=false")

    assert ended.code == 0, ended.err
    assert "GPT2Model" in ended.out


def test_adapters_and_a_tutorial_model(transfer, unwritten, finetuned, tmp_path, questions):
    words = ("data=table", f"data.train={questions}", *LOOP, "loop.steps=1")
    ended = transfer(
        "finetune", *words, f"init_from={finetuned}", "adaptation=adapters", "run.dir=adapted"
    )
    assert ended.code == 0, ended.err

    line = unwritten("run=adapted", "to=out", "family=gpt2", there=["adapted"])

    assert "adapters between its layers" in line
    assert line.endswith("family=null takes what fits")


# ------------------------------------------------------------------------------- odd contents


def change_tensors(folder, **changes):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, **changes}, path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"classifier.weight": torch.tensor(1.0)}, "its classifier is []"),
        ({"classifier.weight": torch.zeros(2_000_000, 0)}, "its classifier is [2000000, 0]"),
        ({"classifier.weight": torch.zeros(2, 3)}, "classifier.weight is [2, 3]"),
        ({"classifier.weight": torch.zeros(2, 16, dtype=torch.int64)}, "expected float"),
        (
            {"bert.embeddings.LayerNorm.weight": torch.ones(16, dtype=torch.int32)},
            "bert.embeddings.LayerNorm.weight holds numbers of type torch.int32",
        ),
        ({"bert.pooler.dense.bias": torch.tensor(1.0)}, "bert.pooler.dense.bias is []"),
    ],
)
def test_heads_of_odd_shapes_and_kinds(tmp_path, refused, changes, told):
    publish(tmp_path / "given", "bert", "SequenceClassification")
    change_tensors(tmp_path / "given", **changes)

    assert told in refused()


def test_a_buffer_of_any_kind_is_only_dropped(tmp_path):
    from transfer_cli.assembly.init_from import open_pretrained

    publish(tmp_path, "gpt2")
    for number, kind in enumerate((torch.uint8, torch.bool, torch.int32)):
        change_tensors(tmp_path, **{f"h.{number}.attn.bias": torch.ones(1, 1, 4, 4).to(kind)})

    assert open_pretrained(str(tmp_path)).published.dropped == tuple(
        f"h.{n}.attn.bias" for n in range(3)
    )


@pytest.mark.parametrize(
    "labels", [["a", "b"], {"0": "a"}, {"0": "a", "1": "a"}, {"0": "a", "1": ["b"]},
               {"0": "a", "1": "\ud800"}],
)  # fmt: skip
def test_odd_names_of_labels(tmp_path, refused, labels):
    publish(tmp_path / "given", "bert", "SequenceClassification")
    change_config(tmp_path / "given", id2label=labels)

    assert "id2label" in refused()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("merges.txt", "#version: 0.2\nq zzz\n"),
        ("merges.txt", "#version: 0.2\none two three\n"),
        ("vocab.json", '{"a": "text"}'),
        ("vocab.json", '{"a": -1}'),
        ("vocab.json", '{"a": 4294967295}'),
        ("vocab.json", "[1"),
        ("tokenizer_config.json", '{"add_prefix_space": "yes"}'),
        ("added_tokens.json", '{"extra": 5}'),
    ],
)
def test_broken_files_of_a_tokenizer(tmp_path, refused, file, text):
    publish(tmp_path / "given", "gpt2")
    (tmp_path / "given" / file).write_text(text)

    assert "given" in refused()


@pytest.mark.parametrize(
    "options",
    [{"strip_accents": "yes"}, {"tokenizer_class": "BertJapaneseTokenizer"},
     {"word_tokenizer_type": "mecab"}],
)  # fmt: skip
def test_options_of_a_tokenizer_that_cannot_be_made(tmp_path, refused, options):
    publish(tmp_path / "given", "bert")
    (tmp_path / "given" / "tokenizer_config.json").write_text(json.dumps(options))

    assert "given" in refused()


@pytest.mark.parametrize("kind", ["packed", "sparse", "a list"])
def test_pickles_that_are_more_than_plain_tensors(tmp_path, refused, kind):
    publish(tmp_path / "given", "bert")
    (tmp_path / "given" / "model.safetensors").unlink()
    path = tmp_path / "given" / "pytorch_model.bin"
    content = {"packed": {"a": torch.zeros(2**16)}, "sparse": {"a": torch.eye(3).to_sparse()}}
    torch.save(content.get(kind, [torch.ones(1)]), path)
    if kind == "packed":
        with zipfile.ZipFile(path) as found:
            members = {name: found.read(name) for name in found.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, data in members.items():
                packed.writestr(name, data)

    assert "pytorch_model.bin" in refused()
