"""Files of `tables.yaml` that are no text."""

import json
import zipfile

ROWS = [[f"a {'good' if at % 2 else 'bad'} film {at}", ("neg", "pos")[at % 2]] for at in range(20)]


def zipped(path, text):
    """Write an archive of one table."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("table.csv", text)


def parquet(path, length):
    """Write a table with a text of so many bytes below short ones."""
    import pyarrow
    from pyarrow import parquet as library

    texts = ["good film", "bad film"] * 500 + ["x" * length]
    library.write_table(pyarrow.table({"text": texts, "label": ["a", "b"] * 500 + ["a"]}), path)


def book(path, pages):
    """Write a spreadsheet: the first rows of each page, and a table below but for notes."""
    import openpyxl

    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, first in pages.items():
        page = made.create_sheet(name)
        for row in first + (ROWS if name != "notes" else []):
            page.append(row)
    made.save(path)


def wide_sheet(path, length, place="A99"):
    """Write a spreadsheet with one cell of so many bytes, which are packed to a thousandth."""
    book(path, {"data": [["text", "label"]]})
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = "xl/worksheets/sheet1.xml"
    cell = f'<row r="{place.lstrip("AXFD")}"><c r="{place}" t="inlineStr"><is><t>'
    start, end = parts.pop(name).split(b"</sheetData>")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
        with archive.open(name, "w") as stream:
            stream.write(start + cell.encode())
            for _ in range(length // 2**20):
                stream.write(b"x" * 2**20)
            stream.write(b"</t></is></c></row></sheetData>" + end)


def columns(path, orient):
    """Write a table in a form of JSON, as pandas calls them."""
    table = [dict(zip(("text", "label"), row, strict=True)) for row in ROWS]
    lists = dict(zip(("text", "label"), zip(*ROWS, strict=True), strict=True))
    made = {
        "records": table,
        "list": lists,
        "columns": {key: dict(enumerate(column)) for key, column in lists.items()},
        "index": dict(enumerate(table)),
        "split": {"columns": ["text", "label"], "index": list(range(20)), "data": ROWS},
        "data": {"version": "1", "data": table},
    }[orient]
    path.write_text(json.dumps(made, indent=1 if orient == "records" else None))
