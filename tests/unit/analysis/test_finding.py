"""What an analysis finds: drawn, written, and read again."""

import json

import pytest

from transfer_cli.analysis.pictures import drawn
from transfer_cli.report.finding import Finding, FindingTable, Lines, Matrix, Points

FOUND = Finding(
    "Lengths", "Long texts are harder.", {"longest": 37},
    [
        FindingTable(["tokens", "error"], [["1 to 8", 12.5], ["9 to 16", None]]),
        FindingTable(["x"], [[1]], "More"),
    ],
    notes=["of one run"], data={"bounds": [8, 16]},
)  # fmt: skip


@pytest.mark.parametrize(
    "chart",
    [
        Lines({"a": [1.0, None], "b": [2.0, 3.0]}, ["x", "y"], "place", "height", ["b"]),
        Matrix([[0.1, None], [-2.0, 3.0]], "row", "column"),
        Matrix([[0.1] * 50] * 30, "row", "column", (0.0, 1.0)),
        Points([[0.0, 1.0], [2.0, 3.0]], ["x", "y"], ["a", "b"], {1: "a $ and _"}),
        Points([[0.0, 1.0], [2.0, 3.0]], ["x", "y"]),
    ],
)
def test_every_chart_is_drawn_also_where_values_are_missing(chart):
    pytest.importorskip("matplotlib")

    assert drawn({"it": chart})["it"].startswith(b"\x89PNG")


def test_without_matplotlib_there_are_no_pictures(monkeypatch):
    monkeypatch.setattr("transfer_cli.analysis.pictures.find_spec", lambda name: None)

    assert drawn({"it": Matrix([[1.0]], "row", "column")}) == {}


def test_a_file_holds_the_first_table_and_is_read_again():
    content = FOUND.as_json()

    assert list(content) == ["title", "summary", "values", "table", "notes", "bounds"]
    again = Finding.from_json(json.loads(json.dumps(content)))
    assert again.as_json() == content
    assert len(again.tables) == 1


def test_what_is_no_finding_is_an_empty_one():
    content = {"title": 3, "summary": [], "values": "x", "table": {"columns": 1}, "notes": {}}

    assert Finding.from_json(content) == Finding("", "", tables=[FindingTable([], [])], notes=[])
