"""What small models reach on real text. Needs the folder with the data in TRANSFER_DATA.

Thresholds lie well below what was measured on two CPU cores, and well above what a broken loader,
objective or head reaches. A perplexity far too low is a failure as well: it means a leak.
"""

import os
from pathlib import Path

import pytest

REAL = os.environ.get("TRANSFER_DATA")  # read before the tests get folders of their own

WORDS = {"train": 2_088_628, "validation": 217_646, "test": 245_569}

SMALL = ("model=tiny", "tokenizer=wordpiece", "tokenizer.size=4096", "tokenizer.lowercase=true")


def needs(*parts):
    there = REAL is not None and Path(REAL).expanduser().joinpath(*parts).exists()
    where = "/".join(parts)
    return pytest.mark.skipif(not there, reason=f"needs {where} in the folder TRANSFER_DATA names")


@needs("wikitext-2")
def test_wikitext_2_has_the_published_number_of_words(transfer):
    ended = transfer("prepare", "data=wikitext2", *SMALL[1:], f"data_dir={REAL}").ok()

    for split, count in WORDS.items():
        assert any(
            line.startswith(split) and f"{count:,} words" in line for line in ended.out.splitlines()
        )


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "share"), [(100, 0.8), (800, 0.35)])
@needs("wikitext-2")
def test_a_language_model_learns_and_its_perplexity_is_right(
    transfer, read_json, tmp_path, steps, share
):
    run = tmp_path / "run"
    words = ("data=wikitext2", *SMALL, "data.length=64", "loop.batch=32", f"loop.steps={steps}")
    rates = ("optimizer.lr=2e-3", "schedule.warmup=100", f"data_dir={REAL}")
    transfer("pretrain", *words, *rates, f"run.dir={run}").ok()
    asked = (f"run={run}", "split=validation", f"data_dir={REAL}")
    transfer("evaluate", *asked, "output=model.json")
    transfer("evaluate", *asked, "baseline=unigram", "output=unigram.json")

    model = read_json(tmp_path / "model.json")["measures"]["validation"]
    unigram = read_json(tmp_path / "unigram.json")["measures"]["validation"]

    print(f"{steps} steps: {model}, unigram {unigram}")
    assert 20 < model["token_perplexity"] < share * unigram["token_perplexity"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@needs("trec", "train_5500.label")
@needs("wikitext-2")
def test_a_classifier_learns_trec_from_scratch(transfer, read_json, tmp_path, monkeypatch, seed):
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))
    transfer("prepare", "data=wikitext2", *SMALL[1:], f"data_dir={REAL}")
    (tokenizer,) = (tmp_path / "cache" / "tokenizers").glob("*/tokenizer.json")
    run = tmp_path / "run"
    model = ("init=scratch", "model=tiny", "model.direction=causal", "objective.pooling=cls_last")
    words = (*model, "tokenizer=file", f"tokenizer.path={tokenizer}")
    rates = ("loop.epochs=3", "loop.batch=16", "optimizer.lr=1e-3", f"seed={seed}")
    transfer("finetune", *words, *rates, f"data_dir={REAL}", f"run.dir={run}").ok()

    results = read_json(run / "results.json")

    table = results["tables"]["test"]["confusion"]
    print(f"seed {seed}: {results['measures']['test']}, confusion {table}")
    assert [sum(row) for row in table] == [9, 138, 94, 65, 81, 113]
    assert results["measures"]["test"]["accuracy"] >= 0.78
