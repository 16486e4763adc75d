"""The rows of Parquet files and spreadsheets, read by the libraries of the extra `tables`."""

import importlib
import json
import logging
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime
from itertools import count
from pathlib import Path
from typing import Any

from transfer_cli.data.packed import MAX_UNPACKED_RATIO, UNPACKED_FREELY_BYTES
from transfer_cli.data.readers import Record, check_columns, check_readable
from transfer_cli.errors import DataError, pip_install

log = logging.getLogger(__name__)

PARQUET, SPREADSHEET = "parquet", "xlsx"
SHEET_FORMATS = (PARQUET, SPREADSHEET)

_ROWS_AT_ONCE = 1000


def parquet_records(path: Path, only: str | None = None) -> Iterator[Record]:
    """Yield the rows of a Parquet file, counted from 1; what JSON cannot hold becomes text.

    Numbers of classes become their names, where the `datasets` library has written them along; -1
    is no class.

    Args:
        path: The file, or a folder of such files, which are read in the order of their names.
        only: The column that is needed, see `readers.value_of`; None: all.

    Raises:
        DataError: It cannot be read, or pyarrow is not installed.
    """
    numbers = count(1)
    for part in sorted(path.glob("*.parquet")) or [path]:
        with _faults_of(part, "pyarrow.parquet") as library, library.ParquetFile(part) as file:
            names = file.schema_arrow.names
            check_columns(names, str(part))
            classes = _class_names(file.schema_arrow.metadata or {})
            needed = {only, str(only).partition(".")[0]}.intersection(names)
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(needed) or None):
                for row in batch.to_pylist():
                    fields = {name: _plain(value) for name, value in row.items()}
                    for name in classes.keys() & fields.keys():
                        fields[name] = _named(fields[name], classes[name])
                    yield Record(next(numbers), fields)


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the names of the classes of each column that has some."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):  # it was not written by that library
        return {}
    found = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else None
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
            found[column] = [str(name) for name in inner.get("names") or ()]
    return found


def _named(value: object, names: list[str]) -> object:
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    if not isinstance(value, int):
        return value
    return names[value] if 0 <= value < len(names) else None


def sheet_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of the first sheet as CSV would hold them, with their numbers from 1.

    Empty rows are left out, and empty columns on the right of the first row.

    Raises:
        DataError: It cannot be read, or openpyxl is not installed.
    """
    with _faults_of(path, "openpyxl") as library:
        _check_size(path)
        book = library.load_workbook(path, read_only=True, data_only=True)
        try:
            sheet, *others = book.worksheets
            if others:
                log.info("%s: read from the first of its %s sheets", path, 1 + len(others))
            sheet.reset_dimensions()  # what a file says of its own size is often wrong
            width = 0
            for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
                row = [_as_cell(value) for value in cells]
                while len(row) > width and not row[-1]:
                    row.pop()
                if any(row):
                    width = width or len(row)
                    yield number, row + [""] * (width - len(row))
        finally:
            book.close()


@contextmanager
def _faults_of(path: Path, package: str) -> Iterator[Any]:
    """Return a library; what it raises becomes a `DataError`."""
    check_readable(path)
    try:
        library = importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise DataError(
            f"{path} needs {package.partition('.')[0]}, which is not installed: "
            f"{pip_install('tables')}"
        ) from error
    try:
        with warnings.catch_warnings(action="ignore"):
            yield library
    except DataError:
        raise
    # Of a damaged file these libraries raise nearly anything.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read ({reason or type(error).__name__}).") from error


def _check_size(path: Path) -> None:
    """Refuse a spreadsheet, which is packed, that would fill the memory.

    Raises:
        DataError: It would.
    """
    with zipfile.ZipFile(path) as packed:
        unpacked = sum(each.file_size for each in packed.infolist())
    if unpacked > max(UNPACKED_FREELY_BYTES, MAX_UNPACKED_RATIO * path.stat().st_size):
        raise DataError(f"{path} unpacks to {unpacked:,} bytes. Is this a spreadsheet?")


def _as_cell(value: object) -> str:
    """Return the value of a cell as text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value)


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return json.loads(json.dumps(value, default=str))
