"""`analysis=attention`: what the command writes, and its page in a real browser."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests import attending
from transfer_cli.analysis.attention import AttentionMaps
from transfer_cli.report.page import analyses_page

pytestmark = pytest.mark.functional

MATRIX = """() => {
  const canvas = document.querySelector(".of-head-map canvas");
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.join();
}"""


def test_rows_of_the_maps_of_a_run_sum_to_one_and_nothing_else_of_it_changes(
    finetuned, transfer, read_json, tmp_path
):
    run = shutil.copytree(finetuned, tmp_path / "run")
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    ended = transfer(
        "analyze", run, "analysis=attention", "analysis.attention.texts=2", "--html", "page.html"
    )

    assert ended.code == 0, ended.err
    assert "head 0 of block 0" in ended.out or "head 1 of block 0" in ended.out
    found = read_json(run / "analyses" / "attention.json")
    assert len(found["texts"]) == 2
    np.testing.assert_allclose(np.array(found["texts"][0]["maps"]).sum(-1), 1, atol=1e-9)
    assert found["values"]["texts summarised"] == 100
    assert (run / "analyses" / found["maps_file"]).is_file()
    assert "Attention is no explanation" in Path("page.html").read_text("utf-8")
    assert files == {path: path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return a page of texts, some of which hold markup."""
    found = AttentionMaps(texts=3)(attending.subject(attending.model()))
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(analyses_page("tiny", {"attention": found}, {}), encoding="utf-8")
    return file


@pytest.fixture
def opened(chromium, page):
    """Return the page on a phone; it must not complain, nor ask for anything."""
    context = chromium.new_context(
        viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True
    )
    tab, complaints, requests = context.new_page(), [], []
    tab.on("console", lambda said: complaints.append(said.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: complaints.append(dialog.message))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(page.as_uri())
    yield tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]


@pytest.mark.slow
def test_choosing_a_head_changes_the_matrix(opened):
    first = opened.evaluate(MATRIX)
    opened.locator(".of-block").select_option("2")
    second = opened.evaluate(MATRIX)
    opened.get_by_role("button", name="block 1, head 0").tap()

    assert len({first, second, opened.evaluate(MATRIX)}) == 3
    assert opened.locator(".chosen").text_content() == "Block 1, head 0"
    assert opened.locator(".of-head").input_value() == "0"


@pytest.mark.slow
def test_a_token_is_chosen_by_touch_and_by_keyboard(opened):
    before, tokens = opened.evaluate(MATRIX), opened.locator(".pieces button")
    pieces, said = tokens.all_text_contents(), opened.locator(".said")
    tokens.nth(2).tap()
    assert said.text_content().startswith(f"{pieces[2]} looks at: ")
    assert opened.evaluate(MATRIX) != before

    opened.keyboard.press("ArrowRight")
    assert said.text_content().startswith(f"{pieces[3]} looks at: ")
    opened.locator(".of-rollout .rows span").nth(1).tap()
    assert opened.locator(".is-chosen").all_text_contents() == [pieces[1]] * 4
    opened.locator(".of-head-map").press("ArrowUp")
    opened.get_by_role("button", name="who looks at it").tap()
    assert said.text_content().startswith(f"{pieces[0]} gets of the attention of: ")
    assert opened.locator(".pieces [tabindex='0']").text_content() == pieces[0]


@pytest.mark.slow
def test_markup_in_a_text_is_shown_as_text(opened):
    opened.locator(".of-text").select_option("1")

    shown = "".join(opened.locator(".pieces button").all_text_contents())
    assert shown.startswith("<script>alert(1)</script>&&lt;</script>")
    assert opened.locator(".attention script").count() == 1
