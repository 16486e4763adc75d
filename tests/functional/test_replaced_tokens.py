"""Replaced-token detection: a generator inside a run, beside its model, in a folder of its own."""

import json
import random
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.functional.conftest import LOOP
from tests.published import publish, reference
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.engine.precision import Precision
from transfer_cli.objectives.base import Encoding

WORDS = (
    "pretrain", "objective=replaced_tokens", "objective.width=0.5", "data=sample_text",
    "model=toy", "model.width=16", "model.heads=2", "model.feedforward=24", "tokenizer.size=600",
    "data.length=32", "optimizer.lr=1e-2", "schedule=constant", *LOOP, "loop.steps=4",
    "loop.evaluate_every=4 steps",
)  # fmt: skip
ELECTRA = (
    "model.residual=post", "model.segments=2", "model.embedding_width=12",
    "model.output_transform=true",
)  # fmt: skip
MODES = ("detect", "all_tokens", "detect_selected", "replace")


def measures(folder):
    return json.loads((Path(folder) / "results.json").read_text())["measures"]


def parts_of(run):
    """Return the weights of a run, and those that its generator does not share."""
    generator = load_file(Path(run) / "parts" / "generator" / "weights.safetensors")
    return {**load_file(Path(run) / "model" / "weights.safetensors"), "generator": generator}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_scored_again_and_adapted_and_its_model_has_no_generator(mode, transfer):
    transfer(*WORDS, f"objective.mode={mode}", "run.dir=run").ok()

    transfer("evaluate", "run=run", "split=test", "output=again.json", "device=cpu").ok()
    transfer(
        "finetune", "experiment=sample/finetune", "init_from=run", "run.dir=adapted",
        "loop.steps=2", "device=cpu",
    ).ok()  # fmt: skip

    again = json.loads(Path("again.json").read_text())["measures"]["test"]
    assert again == pytest.approx(measures("run")["test"], rel=1e-5)
    own = parts_of("run")
    assert not [name for name in own if name.startswith("heads.generator")]
    assert any(name.startswith("heads.") for name in own)
    table = "backbone.token_embedding.weight"
    assert torch.equal(own["generator"][table], own[table])
    words = [word for word in WORDS if not word.startswith(("model", "tokenizer"))]
    on = ("init_from=run", "optimizer.lr=1e-12", "run.dir=on")
    transfer(*words, f"objective.mode={mode}", *on).ok()
    assert measures("on")["test"] == pytest.approx(measures("run")["test"], rel=1e-3)
    refused = transfer("analyze", "run=run", "analysis=importance", "device=cpu")
    assert refused.code == 2
    assert "a generator replaces, which is no part of the model; adapt it" in refused.err


@pytest.mark.slow
def test_discriminator_and_generator_go_out_and_say_the_same_there(transfer):
    told = transfer(*WORDS, *ELECTRA, "run.dir=run").ok()
    assert "transformers.ElectraForPreTraining" in told.err

    out = transfer("export", "run=run", "to=out").ok().out
    generator = transfer("export", "run=run", "part=generator", "to=generator").ok().out

    assert "transformers.ElectraForPreTraining" in out
    assert "transformers.ElectraForMaskedLM" in generator
    model = open_trained("run", Precision("fp32", torch.device("cpu"))).model
    tokens = torch.randint(5, 500, (3, 20), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}
    inside = model.heads["generator"]
    lib = reference()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        theirs = lib.AutoModelForPreTraining.from_pretrained("out").eval()(tokens).logits
        filled = lib.AutoModelForMaskedLM.from_pretrained("generator").eval()(tokens).logits
        ours = model.heads["discriminator"](Encoding(model, batch).top)
        table = model.backbone.token_embedding.weight
        words = inside.heads["lm"](Encoding(inside, batch).top, table)
    assert_close(theirs, ours, atol=1e-6, rtol=0)
    assert_close(filled, words, atol=1e-5, rtol=0)
    back, own = open_pretrained("out").tensors(), open_pretrained("run").tensors()
    assert back.keys() == own.keys()
    assert all(torch.equal(back[name], own[name]) for name in own)


@pytest.mark.slow
def test_a_published_discriminator_comes_with_its_head(transfer, tmp_path):
    publish(tmp_path / "published", "electra", "PreTraining")

    start = open_pretrained("published")
    again = transfer(
        "pretrain", "init_from=published", "objective=replaced_tokens", "objective.width=0.5",
        "data=sample_text", *LOOP, "loop.steps=1", "optimizer.lr=1e-20", "run.dir=run",
    ).ok()  # fmt: skip

    head = "heads.discriminator.linear.weight"
    assert torch.equal(open_pretrained("run").tensors()[head], start.tensors()[head])
    assert "new: heads.generator." in again.err
    refused = transfer("evaluate", "run=published", "data=sample_text", "device=cpu")
    assert refused.code != 0
    assert "there is no generator to replace tokens" in refused.err.splitlines()[-1]


def write_language(path, sentences, seed):
    """Write sentences of a made language, documents of one of six topics and of words for all."""
    draw = random.Random(seed)
    lines = []
    for _ in range(sentences):
        topic = draw.randrange(6)
        words = (
            f"f{draw.randrange(20)}" if draw.random() < 0.3 else f"t{topic}w{draw.randrange(30)}"
            for _ in range(12)
        )
        lines.append(" ".join(words))
    Path(path).write_text("\n\n".join(lines) + "\n")


@pytest.mark.slow
def test_detection_beats_who_knows_the_share_alone(transfer):
    write_language("train.txt", 12_000, 1)
    write_language("validation.txt", 1_000, 2)

    transfer(
        "pretrain", "objective=replaced_tokens", "objective.depth=0.5", "data=text",
        "data.train=train.txt", "data.validation=validation.txt", "model=toy",
        "data.documents=separate", "tokenizer.size=2000", "data.length=64", "loop.steps=400",
        "loop.batch=16", "optimizer.lr=3e-3", "schedule.warmup=20", "device=cpu",
        "loop.evaluate_every=100 steps", "run.dir=run",
    ).ok()  # fmt: skip

    found = measures("run")["validation"]
    assert found["detect_excess"] < -0.012
    assert found["auc"] > 0.55
