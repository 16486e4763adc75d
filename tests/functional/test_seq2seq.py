"""An encoder-decoder from a published folder to an export, and what it refuses."""

import json

import pytest
import torch
from safetensors.torch import load_file
from starlette.testclient import TestClient

import transfer_cli
from tests.published import TEXT, reference
from tests.unit.interop.test_encoder_decoders import publish
from transfer_cli.config.schema import ServingConfig
from transfer_cli.serving.app import Service

PAIRS = "source\ttarget\n" + "".join(
    f"{text.strip() or 'none'}\t{(text.split() or ['none'])[0]}\n" for text in TEXT * 3
)


@pytest.fixture
def words(tmp_path):
    """Return the words that fine-tune a small T5 on pairs of texts."""
    publish(tmp_path / "t5", "t5")
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    return (
        "finetune", f"init_from={tmp_path / 't5'}", "data=text_pairs", "objective=seq2seq",
        f"data.train={tmp_path / 'pairs.tsv'}", "data.prefix=first word: ", "data.length=40",
        "data.target_length=6", "data.duplicates=keep", "loop.batch=8", "loop.steps=6",
        "loop.evaluate_every=3 steps", "checkpoint.every=3 steps", "device=cpu",
    )  # fmt: skip


@pytest.mark.slow
def test_a_t5_is_trained_resumed_asked_and_exported(transfer, stopped, words, tmp_path):
    lib = reference()
    transfer(*words, "run.dir=whole").ok()
    stopped(3, *words, "run.dir=parts")
    transfer("finetune", "resume=parts").ok()
    weights = [tmp_path / run / "model" / "weights.safetensors" for run in ("whole", "parts")]
    assert weights[0].read_bytes() == weights[1].read_bytes()

    said = transfer("predict", "whole", f"input={tmp_path / 'pairs.tsv'}").ok().out
    measured = transfer("evaluate", "whole").ok().out
    asked = ("generate", "whole", "A river", "max_tokens=5")
    ways = (("temperature=0",), ("beams=4",), ("beams=4", "first_token=y"))
    texts = [transfer(*asked, *way).ok().out for way in ways]
    drawn = transfer(*asked, "samples=3").ok().out
    transfer("export", "whole", "to=exported").ok()

    answers = [json.loads(line) for line in said.splitlines()]
    assert len(answers) == len(TEXT) * 3
    assert {"text", "answer"} <= answers[0].keys()
    results = json.loads((tmp_path / "whole" / "results.json").read_text())
    measures = results["measures"]["validation"]
    assert {"perplexity", "exact_match", "rouge_l"} <= measures.keys()
    assert "exact_match" in measured
    model = lib.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported").eval()
    tokenizer = lib.AutoTokenizer.from_pretrained(tmp_path / "exported")
    read = tokenizer("first word: A river", return_tensors="pt")
    written = [
        tokenizer.decode(
            model.generate(
                **read, max_new_tokens=5, do_sample=False, num_beams=beams, use_cache=False,
                suppress_tokens=[0, 2], forced_bos_token_id=first,
            )[0, 1:]
        )
        for beams, first in ((1, None), (4, None), (4, tokenizer.convert_tokens_to_ids("y")))
    ]  # fmt: skip
    ends = [text.removesuffix("</s>").replace(" ", "") for text in written]
    assert [text.strip().replace(" ", "") for text in texts] == ends
    assert len(drawn.splitlines()) >= 3


@pytest.mark.slow
def test_several_write_together_and_a_server_answers_as_they_do(transfer, words, tmp_path):
    transfer(*words, "run.dir=run").ok()
    publish(tmp_path / "bart", "bart")
    texts = ["A river", "the old bridge over it", "red"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))

    def said(run, *typed):
        out = transfer("predict", f"run={run}", "input=texts.txt", *typed).ok().out
        return [json.loads(line)["answer"] for line in out.splitlines()]

    for typed in ((), ("beams=3", "batch=2")):
        assert said("[run,run]", *typed) == said("run", *typed)
    assert len(said("[run,t5]")) == len(texts)
    transfer("predict", "run=[run,bart]", "input=texts.txt").refusal("run", "tokenizer")

    models = {name: transfer_cli.load(name, device="cpu") for name in ("run", "t5")}
    client = TestClient(Service(models, ServingConfig()).app, "http://127.0.0.1")
    for model in models:
        response = client.post("/predict", json={"texts": texts, "model": model}).json()
        assert [prediction["answer"] for prediction in response["predictions"]] == said(model)
        asked = {"prompt": texts[0], "model": model, "max_tokens": 5, "temperature": 0}
        written = client.post("/generate", json=asked).json()
        typed = ("max_tokens=5", "temperature=0")
        assert written["text"].strip() == transfer("generate", model, texts[0], *typed).out.strip()
        labels = client.get("/labels", params={"model": model}).json()
        assert [field["title"] for field in labels["inputs"]] == ["Text"]
        assert labels["abilities"][:2] == ["predict", "generate"]


@pytest.mark.slow
def test_a_causal_model_begins_both_stacks(transfer, stopped, still, words, tmp_path):
    """Each stack is the whole model at first, and attention on the source is what is new."""
    words = [word for word in words if not word.startswith(("init_from=", "data.length"))]
    words = [*words, f"init_from={still}", "data.length=24"]
    transfer(*words, "run.dir=start", "optimizer.lr=1e-30").ok()
    transfer(*words, "run.dir=whole").ok()
    stopped(3, *words, "run.dir=parts")
    transfer("finetune", "resume=parts").ok()
    frozen = (*words, "adaptation=frozen", "run.dir=none")
    transfer(*frozen).refusal("adaptation.store")
    transfer(*frozen, "adaptation.store=all").refusal("adaptation.plan", "cross_attention")

    begun, before = (
        load_file(run / "model" / "weights.safetensors") for run in (tmp_path / "start", still)
    )
    stacks = [
        {name.removeprefix(stack): state for name, state in begun.items() if name.startswith(stack)}
        for stack in ("backbone.encoder.", "backbone.decoder.")
    ]
    fresh = stacks[1].keys() - stacks[0].keys()
    assert fresh
    assert all(".cross_attention" in name for name in fresh)
    for name, weight in stacks[0].items():
        assert torch.equal(weight, before[f"backbone.{name}"])
        assert torch.equal(weight, stacks[1][name])
    whole, parts = (
        (tmp_path / run / "model" / "weights.safetensors").read_bytes()
        for run in ("whole", "parts")
    )
    assert whole == parts
    assert not (tmp_path / "none").exists()
    assert "exact_match" in transfer("evaluate", "whole").ok().out


PAIR_LOSS = "language_model._target_=transfer_cli.tasks.text_to_text.seq2seq.Seq2Seq"


@pytest.mark.slow
def test_a_student_learns_from_an_encoder_decoder_and_one_keeps_what_it_said(
    transfer, words, tmp_path
):
    publish(tmp_path / "bart", "bart")
    plain = [word for word in words if not word.startswith("objective=")]
    taught = (*plain, "objective=distil_lm", f"objective.{PAIR_LOSS}")

    transfer(*taught, "objective.teachers=[t5]", "optimizer.lr=1e-30", "run.dir=same").ok()
    transfer(*taught, "objective.teachers=[t5,t5]", "run.dir=student").ok()
    transfer(*taught, "objective.teachers=[bart]").refusal("objective.teachers", "tokens")
    transfer(*plain, "objective=distil_lm", "objective.teachers=[t5]").refusal("Seq2Seq")
    keep = ("+objective@losses.keep=source_distillation", f"losses.keep.{PAIR_LOSS}")
    transfer(*words, *keep, "run.dir=kept").ok()

    same, student = (
        json.loads((tmp_path / run / "results.json").read_text())["measures"]["validation"]
        for run in ("same", "student")
    )
    assert abs(same["divergence"]) < 1e-6 < student["divergence"]
    assert {"exact_match", "distance"} <= student.keys()
    assert "exact_match" in transfer("evaluate", "student").ok().out
    assert "answer" in transfer("predict", "kept", "input=pairs.tsv").ok().out


@pytest.mark.parametrize("objective", ["clm", "mlm", "prefix_lm", "classification"])
def test_objectives_of_one_stack_are_refused(transfer, words, tmp_path, objective):
    changed = [word for word in words if not word.startswith("objective=")]

    transfer(*changed, f"objective={objective}", "run.dir=none").refusal("objective", "seq2seq")

    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (("data.target_length=60",), "data.target_length"),
        (("data.length=600",), "data.length"),
        (("data.prefix=' '",), "data.prefix"),
        (("loop.pack=true",), "loop.pack"),
        (("adaptation/edits=segments",), "adaptation.edits"),
    ],
)
def test_what_does_not_fit_is_refused(transfer, words, typed, named):
    transfer(*words, *typed, "run.dir=none").refusal(named)
