"""`transfer prepare`: all the work before the first step, once."""

import pytest

pytestmark = pytest.mark.functional

WORDS = ("tokenizer.size=600",)


def test_a_second_call_makes_and_encodes_nothing(transfer, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))
    words = ("prepare", "data=text", f"data.train={corpus}", *WORDS)

    first = transfer(*words)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.*")}
    second = transfer(*words)

    assert (first.code, second.code) == (0, 0)
    assert "Encoding the train text" in first.err
    assert second.err == ""
    assert first.out == second.out
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.*")}


def test_a_run_on_prepared_data_encodes_nothing(transfer, corpus, tiny, loop):
    data = ("data=text", f"data.train={corpus}")

    assert transfer("prepare", *data, "tokenizer.size=600").code == 0
    ended = transfer("pretrain", *data, *tiny, *loop, "loop.steps=1", "run.dir=run")

    assert ended.code == 0, ended.err
    assert "Encoding" not in ended.err
    assert "Making the tokenizer" not in ended.err


def test_it_says_what_came(transfer, corpus):
    ended = transfer("prepare", "data=text", f"data.train={corpus}", *WORDS)

    lines = [line.split()[0] for line in ended.out.splitlines()]
    assert lines == ["tokenizer", "train", "validation"]
    assert "tokens" in ended.out.splitlines()[0]


def test_the_tokenizer_of_a_run_is_used(transfer, pretrained, corpus):
    words = ("data=text", f"data.train={corpus}", f"init_from={pretrained}")

    ended = transfer("prepare", *words)

    assert ended.code == 0, ended.err
    assert "Making the tokenizer" not in ended.err


def test_a_task_is_checked(transfer, questions):
    ended = transfer("prepare", "data=table", f"data.train={questions}", *WORDS)

    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        "train      54 examples, 2 labels",
        "validation 6 examples, 2 labels",
    ]
