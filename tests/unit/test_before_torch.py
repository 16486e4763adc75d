"""Typed mistakes are refused before torch is imported, which takes seconds."""

import json
import os
import subprocess
import sys

import pytest

from transfer_cli.config.build import build
from transfer_cli.config.part_values import check_values
from transfer_cli.errors import ConfigError

TASK = "finetune data=table data.train=a.csv"
TEXT = "pretrain data=text data.train=a.csv"
TYPED = {
    "foo=1": "foo", "loop.epoch=1": "loop.epoch", "wandb=1": "wandb",
    "model=tinny": "model=tinny", "edits=nope": "adaptation/edits=nope",
    "logger=wnadb": "logger: 'wnadb'", "logger=[trackio,wnadb]": "'wandb'?",
    "logger=wandb": "pip install",
    "loop.batch=x": "loop.batch", "loop.batch=0": "loop.batch", "loop.minutes=0": "loop.minutes",
    "seed=x": "seed", "precision=fp8": "precision", "init=scrtch": "init",
    "devices=all": "devices", "timeout_minutes=0": "timeout_minutes", "restarts=-1": "restarts",
    "devices=2 restarts=1": "restarts", "optimizer.lr=-1": "optimizer.lr",
    "optimizer.lr=fast": "optimizer.lr", "optimizer=muon optimizer.matrix_rate=0": "matrix_rate",
    "schedule.warmup=-1": "warmup", "schedule.warmup=x": "schedule.warmup",
    "schedule=slanted schedule.cut=2": "cut", "data.length=0": "length",
    "data.length=x": "data.length", "data.labelled=0": "labelled", "data.errors=x": "data.errors",
    "data.format=xml": "data.format", "objective.dropout=2": "dropout",
    "objective.dropout=x": "objective.dropout", "objective.pooling=men": "objective.pooling",
    "objective.hidden=5": "objective.hidden",
    "adaptation=lora adaptation.edits.lora.rank=0": "rank",
    "adaptation=lora adaptation.edits.lora.targets=[q]": "adaptation.edits.lora.targets.0",
    "adaptation=top_k adaptation.plan.count=0": "count",
    "adaptation=discriminative adaptation.layer_scale.factor=0": "factor",
    "adaptation=ewc adaptation.penalty.strength=-1": "strength",
    "data.train=nope.csv": "data.train: nope.csv", "init_from=nope": "init_from",
    "data.validation_share=2": "validation_share", "objective.class_weight=x": "class_weight",
    "optimizer.weight_decay=-1": "weight_decay", "optimizer.betas=[2,1]": "optimizer.betas",
    "optimizer.betas=x": "optimizer.betas", "optimizer=sgd optimizer.momentum=-1": "momentum",
}  # fmt: skip
LINES = {
    **{f"{TASK} {words}": said for words, said in TYPED.items()},
    f"{TEXT} model.width=0": "width",
    f"{TEXT} model.norm=layers": "model: norm",
    f"{TEXT} model.heads=3": "model: heads",
    f"{TEXT} model.embeddings=nope.txt": "model.embeddings: nope.txt",
    f"{TEXT} objective.rate=2": "objective",
    f"{TEXT} tokenizer.size=x": "tokenizer.size",
    "predict nope a.csv": "run",
    "predict . a.csv batch=0 timeout_minutes=0": "timeout_minutes",
    "export . new format=x": "format",
    "generate . Who beams=0": "beams",
    "generate . Who beams=4 temperature=0": "temperature",
    "predict . a.csv beams=4 early_stopping=maybe": "early_stopping",
    "evaluate . evaluation.generate=0": "evaluation.generate",
    "finetune data=text_pairs objective=prefix_lm objective.beams=0 data.train=a.csv": "beams",
    "pretrain data=text data.train=a.csv model=dial model.depth=0": "model.depth",
    "pretrain data=text data.train=a.csv budget=ten": "budget",
    "finetune data=table data.train=a.csv init_from=minilm budget=1e15flop": "budget",
    "finetune data=table data.train=a.csv init_from=minilm budget=3min adaptation=lora": "budget",
    "finetune data=table data.train=a.csv budget=3min models=m": "models",
    "finetune data=table data.train=a.csv models=[a,b]": "models",
    "finetune data=table data.train=a.csv init=scratch model=dial": "model=dial",
    "serve . port=99999": "port",
    "serve . serve.token_file=none.txt": "serve.token_file",
    "serve nope": "run",
    "train": "finetune",
}
RUNNER = """
import builtins, contextlib, io, json, sys
from tests.composing import compose_once
from transfer_cli.cli import main
compose_once(builtins)  # which have a `setattr`
sys.modules["wandb"] = None  # as where it is not installed
ends = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words)
    ends.append([code, said.getvalue(), "torch" in sys.modules])
    sys.modules.pop("torch", None)
json.dump(ends, sys.stdout)
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """Return how each line ends, typed one after the other in one process."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "a.csv").write_text("text,label\na,b\n")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER], cwd=folder, text=True, capture_output=True, check=True,
        input=json.dumps([line.split() for line in LINES]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    return dict(zip(LINES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("line", LINES)
def test_a_typed_mistake_is_refused_before_torch_is_imported(ends, line):
    code, said, is_imported = ends[line]

    assert code == 2, said
    assert LINES[line] in said
    assert len(said.splitlines()) == 1
    assert not is_imported


@pytest.mark.parametrize(
    ("target", "values"),
    [
        ("adaptation.edits.LoRA", {"rank": 0}),
        ("adaptation.edits.LoRA", {"dropout": 1.0}),
        ("adaptation.edits.LoRA", {"scale": "wide"}),
        ("objectives.classification.Classification", {"dropout": "x"}),
        ("objectives.masked_lm.MaskedLM", {"rate": 0.0}),
        ("optim.schedules.Slanted", {"cut": 1.0}),
        ("tasks.table.Table", {"train": "a", "labelled": 0}),
    ],
)
def test_what_is_read_of_a_class_is_what_the_class_says(target, values):
    node = {"_target_": f"transfer_cli.{target}", **values}

    with pytest.raises(ConfigError) as read:
        check_values(node, "key")
    with pytest.raises(ConfigError) as made:
        build(node, "key", object)

    assert str(read.value) == str(made.value)
