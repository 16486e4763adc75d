"""Pretraining with strided and fixed attention, from the shell."""

import json
import re
from pathlib import Path

import pytest

from tests.functional.conftest import LOOP

pytestmark = pytest.mark.functional

WORDS = (
    "pretrain", "objective=clm", "data=sample_text", "model=toy", "model.window=8",
    "model.width=16", "model.heads=2", "model.feedforward=24", "tokenizer.size=600", *LOOP,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["strided", "fixed"])
def test_it_trains_as_it_stands_and_its_model_goes_on(attention, transfer):
    ended = transfer(*WORDS, f"model.attention={attention}", "loop.steps=2", "run.dir=run")

    assert ended.code == 0, ended.err
    assert json.loads(Path("run/model/model.json").read_text())["shape"]["attention"] == attention
    said = [
        transfer("generate", "run", "The", "max_tokens=20", "temperature=0", f"cache={cache}").out
        for cache in ("true", "false")
    ]
    assert said[0] == said[1] != ""
    shown = transfer("analyze", "run", "analysis=attention")
    assert shown.code == 0, shown.err
    refused = transfer("export", "run=run", "to=there")
    assert refused.code == 2
    assert f"attention={attention}" in refused.err
    adapted = ("finetune", "init_from=run", "data=sample_questions", "adaptation=lora", *LOOP)
    assert transfer(*adapted, "loop.steps=2", "run.dir=adapted").code == 0


def test_a_plan_counts_the_pairs_that_are_computed(transfer):
    found = {}
    for attention in ("full", "strided"):
        ended = transfer("plan", *WORDS, f"model.attention={attention}", "plan.steps=0")
        assert ended.code == 0, ended.err
        [line] = [line for line in ended.out.splitlines() if line.startswith("flops: ")]
        found[attention] = float(re.search(r"a step takes ([\d.]+) MFLOP", line)[1])

    # 8 texts of 64, 2 blocks, 4 operations for 16 numbers of all heads, in three passes: of half
    # the heads 8 x 8 x 16 pairs are left of 64 x 64, of half 8 x 8 x 8.
    saved = 8 * 2 * 4 * 16 * 3 * (64 * 64 - (1024 + 512) / 2) / 1e6
    assert found["full"] - found["strided"] == pytest.approx(saved, abs=0.2)
