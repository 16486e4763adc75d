"""What people do by default is exported: own models, every scheme; `plan` says it before."""

import json
import warnings
from pathlib import Path

import pytest
import torch

from tests.functional.conftest import LOOP, TINY
from tests.functional.test_export import our_logits, their_logits
from tests.published import publish, reference
from transfer_cli.config.locate import conf_dir

pytestmark = pytest.mark.functional

CODE = "a folder with its own code, for transformers with trust_remote_code=True"
GPT2 = "a GPT-2 (transformers.GPT2ForSequenceClassification)"

PRESETS = {
    "full": GPT2, "gradual_unfreezing": GPT2, "lora": CODE, "frozen": CODE, "adapters": CODE,
    "adapters_tutorial": CODE, "feature_extraction": CODE, "bias_only": CODE, "top_k": CODE,
    "ia3": CODE, "parallel_adapters": CODE, "dora": CODE,
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

    ended = transfer("export", f"run={run}", "to=out")

    assert ended.code == 0, ended.err
    said = exports_of(run)
    what = said.partition(", or format=onnx")[0]
    assert what == PRESETS.get(preset, GPT2)
    assert f"loads as  {what}" in ended.out
    assert said.partition("; ")[2] in ended.out
    theirs, _ = their_logits("out", texts, trust_remote_code=what == CODE)
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
@pytest.mark.parametrize("preset", ["adapters", "parallel_adapters", "feature_extraction"])
def test_what_is_added_to_a_published_model_is_exported(preset, transfer, tmp_path, questions):
    publish(tmp_path / "bert", "bert", "MaskedLM")
    words = ("data=table", f"data.train={questions}", "init_from=bert", *LOOP, "loop.steps=4",
             f"adaptation={preset}", "optimizer.lr=1e-2", "run.dir=run")  # fmt: skip
    transfer("finetune", *words)
    texts, pairs = ["Where is it ?", "Who built it ?"], ["It is old .", "Why ?"]

    ended = transfer("export", "run=run", "to=out")

    assert ended.code == 0, ended.err
    assert exports_of("run").startswith(f"{CODE}, or format=onnx; no BERT: a")
    for more in (None, pairs):
        theirs, _ = their_logits("out", texts, more, trust_remote_code=True)
        torch.testing.assert_close(theirs, our_logits("run", texts, more), atol=1e-5, rtol=0)
    ours = our_logits("run", texts)
    card = (tmp_path / "out" / "README.md").read_text()
    code = next(line for line in card.splitlines() if line.startswith("ask = "))
    given = {"pipeline": reference().pipeline}
    exec(code, given)  # noqa: S102 - our own card
    found = [given["ask"](text)[0]["label"] for text in texts]
    assert found == [("person", "place")[row.argmax()] for row in ours]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_classifier_on_a_model_of_today_is_exported_with_its_code(
    family, transfer, tmp_path, questions
):
    publish(tmp_path / "given", family, "CausalLM")
    words = ("data=table", f"data.train={questions}", "init_from=given", *LOOP, "loop.steps=4",
             "adaptation=lora", "optimizer.lr=1e-2", "run.dir=run")  # fmt: skip
    adapted = transfer("finetune", *words)
    assert adapted.code == 0, adapted.err
    texts = ["Where is it ?", "Who built it and why ?"]

    ended = transfer("export", "run=run", "to=out")

    assert ended.code == 0, ended.err
    assert "a classifier with a bias, which has no place there" in exports_of("run")
    theirs, _ = their_logits("out", texts, trust_remote_code=True)
    torch.testing.assert_close(theirs, our_logits("run", texts), atol=1e-5, rtol=0)


@pytest.mark.parametrize("objective", ["clm", "mlm"])
def test_an_own_language_model_goes_on_elsewhere(objective, transfer, corpus):
    words = ("data=text", f"data.train={corpus}", "data.length=32", *TINY, *LOOP, "loop.steps=4")
    transfer("pretrain", *words, f"objective={objective}", "optimizer.lr=1e-2", "run.dir=run")

    ended = transfer("export", "run=run", "to=out")

    assert ended.code == 0, ended.err
    assert exports_of("run").startswith(CODE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        what = "text-generation" if objective == "clm" else "fill-mask"
        ask = reference().pipeline(what, model="out", trust_remote_code=True)
        if objective == "clm":
            asked = ("generate", "Where is", "max_tokens=8", "temperature=0")
            [found] = ask("Where is", max_new_tokens=8, do_sample=False)
        else:
            asked = ("fill", "the [MASK] is old", "top=3")
            found = {each["token_str"]: each["score"] for each in ask(asked[1], top_k=9)}
    ended = transfer(*asked, "run=run", "output=ours.jsonl")
    assert ended.code == 0, ended.err
    ours = json.loads(Path("ours.jsonl").read_text())
    if objective == "clm":
        # Its decoder puts no space between what was given and what was made.
        assert "".join(found["generated_text"].split()) == "".join(
            f"Where is {ours['text']}".split()
        )
        assert len(ours["text"].split()) == 8
    else:
        [gap] = ours["gaps"]
        assert [found[each["token"]] for each in gap] == pytest.approx(
            [each["probability"] for each in gap], abs=1e-6
        )


def test_an_export_with_its_own_code_is_not_read_back(transfer, adapted):
    transfer("export", f"run={adapted('frozen').run}", "to=out")

    ended = transfer("finetune", "init_from=out", "data=sample_questions")

    assert ended.code == 2
    assert "init_from: out is an export with its own code" in ended.err
