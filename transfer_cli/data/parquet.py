"""The rows of Parquet files, read by a library of the extra `tables`."""

import importlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transfer_cli.data.packed import MAX_UNPACKED_RATIO
from transfer_cli.data.readers import MAX_LINE_BYTES, check_length, check_readable
from transfer_cli.data.records import Record, check_columns
from transfer_cli.errors import DataError, pip_install

_ROWS_AT_ONCE, _FEWEST_AT_ONCE = 1000, 16


def parquet_records(path: Path, only: str | None = None) -> Iterator[Record]:
    """Yield the rows of a Parquet file, counted from 1; what JSON cannot hold becomes text.

    Numbers of classes become their names, where the `datasets` library has written them along; -1
    is no class.

    Args:
        path: The file, or a folder of such files, which are read in the order of their names.
        only: The column that is needed, see `value_of`; None: all.
    """
    before = 0
    for part in sorted(path.glob("*.parquet")) or [path]:
        parquet = import_library(part, "pyarrow.parquet")
        with as_data_errors(part), parquet.ParquetFile(part) as file:
            names = file.schema_arrow.names
            check_columns(names, str(part))
            classes = _class_names(file.schema_arrow.metadata or {})
            columns = set[str](names)
            needed = columns & {only, str(only).partition(".")[0]}
            at_once = _rows_at_once(file.metadata, part, needed or columns, before)
            batches = file.iter_batches(at_once, columns=list(needed) or None)
            for number, row in enumerate(_bounded_rows(batches, part, before), before + 1):
                fields = {name: _json_value(value) for name, value in row.items()}
                for name in classes.keys() & fields.keys():
                    fields[name] = _class_name(fields[name], classes[name])
                yield Record(number, fields)
            before += file.metadata.num_rows


def _rows_at_once(metadata: Any, path: Path, names: set[str], before: int) -> int:
    """Return how many rows of a Parquet file to take at once.

    Each may be a copy of the largest value of a dictionary, which is at most all of a column.
    """
    largest = 0
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        for column in map(group.column, range(group.num_columns)):
            path_in_file = f"{column.path_in_schema}."
            if group.num_rows and any(path_in_file.startswith(f"{name}.") for name in names):
                size, packed = column.total_uncompressed_size, column.total_compressed_size
                check_length(size // group.num_rows, path, before + 1)
                if size > max(8 * MAX_LINE_BYTES, MAX_UNPACKED_RATIO * packed):
                    raise DataError(f"{path} unpacks to {size:,} bytes. Is this a table?")
                largest = max(largest, size)
        before += group.num_rows
    return max(_FEWEST_AT_ONCE, min(_ROWS_AT_ONCE, 8 * MAX_LINE_BYTES // max(largest, 1)))


def _bounded_rows(batches: Iterable[Any], path: Path, before: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of batches; no batch is too long."""
    for batch in batches:
        is_short = batch.nbytes <= MAX_LINE_BYTES
        # Only now a value of a dictionary becomes as many texts as there are rows.
        for at in range(0, len(batch), len(batch) if is_short else 1):
            rows = batch.slice(at, None if is_short else 1)
            check_length(0 if is_short else rows.nbytes, path, before + at + 1)
            yield from rows.to_pylist()
        before += len(batch)


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the names of the classes of each column that has some."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):  # it was not written by that library
        return {}
    names = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else None
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
            names[column] = [str(name) for name in inner.get("names") or ()]
    return names


def _class_name(value: object, names: list[str]) -> object:
    if isinstance(value, list):
        return [_class_name(number, names) for number in value]
    if not isinstance(value, int):
        return value
    return names[value] if 0 <= value < len(names) else None


def _json_value(value: object) -> object:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes):  # a text, as some programs write it; else refused where it is read
        return value.decode(errors="surrogateescape")
    return json.loads(json.dumps(value, default=str))


def import_library(path: Path, name: str) -> Any:
    """Import what reads a file, which is there and not empty."""
    check_readable(path)
    # Until the end: what holds back warnings around a generator would do so between its rows.
    warnings.filterwarnings("ignore", module=rf"{name.partition('.')[0]}\b")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise DataError(
            f"{path} needs {name.partition('.')[0]}, which is not installed: "
            f"{pip_install('tables')}"
        ) from error


@contextmanager
def as_data_errors(path: Path) -> Iterator[None]:
    """Have what a library raises become a `DataError`."""
    try:
        yield
    except DataError:
        raise
    # Of a damaged file these libraries raise nearly anything.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read ({reason or type(error).__name__}).") from error
