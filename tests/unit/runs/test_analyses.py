"""Analyses of a run: written whole or not at all, and read within bounds."""

import math
import os

import pytest

from tests.fake_runs import write_run
from transfer_cli.errors import RunError
from transfer_cli.runs import analyses, stored_analyses
from transfer_cli.runs.analyses import write_analysis
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.stored_analyses import read_analyses, read_picture
from transfer_cli.safe_files import UnreadableError

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

    (found,), problems = found_in(run)
    assert path == run / "analyses" / "lengths.json"
    assert (found.name, found.content, problems) == ("lengths", CONTENT, [])
    assert found.pictures == {"by_error": run / "analyses" / "lengths-by_error.png"}
    assert read_picture(found.pictures["by_error"]) == PNG


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

    found, problems = found_in(run)

    assert [each.name for each in found] == ["good"]
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

    found, problems = found_in(run)

    assert [each.name for each in found] == ["good"]
    assert list(found[0].pictures) == ["a", "pipe"]
    assert len(problems) == 1
    assert "pipe.json" in problems[0]
    with pytest.raises(UnreadableError, match="a pipe"):
        read_picture(found[0].pictures["pipe"])


def test_no_more_than_some_are_read(run, monkeypatch):
    monkeypatch.setattr(stored_analyses, "MOST_ANALYSES", 2)
    for name in ("c", "a", "b"):
        write_analysis(run, name, CONTENT)

    found, problems = found_in(run)

    assert [each.name for each in found] == ["a", "b"]
    assert problems == [f"{run / 'analyses'}: 1 of 3 are left out"]


def test_a_file_in_place_of_the_folder_is_a_problem(run):
    (run / "analyses").write_text("")

    assert found_in(run) == ([], [f"{run / 'analyses'}: Not a directory"])
