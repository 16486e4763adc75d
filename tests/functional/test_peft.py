"""`transfer export format=peft`: names and mathematics of the peft library, on transformers' model.

LoRA adds alpha / r B A to a matrix; DoRA then divides its rows by their norms and multiplies them
by magnitudes; (IA)3 multiplies outputs, or the inputs of feed-forward modules. What is kept whole
stands under its own name.
"""

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.functional.conftest import LOOP, finished
from tests.functional.test_export import read_texts
from tests.published import TEXT, publish, reference

ROOT = "base_model.model."
CASES = {
    "bert, LoRA": ("bert", "", ("adaptation=lora",)),
    "bert, DoRA of all": (
        "bert", "", ("adaptation=lora", "adaptation.edits.lora.dora=true",
        "adaptation.edits.lora.targets=[query,key,value,output,feed_forward]"),
    ),
    "roberta, (IA)3": ("roberta", "", ("adaptation=ia3",)),
    "gpt2, LoRA": ("gpt2", "LMHeadModel", ("adaptation=lora", "objective=clm")),
    "gpt2, (IA)3": ("gpt2", "LMHeadModel", ("adaptation=ia3", "objective=clm")),
    "llama, LoRA of all": (
        "llama", "CausalLM", ("adaptation=lora", "objective=clm",
        "adaptation.edits.lora.targets=[query,key,value,output,feed_forward]"),
    ),
}  # fmt: skip


@pytest.fixture
def adapted(request, tmp_path_factory, questions, corpus):
    """Return a run that adapted a published model, and that."""
    family, kind, words = CASES[request.param]
    folder = tmp_path_factory.mktemp("adapted")
    publish(folder / "base", family, *([kind] if kind else []))
    file = corpus if kind else questions
    finished(
        "pretrain" if kind else "finetune", "data=text" if kind else "data=table",
        f"data.train={file}", f"init_from={folder / 'base'}", *LOOP, "loop.steps=3", *words,
        "optimizer.lr=1e-2", f"run.dir={folder / 'run'}",
        *([] if kind else ["objective.pooling=cls_first"]),
    )  # fmt: skip
    return folder / "run", folder / "base"


@torch.inference_mode()
def ours(run, texts):
    """Return logits, and the batch that they are of."""
    trained, batch, encoded = read_texts(run, texts)
    model = trained.model
    if trained.start.task is not None:
        return trained.objective.outputs(model, batch, encoded), batch
    return model.heads["lm"](encoded.top, model.backbone.token_embedding.weight), batch


@torch.no_grad()
def apply(folder, model):
    """Put an adapter into a model of transformers."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors = {name.removeprefix(ROOT): tensor for name, tensor in tensors.items()}
    for module in config["target_modules"]:
        part = model.get_submodule(module)
        weight = part.weight.T if config["fan_in_fan_out"] else part.weight
        edit = {n: tensors.pop(n) for n in [*tensors] if n.startswith(f"{module}.")}
        edit = {name.removeprefix(f"{module}."): tensor for name, tensor in edit.items()}
        if config["peft_type"] == "IA3":
            factors = edit["ia3_l"]
            assert factors.shape[0 if module in config["feedforward_modules"] else 1] == 1
            weight *= factors
            if module not in config["feedforward_modules"] and part.bias is not None:
                part.bias *= factors.flatten()
            continue
        rank = config["rank_pattern"].get(module, config["r"])
        alpha = config["alpha_pattern"].get(module, config["lora_alpha"])
        assert len(edit["lora_A.weight"]) == rank
        weight += alpha / rank * edit["lora_B.weight"] @ edit["lora_A.weight"]
        if config["use_dora"]:
            weight *= (edit["lora_magnitude_vector"] / weight.norm(dim=1))[:, None]
    for name in tensors:
        assert any(name.startswith(f"{kept}.") for kept in config["modules_to_save"])
    assert not model.load_state_dict(tensors, strict=False).unexpected_keys


@pytest.mark.parametrize(
    "adapted",
    [*CASES][:1] + [pytest.param(name, marks=pytest.mark.slow) for name in [*CASES][1:]],
    indirect=True,
)
def test_an_adapter_on_its_base_gives_the_logits_of_the_run(adapted, transfer):
    run, base = adapted
    transfer("export", f"run={run}", "to=out", "format=peft").ok()
    lib, config = reference(), json.loads(Path("out/adapter_config.json").read_text())
    kind = {"SEQ_CLS": "SequenceClassification", "CAUSAL_LM": "CausalLM"}[config["task_type"]]
    with warnings.catch_warnings(action="ignore"):
        model = getattr(lib, f"AutoModelFor{kind}").from_pretrained(base).eval()

    wanted, batch = ours(run, TEXT[:3])
    mask = batch["mask"]
    given = {"input_ids": batch["tokens"], "attention_mask": mask.long()}
    with torch.no_grad():
        before = model(**given).logits
        apply(Path("out"), model)
        after = model(**given).logits

    real = mask if wanted.dim() == 3 else slice(None)
    torch.testing.assert_close(after[real], wanted[real], atol=1e-4, rtol=1e-4)
    assert (after - before).abs().max() > 1e-3
    assert config["base_model_name_or_path"] == str(base)


@pytest.mark.parametrize("adapted", ["bert, LoRA"], indirect=True)
def test_what_is_no_adapter_is_refused(adapted, questions, masked, transfer):
    words = ("data=table", f"data.train={questions}", *LOOP, "loop.steps=1")
    for start, scheme, run in ((adapted[1], "full", "whole"), (masked, "lora", "own")):
        adaptation = f"adaptation={scheme}"
        transfer("finetune", f"init_from={start}", *words, adaptation, f"run.dir={run}").ok()

        transfer("export", f"run={run}", "to=out", "format=peft").refusal("format", "format=hf")

    assert not Path("out").exists()
