"""Cells that unpack to much are refused before a library takes memory for them."""

import subprocess
import sys
import zipfile

import pytest

from transfer_cli.data import sheet_bounds
from transfer_cli.data.readers import MAX_LINE_BYTES
from transfer_cli.errors import DataError

pytest.importorskip("openpyxl")

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
        (
            {"strings": [b"<sst><si><t>a</t></si><si><t>", *LONG, b"</t></si></sst>"]},
            "line 2: long",
        ),
        ({"sheet": row(b"a", cell="XFD7")}, "line 7: 16,384 columns, the most is 10,000"),
        ({"sheet": [b'<!DOCTYPE a [<!ENTITY b "c">]>', *row(b"a")]}, "entities"),
    ],
)
def test_a_row_that_would_be_too_large_is_refused_with_its_number(packed, parts, named):
    with pytest.raises(DataError, match=named):
        sheet_bounds.check(packed(**parts))


def test_cells_that_are_made_and_not_written_are_counted(packed, monkeypatch):
    monkeypatch.setattr(sheet_bounds, "_EMPTY_CELLS", 1000)
    one = b'<row><c r="ZZ1"><v>1</v></c></row>'

    with pytest.raises(DataError, match="cells, of which 2 are written"):
        sheet_bounds.check(
            packed(sheet=[b"<worksheet><sheetData>", one * 9, b"</sheetData></worksheet>"])
        )


def test_a_long_text_below_the_limit_is_read(packed):
    sheet_bounds.check(packed(sheet=row(*LONG[2:])))


LIMITED = """
import resource, sys
from pathlib import Path
from transfer_cli.data import sheets
from transfer_cli.errors import DataError

resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
path = Path(sys.argv[1])
try:
    if path.suffix == ".xlsx":
        with sheets.opened(path) as book:
            list(book.rows(book.sheets[0]))
    else:
        list(sheets.parquet_records(path))
except DataError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_cell_of_600_megabytes_is_refused_in_forty_times_the_limit_of_a_row(packed):
    path = packed(sheet=row(*(b"x" * MIB for _ in range(600))))

    typed = [sys.executable, "-c", LIMITED, str(path), str(40 * MAX_LINE_BYTES)]
    ended = subprocess.run(typed, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "line 7: longer than 8 MiB" in ended.stdout


@pytest.mark.slow
def test_copies_of_one_value_of_parquet_are_made_one_by_one(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    library = pytest.importorskip("pyarrow.parquet")
    values = pyarrow.array(["x" * (4 * MIB), "y"])
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 500, "int32"), values)
    library.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")

    code = LIMITED.replace(
        "list(sheets.parquet_records(path))", "[0 for _ in sheets.parquet_records(path)]"
    )
    typed = [sys.executable, "-c", code, str(tmp_path / "a.parquet"), str(200 * MAX_LINE_BYTES)]
    ended = subprocess.run(typed, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout == ""
