import gzip
import io
import json
import lzma
import os

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transfer_cli.data import readers
from transfer_cli.data.records import Record, label_of, text_of
from transfer_cli.data.text_split import path_lines
from transfer_cli.errors import DataError

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


def table(path, table_format="csv", **settings):
    return [dict(row.fields) for row in readers.read_table(path, table_format, **settings)]


@pytest.mark.parametrize("suffix", PACKERS)
def test_lines_are_the_same_however_the_file_is_packed(write, suffix):
    path = write(f"a.txt{suffix}", PACKERS[suffix]("one\n\nzwei ü\n".encode()))

    assert list(readers.read_lines(path)) == ["one", "", "zwei ü"]


def test_only_line_feeds_end_a_line(write):
    path = write("a.txt", "a\x0bb\u2028c\x85d\re\r\nf")

    assert list(readers.read_lines(path)) == ["a\x0bb\u2028c\x85d\re", "f"]


def test_a_byte_order_mark_is_left_out(write):
    assert list(readers.read_lines(write("a.txt", b"\xef\xbb\xbfa\n"))) == ["a"]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_several_packed_pieces_in_one_file_are_read_on(write, suffix):
    pack = PACKERS[suffix]
    path = write(f"a.txt{suffix}", pack(b"one\ntw") + pack(b"o\n"))

    assert list(readers.read_lines(path)) == ["one", "two"]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("damage", [lambda packed: packed[:-9], lambda packed: b"plain text\n"])
def test_a_damaged_packed_file_is_an_error_with_its_line(write, suffix, damage):
    path = write(f"a.txt{suffix}", damage(PACKERS[suffix](b"one\ntwo\n" * 1000)))

    with pytest.raises(DataError, match=r"a\.txt.*, line \d+: cannot be read on"):
        list(readers.read_lines(path))


def test_a_zstandard_bomb_is_read_in_bounded_memory(write, monkeypatch):
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 2**20)
    path = write("a.txt.zst", zstandard.compress(bytes(2**27)))

    with pytest.raises(DataError, match="line 1: longer than 1 MiB"):
        list(readers.read_lines(path))


def test_a_byte_that_is_not_utf8_is_named_with_file_line_and_offset(write):
    path = write("a.txt", b"good\nsister\xffcity\n")

    with pytest.raises(DataError, match=r"a\.txt, line 2: byte 0xFF at offset 6"):
        list(readers.read_lines(path))


def test_utf16_is_recognised(write):
    assert list(readers.read_lines(write("a.txt", "text\n".encode("utf-16")))) == ["text"]


def test_a_nul_byte_is_refused(write):
    with pytest.raises(DataError, match="line 2: NUL byte at offset 1"):
        list(readers.read_lines(write("a.txt", b"a\nb\0\n")))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_error(write, name, content):
    packed = gzip.compress(content) if name.endswith(".gz") else content

    with pytest.raises(DataError, match=r"a\.txt.* is empty"):
        list(readers.read_lines(write(name, packed)))


def test_a_missing_file_is_named_with_the_nearest_existing_one(write, tmp_path):
    write("train.txt", "x")

    with pytest.raises(DataError, match=r"tran\.txt does not exist. Did you mean 'train\.txt'"):
        list(readers.read_lines(tmp_path / "tran.txt"))


def test_a_missing_folder_is_named_with_the_nearest_existing_one(tmp_path):
    (tmp_path / "corpus").mkdir()

    with pytest.raises(DataError, match=r"Did you mean 'corpus'"):
        list(readers.read_lines(tmp_path / "corpsu" / "deep" / "train.txt"))


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        list(readers.read_lines(tmp_path))


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_an_impossible_name_is_an_error_of_the_user(tmp_path, name):
    with pytest.raises(DataError):
        list(readers.read_lines(tmp_path / name))


# ----------------------------------------------------------------------------- JSON lines


def test_a_field_of_json_lines_is_read_as_lines_of_text(write):
    rows = [{"text": "one\ntwo"}, {"text": "three", "id": 3}]
    path = write("a.jsonl", "\n\n".join(map(json.dumps, rows)))

    assert list(path_lines(path, "text")) == ["one", "two", "three"]


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

    rows = list(readers.read_table(path, "csv"))

    assert [dict(row.fields) for row in rows] == [
        {"text": 'a, "b"\nc', "label": "1"},
        {"text": "d", "label": "2"},
    ]
    assert [row.line for row in rows] == [2, 5]


def test_quotes_in_tsv_are_text(write):
    assert table(write("a.tsv", 'text\tlabel\nsay "hi\t1\n'), "tsv") == [
        {"text": 'say "hi', "label": "1"}
    ]


def test_columns_without_header_are_numbered_from_one(write):
    assert table(write("a.csv", "a,b\nc,d\n"), header=False) == [
        {"1": "a", "2": "b"},
        {"1": "c", "2": "d"},
    ]


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
    record = next(readers.read_table(write("a.csv", "question,label\na,1\n"), "csv"))

    with pytest.raises(
        DataError, match=r"no column 'questions'; there are 'question', 'label'\. D"
    ):
        text_of(record, "questions", "a.csv")


def test_a_value_longer_than_the_default_limit_of_csv_is_read(write):
    assert len(table(write("a.csv", "text\n" + "x" * 200_000))[0]["text"]) == 200_000


@pytest.mark.parametrize(
    ("value", "label"), [("x ", "x"), (1, "1"), (True, "true"), (1.5, "1.5"), ("ü", "ü")]
)
def test_labels_are_strings(value, label):
    assert label_of(Record(1, {"label": value}), "label", "a") == label


def test_an_empty_label_is_refused():
    with pytest.raises(DataError, match="a, line 9: the label in 'label' is empty"):
        label_of(Record(9, {"label": " "}), "label", "a")


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
        try:
            read()
        except DataError as error:
            assert "\n" not in str(error).replace(str(path), "")  # noqa: PT017 - may also succeed


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
