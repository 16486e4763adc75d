# ruff: noqa: RUF001 - letters of many languages
"""Tables and lines of files: how they are written is recognised, and what is broken is refused."""

import csv
import gzip
import io
import json
import logging
import lzma
import os
import pathlib
import subprocess
import sys
import warnings
import zipfile

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing import tried
from transfer_cli.data import readers, sheets
from transfer_cli.data.columns import choose_columns
from transfer_cli.data.documents import path_lines
from transfer_cli.data.encodings import detect_encoding
from transfer_cli.data.labelled import INPUT, Example
from transfer_cli.data.layout import Layout, detect_delimiter, detect_quotes, has_header
from transfer_cli.data.parquet import parquet_records
from transfer_cli.data.readers import MAX_LINE_BYTES
from transfer_cli.data.records import Record, label_of, text_of
from transfer_cli.data.table import table_records
from transfer_cli.data.wanted import Wanted
from transfer_cli.errors import DataError
from transfer_cli.tasks.table import Table

TEXT = "the film was really good and bad , we liked it a lot ; but not an end"
WORDS = TEXT.split()
ROWS = [
    [" ".join(WORDS[(number * 7 + at * 5) % 18] for at in range(4 + number % 11)) + f" {number}",
     "pos" if number * number % 7 < 3 else "neg"]
    for number in range(60)
]  # fmt: skip


PLAIN = [text for text, _ in ROWS]


def as_text(rows, mark=","):
    out = io.StringIO()
    csv.writer(out, delimiter=mark, lineterminator="\n").writerows(rows)
    return out.getvalue()


@pytest.fixture
def load(tmp_path, caplog):
    """Return how to load a table of given bytes; gives its data and what was said."""
    caplog.set_level(logging.INFO, "transfer_cli.data.table")

    def call(content, name="a.csv", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        data = Table(train=str(path), validation=str(path), **options).load(tmp_path, 0)
        said = [entry.getMessage() for entry in caplog.records if entry.name.endswith("data.table")]
        return data, [line.removeprefix(f"{path}: ") for line in said]

    return call


def texts_of(data):
    return [[example.text, data.labels[example.label]] for example in data.splits["train"]]


NAMED = [["text", "label"], *ROWS]
OTHER = [["review", "stars"], *ROWS]
FOREIGN = [["text", "label"], *([f"{text} café — 5 €", label] for text, label in ROWS)]


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (as_text(NAMED), "a.csv", None),
        (as_text(NAMED).encode("utf-8-sig"), "a.csv", None),
        (as_text(NAMED).replace("\n", "\r\n"), "a.csv", None),
        (as_text(NAMED, ";"), "a.csv", "columns parted by semicolons; otherwise say data.delimit"),
        (as_text(NAMED, ";"), "a.tsv", "columns parted by semicolons; otherwise say data.delimit"),
        (as_text(NAMED, "|"), "a.csv", "columns parted by pipes; otherwise say data.delimiter"),
        (as_text(NAMED, "\t"), "a.csv", "columns parted by tabs; otherwise say data.delimiter"),
        (as_text(OTHER), "a.csv", "text from 'review', label from 'stars'; otherwise say data.t"),
        (as_text(ROWS), "a.csv", "no header, so columns have numbers, text from '1', label from"),
        (as_text(ROWS, ";"), "a.csv", "columns parted by semicolons, no header, so columns have"),
        (as_text(FOREIGN).encode("cp1252"), "a.csv", "read as Windows-1252 ("),
        (as_text(FOREIGN, "\t").encode("utf-16"), "a.csv", "read as UTF-16, columns parted by t"),
    ],
)  # fmt: skip
def test_how_a_table_is_written_is_recognised_and_said_in_one_line(load, content, name, said):
    data, messages = load(content, name)

    expected = FOREIGN if "é" in texts_of(data)[0][0] else NAMED
    assert texts_of(data) == expected[1:]
    if said is None:
        assert messages == []
    else:
        assert messages[0].startswith(said)
        assert len(messages) <= 2  # a line for each file


def test_each_file_is_looked_at_by_itself(tmp_path):
    (tmp_path / "a.csv").write_text(as_text(OTHER, ";"))
    (tmp_path / "v.csv").write_bytes(as_text(OTHER, "\t").encode("utf-16"))
    (tmp_path / "t.csv").write_text(as_text(ROWS))

    given = {"validation": str(tmp_path / "v.csv"), "test": str(tmp_path / "t.csv")}
    data = Table(train=str(tmp_path / "a.csv"), **given).load(tmp_path, 0)

    assert data.splits["train"] == data.splits["validation"] == data.splits["test"]


def test_what_is_typed_is_not_recognised(load):
    rows = [["a", "b"], *([text, label.replace("s", ";", 1)] for text, label in ROWS)]
    typed = {"delimiter": "semicolon", "header": False, "text": 1, "label": "2"}

    data, said = load(as_text(rows, ";").encode("utf-16-le"), encoding="utf-16-le", **typed)

    assert said == []
    assert texts_of(data)[0] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "start", "encoding"),
    [
        ("ASCII", b"text", "utf-8"),
        ("cut within a character", "é".encode()[:1], "utf-8"),
        ("a bad byte", b"text\xff", "utf-8"),
        ("more of it is UTF-8", "éüö".encode() + b"\xe9", "utf-8"),
        ("one letter", b"caf\xe9\n", "cp1252"),
        ("marks", b"\x93text\x94 \x96 5 \x80", "cp1252"),
        ("no character there", b"\xe9\x81", "utf-8"),
        ("UTF-32", "text".encode("utf-32"), "utf-32"),
    ],
)
def test_an_encoding_is_told_by_its_bytes(name, start, encoding):
    assert [reading.encoding for reading in detect_encoding(start)] == [encoding], name


@pytest.mark.parametrize(
    ("lines", "mark"),
    [
        (["text,label", "a;b,1", "c;d,2"], ","),
        (["text;label", "a, b;1", "c, d;2"], ";"),
        (["id;text;price", "1;a;3,5", "2;b;4,5"], ";"),
        (["1;a;3,5", "2;b;4,5"], ";"),
        (['text;label', '"a;b, ""c"";";1', '"d\n', 'e";2'], ";"),
        (["text,label", "a,b,1", "c,d,e,2"], ","),
        (["text"], ","),
        (["one text, of a line", "another"], ","),
        ([], ","),
    ],
)  # fmt: skip
def test_what_parts_columns_is_what_gives_each_row_as_many(lines, mark):
    assert detect_delimiter([f"{line}\n" for line in lines], ",") == mark


@pytest.mark.parametrize(
    ("first", "others", "expected"),
    [
        (["text", "label"], [["a", "b"]], True),
        (["foo", "bar"], [["a b c", "x"], ["d e f", "y"]], True),
        (["", "foo", "bar"], [["1", "a", "x"]], True),
        (["v1", "v2", "", ""], [["ham", "a", "", ""], ["spam", "b", "", "c"]], True),
        (["a b c", "x"], [["d e f", "x"]], False),
        (["a b c", "1"], [["d e f", "2"]], False),
        (["this is a text of seven words", "x"], [["d", "y"]], False),
        (["a text", "message"], [["b", "message"], ["c", "question"]], False),
        (["foo", "foo"], [["a", "b"]], False),
    ],
)
def test_a_header_names_columns_and_is_not_like_the_rows_below(first, others, expected):
    assert has_header([first, *others], ()) is expected


# --------------------------------------------------------------------------------------- columns


def chosen(header, rows, asked=None):
    records = [dict(zip(header, row, strict=True)) for row in rows]
    columns = choose_columns(header, records, asked or Wanted(), "a.csv")
    return columns.text, columns.pair, columns.label


LONGER = [
    [number, f"{text[:9]} {number}", f"{text} {text}", label]
    for number, (text, label) in enumerate(ROWS)
]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (["id", "title", "text", "label"], ("text", None, "label")),
        (["id", "title", "body", "topic"], ("body", None, "topic")),
        (["Id", "Summary", "Text", "Score"], ("Text", None, "Score")),
        (["n", "x", "reviewText", "airline_sentiment"], ("reviewText", None, "airline_sentiment")),
        (["n", "x", "y1", "z"], ("y1", None, "z")),
        (["id", "premise", "hypothesis", "label"], ("premise", "hypothesis", "label")),
        (["label_id", "text_length", "foo", "bar"], ("foo", None, "bar")),
    ],
)
def test_columns_are_found_by_their_names_else_by_what_is_in_them(header, expected):
    assert chosen(header, LONGER) == expected


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (["t", "sentiment", "topic"], [[t, x, x] for t, x in ROWS],
         "a.csv: the label may be in 'sentiment' or 'topic' (say data.text=COLUMN data.label="),
        (["a", "b", "c"], [[t, t[::-1], x] for t, x in ROWS],
         "a.csv: the text may be in 'a' or 'b' (say data.text=COLUMN data.label=COLUMN). The"),
        (["a", "b", "c"], [[t, x, x[:1]] for t, x in ROWS], "the label may be in 'b' or 'c'"),
        (["text", "n"], [[t, t] for t, x in ROWS], "which column is the label? (say data."),
        (["n", "m", "label"], [[1, 2.5, "x"]] * 5, "which column is the text? (say data.te"),
    ],
)  # fmt: skip
def test_columns_that_may_be_meant_alike_are_asked_for(header, rows, message):
    with pytest.raises(DataError) as caught:
        chosen(header, rows)

    assert message in str(caught.value)
    assert str(caught.value).endswith(f"The columns are {', '.join(map(repr, header))}.")


def test_a_column_can_be_typed_by_its_number_beside_a_header():
    assert chosen(["a", "b"], ROWS, Wanted(text="1", label="2")) == ("a", None, "b")
    assert chosen(["a", "b"], ROWS, Wanted(text="\u00b2", label="2")) == ("\u00b2", None, "b")


# -------------------------------------------------------------------------------------- bad rows


BAD = as_text([["text", "label"], *ROWS[:3], ["ragged"], *ROWS[3:], ["no label", ""]])


def split_form(*rows):
    return json.dumps({"columns": ["text", "label"], "data": rows})


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", BAD, {}, r"a\.csv, line 5: 1 column, .* With data\.errors=skip"),
        ("a.csv", "text,label\na\nb\n", {"errors": "skip"}, r"none of its 2 rows .*\. The first: "),
        ("a.json", "[]", {}, r"a\.json is empty"),
        ("a.json", " [\n] ", {}, r"a\.json is empty"),
        ("a.json", split_form(1, 2), {}, r"The columns are 'columns', 'data'\."),
        ("a.json", split_form(["a", "b"], ["c"]), {}, r"row 2: 1 cells for 2 columns; give"),
        ("a.json", split_form(["a", "b"], ["c", "d", "e"]), {}, r"a\.json, row 2: 3 cells for 2"),
    ],
)
def test_what_is_no_table_is_refused_with_the_number_of_a_row(
    load, name, content, options, message
):
    with pytest.raises(DataError, match=message):
        load(content, name, **options)


def test_bad_rows_are_left_out_and_counted_where_that_is_asked_for(load, tmp_path):
    data, said = load(BAD, errors="skip")

    assert texts_of(data) == ROWS
    faults = "more or fewer than 2 columns (1), line 5; empty label (1), line 63"
    one = f"2 of 62 rows left out: {faults}"
    assert said == [f"{one}; {tmp_path}/a.csv: {one}"]


def test_all_rows_of_a_file_are_one_split(tmp_path):
    (tmp_path / "a.csv").write_text(BAD)

    data = Table(train=str(tmp_path / "a.csv"), errors="skip").as_input_split(Wanted())

    assert len(data.splits[INPUT]) == 60
    assert (data.part_of[INPUT].size, data.part_of[INPUT].left_out) == (62, ("2 cannot be read",))


# ------------------------------------------------------------------------ Parquet, spreadsheets


@pytest.fixture
def book(tmp_path):
    """Return how to write a spreadsheet."""
    openpyxl = pytest.importorskip("openpyxl")

    def write(*sheets):
        made = openpyxl.Workbook()
        made.remove(made.active)
        for rows in sheets:
            sheet = made.create_sheet()
            for row in rows:
                sheet.append(row)
        made.save(tmp_path / "a.xlsx")
        return tmp_path / "a.xlsx"

    return write


def test_the_first_sheet_of_a_spreadsheet_is_a_table(book, caplog):
    caplog.set_level(logging.INFO)
    stars = [[text, 4 + (label == "pos"), None] for text, label in ROWS]
    rows = [["review", "stars", None], *stars]
    rows[5:5] = [[None, None, None]]
    path = book([*rows, [17, 5.0], ["none", None]], [["text", "label"], ["other", "sheet"]])

    data = Table(train=str(path), validation=str(path), errors="skip").load(path, 0)

    assert data.labels == ("4", "5")
    assert "data.sheet" in caplog.text
    assert data.splits["train"][-1] == Example("17", 1)
    assert len(data.splits["train"]) == 61


def test_a_row_of_a_spreadsheet_is_refused_with_its_number(book):
    path = book([["text", "label"], *ROWS, ["no label", None]])

    with pytest.raises(DataError, match=r"a\.xlsx, line 62: the label in 'label' is empty"):
        Table(train=str(path)).load(path, 0)


def test_sheets_are_numbered_from_one(book):
    path = book([["text", "label"], *ROWS])

    for sheet in (0, 2, "\u00b2"):
        with pytest.raises(DataError, match=f"data.sheet={sheet}, but its sheets are 'Sheet'"):
            Table(train=str(path), sheet=sheet).load(path, 0)


def test_a_spreadsheet_that_fills_the_memory_is_refused(book, monkeypatch):
    path = book([["text", "label"], *[["the same again", "x"]] * 5000])
    monkeypatch.setattr(sheets, "UNPACKED_FREELY_BYTES", 1000)
    monkeypatch.setattr(sheets, "MAX_UNPACKED_RATIO", 2)

    with pytest.raises(DataError, match=r"a\.xlsx unpacks to [0-9,]+ bytes\. Is this a spreadshe"):
        Table(train=str(path)).load(path, 0)


@pytest.fixture
def parquet(tmp_path):
    """Return how to write a Parquet file."""
    pyarrow = pytest.importorskip("pyarrow")
    library = pytest.importorskip("pyarrow.parquet")

    def write(columns):
        made = pyarrow.table(columns) if isinstance(columns, dict) else columns
        library.write_table(made, tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    return write


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        ({"id": list(range(60)), "review": PLAIN, "n": [3, 4] * 30}, ("3", "4")),
        ({"text": [text.encode() for text in PLAIN], "label": [b"x", b"y"] * 30}, ("x", "y")),
    ],
    ids=["numbers", "bytes"],
)
def test_a_parquet_file_is_a_table(parquet, columns, labels):
    path = parquet(columns)

    data = Table(train=str(path), validation=str(path)).load(path, 0)

    assert data.labels == labels
    assert [example.text for example in data.splits["train"]] == PLAIN


def test_parquet_files_of_a_folder_are_one_table(parquet, tmp_path):
    (tmp_path / "parts").mkdir()
    for name, half in (("1.parquet", ROWS[30:]), ("0.parquet", ROWS[:30])):
        text, label = zip(*half, strict=True)
        parquet({"text": text, "label": label}).rename(tmp_path / "parts" / name)

    data = Table(train=str(tmp_path / "parts"), labelled=54).load(tmp_path, 0)

    assert {example.text for example in data.splits["train"]} < set(PLAIN)
    assert sum(map(len, data.splits.values())) == 60


def test_values_within_objects_are_named_by_dots(load, parquet, tmp_path):
    rows = [{"review": {"body": text, "of": {"stars": label}}} for text, label in ROWS]
    names = {"text": "review.body", "label": "review.of.stars"}
    plain, _ = load("\n".join(map(json.dumps, rows)), "a.jsonl", **names)
    path = parquet({"review": [row["review"] for row in rows]})

    packed = Table(train=str(path), validation=str(path), **names).load(tmp_path, 0)

    assert texts_of(plain) == [[text, label] for text, label in ROWS]
    assert packed.splits == plain.splits
    with pytest.raises(DataError, match=r"no column 'review\.bodi'.*Did you mean 'review\.body'"):
        load("\n".join(map(json.dumps, rows)), "a.jsonl", text="review.bodi", label="review.of")
    with pytest.raises(DataError, match=r"'review' is an object.* Within it there are review\.bo"):
        load("\n".join(map(json.dumps, rows)), "a.jsonl", text="review", label="review.of.stars")


def test_a_cell_that_a_json_line_lacks_is_empty_in_a_column_that_others_have(load, tmp_path):
    rows = [{"text": text, "label": label, "source": label} for text, label in ROWS]
    del rows[3]["source"]
    data, _ = load("\n".join(map(json.dumps, rows)), "a.jsonl")

    assert data.column("train", "source") == [row.get("source", "") for row in rows]
    with pytest.raises(DataError, match=r"line 1: no column 'sourc'.*Did you mean 'source'"):
        data.column("train", "sourc")


def test_numbers_of_classes_get_the_names_that_were_written_along(parquet, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    features = {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}
    numbers = [*([0, 1] * 29), -1, 7]
    made = pyarrow.table({"text": PLAIN, "label": numbers}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    path = parquet(made)

    data = Table(train=str(path), errors="skip").load(tmp_path, 0)

    assert data.labels == ("bad", "good")
    assert sum(map(len, data.splits.values())) == 58


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None, "b"], r"a\.parquet, line 2: 'text' is null, expected text"),
        ([b"a", b"\xff", b"b"], r"line 2: 'text' holds .* bytes that are not UTF-8"),
    ],
)
def test_a_row_of_parquet_without_a_text_is_refused(parquet, texts, message):
    path = parquet({"text": texts, "label": ["x", "y", "y"]})

    with pytest.raises(DataError, match=message):
        Table(train=str(path)).load(path, 0)


@pytest.mark.parametrize(("name", "needs"), [("a.xlsx", "openpyxl"), ("a.parquet", "pyarrow")])
@pytest.mark.parametrize("content", [b"text,label\na,b\n", b"PK\3\4" + bytes(50), b"PAR1" * 9])
def test_a_file_that_is_no_such_table_is_refused_in_a_line(load, name, needs, content):
    pytest.importorskip(needs)

    with pytest.raises(DataError, match=f"{name} cannot be read") as caught:
        load(content, name)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "needs"), [("a.xlsx", "openpyxl"), ("a.parquet", "pyarrow")])
def test_a_library_that_is_not_installed_is_named_with_the_extra(load, monkeypatch, name, needs):
    for module in (needs, "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(DataError, match=rf"needs {needs}, which is .*: pip install "):
        load(b"x", name)


def test_warnings_are_shown_between_the_rows_of_files_that_are_read_at_once(parquet):
    path = parquet({"text": ["one", "two"]})
    rows = [parquet_records(path), parquet_records(path)]
    for of_file in (*rows, *rows):
        next(of_file)
    for of_file in rows:
        assert not list(of_file)

    with pytest.warns(UserWarning, match="ours"):
        warnings.warn("ours", stacklevel=1)


def test_a_layout_that_cannot_be_is_refused():
    assert Layout("tab").delimiter == Layout("\t").delimiter == "\t"
    with pytest.raises(ValueError, match="delimiter is ',,'"):
        Layout(",,")


SHEET, STRINGS = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"
MIB = 2**20


@pytest.fixture
def packed(tmp_path):
    """Return how to write the parts of a spreadsheet; a part of several pieces is written so."""

    def write(**parts):
        path = tmp_path / "a.xlsx"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, pieces in parts.items():
                with archive.open({"sheet": SHEET, "strings": STRINGS}[name], "w") as part:
                    for piece in pieces:
                        part.write(piece)
        return path

    return write


def row(*pieces, number=7, cell="A7"):
    start = f'<worksheet><sheetData><row r="{number}"><c r="{cell}" t="inlineStr"><is><t>'
    return [start.encode(), *pieces, b"</t></is></c></row></sheetData></worksheet>"]


LONG = [b"x" * MIB] * (MAX_LINE_BYTES // MIB + 1)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"sheet": row(*LONG)}, "line 7: longer than 8 MiB"),
        ({"sheet": row(b"<![CDATA[", *(b"<" * MIB for _ in LONG), b"]]>")}, "line 7: longer than"),
        ({"sheet": row(b'</t><t a="', *LONG, b'">')}, "longer than 8 MiB"),
        ({"strings": [b"<sst><si><t>a</t></si><si><t>", *LONG, b"</t></si></sst>"]}, "line 2: lo"),
        ({"sheet": row(b"a", cell="XFD7")}, "line 7: 16,384 columns, the most is 10,000"),
        ({"sheet": [b'<!DOCTYPE a [<!ENTITY b "c">]>', *row(b"a")]}, "entities"),
    ],
)
def test_a_row_that_would_be_too_large_is_refused_with_its_number(packed, parts, named):
    with pytest.raises(DataError, match=named):
        sheets.check_size(packed(**parts))


def test_cells_that_are_made_and_not_written_are_counted(packed, monkeypatch):
    monkeypatch.setattr(sheets, "_EMPTY_CELLS", 1000)
    rows = b'<row><c r="ZZ1"><v>1</v></c></row>' * 9

    with pytest.raises(DataError, match="cells, of which 2 are written"):
        sheets.check_size(packed(sheet=[b"<worksheet>", rows, b"</worksheet>"]))


def test_a_long_text_below_the_limit_is_read(packed):
    sheets.check_size(packed(sheet=row(*LONG[2:])))


LIMITED = """
import resource, sys
from pathlib import Path
from transfer_cli.data import parquet, sheets
from transfer_cli.errors import DataError

resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
path = Path(sys.argv[1])
try:
    if path.suffix == ".xlsx":
        with sheets.open_book(path) as book:
            list(book.rows(book.sheets[0]))
    else:
        sum(1 for _ in parquet.parquet_records(path))
except DataError as error:
    print(error)
"""


def said_within(path, num_bytes):
    """Return what is said where a table is read in so much memory."""
    typed = [sys.executable, "-c", LIMITED, str(path), str(num_bytes)]
    ended = subprocess.run(typed, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


@pytest.mark.slow
def test_a_cell_of_600_megabytes_is_refused_in_forty_times_the_limit_of_a_row(packed):
    path = packed(sheet=row(*(b"x" * MIB for _ in range(600))))

    assert "line 7: longer than 8 MiB" in said_within(path, 40 * MAX_LINE_BYTES)


@pytest.mark.slow
def test_copies_of_one_value_of_parquet_are_made_one_by_one(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    library = pytest.importorskip("pyarrow.parquet")
    values = pyarrow.array(["x" * (4 * MIB), "y"])
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 500, "int32"), values)
    library.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")

    assert said_within(tmp_path / "a.parquet", 200 * MAX_LINE_BYTES) == ""


PACKERS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}

one_file = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def write(tmp_path):
    def write_file(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def read_table(path, table_format, **settings):
    return table_records(readers.numbered_lines(path), str(path), table_format, **settings)


def table(path, table_format="csv", **settings):
    return [dict(row.fields) for row in read_table(path, table_format, **settings)]


@pytest.mark.parametrize("suffix", PACKERS)
def test_lines_are_the_same_however_the_file_is_packed(write, suffix):
    path = write(f"a.txt{suffix}", PACKERS[suffix]("one\n\nzwei ü\n".encode()))

    assert list(readers.read_lines(path)) == ["one", "", "zwei ü"]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\x0bb\xe2\x80\xa8c\xc2\x85d\re\r\nf", ["a\x0bb\u2028c\x85d\re", "f"]),
        (b"\xef\xbb\xbfa\n", ["a"]),
        ("text\n".encode("utf-16"), ["text"]),
    ],
    ids=["only line feeds end one", "a byte order mark is left out", "UTF-16 is recognised"],
)
def test_lines_are_those_of_any_editor(write, content, lines):
    assert list(readers.read_lines(write("a.txt", content))) == lines


@pytest.mark.parametrize(
    ("suffix", "filling"), [(".gz", 0), (".xz", 0), (".zst", 0), (".gz", 512), (".xz", 512)]
)
def test_several_packed_pieces_with_zeros_behind_them_are_read_on(write, suffix, filling):
    pieces = [PACKERS[suffix](piece) + bytes(filling) for piece in (b"one\ntw", b"o\n")]

    assert list(readers.read_lines(write(f"a.txt{suffix}", b"".join(pieces)))) == ["one", "two"]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("damage", [lambda packed: packed[:-9], lambda packed: b"plain text\n"])
def test_a_damaged_packed_file_is_an_error_with_its_line(write, suffix, damage):
    path = write(f"a.txt{suffix}", damage(PACKERS[suffix](b"one\ntwo\n" * 1000)))

    with pytest.raises(DataError, match=r"a\.txt.*, line \d+: cannot be read on"):
        list(readers.read_lines(path))
    with pytest.raises(DataError, match=r"a\.txt.*, line \d+: cannot be read on"):
        readers.count_lines(path)


def test_a_damaged_packed_file_of_no_known_format_is_an_error(write):
    with pytest.raises(DataError, match=r"a\.gz, line 1: cannot be read on"):
        readers.unknown_format_error(write("a.gz", b"plain text\n"), "data.")


def test_a_json_object_in_a_damaged_packed_file_is_an_error(write, monkeypatch):
    monkeypatch.setattr(readers, "PEEKED_BYTES", 1000)
    content = json.dumps({"data": [{"text": os.urandom(60).hex()} for _ in range(2000)]})
    path = write("a.json.gz", gzip.compress(content.encode())[:-9])

    with pytest.raises(DataError, match=r"a\.json\.gz: cannot be read on"):
        Table(train=str(path)).load(path, 0)


def test_a_zstandard_bomb_is_read_in_bounded_memory(write, monkeypatch):
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 2**20)
    path = write("a.txt.zst", zstandard.compress(bytes(2**27)))

    with pytest.raises(DataError, match="line 1: longer than 1 MiB"):
        list(readers.read_lines(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\nsister\xffcity\n", r"a\.txt, line 2: byte 0xFF at offset 6"),
        (b"a\nb\0\n", r"a\.txt, line 2: NUL byte at offset 1"),
    ],
)
def test_a_byte_of_no_text_is_named_with_file_line_and_offset(write, content, message):
    with pytest.raises(DataError, match=message):
        list(readers.read_lines(write("a.txt", content)))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_error(write, name, content):
    packed = gzip.compress(content) if name.endswith(".gz") else content

    with pytest.raises(DataError, match=r"a\.txt.* is empty"):
        list(readers.read_lines(write(name, packed)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tran.txt", r"tran\.txt does not exist. Did you mean 'train\.txt'"),
        ("corpsu/deep/train.txt", r"Did you mean 'corpus'"),
        ("corpus", "is a folder"),
        ("x" * 5000, "cannot be read"),
        ("a\0b", "does not exist|cannot be read"),
    ],
)
def test_what_is_no_file_is_named_with_the_nearest_one(write, tmp_path, name, message):
    write("train.txt", "x")
    (tmp_path / "corpus").mkdir()

    with pytest.raises(DataError, match=message):
        list(readers.read_lines(tmp_path / name))


def test_an_address_is_not_looked_for_in_a_folder():
    with pytest.raises(DataError, match="is an address"):
        list(readers.read_lines(pathlib.Path("https://example.com/train.csv")))


# ----------------------------------------------------------------------------- JSON lines


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "not JSON"),
        ('["a"]', "a list, expected one JSON object"),
        ('{"body": "a"}', r"no column 'text'; there are 'body'"),
        ('{"texts": "a"}', "Did you mean 'texts'"),
        ('{"text": null}', "'text' is null, expected text"),
        ('{"text": 7}', "'text' is a number, expected text"),
        ('{"text": "a\\u0000"}', "NUL"),
        ('{"text": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "cannot be read"),
        ('{"text": ' + "1" * 5000 + "}", "cannot be read"),
    ],
)
def test_a_broken_json_line_is_named_with_its_number(write, line, message):
    path = write("a.jsonl", '{"text": "good"}\n' + line + "\n")

    with pytest.raises(DataError, match=rf"a\.jsonl, line 2: .*{message}"):
        list(path_lines(path, "text"))


# --------------------------------------------------------------------------------- tables


def test_csv_values_may_hold_commas_quotes_and_line_ends(write):
    path = write("a.csv", 'text,label\r\n"a, ""b""\r\nc",1\r\n\r\nd,2\r\n')

    rows = list(read_table(path, "csv"))

    assert [dict(row.fields) for row in rows] == [
        {"text": 'a, "b"\nc', "label": "1"},
        {"text": "d", "label": "2"},
    ]
    assert [row.line for row in rows] == [2, 5]


def test_quotes_in_tsv_are_text(write):
    rows = table(write("a.tsv", 'text\tlabel\nsay "hi\t1\n'), "tsv")

    assert rows == [{"text": 'say "hi', "label": "1"}]
    with pytest.raises(DataError, match=r"by one '\\t' each\. If .* quotes: data\.quotes=double"):
        table(write("a.tsv", "text\tlabel\na\n"), "tsv")


@pytest.mark.parametrize(
    ("rows", "quotes"),
    [
        ('"he said ""wow"" today"\t1\nb\t0\n', "double"),
        ('"two\nlines"\t1\nb\t0\n', "double"),
        ('"all of it"\t1\n"wow" she said\t0\n', "none"),
        ('""wow"" he said "again"\t1\nb\t0\n', "none"),
        ('"all of it"\t1\nb\n', "none"),
    ],
)
def test_quotes_between_tabs_are_letters_unless_rows_say_otherwise(rows, quotes):
    assert detect_quotes(["text\tlabel", *rows.splitlines()], "\t", "none") == quotes


def test_columns_without_header_are_numbered_from_one(write):
    rows = table(write("a.csv", "a,b\nc,d\n"), header=False)

    assert rows == [{"1": "a", "2": "b"}, {"1": "c", "2": "d"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,1\nb\n", "line 3: 1 column, but the header in line 1 has 2"),
        ("text,label\na,1\nb,c,2\n", "line 3: 3 columns, but the header in line 1 has 2"),
        ('text,label\n"a,1\nb,2\n', "line 2: a broken row"),
        ('text,label\n"a"b,1\n', "line 2: a broken row"),
        ("text,text\na,1\n", "the column 'text' is there twice"),
        ("text,label\n", "has no rows"),
        ("\n\n", "has no rows"),
    ],
)
def test_a_broken_table_is_named_with_its_line(write, content, message):
    with pytest.raises(DataError, match=rf"a\.csv.*{message}"):
        table(write("a.csv", content))


def test_a_ragged_row_without_header_is_compared_with_the_first(write):
    with pytest.raises(DataError, match="line 2: 3 columns, but the row in line 1 has 2"):
        table(write("a.csv", "a,b\na,b,c\n"), header=False)


def test_a_missing_column_is_named_with_those_that_there_are(write):
    record = next(read_table(write("a.csv", "question,label\na,1\n"), "csv"))

    with pytest.raises(DataError, match=r"no column 'questions'; there are 'question', 'label'\."):
        text_of(record, "questions", "a.csv")


def test_a_value_longer_than_the_default_limit_of_csv_is_read(write):
    assert len(table(write("a.csv", "text\n" + "x" * 200_000))[0]["text"]) == 200_000


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("x ", "x"), (1, "1"), (True, "true"), (1.5, "1.5"), ("ü", "ü"),
        # What a spreadsheet would run, and what turns the direction of writing.
        *((odd, odd) for odd in ("=cmd|' /C calc'!A0", "+1", "-1+2", "@SUM(A1)", "\u202etext")),
    ],
)  # fmt: skip
def test_labels_are_strings(value, label):
    assert label_of(Record(1, {"label": value}), "label", "a") == label


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (" ", "is empty"),
        (float("nan"), "is nan. Leave rows without a label out"),
        (float("-inf"), "is -inf. Leave rows without a label out"),
        ("x" * 1001, "has 1,001 characters, the most is 1,000. Is it the text?"),
    ],
)
def test_what_is_no_label_is_refused(value, fault):
    with pytest.raises(DataError, match=f"a, line 9: the label in 'label' {fault}"):
        label_of(Record(9, {"label": value}), "label", "a")


@pytest.mark.parametrize(
    ("name", "table_format"),
    [("a.csv", "csv"), ("a.TSV.gz", "tsv"), ("a.jsonl.zst", "jsonl"), ("a.txt", None), ("a", None)],
)
def test_the_name_tells_the_format(tmp_path, name, table_format):
    assert readers.format_of(tmp_path / name) == table_format


# ----------------------------------------------------------------------------- properties


@one_file
@given(
    content=st.binary(max_size=200) | st.text(alphabet='a,"\n\r\t{}[]:1', max_size=60),
    suffix=st.sampled_from(list(PACKERS)),
    packed=st.booleans(),
    name=st.sampled_from(["a.txt", "a.jsonl", "a.csv", "a.tsv"]),
)
def test_arbitrary_bytes_are_read_or_are_an_error_of_the_user(write, content, suffix, packed, name):
    content = content if isinstance(content, bytes) else content.encode()
    path = write(name + suffix, PACKERS[suffix](content) if packed else content)

    for read in (
        lambda: list(path_lines(path, "text")),
        lambda: table(path, readers.format_of(path) or "csv"),
        lambda: table(path, "csv", header=False),
    ):
        tried(read, DataError)


characters = st.characters(codec="utf-8", exclude_characters="\n\r\0\ufeff")


@given(st.lists(st.text(characters), min_size=1), st.sampled_from(["\n", "\r\n"]))
def test_what_was_written_as_lines_is_read_as_lines(lines, end):
    stream = io.BytesIO("".join(line + end for line in lines).encode())

    assert [line for _, line in readers.sound_lines(readers.all_lines(stream, "a"))] == lines


@pytest.mark.parametrize(
    ("content", "count"), [(b"a", 1), (b"a\n", 1), (b"a\n\nb", 3), (b"a\r\nb\n", 2)]
)
def test_lines_are_counted(tmp_path, content, count):
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))

    assert readers.count_lines(tmp_path / "a.txt") == count
    assert readers.count_lines(tmp_path / "a.txt.gz") == count


def test_a_pipe_is_not_read_to_count_its_lines(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    assert readers.count_lines(tmp_path / "pipe") is None
    assert readers.count_lines(tmp_path / "no.parquet") is None


TEXTS = {
    "Это был очень плохой фильм. Мы ждали другого конца.": "cp1251 koi8_r iso8859_5 cp866",
    "Фільм був дуже поганий, і кінець нікому не сподобався.": "cp1251 koi8_u",
    "Η ταινία ήταν πολύ κακή και δεν μας άρεσε καθόλου.": "cp1253 iso8859_7",
    "Film był bardzo zły, a książka nie podobała się nikomu.": "cp1250 iso8859_2",
    "Film byl velmi špatný a závěr se nikomu nelíbil. Příběh je dlouhý.": "cp1250 iso8859_2",
    "A film nagyon rossz volt, és a vége sem tetszett. Az idő gyűlik.": "cp1250 iso8859_2",
    "Film çok kötüydü ve sonu kimsenin hoşuna gitmedi. Işık yoktu.": "cp1254 iso8859_9",
    "Filmas buvo labai blogas. Žmonės išėjo, kiekvieną dieną.": "cp1257",
    "这部电影非常糟糕，我们都不喜欢结局。": "gbk gb18030",
    "這部電影非常糟糕，我們都不喜歡結局。": "big5",
    "この映画はとても悪かったです。結末は誰も好きではありませんでした。": "cp932 euc_jp iso2022_jp",
    "이 영화는 정말 나빴고 결말은 아무도 좋아하지 않았다.": "euc_kr cp949",
    "كان الفيلم سيئا جدا ولم تعجب النهاية أحدا.": "cp1256 iso8859_6",
    "หนังเรื่องนี้แย่มากและไม่มีใครชอบตอนจบ": "cp874",
    "Der Film war schlecht. Schöne Grüße für die Mühe.": "cp1252 latin-1 mac_roman cp850",
    "Le film était très mauvais. Ça a été long, même à Noël.": "cp1252 mac_roman cp850",
    "La película fue mala. ¿Qué pasó con el niño?": "cp1252 mac_roman",
    "O filme foi ruim e a conclusão não agradou. As ações são más.": "cp1252",
    "The café was nice and the naïve waiter friendly.": "cp1252 mac_roman",
    "A film that nobody — really — would call “great”. It’s fine.": "cp1252 mac_roman",
}  # fmt: skip


@pytest.mark.parametrize("times", [1, 50])
@pytest.mark.parametrize(
    ("text", "page"), [(text, page) for text, pages in TEXTS.items() for page in pages.split()]
)
def test_a_text_is_read_by_its_page(text, page, times):
    content = f"text,label\n{text * times},neg\n".encode(page)

    readings = detect_encoding(content)

    assert len(readings) == 1
    assert content.decode(readings[0].encoding) == content.decode(page)


@pytest.mark.parametrize(
    ("text", "page"),
    [("ПЛОХОЙ ФИЛЬМ, ОЧЕНЬ", "cp1251"), ("영화", "euc_kr"), ("הסרט היה גרוע מאוד", "cp1255")],
)
def test_where_two_pages_are_near_both_are_told_of(text, page):
    content = f"{text}\n".encode(page)

    readings = [content.decode(reading.encoding) for reading in detect_encoding(content)]

    assert len(readings) > 1
    assert f"{text}\n" in readings


@pytest.mark.parametrize("page", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_unicode_is_told_by_its_bytes(page):
    content = "text,label\nfilm добрый 电影,neg\n".encode(page)

    (reading,) = detect_encoding(content)

    assert content.decode(reading.encoding).removeprefix("\ufeff").startswith("text,label\n")
