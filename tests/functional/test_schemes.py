"""What is promised of every preset of conf/adaptation; each is trained once."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

from tests.functional.test_export import our_logits, their_logits
from tests.functional.test_plan import stages_of
from tests.records import read_metrics
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.commands.plan import plan_finetune
from transfer_cli.config.locate import conf_dir
from transfer_cli.config.schema import FinetuneConfig
from transfer_cli.model.weights import backbone_hash, read_description

PRESETS = sorted(path.stem for path in (conf_dir() / "adaptation").glob("*.yaml"))

QUICK = (
    "full", "frozen", "top_k", "bias_only", "feature_extraction", "adapters", "lora",
    "gradual_unfreezing", "chain_thaw", "sequential_unfreezing", "ulmfit", "multitask",
)  # fmt: skip
"""Others freeze by the plan of one of these; what they add is tested where it is made."""


def each_of(presets):
    """Return the mark that runs a test with each of the presets."""
    marked = [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in presets]
    return pytest.mark.parametrize("preset", marked)


each_preset = each_of(PRESETS)

GRAPH = "format=onnx"
GPT2 = "a GPT-2 (transformers.GPT2ForSequenceClassification)"
GRAPHS = (
    "lora", "frozen", "adapters", "adapters_tutorial", "feature_extraction", "bias_only", "top_k",
    "ia3", "parallel_adapters", "dora",
)  # fmt: skip
"""Presets whose runs no published family fits."""

REFUSED = {
    "gated_prefix": "learned keys and values", "pals": "projected attention layers",
}  # fmt: skip
"""Presets whose runs are no graph, either, and what they add."""

EXPORTED = [name for name in PRESETS if name not in {*REFUSED, "pet"}]
"""All others, but for `pet`, whose head no folder has: see test_cloze."""

TEXTS = ["Where is the bridge, number 3 ?", "Who built it ?", "Why ?"]


# --- what trains -------------------------------------------------------------------------------


@pytest.mark.slow
@each_preset
def test_a_short_run_ends_well(preset, adapted, read_json):
    run = adapted(preset).run

    found = read_json(run / "results.json")
    assert found["seen"]["steps"] == 12
    assert found["presets"]["adaptation"] == preset
    assert 0 <= found["measures"]["validation"]["accuracy"] <= 1
    assert read_json(run / "status.json")["status"] == "finished"


@each_preset
def test_what_never_trains_stays_bit_for_bit_and_the_rest_changes(preset, adapted, deep):
    watched = adapted(preset)
    pretrained = open_pretrained(str(deep)).tensors()

    best, end = (
        open_pretrained(str(watched.run / place)).tensors()
        for place in ("model", "checkpoints/step-00000012")
    )

    assert watched.inherited <= pretrained.keys()
    assert all(torch.equal(watched.start[name], pretrained[name]) for name in watched.inherited)
    for name in watched.start.keys() - watched.ever:
        assert name in watched.inherited
        assert torch.equal(best[name], pretrained[name]), name
        assert torch.equal(end[name], pretrained[name]), name
    same = [name for name in watched.ever if torch.equal(end[name], watched.start[name])]
    assert not same
    assert watched.ever
    # What is frozen has no gradient, and not one of zero.
    assert len(watched.moved) == 12
    for span in watched.spans:
        steps = watched.moved[span.begin : span.end]
        assert all(moved <= span.trains for moved in steps)
        assert frozenset().union(*steps) == span.trains


@each_preset
def test_the_results_count_what_ever_trains(preset, adapted, read_json):
    watched = adapted(preset)

    found = read_json(watched.run / "results.json")

    assert found["parameters"]["total"] == sum(p.numel() for p in watched.start.values())
    assert found["parameters"]["trainable"] == sum(
        watched.start[name].numel() for name in watched.ever
    )
    assert found["stages"] == [{"begin": s.begin, "end": s.end} for s in watched.spans]
    records = read_metrics(watched.run / "metrics.jsonl")
    stages = [record["stage"] for record in records if record["kind"] == "train"]
    assert stages == [
        number + 1 for number, s in enumerate(watched.spans) for _ in range(s.begin, s.end)
    ]


# --- what is planned ---------------------------------------------------------------------------


@each_preset
def test_a_plan_is_what_the_run_then_does(preset, adapted, read_json, request, capsys):
    watched = adapted(preset)
    request.getfixturevalue("untouched")  # from here on
    config = OmegaConf.load(watched.run / "config.yaml")
    capsys.readouterr()

    # As the run composed it, which spares a test composing it again.
    plan_finetune(OmegaConf.merge(OmegaConf.structured(FinetuneConfig), config))

    kept = (watched.run / "plan.txt").read_text()
    table, _, memory = capsys.readouterr().out.rpartition("memory: about ")
    assert table.partition("warning: ")[0] == kept
    assert "MiB in float32" in memory
    stages = stages_of(kept)
    total = sum(p.numel() for p in watched.start.values())
    for (number, first, end, count, share, _), span in zip(stages, watched.spans, strict=True):
        assert (first, end) == (span.begin + 1, span.end)
        assert count == sum(watched.start[name].numel() for name in span.trains)
        assert share == pytest.approx(100 * count / total, abs=0.01)
        assert f"stage {number} of {len(stages)}, from step {first}: {count:,} of" in watched.out
    results = read_json(watched.run / "results.json")
    largest = max(count for _, _, _, count, _, _ in stages)
    assert largest <= results["parameters"]["trainable"]
    if any(span.trains == watched.ever for span in watched.spans):
        assert largest == results["parameters"]["trainable"]
    assert f"tensors: {len(watched.inherited)} from the checkpoint" in kept


# --- what is stored and exported ---------------------------------------------------------------


@each_preset
def test_what_trained_is_stored_here_and_in_every_checkpoint_or_all_is(
    preset, adapted, deep, read_json
):
    watched = adapted(preset)
    run, base = watched.run, read_description(watched.run / "model").base
    stored = load_file(run / "model" / "weights.safetensors").keys()

    if OmegaConf.load(run / "config.yaml").adaptation.store != "trained":
        assert base is None
        assert stored == open_pretrained(str(run)).tensors().keys()
        return

    files = [run / "model" / "weights.safetensors"]
    files += (run / "checkpoints").glob("*/weights.safetensors")
    assert len(files) >= 3
    for file in files:
        assert load_file(file).keys() == watched.ever
    assert read_json(run / "results.json")["stored_bytes"] == files[0].stat().st_size
    assert Path(base.path) == (deep / "model").resolve()
    assert (run / "model" / base.relative).resolve() == (deep / "model").resolve()
    assert base.hash == backbone_hash(load_file(deep / "model" / "weights.safetensors"))


def exports_of(run):
    """Return what a run's plan says that it will be exported as."""
    lines = (Path(run) / "plan.txt").read_text().splitlines()
    [found] = [line for line in lines if line.startswith("exports: ")]
    return found.removeprefix("exports: ")


@each_of(EXPORTED)
def test_a_run_is_exported_as_its_plan_says(preset, transfer, adapted):
    run = adapted(preset).run
    said = exports_of(run)
    what = said.partition("; ")[0].removesuffix(", or format=onnx")
    assert what == (GRAPH if preset in GRAPHS else GPT2)

    ended = transfer("export", f"run={run}", "to=out")

    if what == GRAPH:
        assert ended.code == 2
        assert said.partition("; ")[2] in ended.err
        assert "format=onnx" in ended.err
        assert not Path("out").exists()
        return
    assert f"loads as  {what}" in ended.ok().out
    theirs, _ = their_logits("out", TEXTS)
    ours = our_logits(run, TEXTS)
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
