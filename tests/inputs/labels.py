"""Files of the rows of `labels.yaml` that are not text."""


def numbered(path, text, times, before=""):
    """Write a text so many times, with numbers in place of {n}: no two rows are equal."""
    parts = [text.replace("{n}", str(n)) for n in range(times)]
    path.write_text(before + "".join(parts), encoding="utf-8")


def _rows(count):
    return [
        {"text": f"this is text number {n}", "sport": n % 2 == 0, "music": n % 3 == 0}
        for n in range(count)
    ]


def parquet(path, count):
    """Write texts with two columns of yes and no."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_rows(count)), path)


def sheet(path, count):
    """Write the same as a spreadsheet."""
    import openpyxl

    book = openpyxl.Workbook()
    for row in [list(_rows(1)[0]), *(list(record.values()) for record in _rows(count))]:
        book.active.append(row)
    book.save(path)


def rare(path):
    """Write a table in which 30 labels occur once, and one often."""
    rows = [f"this is text {n},{'other' if n > 29 else f'name {n}'}" for n in range(80)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
