import contextlib
import io
import logging
import mmap
import os
import pty
import re
import select
import sys
import termios
import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from transfer_cli import progress as module
from transfer_cli import terminal
from transfer_cli.progress import memory_text, progress
from transfer_cli.terminal import BLANK, Column, Entry, Line, Page, Piece, Prose, TextTable

CODES = re.compile(r"\x1b\[[0-9;]*m")


class Screen(io.StringIO):
    """Takes what a terminal would show."""

    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Return what is shown on a terminal of so many columns, colour codes included."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def shown(page, columns=80):
        stream = Screen()
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", stream)
        terminal.print_out(page)
        return stream.getvalue()

    return shown


def without_colour(text):
    return CODES.sub("", text)


LISTING = Page(
    Line(Piece("model=", "heading")),
    Entry(["  ", Piece("tiny", "name")], ["0.8M parameters: for trying things out on a CPU"], 12),
    Entry(["  ", Piece("a_rather_long_name", "own")], ["what it is"], 12),
)

RUNS = TextTable(
    [Column("run"), Column("overrides"), Column("error", right=True)],
    [
        [Piece("0", "name"), "adaptation=full optimizer.lr=0.001 seed=0", Piece("0.05", "good")],
        ["10", "adaptation=frozen", "0.125"],
    ],
)

HOSTILE = "[bold red]x[/] :smile: \x1b[2J\x1b]0;title\x07 \u202eback \\[x]"


def test_a_listing_is_plain_in_a_pipe(capsys):
    terminal.print_out(LISTING)

    assert capsys.readouterr().out == (
        "model=\n"
        "  tiny      0.8M parameters: for trying things out on a CPU\n"
        "  a_rather_long_namewhat it is\n"
    )


def test_a_listing_is_coloured_on_a_terminal(screen, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "")  # which counts as unset

    shown = screen(LISTING)

    assert "\x1b[1mmodel=\x1b[0m" in shown
    assert "\x1b[36mtiny\x1b[0m" in shown
    assert without_colour(shown).splitlines()[1] == (
        "  tiny      0.8M parameters: for trying things out on a CPU"
    )


@pytest.mark.parametrize(
    ("name", "value"), [("NO_COLOR", "1"), ("NO_COLOR", "0"), ("TERM", "dumb")]
)
def test_a_terminal_can_be_told_to_be_plain(screen, monkeypatch, name, value):
    monkeypatch.setenv(name, value)

    assert screen(LISTING) == f"{LISTING}\n"


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_a_text_goes_on_below_itself_and_loses_no_word(screen, columns):
    words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"

    lines = without_colour(screen(Entry(["  name"], [words], 12), columns)).splitlines()

    assert max(map(len, lines)) <= columns
    assert " ".join(lines).split() == ["name", *words.split()]
    begins = {len(line) - len(line.lstrip()) for line in lines[1:]}
    assert begins <= ({12} if columns >= 40 else {4})


def test_the_plain_text_of_an_entry_breaks_at_its_width_alone():
    entry = Entry(["--flag"], ["word " * 40], 10)

    assert len(str(entry).splitlines()) == 1
    broken = str(Entry(["--flag"], ["word " * 40], 10, 60)).splitlines()
    assert max(map(len, broken)) <= 60
    assert all(line.startswith(" " * 10 + "word") for line in broken[1:])


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_prose_flows_where_it_does_not_fit(screen, columns):
    text = "Takes the words of `transfer finetune` and\nprints what a run would train when.\n\nEnd."

    shown = screen(Prose(text), columns)

    lines = without_colour(shown).splitlines()
    assert max(map(len, lines)) <= columns
    assert "\x1b[36m`transfer finetune`\x1b[0m" in shown.replace("\n", " ")
    assert " ".join(lines).split() == text.split()
    assert (without_colour(shown) == f"{text}\n") == (columns > 40)


def test_a_line_is_never_broken(screen):
    command = f"transfer finetune {'key=value ' * 20}end"

    assert without_colour(screen(Line(command), 40)) == f"{command}\n"


# --- tables ------------------------------------------------------------------------------------


def test_a_table_in_a_pipe_and_on_a_wide_terminal_is_aligned_and_not_cut(screen):
    assert str(RUNS).splitlines() == [
        "run  overrides                                  error",
        "0    adaptation=full optimizer.lr=0.001 seed=0   0.05",
        "10   adaptation=frozen                          0.125",
    ]
    assert without_colour(screen(RUNS, 200)) == f"{RUNS}\n"


def test_texts_in_a_table_give_way_and_numbers_do_not(screen):
    lines = without_colour(screen(RUNS, 40)).splitlines()

    assert max(map(len, lines)) <= 40
    assert lines[:3] == [
        "run  overrides                     error",
        "0    adaptation=full                0.05",
        "     optimizer.lr=0.001 seed=0",
    ]


def test_where_not_even_numbers_fit_each_row_is_a_block(screen):
    many = TextTable(
        [Column("run"), *(Column(f"measure {n}", right=True) for n in range(9))],
        [[f"run-{row}", *(f"{n}.{row}" for n in range(9))] for row in range(2)],
    )

    blocks = without_colour(screen(many, 60)).split("\n\n")

    assert len(blocks) == 2
    assert blocks[1].splitlines()[:2] == ["run        run-1", "measure 0  0.1"]


def test_a_table_without_rows_shows_its_titles(screen):
    empty = TextTable([Column("run"), Column("error", right=True)], [])

    assert str(empty) == "run  error"
    assert without_colour(screen(empty)) == "run  error\n"


@given(
    rows=st.lists(st.lists(st.text(max_size=30), min_size=3, max_size=3), max_size=4),
    columns=st.integers(10, 120),
)
def test_no_cell_loses_a_character_however_narrow_the_terminal(rows, columns):
    table = TextTable([Column("a"), Column("b"), Column("c", right=True)], rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.delenv("NO_COLOR", raising=False)
        patch.setenv("COLUMNS", str(columns))
        stream = Screen()
        stream.write(terminal._rendered(table, stream))

    kept = Counter(
        character
        for row in rows
        for cell in row
        for character in terminal.escaped(" ".join(cell.splitlines()))
        if not character.isspace()
    )
    assert kept <= Counter(str(table))
    assert kept <= Counter(without_colour(stream.getvalue()))


# --- what others wrote -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        Line(HOSTILE),
        Entry([Piece(HOSTILE, "name")], [HOSTILE], 20),
        Prose(HOSTILE),
        TextTable([Column("a"), Column("b")], [[HOSTILE, Piece(HOSTILE, "note")]]),
    ],
    ids=lambda block: type(block).__name__,
)
def test_nothing_in_a_text_steers_the_terminal_or_is_taken_for_markup(screen, block):
    shown, plain = screen(block, 1000), str(block)

    for text in (without_colour(shown), plain):
        assert r"[bold red]x[/] :smile: \x1b[2J\x1b]0;title\x07 \u202eback \[x]" in text
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "\x1b[2J" not in shown


def test_wide_characters_are_counted_by_the_room_they_take(screen):
    rows = [["日本語のテキスト" * 4, "1"], ["short", "22"]]
    table = TextTable([Column("text"), Column("n", right=True)], rows)

    lines = without_colour(screen(table, 50)).splitlines()

    assert max(map(cell_len, lines)) <= 50
    assert lines[1].endswith(" 1")


# --- errors and warnings -----------------------------------------------------------------------


def test_an_error_names_the_command_in_red_and_stays_one_line(screen):
    line = terminal.error("transfer plan", "a cause and a cure " * 10)

    assert str(line) == f"transfer plan: {'a cause and a cure ' * 10}".rstrip()
    assert screen(line, 40).startswith("\x1b[1;31mtransfer plan:\x1b[0m a cause")
    assert screen(line, 40).count("\n") == 1


@pytest.mark.usefixtures("screen")
def test_a_word_is_painted_for_a_terminal_alone():
    assert terminal.paint("warning:", "warning", io.StringIO()) == "warning:"
    assert terminal.paint("warning:", "warning", Screen()) == "\x1b[1;33mwarning:\x1b[0m"


def test_every_style_is_one_that_rich_knows(screen):
    page = Page(BLANK, *(Line(Piece(style or "none", style)) for style in terminal.STYLES))

    assert screen(page).count("\x1b[0m") == len(terminal.STYLES) - 1


# --- progress ------------------------------------------------------------------------------------


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
        until(lambda: any(" 5 of " in message for message in caplog.messages))
        first = caplog.messages[-1]
        more(7)  # 10 were only about so many
        until(lambda: any(" 12 of 12 texts" in message for message in caplog.messages))

    assert first.startswith("encoding: 5 of 10 texts, 00:00 gone, 00:00 left, ")
    assert first.endswith(" MiB")
    assert not any(" 12 of 10" in message for message in caplog.messages)


def test_where_no_end_is_known_none_is_foretold(at_once, caplog):
    with caplog.at_level(logging.INFO, "transfer_cli"):
        with progress("reading", None, "runs") as more:
            more(5)
            until(lambda: any(" 5 runs" in message for message in caplog.messages))
        with progress("learning"):
            until(lambda: any(message.startswith("learning") for message in caplog.messages))

    assert any(message.startswith("reading: 5 runs, 00:00 gone, ") for message in caplog.messages)
    assert not any("left" in message for message in caplog.messages)


def test_of_short_work_nothing_is_shown_and_no_total_asked_for(caplog):
    def total():
        raise AssertionError

    def work():
        with progress("encoding", total, "texts") as more:
            more(1)

    assert on_terminal(work) == ""
    assert caplog.messages == []


def test_a_total_that_must_be_found_is_found_beside_the_work(at_once, caplog):
    threads = []

    def total():
        threads.append(threading.current_thread())
        return 8

    with caplog.at_level(logging.INFO, "transfer_cli"), progress("reading", total, "rows") as more:
        more(2)
        until(lambda: any("2 of 8" in message for message in caplog.messages))

    assert "2 of 8 rows" in caplog.messages[-1]
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


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
    before = float(memory_text().split()[0].replace(",", ""))

    with mmap.mmap(-1, 64 * 2**20) as held:  # not of the heap, which may have room
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
        after = float(memory_text().split()[0].replace(",", ""))

    assert 48 < after - before < 100
