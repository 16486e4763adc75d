"""Texts that say the same as others, from a table: translated into another language and back.

Its column `text` has a text, every column whose name begins with `paraphrase` one that says the
same; in JSON lines a list has several. A text may have several rows.
"""

from collections import defaultdict
from pathlib import Path

from transfer_cli.data.layout import Layout
from transfer_cli.data.readers import format_of, refuse
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.table import open_table
from transfer_cli.data.wanted import ANY, TEXT
from transfer_cli.errors import DataError

PREFIX = "paraphrase"


def read_paraphrases(path: Path) -> dict[str, list[str]]:
    """Return the paraphrases of each text; blanks around texts do not count."""
    name, paraphrases = str(path), defaultdict[str, list[str]](list)
    with open_table(path, format_of(path) or "csv", Layout(header=True), ANY) as table:
        for record in table.records(refuse):
            columns = [column for column in record.fields if column.startswith(PREFIX)]
            if not columns:
                raise DataError(
                    f"{name}, line {record.line}: no column {PREFIX!r}; there are "
                    f"{', '.join(map(repr, record.fields))}."
                )
            text = text_of(record, TEXT, name).strip()
            for column in columns:
                paraphrases[text] += _texts(record, column, name)
    return paraphrases


def _texts(record: Record, column: str, name: str) -> list[str]:
    """Return the texts in a column that are not empty."""
    value = record.fields[column]
    values = value if isinstance(value, list) else [value or ""]
    texts = (text_of(Record(record.line, {column: element}), column, name) for element in values)
    return [text.strip() for text in texts if text.strip()]
