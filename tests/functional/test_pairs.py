"""Pairs of texts, from the data to the prediction."""

import re

import pytest

from transfer_cli.data import sample

pytestmark = pytest.mark.functional


def test_the_sample_asks_for_one_kind_as_often_as_for_two():
    kinds, asked = sample.questions()
    kind_of = {text: label for rows in asked.values() for text, label in rows}

    for rows in sample.pairs().values():
        assert 2 * sum(is_same for *_, is_same in rows) == len(rows)
        assert all((kind_of[one] == kind_of[other]) == is_same for one, other, is_same in rows)
    assert len(kinds) == 6


def test_answers_to_a_test_set_of_glue_are_handed_in(transfer, tmp_path, tiny):
    train = [f'{n}\tx\tA {n} " dog\tB {n} , cat\t{n % 6}.5' for n in range(20)]
    test = [f'{n}\tx\tA {n} " dog\tB {n} , cat' for n in range(9)]
    header = "index\tgenre\tsentence1\tsentence2"
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("\n".join([f"{header}\tscore", *train]))
    (tmp_path / "test.tsv").write_text("\n".join([header, *test]))
    learn = ("init=scratch", "tokenizer=wordpiece", *tiny, "loop.steps=1", "device=cpu")
    task = ("data=glue", "data.task=stsb", "data.folder=.", "objective=regression")
    assert transfer("finetune", *task, *learn, "run.dir=run").code == 0
    (tmp_path / "answers").mkdir()

    ended = transfer(
        "predict", "run", "test.tsv", "output=answers", "output_format=glue", "device=cpu"
    )

    assert ended.code == 0, ended.err
    first, *rows = (tmp_path / "answers" / "STS-B.tsv").read_text().splitlines()
    assert first == "index\tprediction"
    assert [row.split("\t")[0] for row in rows] == [str(n) for n in range(9)]
    assert all(re.fullmatch(r"\d+\t[0-5]\.\d{3}", row) for row in rows)
    for words, said in (
        (("train.tsv", "keep=true"), "keep: output_format=glue has no columns but its own two"),
        (("none.tsv",), "none.tsv"),
        (("test.tsv", "text=sentence"), "line 2: no column 'sentence'; there are 'index'"),
    ):
        ended = transfer("predict", "run", *words, "output_format=glue", "device=cpu")
        assert (ended.code, said in ended.err.splitlines()[-1]) == (2, True), ended.err
    assert [path.name for path in (tmp_path / "answers").iterdir()] == ["STS-B.tsv"]
