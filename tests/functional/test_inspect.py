"""`transfer inspect`: what a model would see."""

import pytest

pytestmark = pytest.mark.functional


def test_labelled_data_is_described(transfer, pretrained):
    ended = transfer("inspect", "data=sample_questions", f"init_from={pretrained}", "samples=1")

    assert ended.code == 0, ended.err
    out = ended.out
    for split, count in {"train": 144, "validation": 96, "test": 288}.items():
        assert f"{split}: {count} examples" in out
    assert "labels   animal 24  city 24  disease 24  mineral 24  person 24  river 24" in out
    assert "tokens   " in out
    assert "longest" in out
    assert "unknown  " in out
    assert "overlap: 0 texts stand in both train and test" in out
    # The classification token ends an input of a causal model.
    samples = [line for line in out.splitlines() if line.rstrip().endswith("[CLS]")]
    assert len(samples) == 3


def test_repeats_and_overlaps_are_counted(transfer, tmp_path):
    (tmp_path / "train.csv").write_text("text,label\none,a\ntwo,b\none,a\nthree,b\n")
    (tmp_path / "test.csv").write_text("text,label\none,a\nfour,b\n")

    ended = transfer(
        "inspect", "data=table", "data.train=train.csv", "data.validation=test.csv",
        "data.test=test.csv", "tokenizer.size=300", "samples=0",
    )  # fmt: skip

    assert ended.code == 0, ended.err
    assert "repeats  1 texts stand there before" in ended.out
    assert "overlap: 1 texts stand in both train and test" in ended.out


def test_both_texts_of_a_pair_are_counted(transfer, tmp_path):
    (tmp_path / "train.csv").write_text("text,other,label\none,a a a,x\ntwo,b b,y\n")
    table = ("data=table", "data.train=train.csv", "data.validation=train.csv", "samples=1")

    one = transfer("inspect", *table, "tokenizer.size=300").out
    both = transfer("inspect", *table, "tokenizer.size=300", "data.pair=other").out

    assert "longest 1" in one
    assert "tokens   3.5 on average" in both
    assert "longest 4" in both
    assert "x: one | a a a" in both


def test_text_is_described_with_its_targets(transfer, corpus):
    ended = transfer(
        "inspect", "data=text", f"data.train={corpus}", "tokenizer.size=600", "samples=1"
    )

    assert ended.code == 0, ended.err
    out = ended.out.splitlines()
    assert out[0].startswith("train: 297 lines, ")
    assert any(line.startswith("  tokens a word  ") for line in out)
    assert any(line.startswith("  unknown  0 tokens") for line in out)
    assert any(line.startswith("overlap: 0 of ") for line in out)
    tokens, targets = (
        next(line for line in out if line.startswith(f"  {what}")).split()[1:]
        for what in ("tokens   ", "targets")
    )
    assert tokens[1:] == targets[: len(tokens) - 1]


def test_what_the_masked_objective_hides_is_shown(transfer, corpus):
    ended = transfer(
        "inspect", "data=text", f"data.train={corpus}", "tokenizer.size=600", "samples=1",
        "objective=mlm",
    )  # fmt: skip

    assert ended.code == 0, ended.err
    assert "[MASK]" in ended.out
