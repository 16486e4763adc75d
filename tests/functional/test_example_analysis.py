"""The analysis of `docs/example`: written from outside the package, shown by `transfer report`."""

import re
import runpy
import shutil
import sys

import pytest

from transfer_cli.report import sections

pytestmark = [
    pytest.mark.functional, pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # fmt: skip


@pytest.fixture
def analysed(mylab, finetuned, monkeypatch, capsys):
    """Return a folder in which the example's analysis was made of a run that really ran."""
    monkeypatch.setattr(sections, "SECTIONS", {})
    run = mylab / "runs" / "tuned"
    shutil.copytree(finetuned, run)
    monkeypatch.chdir(mylab)
    monkeypatch.setattr(sys, "argv", ["token_lengths", "runs/tuned"])
    runpy.run_module("mylab.token_lengths", run_name="__main__")
    assert capsys.readouterr().out == "runs/tuned/analyses/token_lengths.json\n"
    return mylab


def test_an_analysis_from_outside_is_named_on_the_terminal(transfer, analysed):
    out = transfer("report", "runs").out

    assert "analyses, which --html shows: token_lengths of 1 run" in out


def test_without_its_package_an_analysis_is_shown_plainly(transfer, analysed):
    assert transfer("report", "runs", "--html", "page.html").code == 0

    page = (analysed / "page.html").read_text()
    assert "<h3>Length against error</h3>" in page
    assert "error rate (%)" in page
    assert re.search(r'<img src="data:image/png;base64,[^"]{1000,}" alt="error by length">', page)


def test_its_package_shows_it_in_a_section_of_its_own(transfer, analysed):
    done = transfer("report", "runs", "--plugin", "mylab", "--html", "page.html")

    assert done.code == 0, done.err
    page = (analysed / "page.html").read_text()
    assert "Error by length of the text" in page
    assert "tokens, error (%)" in page
    assert 'alt="error by length"' in page


def test_a_package_that_is_not_there_is_one_line(transfer, analysed):
    done = transfer("report", "runs", "--plugin", "mylap")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("transfer report: --plugin mylap: no such package is installed")
