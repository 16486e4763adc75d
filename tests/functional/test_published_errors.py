"""Published models that cannot be fetched or claim too much; the others are rows of a table."""

import json
import math
import resource
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.functional.conftest import LOOP
from tests.published import publish
from transfer_cli.api import load
from transfer_cli.config.models import listed_models
from transfer_cli.errors import CheckpointError


@pytest.fixture
def refused(transfer, tmp_path, questions):
    """Return how to start from a folder that is refused; checks the form and gives the line."""

    def call(folder="given", *words):
        words = words or ("data=table", f"data.train={questions}", *LOOP, "run.dir=run")
        ended = transfer("finetune", f"init_from={folder}", *words)
        assert not (tmp_path / "run").exists()
        assert ended.err.count("\n") == 1
        return ended.refusal()

    return call


@pytest.mark.parametrize(
    ("claim", "half"),
    [
        ("stride", False),
        ("storage", True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("stride", True), ("storage", False))
        ),
    ],
)
def test_weights_that_claim_more_than_their_file_holds(tmp_path, refused, claim, half):
    publish(tmp_path / "given", "bert")
    config = tmp_path / "given" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"intermediate_size": 2**22}))
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


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Let the hub's client have a BERT, whatever is asked for; return what was."""
    import huggingface_hub

    publish(tmp_path / "cache", "bert")
    asked = []

    def snapshot(repository, *, revision, allow_patterns):
        assert "spiece.model" in allow_patterns  # a tokenizer of mT5's has nothing else
        asked.append((repository, revision, "pytorch_model.bin" in allow_patterns))
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    return asked


def test_a_listed_model_is_not_read_from_a_pickle_in_place_of_its_file(refused, asked, tmp_path):
    cached = tmp_path / "cache"
    (cached / "model.safetensors").rename(cached / "pytorch_model.bin")

    assert "model.safetensors is missing; with a network it is fetched" in refused("minilm")


BERT = listed_models()["bert"]


@pytest.mark.parametrize(
    ("typed", "fetched"),
    [
        ("init_from=hf:owner/name@v2", ("owner/name", "v2")),
        ("init_from=bert", (BERT.hub, BERT.revision)),
        ("my.yaml", (BERT.hub, BERT.revision)),
    ],
)
def test_hf_takes_what_the_client_fetched(transfer, tmp_path, questions, asked, typed, fetched):
    (tmp_path / "my.yaml").write_text("init_from: bert\n")
    words = ("data=table", f"data.train={questions}", *LOOP, "loop.steps=1", "run.dir=run")

    transfer("finetune", typed, *words).ok()

    assert set(asked) == {(*fetched, False)}


@pytest.mark.usefixtures("asked")
def test_a_short_name_opens_a_model_unless_its_weights_are_others(refused):
    assert load("bert").embed(["a text"]).shape[0] == 1
    with pytest.raises(CheckpointError, match="Did you mean 'bert'"):
        load("berd")
    assert "SHA-256" in refused("minilm")


# ------------------------------------------------------------------------------- odd contents


def test_a_buffer_of_any_kind_is_only_dropped(tmp_path):
    from transfer_cli.assembly.init_from import open_pretrained

    publish(tmp_path, "gpt2")
    file = tmp_path / "model.safetensors"
    masks = {
        f"h.{number}.attn.bias": torch.ones(1, 1, 4, 4).to(kind)
        for number, kind in enumerate((torch.uint8, torch.bool, torch.int32))
    }
    save_file({**load_file(file), **masks}, file)

    assert open_pretrained(str(tmp_path)).published.dropped == tuple(
        f"h.{n}.attn.bias" for n in range(3)
    )
