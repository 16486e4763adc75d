"""The analysis of `docs/example`: written from outside the package, shown by `transfer report`."""

import re
import shutil
import sys

import pytest

from transfer_cli.reports import sections

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


MINE = ("--plugin", "mylab", "--config-dir", "conf")


@pytest.fixture
def analysed(mylab, finetuned, monkeypatch, transfer):
    """Return a folder in which the example's analysis was made of a run that really ran."""
    shutil.copytree(finetuned, mylab / "runs" / "tuned")
    monkeypatch.chdir(mylab)
    done = transfer(
        "analyze", *MINE, "runs/tuned", "analysis=token_lengths", "--html", "it.html"
    ).ok()
    assert done.out.endswith("token_lengths.json\npage       it.html\n")
    # The next command is to be the first one that knows of the package.
    monkeypatch.setattr(sections, "SECTIONS", {})
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]
    return mylab


def files_of(run):
    files = (path for path in run.rglob("*") if path.is_file())
    return {path.relative_to(run): path.read_bytes() for path in files}


def test_an_analysis_leaves_the_rest_of_a_run_as_it_was(analysed, finetuned):
    before, after = files_of(finetuned), files_of(analysed / "runs" / "tuned")

    new = after.keys() - before.keys()

    assert {path.parts[0] for path in new} == {"analyses"}
    assert {path: after[path] for path in before} == before


def test_an_analysis_agrees_with_evaluate(transfer, analysed, read_json):
    content = read_json(analysed / "runs/tuned/analyses/token_lengths.json")
    transfer("evaluate", "runs/tuned", "output=scores.json")

    rows = content["table"]["rows"]
    mean = sum(count * loss for _, count, loss in rows) / sum(count for _, count, _ in rows)
    assert mean == pytest.approx(
        read_json(analysed / "scores.json")["measures"]["test"]["loss"], rel=1e-5
    )


def test_its_page_holds_a_section_and_asks_nobody(analysed):
    page = (analysed / "it.html").read_text()

    assert "<h2>Length against loss</h2>" in page
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", page)


def test_an_analysis_from_outside_is_named_on_the_terminal(transfer, analysed):
    out = transfer("report", "runs").out

    assert "analyses, which --html shows: token_lengths of 1 run" in out


def test_without_its_package_an_analysis_is_shown_plainly(transfer, analysed):
    transfer("report", "runs", "--html", "page.html").ok()

    page = (analysed / "page.html").read_text()
    assert "<h3>Length against loss</h3>" in page
    assert "loss (nats)" in page
    assert re.search(r'<img src="data:image/png;base64,[^"]{1000,}" alt="loss by length">', page)


def test_its_package_shows_it_in_a_section_of_its_own(transfer, analysed):
    transfer("report", "runs", "--plugin", "mylab", "--html", "page.html").ok()

    page = (analysed / "page.html").read_text()
    assert "Loss by length of the text" in page
    assert "tokens, loss" in page
    assert 'alt="loss by length"' in page


def test_a_package_that_is_not_there_is_one_line(transfer, analysed):
    done = transfer("report", "runs", "--plugin", "mylap")

    done.refusal("transfer report: --plugin mylap: no such package is installed")
    assert not done.out
