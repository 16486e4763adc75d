"""What is promised of every preset of conf/adaptation; each is trained once."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.functional.test_export import our_logits, their_logits
from tests.functional.test_plan import stages_of
from tests.records import read_metrics
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.assembly.run import build_run
from transfer_cli.commands.plan import plan_finetune
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.schema import FinetuneConfig
from transfer_cli.model.weights import backbone_hash, read_description
from transfer_cli.runs import checkpoint

PRESETS = sorted(path.stem for path in (conf_dir() / "adaptation").glob("*.yaml"))

QUICK = (
    "full", "frozen", "lora", "gradual_unfreezing", "multitask",
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

    outcome = read_json(watched.run / "results.json")

    assert outcome["parameters"]["total"] == sum(p.numel() for p in watched.start.values())
    assert outcome["parameters"]["trainable"] == sum(
        watched.start[name].numel() for name in watched.ever
    )
    assert outcome["stages"] == [{"begin": s.begin, "end": s.end} for s in watched.spans]
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
    assert table.partition("model: ")[0] == kept
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
    [exports] = [line for line in lines if line.startswith("exports: ")]
    return exports.removeprefix("exports: ")


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


# --- adaptation ----------------------------------------------------------------------------------


def config_of(run):
    """Return the config of a run, as the command composed it."""
    return OmegaConf.merge(
        OmegaConf.structured(FinetuneConfig), OmegaConf.load(run / "config.yaml")
    )


def records(run):
    return read_metrics(Path(run) / "metrics.jsonl")


# --- step 0 --------------------------------------------------------------------------------------


def parts_of(run, edits=None, **changes):
    config = config_of(run)
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    if edits is not None:
        config.adaptation.edits = edits
    return build_run(config, "finetune")


# --- refused before the first batch --------------------------------------------------------------


def test_a_run_and_its_plan_warn_of_a_warm_up_that_never_ends_in_the_same_words(transfer, adapting):
    problem = "schedule.warmup: its 10 steps are as long as the run, which has 10"

    planned = transfer("plan", "finetune", *adapting(), "loop.steps=10")
    ended = transfer("finetune", *adapting(), "loop.steps=10", "run.dir=run")

    assert (planned.code, ended.code) == (0, 0), planned.err + ended.err
    assert f"warning: {problem}" in " ".join(planned.out.split())
    assert f"warning: {problem}" in ended.err


def test_a_run_and_its_plan_warn_of_stages_that_are_too_short_to_learn_in(transfer, adapting):
    words = adapting("gradual_unfreezing", "loop.batch=4", "schedule=constant")
    problem = "adaptation.plan: the shortest of 4 stages has 3 step(s), too few to learn in; "

    planned = transfer("plan", "finetune", *words)
    ended = transfer("finetune", *words, "run.dir=run")
    an_epoch_each = transfer("plan", "finetune", *words, "loop.epochs=4", "loop.steps=null")

    assert (planned.code, ended.code) == (0, 0), planned.err + ended.err
    assert f"warning: {problem}" in " ".join(planned.out.split())
    assert f"warning: {problem}" in ended.err
    assert "adaptation.plan.every" in ended.err
    assert "6 an epoch, 4 stage(s)" in an_epoch_each.out
    assert "too few to learn in" not in an_epoch_each.out


# --- what a run says of itself -------------------------------------------------------------------


def test_a_run_that_learnt_nothing_is_said_to_have_failed(transfer, adapting, tmp_path, read_json):
    rows = [f"question number {n},{'rare' if n % 10 == 0 else 'common'}" for n in range(60)]
    (tmp_path / "uneven.csv").write_text("\n".join(["text,label", *rows]) + "\n")

    ended = transfer(
        "finetune", *adapting("frozen"), f"data.train={tmp_path / 'uneven.csv'}",
        "optimizer.lr=1e-9", "loop.steps=12", "run.dir=run",
    ).ok()  # fmt: skip

    reason = read_json(tmp_path / "run" / "results.json")["failed"]
    assert "no better than always answering common (89.6 %)" in reason
    assert "tensorboard --logdir" in ended.out
    assert "next" not in ended.out
    assert "another optimizer.lr: left out, it is the one that the preset brings" in reason
    assert "transfer lr-find finetune" in reason
    assert read_json(tmp_path / "run" / "status.json") == {"status": "finished", "reason": reason}
    assert f"warning: this run failed: {reason}" in ended.err.splitlines()


def test_a_run_that_learnt_is_not(transfer, adapting, tmp_path, read_json):
    ended = transfer("finetune", *adapting(), "schedule=constant", "run.dir=run")

    outcome = read_json(tmp_path / "run" / "results.json")
    assert outcome["measures"]["validation"]["accuracy"] > 0.8
    assert outcome["failed"] is None
    assert read_json(tmp_path / "run" / "status.json") == {"status": "finished"}
    assert "failed" not in ended.err


def test_the_shares_of_mixed_layers_are_reported(adapted, read_json):
    mixed = read_json(adapted("feature_extraction").run / "results.json")["layers"]
    plain = read_json(adapted("frozen").run / "results.json")["layers"]

    assert len(mixed) == 3
    assert sum(mixed) == pytest.approx(1, abs=1e-4)
    assert len(set(mixed)) > 1
    assert plain is None


# --- frozen features -----------------------------------------------------------------------------


# --- an auxiliary loss ---------------------------------------------------------------------------


def test_the_language_model_loss_is_that_of_the_questions_alone(
    transfer, deep_words, adapting, tmp_path
):
    still = ("model.dropout=0", "run.dir=still")
    transfer(*deep_words, *still).ok()
    words = adapting("lm_auxiliary", "init_from=still", "loop.batch=24", "run.dir=run")
    transfer("finetune", *words).ok()

    start = open_pretrained("still")
    parts = parts_of(tmp_path / "run")
    encoded, model = parts.data.splits["train"].data, parts.model.eval()
    nats, targets = 0.0, 0
    for number in range(24):
        row = encoded.batch(np.array([number]))
        assert row["mask"].all()
        text = row["tokens"][:, :-1]
        assert row["tokens"][0, -1] == start.tokenizer.cls
        assert start.tokenizer.cls not in text
        with torch.inference_mode():
            top = model.backbone(text, torch.ones_like(text, dtype=torch.bool))[-1]
            logits = model.heads["lm"](top, model.backbone.token_embedding.weight)
        nats += float(
            torch.nn.functional.cross_entropy(logits[0, :-1], text[0, 1:], reduction="sum")
        )
        targets += text.shape[1] - 1
    first = next(r for r in records("run") if r["kind"] == "train")

    assert first["step"] == 1
    assert first["loss/lm/loss"] == pytest.approx(nats / targets, rel=1e-5)
    assert first["loss"] == pytest.approx(first["loss/main/loss"] + 0.5 * first["loss/lm/loss"])


# --- under optimizer=muon ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "moving"),
    [
        ("lora", 0),
        ("gradual_unfreezing", 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("frozen", 0), ("l2_sp", 2))),
    ],
)
def test_adaptations_train_with_it_and_what_is_frozen_stays(
    transfer, adapting, deep, preset, moving
):
    words = adapting(preset, "optimizer=muon", "optimizer.lr=0.01", "loop.evaluate_every=12 steps")
    transfer("finetune", *words, "run.dir=run").ok()

    # Where a run stores what it trained, the rest is what it started from.
    weights = load_file("run/model/weights.safetensors")
    start = load_file(deep / "model/weights.safetensors")
    inner = [name for name in start if name.endswith("feed_forward.inner.weight")]
    moved = [name for name in inner if not torch.equal(weights.get(name, start[name]), start[name])]
    assert len(inner) == 2
    assert len(moved) == moving
    lora = [name for name in weights if ".lora." in name]
    assert bool(lora) == (preset == "lora")
    assert all(weights[name].abs().max() > 0 for name in lora)


# --- averaged weights ----------------------------------------------------------------------------


def results(run):
    return json.loads((Path(run) / "results.json").read_text())


def state(run):
    return checkpoint.read_state(checkpoint.find_all(Path(run) / "checkpoints")[-1])


def plain_records(run):
    return [
        {name: value for name, value in record.items() if not name.startswith("averaged/")}
        for record in read_metrics(Path(run) / "metrics.jsonl")
    ]


def test_averaged_weights_are_kept_where_validation_finds_them_better(words_of, transfer):
    words = words_of("ema", "loop.steps=9", "loop.batch=2", "optimizer.lr=0.03")
    transfer(*words, "loop.average=null", "run.dir=plain").ok()

    ended = transfer(*words, "run.dir=averaged").ok()

    assert "best weights, averaged (loop.average), of step 9" in ended.out
    average, measured = results("averaged")["average"], results("averaged")["measures"]
    assert average["kept"] == "averaged"
    assert average["averaged"]["loss"] < average["plain"]["loss"]
    assert average["averaged"]["loss"] == measured["validation"]["loss"]
    transfer("evaluate", "averaged", "split=validation", "device=cpu", "output=scored.json").ok()
    scored = json.loads(Path("scored.json").read_text())["measures"]["validation"]
    assert scored["loss"] == pytest.approx(average["averaged"]["loss"], rel=1e-6)
    curves = EventAccumulator("averaged/tensorboard").Reload().Scalars("validation/averaged/loss")
    assert [point.step for point in curves] == [3, 6, 9]
    # Training is that of a run without an average, whose files say nothing of one.
    assert plain_records("averaged") == read_metrics(Path("plain/metrics.jsonl"))
    assert results("plain")["measures"]["validation"]["loss"] == average["plain"]["loss"]
    assert "average" not in results("plain").keys() | state("plain").keys()
