"""An entry is made once, under a lock; a damaged one is made again."""

import errno
import threading
import time
from functools import partial

import pytest

from transfer_cli.runs.cache import digest, kept, locked, new_entry

FILE, SEAL = "text", "seal.json"


def read(entry):
    return (entry / FILE).read_text()


def write(entry, content):
    with new_entry(entry) as unfinished:
        (unfinished / FILE).write_text(content)
    return content


def made(entry, content="new"):
    return kept(entry, read, lambda: write(entry, content))


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


def flips(path):
    """Yield the content of a file with one bit changed, for a bit of each byte."""
    whole = path.read_bytes()
    for place in range(len(whole)):
        yield whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]


@pytest.mark.parametrize("name", [FILE, SEAL])
def test_no_flipped_bit_goes_unnoticed(tmp_path, caplog, name):
    entry = tmp_path / "entry"
    write(entry, "a" * 40)
    damaged = list(flips(entry / name))

    for content in damaged:
        (entry / name).write_bytes(content)
        assert made(entry, "a" * 40) == "a" * 40

    assert caplog.text.count("damaged and is made again") == len(damaged)


def test_a_flipped_bit_in_any_portion_of_a_large_file_is_found(tmp_path):
    entry = tmp_path / "entry"
    size = 3 * 2**20 + 17
    for place in (0, 2**20 - 1, 2**20, 2 * 2**20 + 5, size - 1):
        write(entry, "a" * size)
        with (entry / FILE).open("r+b") as file:
            file.seek(place)
            file.write(b"e")  # one bit away

        assert made(entry) == "new"


@pytest.mark.parametrize(
    "harm",
    [
        lambda entry: (entry / FILE).unlink(),
        lambda entry: (entry / FILE).write_text(""),
        lambda entry: (entry / FILE).write_text("old" * 2**20),
        lambda entry: (entry / "more").touch(),
        lambda entry: (entry / "more").mkdir(),
    ],
    ids=["gone", "empty", "longer", "another file", "a folder"],
)
def test_an_entry_of_other_files_is_made_again_with_a_warning(tmp_path, caplog, harm):
    entry = tmp_path / "entry"
    write(entry, "old")
    harm(entry)

    assert made(entry) == "new"

    assert read(entry) == "new"
    assert "damaged and is made again" in caplog.text


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_entry_without_checksums_is_made_again(tmp_path, caplog, kind):
    entry = tmp_path / "entry"
    if kind == "file":
        entry.write_text("from an earlier version")
    else:
        write(entry, "from an earlier version")
        (entry / SEAL).unlink()

    assert made(entry) == "new"

    assert read(entry) == "new"
    assert "damaged" not in caplog.text


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
        return write(entry, "slow")

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


def asked(entry, writing, refusals):
    return kept(entry, read, lambda: "computed", writing, refusals.append)


def test_what_is_computed_is_written_and_found_again(tmp_path):
    entry, refusals = tmp_path / "entry", []

    assert asked(entry, partial(write, entry), refusals) == "computed"
    assert asked(entry, never, refusals) == "computed"
    assert (read(entry), refusals) == ("computed", [])


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
