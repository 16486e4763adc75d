"""The commands of docs/sweeping.md, as they stand there, with the sample in place of TREC-6."""

import json
import re
import shlex
from pathlib import Path

import pytest

from transfer_cli.config.locate import conf_dir

pytestmark = pytest.mark.functional

PAGE = conf_dir().parent / "docs" / "sweeping.md"

SMALLER = {
    "runs/schemes": ("adaptation=full,lora", "optimizer.lr=1e-3", "seed=0,1"),
    "runs/seeds": ("seed=0,1",),
    "runs/rates": ("optimizer.lr=1e-3,3e-3",),
    "runs/labels": ("data.labelled=20,null", "seed=0"),
    "runs/all": ("adaptation=full,frozen",),
    "runs/search": ("sweep.trials=2",),
}
"""What is left of each sweep, so that it takes seconds."""


def commands():
    found = re.findall(r"^\$ transfer (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line) for line in found]


def on_the_sample(words, pretrained, loop):
    """Return a command of the page with the sample's data and model."""
    words = [word.replace("runs/wiki", str(pretrained)) for word in words]
    if words[0] == "diff":
        return [words[0], "runs/schemes/0", "runs/schemes/3"]
    if words[0] in ("evaluate", "predict"):  # after two steps nothing has learnt
        return [words[0], "runs/schemes/0", *words[2:]]
    if words[0] not in ("finetune", "lr-find"):
        return words
    words += ["data=sample_questions", "device=cpu", "loop.steps=2", "loop.log_every=1"]
    if words[0] == "lr-find":
        return [*words, "loop.batch=32", "lr_find.steps=40", "lr_find.start=1e-5"]
    folder = next(word.partition("=")[2] for word in words if word.startswith("run.dir="))
    return [*words, *SMALLER[folder], "sweep.isolate=false", "sweep.workers=1"]


@pytest.mark.slow
def test_every_command_of_the_page_runs(transfer, pretrained, loop):
    pytest.importorskip("optuna", reason="needs Optuna: the extra `search`")
    typed = commands()
    assert {words[0] for words in typed} == {
        "finetune", "report", "evaluate", "predict", "diff", "lr-find",
    }  # fmt: skip
    Path("questions.txt").write_text("Who wrote it ?\n")

    for words in typed:
        ended = transfer(*on_the_sample(words, pretrained, loop))
        assert ended.code == 0, (words, ended.err)

    for folder, jobs in {"runs/schemes": 4, "runs/labels": 2, "runs/search": 2}.items():
        assert len(list(Path(folder).glob("*/results.json"))) == jobs
        assert json.loads(Path(folder, "job-0.json").read_text())["outcome"] == "done"
    assert "<html" in Path("report.html").read_text(encoding="utf-8")


def test_every_preset_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")

    for file in (conf_dir() / "sweep").glob("*.yaml"):
        assert f"| `{file.stem}` |" in text
