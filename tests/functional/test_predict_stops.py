"""`transfer predict` that is stopped, and goes on."""

import fcntl
import io
import json
import os
import signal
import sys

import pytest

from transfer_cli.commands.predict import predict as predicting

TEXTS = [f'Where is the "bridge", number {n} ?' for n in range(40)]


@pytest.fixture
def predict(transfer, finetuned, monkeypatch):
    """Return how to predict, two rows in a window."""
    monkeypatch.setattr(predicting, "WINDOW_BATCHES", 1)

    def call(*words, run=finetuned):
        return transfer("predict", f"run={run}", "device=cpu", "batch=2", "keep=true", *words)

    return call


@pytest.fixture
def rows(tmp_path):
    """Write a table; return it as lines of JSON."""
    lines = [json.dumps({"text": text, "n": n}) for n, text in enumerate(TEXTS)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    return lines


@pytest.fixture
def signalled(monkeypatch):
    """Return how to give lines on standard input, with a signal to this process before the last."""

    def give(lines, number):
        class Source(io.BytesIO):
            def readline(self, size=-1):
                line = super().readline(size)
                if line == lines[-1].encode():
                    os.kill(os.getpid(), number)
                return line

        source = Source("\n".join(lines).encode())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(source))

    return give


def partial_of(folder):
    (path,) = folder.glob("out.*.partial")
    return path


@pytest.mark.parametrize(
    ("number", "code", "ending"),
    [
        ("SIGTERM", 75, "jsonl"),
        pytest.param("SIGHUP", 75, "csv", marks=pytest.mark.slow),
        ("SIGINT", 130, "tsv"),
    ],
)
def test_a_signal_leaves_whole_answers_and_the_rest_is_added(
    predict, rows, signalled, tmp_path, number, code, ending
):
    (tmp_path / f"out.{ending}").write_text("of before")
    signalled(rows[:11], signal.Signals[number])
    stopped = predict("format=jsonl", f"output=out.{ending}")

    left = partial_of(tmp_path).read_text()
    assert stopped.code == code
    assert f"{number}: stopped after line 10 of standard input" in stopped.err
    assert len(left.splitlines()) == 10 + (ending != "jsonl")
    assert left.endswith("\n")
    assert (tmp_path / f"out.{ending}").read_text() == "of before"

    resumed = predict("input=in.jsonl", f"output=out.{ending}", "resume=true")

    assert resumed.code == 0, resumed.err
    assert predict("input=in.jsonl", f"output=whole.{ending}").code == 0
    whole = (tmp_path / f"whole.{ending}").read_bytes()
    assert (tmp_path / f"out.{ending}").read_bytes() == whole
    assert not list(tmp_path.glob("*.partial"))


@pytest.fixture
def killed(predict, rows, signalled, tmp_path):
    """Return how to leave so many bytes of a partial file, as a kill does; with the whole file."""

    def leave(size, output="out.csv", source="in.jsonl"):
        name = output.replace("out", "whole")
        assert predict(f"input={source}", f"output={name}", "errors=skip").code == 0
        whole = (tmp_path / name).read_bytes()
        signalled(rows[:11], signal.SIGTERM)
        predict("format=jsonl", f"output={output}")
        partial_of(tmp_path).write_bytes(whole[:size])
        return whole

    return leave


@pytest.mark.parametrize(
    "size", [120, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 5, 700, 1503, 10**6))]
)
def test_what_a_kill_has_left_is_cut_and_completed(predict, killed, tmp_path, size):
    lines = [
        f'"is\n{n}, ""so"" \r\n?",{n}' if n % 7 else "a,broken,row" for n in range(1, len(TEXTS))
    ]
    (tmp_path / "in.csv").write_bytes("\n".join(["text,n", *lines]).encode())
    whole = killed(size, source="in.csv")

    ended = predict("input=in.csv", "output=out.csv", "errors=skip", "resume=true")

    assert ended.code == 0, ended.err
    assert (tmp_path / "out.csv").read_bytes() == whole


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_answers_to_several_files_are_gone_on_with(predict, rows, tmp_path, ending):
    (tmp_path / "a.jsonl").write_text("\n".join(rows[:7]))
    (tmp_path / "b.jsonl").write_text("\n".join(rows[7:15]) + "\nno JSON\n")
    files = ("input=[a.jsonl,b.jsonl]", f"output=out.{ending}")
    stopped = predict(*files)
    left = partial_of(tmp_path).read_text()

    (tmp_path / "b.jsonl").write_text("\n".join(rows[7:15]))
    resumed, whole = (
        predict(*files, "resume=true"),
        predict(files[0], f"output=whole.{ending}"),
    )

    assert stopped.code == 2
    assert "b.jsonl, line 9" in stopped.err
    assert len(left.splitlines()) == 15 + (ending == "csv")
    assert resumed.code == whole.code == 0, resumed.err
    assert "going on in" in resumed.err
    assert (tmp_path / f"out.{ending}").read_text() == (tmp_path / f"whole.{ending}").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("output=out.csv", "output_format=jsonl"), "is not of line 1 of in.jsonl"),
        (("output=out.csv", "input=other.jsonl"), "is not of line 6 of other.jsonl"),
        (("output=out.csv", "input=short.jsonl"), "is beyond the end of short.jsonl"),
        (("output=/dev/null",), "resume: only the answers in a file can be gone on with"),
        pytest.param(
            ("output=out.csv", "keep=false"), "answer 1 in out.csv.", marks=pytest.mark.slow
        ),
    ],
)
def test_answers_to_something_else_are_not_gone_on_with(
    predict, killed, rows, tmp_path, words, said
):
    killed(1500)
    left = partial_of(tmp_path).read_bytes()
    (tmp_path / "short.jsonl").write_text("\n".join(rows[:4]))
    changed = rows[5].replace("bridge", "tower")
    (tmp_path / "other.jsonl").write_text("\n".join([*rows[:5], changed, *rows[6:]]))

    ended = predict("input=in.jsonl", *words, "resume=true")

    assert ended.code == 2
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1
    assert partial_of(tmp_path).read_bytes() == left


@pytest.mark.parametrize(
    "kind",
    [
        "no UTF-8", "link out",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("pipe", "folder", "link")),
    ],
)  # fmt: skip
def test_what_is_no_file_of_answers_is_not_gone_on_with(predict, killed, tmp_path, kind):
    whole = killed(1500)
    partial = partial_of(tmp_path)
    mine = tmp_path / "mine"
    mine.write_bytes(whole)
    if kind == "no UTF-8":
        partial.write_bytes(whole[:800].replace(b"bridge", b"br\xefdge") + whole[800:1500])
    else:
        partial.unlink()
        {
            "pipe": lambda: os.mkfifo(partial),
            "folder": partial.mkdir,
            "link": lambda: partial.symlink_to(mine),
            "link out": lambda: partial.symlink_to("/dev/null"),
        }[kind]()

    ended = predict("input=in.jsonl", "output=out.csv", "resume=true")

    assert ended.code == 2, ended.err
    assert "out.csv" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert mine.read_bytes() == whole
    assert not (tmp_path / "out.csv").exists()


def test_answers_of_another_model_are_not_gone_on_with(predict, killed, rows, adapted, tmp_path):
    killed(1500)

    ended = predict("input=in.jsonl", "output=out.csv", "resume=true", run=adapted("full").run)

    assert ended.code == 2
    assert ".partial is of another model" in ended.err


def test_a_pipe_gives_the_rows_once_more(predict, killed, rows, tmp_path, type_in):
    whole = killed(1500)
    type_in("\n".join(rows))

    ended = predict("format=jsonl", "output=out.csv", "resume=true")

    assert ended.code == 0, ended.err
    assert (tmp_path / "out.csv").read_bytes() == whole


def test_two_commands_do_not_write_the_same_answers(predict, killed, tmp_path):
    killed(1500)

    with partial_of(tmp_path).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = predict("input=in.jsonl", "output=out.csv", "resume=true")

    assert ended.code == 2
    assert "another command is writing" in ended.err


def test_a_signal_that_is_switched_off_stops_nothing(predict, rows, signalled, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        signalled(rows, signal.SIGHUP)
        ended = predict("format=jsonl", "output=out.jsonl")
    finally:
        signal.signal(signal.SIGHUP, before)

    assert ended.code == 0, ended.err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == len(TEXTS)
