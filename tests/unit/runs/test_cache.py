"""An entry is made once, under a lock; a damaged one is made again."""

import errno
import math
import os
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_runs import write_run
from transfer_cli.errors import RunError
from transfer_cli.runs import analyses, stored_analyses
from transfer_cli.runs.analyses import write_analysis
from transfer_cli.runs.cache import digest, load_or_make, locked, new_entry
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.stored_analyses import read_analyses, read_picture
from transfer_cli.safe_files import UnreadableError

FILE, SEAL = "text", "seal.json"


def read(entry):
    return (entry / FILE).read_text()


def write(entry, content):
    with new_entry(entry) as unfinished:
        (unfinished / FILE).write_text(content)
    return content


def made(entry, content="new"):
    return load_or_make(entry, read, lambda: write(entry, content))


def never():
    raise AssertionError


def names_in(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_what_decides_an_entry_is_its_name_in_any_order():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


@pytest.mark.parametrize("name", [FILE, SEAL])
def test_no_flipped_bit_goes_unnoticed(tmp_path, caplog, name):
    entry = tmp_path / "entry"
    write(entry, "a" * 40)
    whole = (entry / name).read_bytes()

    for place in range(len(whole)):
        flipped = bytes([whole[place] ^ 1 << place % 8])
        (entry / name).write_bytes(whole[:place] + flipped + whole[place + 1 :])
        assert made(entry, "a" * 40) == "a" * 40

    assert caplog.text.count("damaged and is made again") == len(whole)


LARGE = np.random.default_rng(0).bytes(2**19 + 12_345)
"""More than is summed at once, and no whole number of rows or words."""


def found_changed(entry, content):
    """Return whether it is noticed that a file of `LARGE` now has another content."""
    with new_entry(entry) as unfinished:
        (unfinished / FILE).write_bytes(LARGE)
    (entry / FILE).write_bytes(content)
    return load_or_make(entry, lambda entry: "unnoticed", lambda: "new") == "new"


@given(
    places=st.sets(st.integers(0, 8 * len(LARGE) - 1), min_size=1, max_size=3)
    | st.sets(st.sampled_from([0, 1, 64, 65, 2**15, 2**15 + 64]), min_size=1, max_size=3)
)
def test_up_to_three_flipped_bits_of_a_large_file_are_found(tmp_path_factory, places):
    content = bytearray(LARGE)
    for place in places:
        content[place // 8] ^= 1 << place % 8

    assert found_changed(tmp_path_factory.mktemp("cache") / "entry", content)


@pytest.mark.parametrize(
    "content",
    [
        LARGE[:-1],
        LARGE + b"\0",
        LARGE[: 2**19],
        LARGE[8:16] + LARGE[:8] + LARGE[16:],
        LARGE[4096:8192] + LARGE[:4096] + LARGE[8192:],
        LARGE[12_345:] + LARGE[:12_345],
        bytes(4096) + LARGE[4096:],
    ],
    ids=["cut", "longer", "a portion", "exchanged words", "exchanged rows", "turned", "lost"],
)
def test_parts_that_are_lost_or_exchanged_are_found(tmp_path, content):
    assert found_changed(tmp_path / "entry", content)


@pytest.mark.parametrize(
    "harm",
    [
        lambda entry: (entry / FILE).unlink(),
        lambda entry: (entry / SEAL).unlink(),
        lambda entry: (entry / FILE).write_text(""),
        lambda entry: (entry / FILE).write_text("old" * 2**20),
        lambda entry: (entry / "more").touch(),
        lambda entry: (entry / "more").mkdir(),
    ],
    ids=["gone", "no seal", "empty", "longer", "another file", "a folder"],
)
def test_an_entry_of_other_files_is_made_again_with_a_warning(tmp_path, caplog, harm):
    entry = tmp_path / "entry"
    write(entry, "old")
    harm(entry)

    assert made(entry) == "new"

    assert read(entry) == "new"
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
    entry, began, contents = tmp_path / "entry", threading.Event(), []

    def slow():
        began.set()
        deadline = time.monotonic() + 60
        while "Waiting for another run" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return write(entry, "slow")

    threads = [
        threading.Thread(target=lambda: contents.append(load_or_make(entry, read, slow))),
        threading.Thread(target=lambda: contents.append(load_or_make(entry, read, never))),
    ]
    threads[0].start()
    assert began.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(60)

    assert contents == ["slow", "slow"]


# Where nothing may end a run.


@pytest.mark.parametrize(
    ("name", "place", "refused"),
    [
        ("", "entry", []),
        (FILE, "entry", [errno.ENOSPC]),
        (SEAL, "entry", [errno.ENOSPC]),
        ("", "file/entry", [errno.EEXIST]),
    ],
)
def test_a_disk_that_is_full_or_cannot_be_written_hinders_nobody(
    tmp_path, monkeypatch, name, place, refused
):
    (tmp_path / "file").touch()
    put, refusals, entry = Path.write_text, [], tmp_path / place

    def refuse(path, *args, **kwargs):
        if path.name == name:
            raise OSError(errno.ENOSPC, "No space left")
        return put(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", refuse)

    def load(writing):
        return load_or_make(entry, read, lambda: "computed", writing, refusals.append)

    assert load(partial(write, entry)) == "computed"
    assert [error.errno for error in refusals] == refused
    assert names_in(tmp_path) == (["file"] if refused else ["entry", "file"])
    if not refused:
        assert load(never) == read(entry) == "computed"


def test_an_error_of_whoever_computes_is_theirs(tmp_path):
    def fail():
        raise OSError(errno.EIO, "not of the cache")

    with pytest.raises(OSError, match="not of the cache"):
        load_or_make(tmp_path / "entry", read, fail, never, never)


# --- analyses ------------------------------------------------------------------------------------


PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 50
CONTENT = {"title": "Länge", "values": {"longest": 9}, "own": [1, None, "x"]}


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def found_in(run):
    problems = []
    return list(read_analyses(RunDirectory(run).analyses, problems)), problems


def test_what_is_written_is_read_back(run):
    path = write_analysis(run, "lengths", CONTENT, {"by_error": PNG})

    (analysis,), problems = found_in(run)
    assert path == run / "analyses" / "lengths.json"
    assert (analysis.name, analysis.content, problems) == ("lengths", CONTENT, [])
    assert analysis.pictures == {"by_error": run / "analyses" / "lengths-by_error.png"}
    assert read_picture(analysis.pictures["by_error"]) == PNG


def test_writing_again_replaces_it_with_its_pictures(run):
    write_analysis(run, "lengths", CONTENT, {"old": PNG, "kept": PNG})
    write_analysis(run, "lengths_of_words", {}, {"other": PNG})
    write_analysis(run, "lengths", {"title": "New"}, {"kept": PNG})

    assert sorted(path.name for path in (run / "analyses").iterdir()) == [
        "lengths-kept.png", "lengths.json", "lengths_of_words-other.png", "lengths_of_words.json",
    ]  # fmt: skip
    assert found_in(run)[0][0].content == {"title": "New"}


@pytest.mark.parametrize(
    ("name", "content", "pictures", "message"),
    [
        ("../up", {}, {}, "'../up' cannot be a file's name"),
        ("Up", {}, {}, "'Up' cannot be a file's name"),
        ("", {}, {}, "'' cannot be a file's name"),
        ("a", {}, {"b-c": PNG}, "'b-c' cannot be a file's name"),
        ("a", {"loss": math.nan}, {}, "not JSON compliant"),
        ("a", {"of": {"deep": [math.inf]}}, {}, "not JSON compliant"),
        ("a", {"set": {1}}, {}, "not JSON serializable"),
        ("a", {"big": 2**70}, {}, "more than 64 bits"),
        ("a", {"long": "x" * 2**20}, {}, "larger than 1,024 KiB"),
        ("a", {}, {"b": b"GIF89a"}, "the picture b is no PNG"),
        ("a", {}, {"b": PNG + bytes(2**21)}, "larger than 2,048 KiB"),
        ("a", {}, {f"p{at}": PNG for at in range(21)}, "more than 20 pictures"),
    ],
)
def test_what_could_not_be_read_back_is_refused_and_nothing_is_written(
    run, name, content, pictures, message
):
    with pytest.raises(RunError, match=message):
        write_analysis(run, name, content, pictures)

    assert not (run / "analyses").exists()


def test_there_is_no_analysis_of_no_run(tmp_path):
    with pytest.raises(RunError, match="there is no run at"):
        write_analysis(tmp_path, "lengths", {})


def test_a_write_that_fails_leaves_the_old_one(run, monkeypatch):
    write_analysis(run, "lengths", CONTENT)

    def full(path, text):
        raise RunError(f"{path} cannot be written")

    monkeypatch.setattr(analyses, "write_text", full)
    with pytest.raises(RunError):
        write_analysis(run, "lengths", {"title": "New"})

    assert found_in(run)[0][0].content == CONTENT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "it is no JSON object"),
        ('{"a": 1, "a": 2}', "the name 'a' is there twice"),
        ("[" * 200_000, "nested deeper"),
        ('{"a": "' + "x" * 2**20 + '"}', "larger than 1,024 KiB"),
    ],
)
def test_a_hostile_file_is_said_and_the_others_are_read(run, text, reason):
    write_analysis(run, "good", CONTENT)
    (run / "analyses" / "bad.json").write_text(text)

    stored, problems = found_in(run)

    assert [analysis.name for analysis in stored] == ["good"]
    (problem,) = problems
    assert "bad.json: " in problem
    assert reason in problem


def test_pipes_and_stray_files_are_passed_over(run):
    write_analysis(run, "good", CONTENT, {"a": PNG})
    folder = run / "analyses"
    for name in (".good.json.17", "Notes.json", "good-B.png", "good-.png", "readme.txt"):
        (folder / name).write_text("{}")
    os.mkfifo(folder / "pipe.json")
    os.mkfifo(folder / "good-pipe.png")

    stored, problems = found_in(run)

    assert [analysis.name for analysis in stored] == ["good"]
    assert list(stored[0].pictures) == ["a", "pipe"]
    assert len(problems) == 1
    assert "pipe.json" in problems[0]
    with pytest.raises(UnreadableError, match="a pipe"):
        read_picture(stored[0].pictures["pipe"])


def test_no_more_than_some_are_read(run, monkeypatch):
    monkeypatch.setattr(stored_analyses, "MOST_ANALYSES", 2)
    for name in ("c", "a", "b"):
        write_analysis(run, name, CONTENT)

    stored, problems = found_in(run)

    assert [analysis.name for analysis in stored] == ["a", "b"]
    assert problems == [f"{run / 'analyses'}: 1 of 3 are left out"]


def test_a_file_in_place_of_the_folder_is_a_problem(run):
    (run / "analyses").write_text("")

    assert found_in(run) == ([], [f"{run / 'analyses'}: Not a directory"])
