"""How a table is written and what its columns are, recognised or refused in one line."""

import csv
import io
import json
import logging

import pytest

from transfer_cli.data import sheet_bounds
from transfer_cli.data.columns import Wanted, choose
from transfer_cli.data.encodings import encoding_of
from transfer_cli.data.labelled import INPUT, Example
from transfer_cli.data.layout import Layout, delimiter_of, has_header
from transfer_cli.errors import DataError
from transfer_cli.tasks.table import Table

TEXT = "the film was really good and bad , we liked it a lot ; but not an end"
WORDS = TEXT.split()
ROWS = [
    [" ".join(WORDS[(number * 7 + at * 5) % 18] for at in range(4 + number % 11)) + f" {number}",
     "pos" if number * number % 7 < 3 else "neg"]
    for number in range(60)
]  # fmt: skip


def as_text(rows, mark=","):
    out = io.StringIO()
    csv.writer(out, delimiter=mark, lineterminator="\n").writerows(rows)
    return out.getvalue()


@pytest.fixture
def load(tmp_path, caplog):
    """Return how to load a table of given bytes; gives its data and what was said."""
    caplog.set_level(logging.INFO, "transfer_cli.data.any_table")

    def call(content, name="a.csv", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        data = Table(train=str(path), validation=str(path), **options).load(tmp_path, 0)
        said = [each.getMessage() for each in caplog.records if each.name.endswith("any_table")]
        return data, [each.removeprefix(f"{path}: ") for each in said]

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
        (as_text(FOREIGN).encode("utf-16-le"), "a.csv", ...),
    ],
)  # fmt: skip
def test_how_a_table_is_written_is_recognised_and_said_in_one_line(load, content, name, said):
    if said is ...:
        data, found = load(content, name, encoding="utf-16-le")
        said = None
    else:
        data, found = load(content, name)

    expected = FOREIGN if "é" in texts_of(data)[0][0] else NAMED
    assert texts_of(data) == expected[1:]
    if said is None:
        assert found == []
    else:
        assert found[0].startswith(said)
        assert len(found) <= 2  # a line for each file


def test_each_file_is_looked_at_by_itself(tmp_path):
    (tmp_path / "a.csv").write_text(as_text(OTHER, ";"))
    (tmp_path / "v.csv").write_bytes(as_text(OTHER, "\t").encode("utf-16"))
    (tmp_path / "t.csv").write_text(as_text(ROWS))

    given = {"validation": str(tmp_path / "v.csv"), "test": str(tmp_path / "t.csv")}
    data = Table(train=str(tmp_path / "a.csv"), **given).load(tmp_path, 0)

    assert data.splits["train"] == data.splits["validation"] == data.splits["test"]


def test_what_is_typed_is_not_recognised(load):
    rows = [["a", "b"], *([text, label.replace("s", ";", 1)] for text, label in ROWS)]

    data, said = load(as_text(rows, ";"), delimiter="semicolon", header=False, text=1, label="2")

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
    assert [each.encoding for each in encoding_of(start)] == [encoding], name


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
    assert delimiter_of([f"{line}\n" for line in lines], ",") == mark


@pytest.mark.parametrize(
    ("first", "others", "found"),
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
def test_a_header_names_columns_and_is_not_like_the_rows_below(first, others, found):
    assert has_header([first, *others], ()) is found


# --------------------------------------------------------------------------------------- columns


def chosen(header, rows, asked=Wanted()):  # noqa: B008 - a constant
    found = choose(header, [dict(zip(header, row, strict=True)) for row in rows], asked, "a.csv")
    return found.text, found.pair, found.label


LONGER = [
    [number, f"{text[:9]} {number}", f"{text} {text}", label]
    for number, (text, label) in enumerate(ROWS)
]


@pytest.mark.parametrize(
    ("header", "found"),
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
def test_columns_are_found_by_their_names_else_by_what_is_in_them(header, found):
    assert chosen(header, LONGER) == found


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


# -------------------------------------------------------------------------------------- bad rows


BAD = as_text([["text", "label"], *ROWS[:3], ["ragged"], *ROWS[3:], ["no label", ""]])


def test_a_bad_row_is_refused_with_its_number(load):
    with pytest.raises(DataError, match=r"a\.csv, line 5: 1 column, .* With data\.errors=skip"):
        load(BAD)


def test_bad_rows_are_left_out_and_counted_where_that_is_asked_for(load):
    data, said = load(BAD, errors="skip")

    assert texts_of(data) == ROWS
    assert "line 5: 1 column" in said[0]
    assert "line 63: the label in 'label' is empty" in said[1]
    assert "skipped 2 of 62 rows, which cannot be read" in said


def test_where_no_row_is_left_that_is_refused(load):
    with pytest.raises(DataError, match=r"none of its 2 rows can be read\. The first: "):
        load("text,label\na\nb\n", errors="skip")


def test_all_rows_of_a_file_are_one_split(tmp_path):
    (tmp_path / "a.csv").write_text(BAD)

    data = Table(train=str(tmp_path / "a.csv"), errors="skip").whole(Wanted())

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
    rows = [
        ["review", "stars", None],
        *([text, 4 + (label == "pos"), None] for text, label in ROWS),
    ]
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


def test_a_spreadsheet_that_fills_the_memory_is_refused(book, monkeypatch):
    path = book([["text", "label"], *[["the same again", "x"]] * 5000])
    monkeypatch.setattr(sheet_bounds, "UNPACKED_FREELY_BYTES", 1000)
    monkeypatch.setattr(sheet_bounds, "MAX_UNPACKED_RATIO", 2)

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


def test_a_parquet_file_is_a_table(parquet):
    numbers = [len(label) + number % 2 for number, (_, label) in enumerate(ROWS)]
    path = parquet({"id": list(range(60)), "review": [text for text, _ in ROWS], "n": numbers})

    data = Table(train=str(path), validation=str(path)).load(path, 0)

    assert data.labels == ("3", "4")
    assert [each.text for each in data.splits["train"]] == [text for text, _ in ROWS]


def test_parquet_files_of_a_folder_are_one_table(parquet, tmp_path):
    (tmp_path / "parts").mkdir()
    for name, half in (("1.parquet", ROWS[30:]), ("0.parquet", ROWS[:30])):
        text, label = zip(*half, strict=True)
        parquet({"text": text, "label": label}).rename(tmp_path / "parts" / name)

    data = Table(train=str(tmp_path / "parts"), labelled=54).load(tmp_path, 0)

    assert {each.text for each in data.splits["train"]} < {text for text, _ in ROWS}
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


def test_numbers_of_classes_get_the_names_that_were_written_along(parquet, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    features = {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}
    text = [text for text, _ in ROWS]
    numbers = [*([0, 1] * 29), -1, 7]
    made = pyarrow.table({"text": text, "label": numbers}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    path = parquet(made)

    data = Table(train=str(path), errors="skip").load(tmp_path, 0)

    assert data.labels == ("bad", "good")
    assert sum(map(len, data.splits.values())) == 58


def test_nothing_in_a_parquet_file_is_a_bad_row(parquet):
    path = parquet({"text": ["a", None, "b"], "label": ["x", "y", "y"]})

    with pytest.raises(DataError, match=r"a\.parquet, line 2: 'text' is null, expected text"):
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
        monkeypatch.setitem(__import__("sys").modules, module, None)

    with pytest.raises(DataError, match=rf"needs {needs}, which is .*: pip install "):
        load(b"x", name)


def test_a_layout_that_cannot_be_is_refused():
    assert Layout("tab").delimiter == Layout("\t").delimiter == "\t"
    with pytest.raises(ValueError, match="delimiter is ',,'"):
        Layout(",,")
