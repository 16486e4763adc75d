"""What `predict` reads, row by row and from slow pipes; what it writes can be read again."""

import io
import json
import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.commands.predict import reading as predict_input
from transfer_cli.commands.predict.reading import Columns, PipedLines, Row, read_rows, windows
from transfer_cli.commands.predict.writing import FORMATS, format_of
from transfer_cli.data.labelled import Example
from transfer_cli.data.layout import Layout
from transfer_cli.data.readers import all_lines
from transfer_cli.data.table import Refuse, Skipped, table_of_lines, table_records, warn_of_skipped
from transfer_cli.data.wanted import LABEL, Chosen, Wanted
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.tasks.classification import ClassificationTask

LABELS = ("no", "yes")
TASK = ClassificationTask(LABELS)
TEXT = Columns(Chosen("text", None, LABEL), keep=False, task=TASK)
KEPT = Columns(Chosen("text", None, LABEL), keep=True, task=TASK)
TYPED = Wanted("text", labelled=False, keys="")
stop = Refuse("errors")
RECOGNISED = Layout()


def table_of(content, table_format="csv"):
    """Return a table in memory."""
    return of_stream(io.BytesIO(content), table_format, content)


def of_stream(stream, table_format, content, given=RECOGNISED):
    return table_of_lines(content, stream, "a", table_format, given, TYPED)


def read(content, table_format="csv", columns=TEXT):
    """Return the rows that can be read as (line, text), and what was said of the others."""
    errors = []
    parsed = read_rows(table_of(content, table_format), columns, errors.append)
    return [(row.line, row.example.text) for row in parsed], [str(error) for error in errors]


def rows(*texts):
    return [Row(number, Example(text), {}, len(text)) for number, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("table_format", "content", "texts", "said"),
    [
        ("text", b"a\n\xff\nc\0\nd\n", ["a", "d"], ["line 2: byte 0xFF", "line 3: NUL byte"]),
        ("jsonl", b'{"text": "a"}\n{\n[]\n{"text": "d"}\n', ["a", "d"],
         ["line 2: not JSON", "line 3: a list"]),
        ("jsonl", b'{"text": "a"}\n{"n": 1}\n{"text": 3}\n{"text": "\\ud800"}\n', ["a"],
         ["line 2: no column 'text'", "line 3: 'text' is a number", "line 4: 'text' holds half"]),
        ("csv", b"text,n\na,1\nb\nc,1,2\nd,2\n", ["a", "d"],
         ["line 3: 1 column,", "line 4: 3 columns,"]),
        ("tsv", b"text\tn\na\t1\nb\nd\t2\n", ["a", "d"], ["line 3: 1 column,"]),
        ("csv", b'text,n\n"a"b,1\n"c, d",2\n', ["c, d"], ["line 2: a broken row"]),
        ("csv", b"text,n\na,1\n\xff,1\nc,2\n", ["a", "c"], ["line 3: byte 0xFF"]),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_told_of_and_the_rest_is_read(
    table_format, content, texts, said
):
    numbered, errors = read(content, table_format)

    assert [text for _, text in numbered] == texts
    assert len(errors) == len(said)
    for error, beginning in zip(errors, said, strict=True):
        assert error.startswith(f"a, {beginning}")


@pytest.mark.parametrize(
    ("content", "numbered", "bad"),
    [
        (b'text,n\n"a\nb",1\nbad\n"c\n\nd",2\nworse\ne,3\n',
         [(2, "a\nb"), (5, "c\n\nd"), (9, "e")], [4, 8]),
        (b'text,n\n"a,1\nb,2\nc,3\n"d, e",4\n', [(3, "b"), (4, "c"), (5, "d, e")], [2]),
        (b'text,n\n"a\n\xff\nb",1\nc,2\n', [(5, "c")], [3]),
    ],
    ids=["rows of several lines", "a missing quote", "a bad byte"],
)  # fmt: skip
def test_a_bad_row_costs_itself_alone_and_lines_are_counted_on(content, numbered, bad):
    rows, errors = read(content)

    assert rows == numbered
    assert [error.partition(":")[0] for error in errors] == [f"a, line {line}" for line in bad]


def test_what_is_read_again_has_a_limit(monkeypatch):
    monkeypatch.setattr("transfer_cli.data.table.MAX_LINE_BYTES", 2000)
    # Each of these lines opens a quote; in a quote that is open already, it closes and opens one.
    content = b"text,n\n" + b'x",",\n' * 3_000
    taken = 0

    class Counting(io.BytesIO):
        def readline(self, size=-1):
            nonlocal taken
            taken += 1
            return super().readline(size)

    errors = []
    table = of_stream(Counting(content), "csv", content, Layout(quotes="double"))
    parsed = list(read_rows(table, TEXT, errors.append))

    assert not parsed
    assert taken == 3_002
    # Were each line read again with all that follow, there would be an error for each.
    assert len(errors) < 1_500


def test_a_line_that_is_too_long_is_left_out_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(predict_input.readers, "MAX_LINE_BYTES", 100)

    numbered, errors = read(b"a\n" + b"x" * 1000 + b"\nc\n", "text")

    assert numbered == [(1, "a"), (3, "c")]
    assert [error[:20] for error in errors] == ["a, line 2: longer th"]


def test_other_columns_are_kept_where_they_are_asked_for():
    table = table_of(b'{"text": "a", "n": [1], "x": null}\n', "jsonl")

    [row] = read_rows(table, KEPT, stop)

    assert row.kept == {"n": [1], "x": None}


@given(
    content=st.lists(
        st.sampled_from([b'"', b'""', b",", b"a", b"\n", b"\xff", b"\0", b"\r\n", b"b\n", b'"c"\n'])
    ).map(b"".join)
)
def test_whatever_is_in_a_table_every_row_is_read_once_or_told_of(content):
    numbered, errors, refused = [], [], None
    try:
        numbered, errors = read(b"text,n\n" + content)
    except DataError as error:
        refused = str(error)

    asked = ("has no rows", "encoding=", "header=")
    assert refused is None or any(word in refused for word in asked)
    lines = [line for line, _ in numbered]
    assert lines == sorted(set(lines))
    for error in errors:
        assert int(error.removeprefix("a, line ").partition(":")[0]) not in lines


# ---------------------------------------------------------------------------- bad rows, counted


def test_bad_rows_are_one_line_by_reason(caplog):
    caplog.set_level(logging.WARNING, "transfer_cli")
    skipped, whole = Skipped("a"), Skipped("b")
    skipped.answered, whole.answered = 1900, 7

    for number in range(97):
        skipped(DataError(f"a, line {number}: the label {number!r} is bad. A cure.", "bad label"))
    for number in (3, 4, 5):
        skipped(DataError(f"a, line {number}: it is broken. A cure."))
    warn_of_skipped([whole, skipped])

    assert [record.getMessage() for record in caplog.records] == [
        "a: 100 of 2,000 rows left out: bad label (97), lines 0, 1, 2, 3, 4, ...; "
        "it is broken (3), lines 3, 4, 5"
    ]


# -------------------------------------------------------------------------------------- windows


@pytest.mark.parametrize(
    ("texts", "most", "lines"),
    [("abcdefg", 3, [[1, 2, 3], [4, 5, 6], [7]]),
     (["a" * 9, "b", "c" * 30, "d"], 100, [[1, 2], [3], [4]])],
)  # fmt: skip
def test_windows_hold_all_rows_in_order_up_to_so_many_or_so_many_characters(
    monkeypatch, texts, most, lines
):
    monkeypatch.setattr(predict_input, "WINDOW_CHARACTERS", 10)

    portions = list(windows(iter(rows(*texts)), most, lambda: True))

    assert [[row.line for row in window] for window in portions] == lines


def test_no_row_is_taken_before_the_window_before_it_is_done():
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield Row(taken, Example("a"), {}, 0)

    portions = windows(endless(), 8, lambda: True)
    for number in range(1, 100):
        next(portions)
        assert taken == 8 * number


def test_a_window_ends_where_the_next_line_is_not_there_yet():
    there = iter([True, False, True, True])

    portions = list(windows(iter(rows(*"abcd")), 100, lambda: next(there)))

    assert [[row.line for row in window] for window in portions] == [[1, 2], [3, 4]]


# ---------------------------------------------------------------------------------------- pipes


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield PipedLines(reader), writer
    os.close(reader)


def test_a_pipe_says_whether_a_line_is_there(pipe):
    lines, writer = pipe
    assert not lines.is_ready()

    os.write(writer, b"one\ntwo\nhal")

    assert lines.is_ready()
    assert [lines.readline(100), lines.readline(100)] == [b"one\n", b"two\n"]
    assert not lines.is_ready()
    os.write(writer, b"f\n")
    assert lines.is_ready()
    os.close(writer)
    assert [lines.readline(100), lines.is_ready(), lines.readline(100)] == [b"half\n", True, b""]


@pytest.mark.parametrize("chunk", [1, 7, 2**16])
def test_a_pipe_gives_the_lines_that_a_file_gives(pipe, monkeypatch, chunk):
    monkeypatch.setattr(predict_input, "_CHUNK_BYTES", chunk)
    lines, writer = pipe
    content = b"one\n\n" + b"x" * 50 + b"\r\nlast, without an end"
    os.write(writer, content)
    os.close(writer)

    pieces = []
    while line := lines.readline(20):
        pieces.append(line)

    stream = io.BytesIO(content)
    assert pieces == list(iter(lambda: stream.readline(20), b""))


# -------------------------------------------------------------------------------------- written

ANSWERS = [{"probabilities": [0.25, 0.75]}]
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def written(table_format, row, columns=KEPT):
    """Return the answer to a row, as our own reader finds it."""
    out = io.StringIO(newline="")
    answers = FORMATS[table_format](out, columns)
    row = answers.with_place(row)
    assert answers.problem_of(row) is None
    answers.write_window([row], ANSWERS)
    lines = all_lines(io.BytesIO(out.getvalue().encode()), "a")
    [record] = table_records(lines, "a", table_format)
    return dict(record.fields)


@pytest.mark.slow
@given(text=texts, pair=texts, kept=texts)
def test_csv_gives_back_any_text(text, pair, kept):
    columns = Columns(Chosen("a", "b", LABEL), keep=True, task=TASK)
    fields = written("csv", Row(1, Example(text, pair=pair), {"n": kept}, 0), columns)

    # The reader takes \r\n inside a value for the end of a line, which it writes as \n.
    both = {
        "text": text, "pair": pair, "label": "yes", "probability": "0.75",
        "probability/no": "0.25", "probability/yes": "0.75", "warning": "", "n": kept,
    }  # fmt: skip
    found, wanted = (
        {name: value.replace("\r\n", "\n") for name, value in of.items()} for of in (fields, both)
    )
    assert found == wanted


def test_json_lines_hold_what_is_kept_as_it_was():
    row = Row(1, Example("a", pair="b"), {"n": [1, None], "x": "ü"}, 0)
    fields = written("jsonl", row, Columns(Chosen("text", "other", LABEL), keep=True, task=TASK))

    assert fields == {
        "text": "a", "label": "yes", "probability": 0.75,
        "probabilities": {"no": 0.25, "yes": 0.75}, "pair": "b", "n": [1, None], "x": "ü",
    }  # fmt: skip


def test_values_of_json_lines_become_cells():
    kept = {"list": [1, "a"], "nothing": None, "true": True, "text": 'a, "b"'}
    columns = Columns(Chosen("question", None, LABEL), keep=True, task=TASK)

    fields = written("tsv", Row(1, Example("a"), kept, 0), columns)

    assert (fields["text"], fields["input/text"]) == ("a", 'a, "b"')
    assert (fields["list"], fields["nothing"], fields["true"]) == ('[1, "a"]', "", "true")


@pytest.mark.parametrize(
    ("table_format", "column"),
    [("jsonl", "probabilities"), ("jsonl", "label"), ("csv", "label"), ("csv", "probability/no")],
)
def test_a_column_with_the_name_of_one_of_ours_gets_another(table_format, column):
    kept = {column: "x", f"input/{column}": "y"}

    fields = written(table_format, Row(1, Example("a"), kept, 0))

    assert fields[column] != "x"
    assert (fields[f"input/input/{column}"], fields[f"input/{column}"]) == ("x", "y")


def problem(table_format, *rows):
    answers = FORMATS[table_format](io.StringIO(), KEPT)
    return [answers.problem_of(row) for row in rows][-1]


def test_a_table_has_the_same_columns_in_each_row():
    first = Row(1, Example("a"), {"n": 1, "x": 2}, 0)

    assert "'y' is not in the first row" in problem("csv", first, Row(2, Example("a"), {"y": 3}, 0))
    assert problem("csv", first, Row(2, Example("a"), {"x": 3}, 0)) is None
    assert problem("jsonl", first, Row(2, Example("a"), {"y": 3}, 0)) is None


@pytest.mark.parametrize("value", ["a\tb", "a\nb", "a\rb"])
def test_what_tsv_cannot_hold_is_said(value):
    assert "which TSV cannot hold" in problem("tsv", Row(1, Example(value), {}, 0))
    assert "which TSV cannot hold" in problem("tsv", Row(1, Example("a"), {"n": value}, 0))
    assert problem("csv", Row(1, Example(value), {"n": value}, 0)) is None


class Spoken(ClassificationTask):
    """Answers with a text, as `probabilities` says it."""

    cell_names = ("label",)

    def cells(self, answer):
        return [answer["probabilities"]]


@pytest.mark.parametrize("answer", ["a\tb", "a\nb", "a\rb"])
def test_an_answer_does_not_break_a_row(answer):
    spoken = Columns(Chosen("text", None, LABEL), keep=False, task=Spoken(LABELS))
    row = Row(3, Example("a"), {}, 0)
    out = io.StringIO(newline="")

    with pytest.raises(DataError, match=r"^line 3: its answer holds a tab .*output_format=csv"):
        FORMATS["tsv"](out, spoken).write_window([row], [{"probabilities": answer}])

    assert out.getvalue() == ""
    FORMATS["csv"](out, spoken).write_window([row], [{"probabilities": answer}])
    lines = all_lines(io.BytesIO(out.getvalue().encode()), "a")
    [record] = table_records(lines, "a", "csv")
    assert record.fields == {"text": "a", "label": answer, "warning": ""}


def test_half_a_surrogate_pair_is_said_before_it_is_written():
    row = Row(1, Example("a"), {"n": json.loads('"\\ud800"')}, 0)

    for table_format in ("jsonl", "csv", "tsv"):
        assert "half of a surrogate pair" in problem(table_format, row)


@pytest.mark.parametrize(
    ("chosen", "path", "expected"),
    [
        ("auto", "-", "jsonl"), ("auto", "a.csv", "csv"), ("auto", "a.TSV", "tsv"),
        ("auto", "a.ndjson", "jsonl"), ("auto", "a", "jsonl"), ("csv", "a.jsonl", "csv"),
        ("csv", "a.txt", "csv"),
    ],
)  # fmt: skip
def test_the_ending_tells_the_format(chosen, path, expected):
    assert format_of(chosen, path) == expected


@pytest.mark.parametrize("ending", ["txt", "foo", "xlsx", "parquet", "md"])
def test_an_ending_that_is_not_written_is_refused_with_those_that_are(ending):
    with pytest.raises(
        ConfigError, match=rf"^output: '\.{ending}' of a\.{ending} .* \.csv, \.tsv;"
    ):
        format_of("auto", f"a.{ending}")
