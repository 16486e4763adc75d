"""Analyses on the page and in files: a default section, one of a plugin, and hostile ones."""

import base64
import json
import re

import pytest

from tests import reports
from tests.fake_runs import write_run
from tests.unit.report.test_page import HOSTILE, Outline
from transfer_cli.report import sections
from transfer_cli.report.collect import collect
from transfer_cli.report.compare import tasks
from transfer_cli.report.contents import Report
from transfer_cli.report.html.markup import Html
from transfer_cli.report.page import page
from transfer_cli.report.sections import register_section
from transfer_cli.report.tables import as_json, as_markdown
from transfer_cli.runs.analyses import write_analysis

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 50
CONTENT = {
    "title": "Lengths and errors",
    "summary": "Long texts are harder.",
    "values": {"longest": 37, "share": 0.25},
    "table": {"columns": ["tokens", "error"], "rows": [["1 to 8", 12.5], ["9 to 16", 20.0]]},
}


@pytest.fixture(autouse=True)
def none_registered(monkeypatch):
    monkeypatch.setattr(sections, "SECTIONS", {})


def report_of(folder):
    found = collect([folder])
    return Report(tasks(found.runs), problems=tuple(found.problems))


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "runs" / "one")


def test_an_analysis_without_a_section_of_its_own_is_shown_plainly(run):
    write_analysis(run, "lengths", CONTENT, {"by_error": PNG})

    made = page(report_of(run))

    outline = Outline(made)
    assert outline.mismatched == []
    assert outline.all("section", id="t1-at-analysis-lengths")
    assert outline.all("a", href="#t1-at-analysis-lengths")
    for text in ("Lengths and errors", "Long texts are harder.", "longest 37", "9 to 16 20.00"):
        assert text in outline.text
    (picture,) = outline.all("img")
    assert picture["src"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert picture["alt"] == "by error"


def test_a_registered_section_takes_the_place_of_the_plain_one(run):
    write_analysis(run, "lengths", CONTENT)
    write_run(run.parent / "two", adaptation="lora", wrong=[1])
    write_analysis(run.parent / "two", "lengths", {"own": 7})

    def render(found):
        told = (f"{each.group} {each.run} {len(each.content)}" for each in found)
        return Html("<p>{}</p>").format("; ".join(told))

    register_section("lengths", render)

    text = Outline(page(report_of(run.parent))).text
    assert "full one 4; lora two 1" in text
    assert "Long texts are harder." not in text


def test_what_a_section_returns_as_plain_text_is_escaped(run):
    write_analysis(run, "lengths", CONTENT)
    register_section("lengths", lambda found: HOSTILE)

    outline = Outline(page(report_of(run)))

    assert not outline.all("img")
    assert outline.mismatched == []


def test_a_section_that_fails_is_said_and_the_analysis_shown_plainly(run):
    write_analysis(run, "lengths", CONTENT)
    register_section("lengths", lambda found: found[0].content["gone"])

    text = Outline(page(report_of(run))).text

    assert "its own section ends in KeyError: 'gone'" in text
    assert "Long texts are harder." in text


@pytest.mark.parametrize(
    "content",
    [
        {"title": HOSTILE, "summary": HOSTILE, "values": {HOSTILE: HOSTILE}},
        {"table": {"columns": [HOSTILE, "b"], "rows": [[HOSTILE, 1], [HOSTILE, HOSTILE]]}},
        {"title": ["no", "text"], "summary": {"a": 1}, "values": [1], "table": "none"},
        {"table": {"columns": "ab", "rows": {"a": 1}}},
        {"table": {"columns": ["a"], "rows": [1, [], [1, 2], None, [[HOSTILE]]]}},
        {"values": {"huge": 2**62, "deep": [[[[{"a": HOSTILE}]]]], "none": None}},
    ],
)
def test_a_hostile_analysis_is_shown_and_never_obeyed(run, content):
    folder = run / "analyses"
    folder.mkdir()
    (folder / "bad.json").write_text(json.dumps(content))
    clean = Outline(page(reports.nothing()))

    made = page(report_of(run))

    outline = Outline(made)
    assert outline.mismatched == []
    assert not outline.all("img")
    assert len([each for each in outline.scripts if "alert(1)" in each]) == 0
    assert len(clean.all("meta")) == len(outline.all("meta"))
    for forbidden in ("\u202e", "\x00"):
        assert forbidden not in made


def test_rows_columns_and_cells_have_an_end(run):
    rows = [["y" * 900, *range(39)]] * 600
    write_analysis(run, "wide", {"table": {"columns": [str(at) for at in range(40)], "rows": rows}})

    made = page(report_of(run))

    (section,) = re.findall(r'<section id="t1-at-analysis-wide">.*?</section>', made, re.S)
    assert section.count("<tr>") == sections.MOST_ROWS + 1
    assert section.count('scope="col"') == sections.MOST_COLUMNS
    assert "y" * (sections.MOST_CHARACTERS + 1) not in section
    assert "100 rows are left out." in section


def test_hostile_pictures_are_left_out_with_the_reason(run):
    write_analysis(run, "lengths", CONTENT, {"good": PNG})
    folder = run / "analyses"
    (folder / "lengths-html.png").write_bytes(b"<script>alert(1)</script>")
    (folder / "lengths-secret.png").symlink_to("/etc/hostname")
    (folder / "lengths-large.png").write_bytes(PNG + bytes(2**21))

    outline = Outline(page(report_of(run)))

    assert [each["alt"] for each in outline.all("img")] == ["good"]
    assert "lengths-html.png is not shown: the picture lengths-html.png is no PNG" in outline.text
    assert "lengths-large.png is not shown: it is larger than 2,048 KiB" in outline.text
    assert "lengths-secret.png is not shown" in outline.text


def test_a_page_has_room_for_so_many_pictures(run, monkeypatch):
    monkeypatch.setattr(sections, "MOST_PICTURE_BYTES", 2 * len(PNG))
    write_analysis(run, "lengths", CONTENT, dict.fromkeys("abc", PNG))

    outline = Outline(page(report_of(run)))

    assert len(outline.all("img")) == 2
    assert "lengths-c.png is not shown: the page has no room for more pictures" in outline.text


def test_files_name_analyses_only_where_there_are_some(run):
    without = report_of(run)
    write_analysis(run, "lengths", CONTENT)
    found = report_of(run)

    assert '"analyses":' not in as_json(without)
    (told,) = json.loads(as_json(found))["tasks"][0]["groups"][0]["runs"][0]["analyses"]
    assert (told["name"], told["content"]) == ("lengths", CONTENT)
    assert "analyses, which" not in as_markdown(without)
    assert "lengths of 1 run" in as_markdown(found)


def test_an_analysis_that_cannot_be_read_is_a_problem_of_the_report(run):
    (run / "analyses").mkdir()
    (run / "analyses" / "bad.json").write_text("{")

    found = report_of(run)

    assert len(found.tasks) == 1
    assert found.problems[0].endswith("analyses/bad.json: line 1 is not JSON (Expecting property "
                                      "name enclosed in double quotes)")  # fmt: skip
