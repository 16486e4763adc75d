"""Whatever stands in a text or a table, it is read or refused, and memory stays bounded."""

import contextlib
import io
import json
import lzma
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import altered, damaged, fuzz, memory_up_to, tried
from tests.unit.data.test_tables import PACKERS as ANY_PACKERS
from transfer_cli.data import packed, readers, table
from transfer_cli.data.documents import path_lines
from transfer_cli.data.readers import MAX_LINE_BYTES
from transfer_cli.data.records import MAX_COLUMNS, label_of, text_of
from transfer_cli.data.table import table_records
from transfer_cli.errors import DataError
from transfer_cli.tasks.table import Table
from transfer_cli.tasks.trec import _read

PACKERS = {suffix: pack for suffix, pack in ANY_PACKERS.items() if suffix}
MIB = 2**20

CSV = 'text,label\r\n"a, ""b""\r\nc",1\r\nzwei ü,2\r\n'.encode()
TSV = 'text\tlabel\nsay "hi\t1\nü\t2\n'.encode()
ROWS = [{"text": "one\ntwo", "label": 1, "x": [1.5, None]}, {"text": "ü", "label": True}]
JSON = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
TREC = b"NUM:date When ?\nLOC:city Where is caf\xe9 ?\n"

contents = st.one_of(
    damaged(CSV),
    damaged(TSV),
    damaged(JSON),
    st.lists(altered(ROWS[0]), max_size=3).map(
        lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode()
    ),
    st.binary(max_size=300),
)


def refusal(read) -> str:
    with pytest.raises(DataError) as caught:
        read()
    assert len(str(caught.value)) < 3000
    return str(caught.value)


@fuzz(300)
@given(
    content=contents, table_format=st.sampled_from(["csv", "tsv", "jsonl"]), header=st.booleans()
)
def test_fuzz_tables(content, table_format, header):
    def read():
        lines = readers.sound_lines(readers.all_lines(io.BytesIO(content), "a"))
        for record in table_records(lines, "a", table_format, header=header):
            text_of(record, "text" if header else "1", "a")
            label_of(record, "label" if header else "2", "a")

    tried(read, DataError)


@fuzz(300)
@given(content=contents, table_format=st.sampled_from(["csv", "tsv", "jsonl"]))
def test_fuzz_tables_that_are_read_on_after_bad_rows(content, table_format):
    strict, errors = [], []
    with contextlib.suppress(DataError):
        lines = readers.sound_lines(readers.all_lines(io.BytesIO(content), "a"))
        strict += table_records(lines, "a", table_format)

    def read():
        lines = readers.all_lines(io.BytesIO(content), "a")
        records = table_records(lines, "a", table_format, on_error=errors.append)
        assert [next(records) for _ in strict] == strict
        rest = list(records)
        assert errors or not rest

    tried(read, DataError)


@fuzz(100)
@given(content=contents, name=st.sampled_from(["a.csv", "a.tsv", "a.jsonl"]))
def test_fuzz_own_tables_as_a_task(tmp_path_factory, content, name):
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(content)

    tried(lambda: Table(train=str(path)).load(path.parent, 0), DataError)


@fuzz(100)
@given(content=damaged(TREC))
def test_fuzz_trec(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "train.label"
    path.write_bytes(content)

    tried(lambda: list(_read(path)), DataError)


@pytest.mark.slow
@fuzz(300)
@given(data=st.data(), suffix=st.sampled_from(list(PACKERS)))
def test_fuzz_packed_files(tmp_path_factory, data, suffix):
    packed = PACKERS[suffix](JSON * 20)
    path = tmp_path_factory.mktemp("fuzz") / f"a.jsonl{suffix}"
    path.write_bytes(data.draw(damaged(packed) | damaged(packed * 2)))

    tried(lambda: list(path_lines(path, "text")), DataError)


# ------------------------------------------------------------------------------- too much


def test_a_line_of_two_gigabytes_is_refused_without_being_read_whole(tmp_path):
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.write(b"good\n")
        file.truncate(2**31)

    with memory_up_to(4 * MAX_LINE_BYTES):
        message = refusal(lambda: list(readers.read_lines(path)))

    assert message == f"{path}, line 2: longer than 8 MiB. Is this text?"


def test_a_field_of_a_hundred_megabytes_is_refused_in_csv_and_json_lines():
    for start, table_format in ((b"text,label\n", "csv"), (b'{"text": "', "jsonl")):
        stream = io.BytesIO(start + b"x" * (100 * MIB))
        lines = readers.sound_lines(readers.all_lines(stream, "a"))
        records = table_records(lines, "a", table_format)

        with memory_up_to(4 * MAX_LINE_BYTES):
            assert "longer than 8 MiB" in refusal(lambda records=records: list(records))


@pytest.mark.parametrize("start", ['"', '"a","'])
def test_a_quote_that_is_never_closed_is_refused_before_the_file_is_in_memory(start):
    def lines():
        yield 1, "text,label"
        yield 2, "good,1"
        yield 3, start
        for number in range(4, 10**7):
            yield number, "x" * 1000

    with memory_up_to(8 * MAX_LINE_BYTES):
        message = refusal(lambda: list(table_records(lines(), "a.csv", "csv")))

    assert message.startswith("a.csv, line 3: a broken row (longer than 8 MiB). Is a quote missing")


def rows_and_faults(lines):
    faults = []
    numbered = enumerate(["text,label", *lines], 1)
    records = list(table_records(numbered, "a.csv", "csv", on_error=faults.append))
    return [record.line for record in records], [str(fault) for fault in faults]


@pytest.mark.parametrize("end", ["good,2", 'good,"2"', '"good",2'])
def test_a_quote_that_is_never_closed_costs_one_row(end):
    rows, faults = rows_and_faults(
        ["good,1", '"open,2', *["good,1"] * 50, end, '"open,3', "good,1"]
    )

    assert rows == [2, *range(4, 55), 56]
    assert [fault.partition(": ")[0] for fault in faults] == ["a.csv, line 3", "a.csv, line 55"]


def test_lines_that_are_not_read_again_are_counted(monkeypatch):
    monkeypatch.setattr(table, "_MAX_REREADS", 0)

    rows, faults = rows_and_faults(["good,1", '"open,2', *["good,1"] * 50])

    assert rows == [2]
    assert faults[0].endswith("Up to line 53, all is left out with it.")


def test_a_row_of_many_fields_over_many_lines_is_refused():
    def lines():
        for number in range(1, 10**7):
            yield number, '","'.join(["x" * 100] * 10)

    records = table_records(lines(), "a.csv", "csv")
    with memory_up_to(40 * MAX_LINE_BYTES):
        assert "a.csv, line" in refusal(lambda: list(records))


@pytest.mark.parametrize(
    ("line", "table_format"),
    [("," * 100_000, "csv"), (json.dumps(dict.fromkeys(map(str, range(20_000)))), "jsonl")],
)
def test_a_table_of_absurd_width_is_refused(line, table_format):
    message = refusal(lambda: list(table_records([(1, line)], "a", table_format)))

    assert f"the most is {MAX_COLUMNS:,}" in message


def test_a_missing_column_among_thousands_is_said_in_a_short_line():
    columns = ",".join(f"c{number}" for number in range(MAX_COLUMNS))
    record = next(table_records([(1, columns), (2, columns)], "a", "csv"))

    assert "'c19' and 9,980 more" in refusal(lambda: text_of(record, "text", "a"))


@pytest.mark.parametrize("name", ["text", "label"])
def test_two_values_of_one_name_are_refused(name):
    line = f'{{"text": "a", "label": "b", "{name}": "c"}}'

    message = refusal(lambda: list(table_records([(1, line)], "a", "jsonl")))

    assert message == f"a, line 1: JSON that cannot be read (the name '{name}' is there twice)."


@pytest.mark.slow
def test_very_many_labels_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"t,{n}\n" for n in range(250_000)))

    with memory_up_to(64 * MIB):
        message = refusal(lambda: Table(train=str(path)).load(tmp_path, 0))

    assert "line 10002: more than 10,000 different labels. Is 'label' the column" in message


# ---------------------------------------------------------------------------------- bombs


def test_what_unpacks_to_gigabytes_of_lines_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "UNPACKED_FREELY_BYTES", 8 * MIB)
    for suffix, pack in PACKERS.items():
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(pack(b"yes\n" * (8 * MIB)))

        with memory_up_to(100 * MIB):
            message = refusal(lambda path=path: sum(1 for _ in readers.read_lines(path)))

        assert message.startswith(f"{path}: unpacks to more than 200 times its size")


@pytest.mark.parametrize("suffix", PACKERS)
def test_text_that_repeats_itself_is_no_bomb(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACKERS[suffix](b"yes\n" * 100_000))

    assert sum(1 for _ in readers.read_lines(path)) == 100_000


def test_a_file_that_asks_for_gigabytes_to_be_unpacked_is_refused(tmp_path):
    path = tmp_path / "a.txt.xz"
    # What asks for it is one byte of the header: no gigabytes are needed to write it.
    path.write_bytes(_with_window(lzma.compress(b"text\n"), 38))

    assert "cannot be read on" in refusal(lambda: list(readers.read_lines(path)))


def _with_window(packed: bytes, code: int) -> bytes:
    """Return an xz file whose first block asks for another window; its header is 12 bytes."""
    size = 4 * (packed[12] + 1)
    header = bytearray(packed[12 : 12 + size])
    place = header.index(b"\x21\x01") + 2  # the filter LZMA2, and one byte of properties
    header[place] = code
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    return packed[:12] + bytes(header) + packed[12 + size :]
