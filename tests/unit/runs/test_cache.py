"""An entry is made once, under a lock; a damaged one is made again."""

import errno
import threading
import time

import pytest

from transfer_cli.runs.atomic import replaced_file
from transfer_cli.runs.cache import digest, kept, locked


def read(entry):
    """Return what an entry holds; None where it is not there or damaged."""
    text = entry.read_text() if entry.is_file() else None
    return None if text == "damaged" else text


def made(entry, content="new"):
    def make():
        with replaced_file(entry) as path:
            path.write_text(content)
        return content

    return kept(entry, read, make)


def never():
    raise AssertionError


def names_in(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_what_decides_an_entry_is_its_name_in_any_order():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def test_an_entry_is_made_once(tmp_path):
    entry = tmp_path / "cache" / "entry"

    assert made(entry, "first") == "first"
    assert kept(entry, read, never) == "first"


def test_a_damaged_entry_is_made_again_with_a_warning(tmp_path, caplog):
    entry = tmp_path / "entry"
    entry.write_text("damaged")

    assert made(entry) == "new"

    assert entry.read_text() == "new"
    assert "damaged and is made again" in caplog.text


def test_what_killed_runs_left_is_removed_and_what_others_are_making_is_not(tmp_path):
    for name in (".entry.123", ".entry-123", ".killed.7", ".busy.8", ".busy.txt"):
        (tmp_path / name).mkdir()

    def elsewhere():
        with locked(tmp_path / "busy"):
            began.set()
            assert done.wait(60)

    began, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    assert began.wait(60)
    made(tmp_path / "entry")
    done.set()
    thread.join(60)

    assert names_in(tmp_path) == [".busy.8", ".busy.txt", "entry"]


def test_who_comes_while_another_one_makes_an_entry_waits_for_it(tmp_path, caplog):
    caplog.set_level("INFO")
    entry, began, found = tmp_path / "entry", threading.Event(), []

    def slow():
        began.set()
        deadline = time.monotonic() + 60
        while "Waiting for another run" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        entry.write_text("slow")
        return "slow"

    threads = [
        threading.Thread(target=lambda: found.append(kept(entry, read, slow))),
        threading.Thread(target=lambda: found.append(kept(entry, read, never))),
    ]
    threads[0].start()
    assert began.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(60)

    assert found == ["slow", "slow"]


# Where nothing may end a run.


def asked(entry, write, refusals):
    return kept(entry, read, lambda: "computed", write, refusals.append)


def test_what_is_computed_is_written_and_found_again(tmp_path):
    entry, refusals = tmp_path / "entry", []

    assert asked(entry, entry.write_text, refusals) == "computed"
    assert asked(entry, never, refusals) == "computed"
    assert (entry.read_text(), refusals) == ("computed", [])


def test_what_cannot_be_written_is_returned_all_the_same(tmp_path):
    def refuse(content):
        raise OSError(errno.ENOSPC, "No space left")

    refusals = []

    assert asked(tmp_path / "entry", refuse, refusals) == "computed"
    assert [error.errno for error in refusals] == [errno.ENOSPC]


def test_a_folder_that_cannot_be_made_hinders_nobody(tmp_path):
    (tmp_path / "file").touch()
    refusals = []

    assert asked(tmp_path / "file" / "entry", never, refusals) == "computed"
    assert len(refusals) == 1


def test_an_error_of_whoever_computes_is_theirs(tmp_path):
    def fail():
        raise OSError(errno.EIO, "not of the cache")

    with pytest.raises(OSError, match="not of the cache"):
        kept(tmp_path / "entry", read, fail, never, never)
