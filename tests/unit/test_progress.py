"""The progress of long work: when it is shown, what it says, what it leaves behind."""

import contextlib
import logging
import mmap
import os
import pty
import select
import termios
import threading
import time

import pytest

from transfer_cli import progress as module
from transfer_cli.progress import memory, progress


@pytest.fixture
def at_once(monkeypatch):
    """Let it be shown at once, and often."""
    monkeypatch.setattr(module, "SECONDS_UNTIL_SHOWN", 0.0)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_DRAWINGS", 0.005)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.005)


def on_terminal(work):
    """Return what a terminal shows while something works."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 100))
    shown = bytearray()
    with open(theirs, "w") as stream, contextlib.redirect_stderr(stream):  # noqa: PTH123 - a file number
        work()
        stream.flush()
        while select.select([ours], [], [], 0.1)[0]:
            shown.extend(os.read(ours, 2**16))
    os.close(ours)
    return shown.decode()


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def encode_some(**options):
    with progress("encoding", 10, "texts", **options) as more:
        more(3)
        time.sleep(0.1)


def test_a_terminal_has_one_line_that_goes(at_once, capsys):
    shown = on_terminal(encode_some)

    lines = [line for line in shown.split("\r") if line.strip()]
    assert lines
    assert all(line.startswith("encoding:  ") for line in lines)
    assert " 3/10 [" in lines[-1]
    assert all(line.endswith(" MiB]") for line in lines)
    assert "\n" not in shown
    assert shown.rpartition("MiB]")[2].strip() == ""
    assert capsys.readouterr().out == ""


def test_a_log_has_lines_with_time_left_and_memory(at_once, caplog):
    with caplog.at_level(logging.INFO, "transfer_cli"), progress("encoding", 10, "texts") as more:
        more(5)
        until(lambda: any(" 5 of " in each for each in caplog.messages))

    first = caplog.messages[-1]
    assert first.startswith("encoding: 5 of 10 texts, 00:00 gone, 00:00 left, ")
    assert first.endswith(" MiB")


def test_where_no_end_is_known_none_is_foretold(at_once, caplog):
    with caplog.at_level(logging.INFO, "transfer_cli"):
        with progress("reading", None, "runs") as more:
            more(5)
            until(lambda: any(" 5 runs" in each for each in caplog.messages))
        with progress("learning"):
            until(lambda: any(each.startswith("learning") for each in caplog.messages))

    assert any(each.startswith("reading: 5 runs, 00:00 gone, ") for each in caplog.messages)
    assert not any("left" in each for each in caplog.messages)


def test_what_is_only_about_so_much_never_says_more_than_all(at_once, caplog):
    with caplog.at_level(logging.INFO, "transfer_cli"), progress("reading", 10, "lines") as more:
        more(12)
        until(lambda: any(" 12 of 12 lines" in each for each in caplog.messages))

    assert not any(" 12 of 10" in each for each in caplog.messages)


def test_of_short_work_nothing_is_shown_and_no_total_asked_for(caplog):
    def total():
        raise AssertionError

    def work():
        with progress("encoding", total, "texts") as more:
            more(1)

    assert on_terminal(work) == ""
    assert caplog.messages == []


def test_a_total_that_must_be_found_is_found_beside_the_work(at_once, caplog):
    found = []

    def total():
        found.append(threading.current_thread())
        return 8

    with caplog.at_level(logging.INFO, "transfer_cli"), progress("reading", total, "rows") as more:
        more(2)
        until(lambda: any("2 of 8" in each for each in caplog.messages))

    assert "2 of 8 rows" in caplog.messages[-1]
    assert len(found) == 1
    assert found[0] is not threading.main_thread()


@pytest.mark.parametrize("reason", ["rank", "shown"])
def test_others_are_silent(reason, at_once, monkeypatch):
    if reason == "rank":
        monkeypatch.setenv("RANK", "1")

    assert on_terminal(lambda: encode_some(shown=reason != "shown")) == ""


def test_an_error_passes_and_the_line_goes(at_once):
    def fail():
        with pytest.raises(ValueError, match="inside"), progress("encoding", 10, "texts"):  # noqa: PT012 - two contexts
            time.sleep(0.1)
            raise ValueError("inside")

    shown, mark, after = on_terminal(fail).rpartition("MiB]")

    assert shown.strip()
    assert mark
    assert after.strip() == ""


def test_a_terminal_that_is_gone_ends_nothing(at_once, monkeypatch):
    ours, theirs = pty.openpty()
    stream = open(theirs, "w")  # noqa: SIM115, PTH123 - it cannot be flushed any more
    monkeypatch.setattr("sys.stderr", stream)
    os.close(ours)

    encode_some()

    monkeypatch.undo()
    os.dup2(os.open(os.devnull, os.O_WRONLY), theirs)
    stream.close()


def test_memory_is_that_of_this_process():
    before = float(memory().split()[0].replace(",", ""))

    with mmap.mmap(-1, 64 * 2**20) as held:  # not of the heap, which may have room
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
        after = float(memory().split()[0].replace(",", ""))

    assert 48 < after - before < 100
