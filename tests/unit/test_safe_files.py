"""Small files that anybody may have written."""

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import damaged, fuzz, memory_up_to
from transfer_cli.safe_files import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    UnreadableError,
    check_kinds,
    escaped,
    markdown_code,
    markdown_row,
    markdown_text,
    parse_json,
    printable,
    read_json,
    read_text,
    spreadsheet_cell,
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def refusal(path) -> str:
    with pytest.raises(UnreadableError) as caught:
        read_json(path)
    return str(caught.value)


@given(st.dictionaries(st.text(), plain))
def test_what_json_was_written_is_read(content):
    assert parse_json(json.dumps(content)) == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1 is not JSON"),
        (b'{"a": 1,\n"b"', "line 2 is not JSON"),
        (b'{"a":\n "\xff"}', "line 2 is not UTF-8 (byte 0xFF)"),
        (b'{"a": 1\n\n\0}', "line 3 holds a NUL byte"),
        (b"[1]", "it is no JSON object"),
        (b'{"a": 1, "b": 2, "a": 3}', "the name 'a' is there twice"),
        (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", f"nested deeper than {MAX_DEPTH} levels"),
        (b"[" * 100_000, f"nested deeper than {MAX_DEPTH} levels"),
        (b'{"a": ' + b"9" * 20 + b"}", "a whole number has more than 64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "integer string conversion"),
    ],
)
def test_what_none_of_our_files_holds_is_refused(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)

    assert message in refusal(path)


def test_a_file_that_is_too_large_is_refused_without_being_read_whole(tmp_path):
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(2**31)

    with memory_up_to(3 * MAX_FILE_BYTES):
        assert refusal(path) == "it is larger than 16,384 KiB"


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.json")

    assert "expected a plain file" in refusal(tmp_path / "a.json")


def test_a_name_that_no_file_can_have_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError, match="too long"):
        read_text(tmp_path / ("x" * 5000))


@fuzz(200)
@given(damaged(b'{"labels": ["a", "b"], "shape": {"width": 16, "bias": true}, "x": [1.5, null]}'))
def test_fuzz_damaged_json_is_read_or_refused(content):
    try:
        found = parse_json(content.decode("utf-8", "replace"))
    except UnreadableError:
        return
    assert isinstance(found, dict)


def test_a_message_is_one_line_that_cannot_steer_a_terminal():
    assert printable("a\n\tb \x1b[31mred\x9b") == "a b \\x1b[31mred\\x9b"
    assert len(printable("x" * 10**6)) < 3000


def test_a_log_keeps_its_lines_and_nothing_else_that_is_invisible():
    assert escaped("a\n  b\tc\x07") == "a\n  b\tc\\x07"


def test_a_file_that_another_machine_replaces_just_now_is_opened_again(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("{}")
    opened, stale = Path.open, [OSError(errno.ESTALE, "Stale file handle")]

    def open_(path, *given, **named):
        if stale:
            raise stale.pop()
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", open_)

    assert read_json(tmp_path / "a.json") == {}
    stale += [OSError(errno.ESTALE, "Stale file handle")] * 2
    with pytest.raises(OSError, match="Stale"):
        read_json(tmp_path / "a.json")


@given(st.text("ab `*_<>[]()|\\#!&~$;.\n", max_size=12))
def test_markdown_shows_a_text_as_it_is(text):
    markdown_it = pytest.importorskip("markdown_it")
    shown = [f"x {markdown_text(text)} y", markdown_code(text)]
    table = f"| a | b |\n|---|---|\n{markdown_row(shown)}"
    page = markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])

    for whole in ("\n\n".join(shown), table):
        said, code = [t for t in page.parse(whole) if t.type == "inline"][-2:]

        assert {each.type for each in said.children} <= {"text", "text_special"}
        assert [each.type for each in code.children] == ["code_inline"]
        assert "".join(each.content for each in said.children).split() == f"x {text} y".split()
        assert code.children[0].content == (" ".join(text.split()) or " ")


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t=", "\r=", "\uff1d"])
def test_a_spreadsheet_computes_no_text(begin):
    assert spreadsheet_cell(f"{begin}1+1").startswith(("'", "\\"))
    assert spreadsheet_cell(f"1{begin}1")[0] == "1"


@dataclass
class Record:
    name: str
    share: float | None = None
    words: tuple[str, ...] = ()


@pytest.mark.parametrize("record", [Record("a"), Record("a", 1), Record("a", 0.5, ("b",))])
def test_a_record_of_the_kinds_that_it_names_is_taken(record):
    check_kinds(record)


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (Record(None), "name"), (Record(1), "name"), (Record("a", True), "share"),
        (Record("a", "1"), "share"), (Record("a", 1, ["b"]), "words"),
    ],
)  # fmt: skip
def test_a_record_of_other_kinds_is_refused_by_its_field(record, name):
    with pytest.raises(UnreadableError, match=f"its {name} is no "):
        check_kinds(record)
