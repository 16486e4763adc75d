"""The folder that `export format=onnx` wrote, read again: it answers as its run does."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import transfer_cli as api
from tests.functional.conftest import LOOP, finished
from tests.published import publish
from tests.task_kinds import KINDS
from transfer_cli.model.weights import read_description

pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

TASKS = ("multilabel", "regression", "tagging", "span", "choice")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, masked, questions):
    """Return a run on the questions, with adapters and a temperature of its own."""
    run = tmp_path_factory.mktemp("classifier") / "run"
    words = (f"init_from={masked}", "data=table", f"data.train={questions}", *LOOP, "loop.steps=4")
    finished(
        "finetune", *words, "adaptation=adapters", "objective.calibrate=true", f"run.dir={run}"
    )
    return run


@pytest.fixture(scope="module")
def graph(tmp_path_factory, classifier):
    folder = tmp_path_factory.mktemp("graph") / "graph"
    finished("export", f"run={classifier}", f"to={folder}", "format=onnx")
    return folder


@pytest.fixture
def of_task(request, classifier, questions, graph, task_run, task_file, tmp_path):
    """Return a run of a kind of task, its file of examples, and its graph."""
    kind = request.param
    if kind == "classification":
        return classifier, questions, graph
    finished("export", f"run={task_run(kind)}", f"to={tmp_path / 'graph'}", "format=onnx")
    return task_run(kind), task_file(kind), tmp_path / "graph"


def numbers_in(value):
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [number for part in parts for number in numbers_in(part)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize(
    "of_task",
    ["classification", *(pytest.param(task, marks=pytest.mark.slow) for task in TASKS)],
    indirect=True,
)
def test_a_graph_answers_as_its_run_does(of_task, transfer):
    run, file, graph = of_task
    for name, model in (("one", run), ("other", graph)):
        transfer("predict", f"run={model}", f"input={file}", f"output={name}.jsonl").ok()
        if file.name != KINDS["multilabel"].file:  # whose labels are in one cell
            transfer("evaluate", f"run={model}", f"input={file}", f"output={name}.json").ok()

    both = (Path(f"{name}.jsonl").read_text().splitlines() for name in ("one", "other"))
    for one, other in zip(*(map(json.loads, lines) for lines in both), strict=True):
        assert other.keys() == one.keys()
        assert numbers_in(other) == pytest.approx(numbers_in(one), abs=1e-5)
    if Path("one.json").exists():
        one, other = (json.loads(Path(f"{n}.json").read_text()) for n in ("one", "other"))
        assert other["measures"]["input"] == pytest.approx(one["measures"]["input"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["masked", "pretrained"])
def test_a_graph_scores_text_as_its_language_model_does(model, request, corpus, transfer):
    run = request.getfixturevalue(model)
    transfer("export", f"run={run}", "to=graph", "format=onnx").ok()

    measures = [
        transfer(
            "evaluate", f"run={place}", "data=text", f"data.train={corpus}", "split=train",
            "data.length=32",
        ).ok().out
        for place in (run, "graph")
    ]  # fmt: skip

    one, other = ([float(line.split()[-1]) for line in out.splitlines()[1:]] for out in measures)
    assert len(one) > 1
    assert other == pytest.approx(one, rel=1e-4)
    if model == "pretrained":
        transfer("generate", "run=graph", "prompt=The").refusal("run", "graph", "format=hf")


def test_a_graph_puts_the_first_token_of_a_causal_model_before_a_text(
    pretrained, questions, transfer
):
    transfer("export", f"run={pretrained}", "to=published", "head=false").ok()
    data = ("data=table", f"data.train={questions}", "init_from=published")
    transfer("finetune", *data, *LOOP, "loop.steps=1", "run.dir=run").ok()
    transfer("export", "run=run", "to=graph", "format=onnx").ok()
    transfer("export", "run=run", "to=states", "format=onnx", "head=false").ok()

    run, graph, states = (api.load(name, device="cpu") for name in ("run", "graph", "states"))

    texts = ["Where is it ?", "Who ?"]
    assert run.tokenizer.begin is not None
    one, other = (numbers_in(model.predict(texts)) for model in (run, graph))
    assert other == pytest.approx(one, abs=1e-5)
    assert torch.allclose(states.embed(texts), run.embed(texts), atol=1e-5)
    assert (graph.abilities, states.abilities) == (("predict",), ("embed",))
    transfer("predict", "run=states", "input=-").refusal("run", "head=true")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_a_published_models_graph_is_read_in_its_own_way(family, transfer, tmp_path):
    publish(tmp_path / "published", family, "MaskedLM" if family != "gpt2" else "LMHeadModel")
    transfer("export", "run=published", "to=graph", "format=onnx").ok()
    config = [json.loads(Path(f, "config.json").read_text()) for f in ("published", "graph")]
    assert config[0]["model_type"] == config[1]["model_type"]
    Path("in.txt").write_text("The capital of France is Paris .\n" * 200)
    words = {
        "bert": ("fill", "The [MASK] of"), "roberta": ("fill", "The <mask> of"),
        "gpt2": ("evaluate", "data=text", "data.train=in.txt", "split=train"),
    }  # fmt: skip

    outputs = [
        transfer(*words[family], f"run={place}").ok().out.split()
        for place in ("published", "graph")
    ]

    numbers = [[float(w.replace(",", "")) for w in words if w[:1].isdigit()] for words in outputs]
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-4)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ("finetune", "data=table", "data.train={file}", "init_from={graph}"),
            ("init_from", "=hf"),
        ),
        (("export", "run={graph}", "to=new"), ("run", "=hf")),
        (("evaluate", "run={graph}"), ("data", "brings no data")),
        (("embed", "{graph}", "{file}", "output=v.npy"), ("run", "head=false")),
        (("analyze", "run={graph}", "analysis=neurons"), ("run", "graph")),
    ],
    ids=lambda words: words[0],
)
def test_what_a_graph_cannot_do_is_refused_with_its_cure(graph, questions, transfer, words, parts):
    transfer(*(word.format(graph=graph, file=questions) for word in words)).refusal(*parts)


@pytest.mark.parametrize(
    ("file", "change", "parts"),
    [
        ("onnx.json", lambda facts: {**facts, "again": None}, ("run", "again", "anew")),
        ("onnx.json", lambda facts: {**facts, "length": "x"}, ("run", "damaged")),
        ("model.onnx", lambda _: "no graph", ("run", "model.onnx")),
    ],
)
def test_a_damaged_graph_is_refused(graph, questions, transfer, tmp_path, file, change, parts):
    copied = Path(shutil.copytree(graph, tmp_path / "copy"))
    facts = json.loads((copied / "onnx.json").read_text())
    (copied / file).write_text(json.dumps(change(facts)))

    transfer("predict", f"run={copied}", f"input={questions}").refusal(*parts)


def test_what_lies_beside_the_graph_is_named_as_elsewhere(graph):
    config = json.loads((graph / "config.json").read_text())
    facts = json.loads((graph / "onnx.json").read_text())

    assert config["id2label"] == {"0": "person", "1": "place"}
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert facts["inputs"] == ["input_ids", "attention_mask"]
    assert facts["output"] == "logits"
    assert json.loads((graph / "tokenizer_config.json").read_text())["model_max_length"] == 64


@pytest.mark.slow
def test_eight_bits_are_smaller_and_what_they_cost_is_measured(classifier, questions, transfer):
    transfer("export", f"run={classifier}", "to=whole", "format=onnx").ok()

    ended = transfer("export", f"run={classifier}", "to=small", "format=onnx", "quantize=int8").ok()

    sizes = [Path(folder, "model.onnx").stat().st_size for folder in ("whole", "small")]
    assert sizes[1] < 0.6 * sizes[0]
    assert re.search(r"measured .*accuracy \S+ -> \S+", ended.out, re.DOTALL)
    assert "- accuracy: " in Path("small/README.md").read_text()
    kept = ("split=validation", "data=table", f"data.train={questions}")
    said = [transfer("evaluate", f"run={run}", *kept).ok().out for run in ("small", classifier)]
    assert all("accuracy" in text for text in said)
    transfer("export", f"run={classifier}", "to=x", "quantize=int8").refusal("quantize", "=onnx")
    transfer("export", f"run={classifier}", "to=x", "format=onnx", "quantize=int4").refusal(
        "quantize", "int8"
    )
    assert not Path("x").exists()


@pytest.mark.slow
def test_heads_that_are_pruned_leave_a_smaller_graph(classifier, transfer, tmp_path):
    shape = read_description(classifier / "model").shape
    path = tmp_path / "importance.json"
    heads = torch.arange(shape.depth * shape.heads).view(shape.depth, shape.heads)
    path.write_text(json.dumps({"heads": heads.tolist()}))
    words = ("export", f"run={classifier}", f"prune={path}")

    for to, share in (("whole", 0), ("pruned", 0.5)):
        ended = transfer(*words, f"to={to}", "format=onnx", f"prune_share={share}").ok()

    assert f"{heads.numel() // 2} of {heads.numel()} heads" in ended.out
    sizes = [(tmp_path / folder / "model.onnx").stat().st_size for folder in ("whole", "pruned")]
    assert sizes[1] < sizes[0]
    transfer(*words, "to=x").refusal("prune", "format=onnx")
    transfer(*words, "to=x", "format=onnx", "prune_share=2").refusal("prune_share", "2")
    path.write_text(json.dumps({"heads": [[1.0]]}))
    transfer(*words, "to=x", "format=onnx").refusal("prune", "importance.json")
