"""What people do by default is exported: own models, every scheme; `plan` says it before."""

from pathlib import Path

import pytest
import torch

from tests.functional.conftest import LOOP, TINY
from tests.functional.test_export import our_logits, their_logits
from transfer_cli.config.locate import conf_dir

pytestmark = pytest.mark.functional

GRAPH = "format=onnx"
GPT2 = "a GPT-2 (transformers.GPT2ForSequenceClassification)"

PRESETS = {
    "lora": GRAPH, "frozen": GRAPH, "adapters": GRAPH, "adapters_tutorial": GRAPH,
    "feature_extraction": GRAPH, "bias_only": GRAPH, "top_k": GRAPH, "ia3": GRAPH,
    "parallel_adapters": GRAPH, "dora": GRAPH,
}  # fmt: skip
QUICK = ("full", "lora", "adapters", "feature_extraction")
REFUSED = {
    "gated_prefix": "learned keys and values", "pals": "projected attention layers",
}  # fmt: skip
EVERY = {path.stem for path in (conf_dir() / "adaptation").glob("*.yaml")}
OTHERS = sorted(EVERY - {*QUICK, *REFUSED, "pet"})  # whose head no folder has: see test_cloze


def exports_of(run):
    """Return what a run's plan says that it will be exported as."""
    lines = (Path(run) / "plan.txt").read_text().splitlines()
    [found] = [line for line in lines if line.startswith("exports: ")]
    return found.removeprefix("exports: ")


@pytest.mark.parametrize(
    "preset", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_every_scheme_is_exported_as_its_plan_says(preset, transfer, request):
    run = request.getfixturevalue("adapted")(preset).run
    texts = ["Where is the bridge, number 3 ?", "Who built it ?", "Why ?"]

    said = exports_of(run)
    what = said.partition("; ")[0].removesuffix(", or format=onnx")
    assert what == PRESETS.get(preset, GPT2)

    ended = transfer("export", f"run={run}", "to=out")

    if what == GRAPH:
        assert ended.code == 2
        assert said.partition("; ")[2] in ended.err
        assert "format=onnx" in ended.err
        assert not Path("out").exists()
        return
    assert ended.code == 0, ended.err
    assert f"loads as  {what}" in ended.out
    theirs, _ = their_logits("out", texts)
    ours = our_logits(run, texts)
    assert ours.std() > 1e-3
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)


@pytest.mark.parametrize("words", [(), ("format=onnx",)], ids=str)
@pytest.mark.parametrize("preset", REFUSED)
def test_what_no_folder_can_hold_is_refused_as_the_plan_says(preset, words, transfer, adapted):
    run = adapted(preset).run

    ended = transfer("export", f"run={run}", "to=out", *words)

    assert ended.code == 2
    [line] = [line for line in ended.err.splitlines() if REFUSED[preset] in line]
    assert f"(adaptation.edits.{preset})" in line
    assert "takes any model" not in line
    assert exports_of(run).startswith("not as it is; ")
    assert "onnx" not in exports_of(run)
    assert not Path("out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["clm", "mlm"])
def test_an_own_language_model_is_a_graph_as_its_plan_says(objective, transfer, corpus):
    words = ("data=text", f"data.train={corpus}", "data.length=32", *TINY, *LOOP, "loop.steps=4")
    transfer("pretrain", *words, f"objective={objective}", "run.dir=run")

    refused = transfer("export", "run=run", "to=out")
    ended = transfer("export", "run=run", "to=out", "format=onnx")

    assert exports_of("run").startswith(GRAPH)
    assert refused.code == 2
    assert ended.code == 0, ended.err
    assert Path("out/model.onnx").exists()
