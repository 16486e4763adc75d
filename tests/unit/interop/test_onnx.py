"""The ONNX graph that is made of a model, against the model."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.adaptation.edits import Adapters, LoRA, MixLayers, NewRows, Segments
from transfer_cli.batch import Batch
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import CheckpointError, ConfigError, pip_install
from transfer_cli.interop.graph_folder import _GraphBackbone
from transfer_cli.interop.onnx_graph import compare_outputs, write_onnx
from transfer_cli.interop.targets import Ours
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM

ort = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")

TOKENIZER = WordPiece(48).make(lambda: iter(["the harbour of Lomta , a town of many words"] * 5))
BERT = {"residual": "post", "direction": "bidirectional", "segments": 2}
SPECIAL = {name: getattr(tiny.VOCABULARY, name) for name in ("cls", "sep", "mask", "unk", "pad")}


@dataclass(frozen=True)
class Case:
    """A model of one block, unless it says more."""

    objective: Any = None
    shape: Any = None
    edits: tuple = ()

    def model(self):
        made = tiny.model(
            *([] if self.objective is None else [self.objective]),
            **{"depth": 1, **(self.shape or {})},
        )
        for edit in self.edits:
            edit(made, SPECIAL)
        tiny.lively(made)
        for name, buffer in made.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 2)
        return made.eval()


CASES = {
    "tutorial, sinusoids, concat, batch norm, adapters, LoRA, mixed layers": lambda: Case(
        Classification("concat", hidden=(8,), batch_norm=True),
        {"residual": "tutorial", "position_kind": "sinusoidal"},
        (Adapters(4), LoRA(2), MixLayers()),
    ),
    "causal language model": lambda: Case(CausalLM(), {"activation": "gelu_tanh"}),
    "masked language model, narrow embeddings, new rows": lambda: Case(
        MaskedLM(), {**BERT, "output_transform": True, "embedding_width": 8}, (NewRows(),)
    ),
    "no head": lambda: Case(None, {"direction": "bidirectional", "activation": "relu"}),
    "pre causal, adapters, a hidden layer": lambda: Case(
        Classification(hidden=(8,)), {"depth": 3}, (Adapters(4),)
    ),
    "mean": lambda: Case(Classification("mean"), {"direction": "bidirectional"}),
    "max, a pooler that is not used": lambda: Case(
        Classification("max", pooler=False), {**BERT, "pooler": "tanh"}
    ),
    "cls_last, bidirectional": lambda: Case(
        Classification("cls_last"), {"direction": "bidirectional"}
    ),
    "cls_first, causal, new segments": lambda: Case(Classification("cls_first"), {}, (Segments(),)),
    "batch norm without hidden layers": lambda: Case(Classification(batch_norm=True)),
    "normalised mix of three layers": lambda: Case(
        Classification("mean"), {"depth": 3}, (MixLayers(norm=True),)
    ),
    "LoRA everywhere": lambda: Case(
        Classification(), {**BERT, "depth": 2},
        (LoRA(2, targets=("query", "key", "value", "output", "feed_forward")),),
    ),
    "three segments, relu pooler": lambda: Case(
        Classification(), {**BERT, "segments": 3, "pooler": "relu"}
    ),
    "everything of today": lambda: Case(CausalLM(), {**tiny.MODERN, "depth": 2}),
    "everything of today, bidirectional": lambda: Case(
        Classification("mean"), {**tiny.MODERN, "direction": "bidirectional", "depth": 2}
    ),
    "one segment": lambda: Case(None, {**BERT, "segments": 1}),
    "own output table, no bias": lambda: Case(
        CausalLM(), {"tie_output": False, "output_bias": False, "position_kind": "sinusoidal"}
    ),
    "more positions than are checked": lambda: Case(CausalLM(), {"positions": 2000}),
    "two positions": lambda: Case(CausalLM(), {"positions": 2}),
    "one position": lambda: Case(None, {"positions": 1}),
}  # fmt: skip


def expected(model, objective, batch: Batch):
    with torch.no_grad():
        encoded = Encoding(model, batch)
        if isinstance(objective, Classification):
            return objective.outputs(model, batch, encoded).numpy()
        if objective is None:
            return encoded.top.numpy()
        table = model.backbone.token_embedding.weight
        return model.heads["lm"](encoded.top, table).numpy()


def batch_of(rows, length, model):
    torch.manual_seed(7)
    real = torch.randint(1, length + 1, (rows, 1))
    batch = {
        "tokens": torch.randint(tiny.VOCABULARY.size, (rows, length)),
        "mask": torch.arange(length) < real,
    }
    if model.backbone.num_segments > 1:
        batch["segment"] = torch.randint(model.backbone.num_segments, (rows, length))
    return batch


def run(folder, batch):
    session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    given = {"input_ids": batch["tokens"], "attention_mask": batch["mask"].long()}
    if "segment" in batch:
        given["token_type_ids"] = batch["segment"]
    assert [node.name for node in session.get_inputs()] == list(given)
    return session.run(None, {name: tensor.numpy() for name, tensor in given.items()})[0]


def exportable_model(model):
    """Return what is asked of a model beside the graph."""
    shape = model.backbone.shape
    return Ours(shape, {}, TOKENIZER, None, None, "labelled", shape.positions)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_graph_gives_what_the_model_gives_for_any_batch_and_length(name, tmp_path, capfd):
    case = CASES[name]()
    model = case.model()
    before = tiny.weights_of(model)

    largest = write_onnx(model, case.objective, exportable_model(model), tmp_path)

    assert capfd.readouterr() == ("", "")
    assert 0 <= largest < 1e-4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "onnx.json"]
    assert tiny.same(before, model.state_dict())
    for rows, length in ((1, 1), (2, 3), (5, 17)):
        batch = batch_of(rows, min(length, model.backbone.shape.positions), model)
        wanted, outputs = expected(model, case.objective, batch), run(tmp_path, batch)
        assert wanted.shape == outputs.shape
        if not isinstance(case.objective, Classification):
            real = batch["mask"].numpy()
            wanted, outputs = wanted[real], outputs[real]
        assert wanted.std() > 0.1  # a graph that gives nothing but zeros would not do
        np.testing.assert_allclose(outputs, wanted, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    case = Case(Classification(), {**BERT, "pooler": "tanh"})
    model = case.model()
    write_onnx(model, case.objective, exportable_model(model), folder)
    return folder, model, case.objective


@pytest.mark.slow
def test_batch_and_length_have_names_and_no_size(written):
    folder, _, _ = written

    graph = onnx.load(folder / "model.onnx").graph

    sizes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert sizes == {
        "input_ids": ["batch", "length"],
        "attention_mask": ["batch", "length"],
        "token_type_ids": ["batch", "length"],
        "logits": ["batch", len(tiny.LABELS)],
    }


@pytest.mark.slow
def test_the_graph_holds_no_line_of_our_source(written):
    folder, _, _ = written

    graph = (folder / "model.onnx").read_bytes()

    assert b".py" not in graph
    assert b"transfer_cli" not in graph


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda logits: logits + np.float32(0.25), "differ from the model's by up to 0.25"),
        (lambda logits: logits * np.float32(np.nan), "differ from the model's by up to nan"),
        (lambda logits: logits[:, :2], r"gives \[1, 2\] for a batch of 1 x 1 tokens, the model "),
    ],
    ids=["other", "no number", "shape"],
)
def test_another_output_than_the_models_is_refused(written, monkeypatch, spoil, message):
    folder, model, objective = written
    assert compare_outputs(folder / "model.onnx", ["logits"], model, objective) < 1e-4
    spoil_outputs(monkeypatch, spoil)

    with pytest.raises(CheckpointError, match=message):
        compare_outputs(folder / "model.onnx", ["logits"], model, objective)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_its_cure(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ConfigError) as caught:
        write_onnx(Case().model(), None, None, tmp_path)

    assert str(caught.value) == (
        f"format=onnx needs the packages onnx, onnxscript and onnxruntime: {pip_install('onnx')}"
    )
    assert not list(tmp_path.iterdir())


def spoil_outputs(monkeypatch, spoil):
    honest = ort.InferenceSession.run

    def spoilt(self, *given):
        return [spoil(output) for output in honest(self, *given)]

    monkeypatch.setattr(ort.InferenceSession, "run", spoilt)


@pytest.mark.parametrize(
    ("option", "name"),
    [("memory", "memory"), ("kv_cache", "kv_cache"), ("document_BT", "document")],
)
def test_a_graph_refuses_what_it_has_not_by_name(option, name):
    backbone = SimpleNamespace(_graph=SimpleNamespace(folder="graph"))
    with pytest.raises(CheckpointError, match=rf"it has no {name}\)"):
        _GraphBackbone.forward(backbone, None, None, **{option: object()})
