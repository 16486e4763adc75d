import errno
import json
import os
import re
import stat

import pytest

from tests.records import read_metrics
from transfer_cli.errors import RunError
from transfer_cli.runs.atomic import (
    append_json,
    cut,
    new_folder,
    replaced_file,
    replaced_folder,
    write_json,
    write_text,
    writing,
)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def fail_in(written):
    """Begin to write a file, or to fill a folder, and come to no end."""
    with written as temporary:
        (temporary / "half" if temporary.is_dir() else temporary).write_text("half")
        raise ZeroDivisionError


# Files.


def test_a_file_is_replaced_whole_or_stays_the_old_one(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    with pytest.raises(ZeroDivisionError):
        fail_in(replaced_file(path))
    assert path.read_text() == "old"
    with replaced_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"

    assert path.read_text() == "new"
    assert names_in(tmp_path) == ["a"]


def test_a_text_is_replaced_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")

    write_json(path, {"name": "Zoë"})

    assert json.loads(path.read_text(encoding="utf-8")) == {"name": "Zoë"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(names_in(tmp_path)))

    write_text(tmp_path / "a", "text")

    [[temporary], after] = flushed  # the file, then the folder's list
    assert re.fullmatch(r"\.a\.\d+", temporary)
    assert after == ["a"]


def test_a_device_is_written_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    write_text(tmp_path / "pipe", "text")

    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_disk_whose_folders_cannot_be_flushed_is_written_all_the_same(tmp_path, monkeypatch):
    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)

    write_text(tmp_path / "a", "text")

    assert (tmp_path / "a").read_text() == "text"


@pytest.mark.parametrize(
    ("number", "cure"), [(errno.ENOSPC, "Free some space there"), (errno.EROFS, "another place")]
)
def test_what_the_disk_says_becomes_one_line_with_a_cure(tmp_path, number, cure):
    said = f"a cannot be written: {os.strerror(number)}. .*{cure}"

    with pytest.raises(RunError, match=said), writing(tmp_path / "a"):
        raise OSError(number, os.strerror(number))


# Folders.


def test_a_folder_is_replaced_whole_or_stays_the_old_one(tmp_path):
    folder = tmp_path / "inside" / "a"
    with replaced_folder(folder) as made:
        (made / "old").touch()

    with pytest.raises(ZeroDivisionError):
        fail_in(replaced_folder(folder))
    assert names_in(folder) == ["old"]
    with replaced_folder(folder) as made:
        (made / "new").touch()
        assert names_in(folder) == ["old"]

    assert names_in(folder) == ["new"]
    assert names_in(folder.parent) == ["a"]


@pytest.mark.parametrize("there", [True, False])
def test_a_new_folder_appears_whole_or_not_at_all(tmp_path, there):
    folder = tmp_path / "above" / "a"
    if there:
        folder.mkdir(parents=True)

    with pytest.raises(ZeroDivisionError):
        fail_in(new_folder(folder))
    assert [path for path in tmp_path.rglob("*") if path not in (folder, folder.parent)] == []
    assert folder.exists() == folder.parent.exists() == there
    with new_folder(folder) as made:
        (made / "below").mkdir()
        (made / "below" / "file").touch()

    assert [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))] == [
        "below",
        "below/file",
    ]
    assert names_in(tmp_path) == ["above"]


def test_the_folder_that_one_stands_in_is_filled_and_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with new_folder(tmp_path.relative_to(tmp_path)) as made:
        (made / "file").touch()

    assert os.listdir() == ["file"]  # noqa: PTH208 - of the folder itself, whatever its name is now


def test_a_folder_that_holds_something_is_no_new_one(tmp_path):
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path):
        pass

    assert names_in(tmp_path) == ["thesis.tex"]


def test_records_are_read_as_they_were_appended(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": float("inf")}]

    for record in records:
        append_json(path, record)

    # JSON has no infinity.
    assert read_metrics(path) == [records[0], {"step": 2, "loss": None}]


def test_a_file_is_cut_to_the_size_that_it_had_and_never_made_longer(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_json(path, {"step": 1})
    before = path.read_bytes()
    append_json(path, {"step": 2})

    cut(path, len(before))
    assert path.read_bytes() == before

    cut(path, 10**6)
    cut(tmp_path / "none", 3)
    assert path.read_bytes() == before
    assert not (tmp_path / "none").exists()
