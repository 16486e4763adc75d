"""The page of a report in a real browser: drawn, sorted, read by keyboard, in both colours."""

from pathlib import Path

import pytest

from tests import reports
from transfer_cli.reports.page import page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.functional

WIDTHS = (390, 900, 1440)
FOLD = 800
SECONDS_TO_LOAD = 2.0
LOADS = 4

CONTRAST = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
    .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
  const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const [r, g, b, a = 1] = parts(getComputedStyle(each).backgroundColor);
      layers.unshift([r, g, b, a]);
      if (a === 1) break;
    }
    return layers.reduce((below, [r, g, b, a]) =>
      [r, g, b].map((each, at) => a * each + (1 - a) * below[at]), [255, 255, 255]);
  };
  const weak = [];
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (words.nextNode()) {
    const element = words.currentNode.parentElement;
    if (!words.currentNode.data.trim() || element.closest("script, style, svg, .star")) continue;
    if (!element.getClientRects().length) continue;
    seen += 1;
    const found = ratio(parts(getComputedStyle(element).color), ground(element));
    if (found < 4.5) weak.push([element.outerHTML.slice(0, 80), found]);
  }
  const style = getComputedStyle(document.documentElement);
  const hex = (name) => style.getPropertyValue(`--${name}`).trim().match(/[0-9a-f]{2}/gi)
    .map((each) => parseInt(each, 16));
  for (let at = 0; at < 8; at += 1) {
    const found = ratio(hex(`series-${at}`), hex("card"));
    if (found < 3) weak.push([`series-${at}`, found]);
  }
  return { weak, seen, page: light(ground(document.body)) };
}"""


CUT = """() => {
  const cut = [];
  for (const plot of document.querySelectorAll(".plot")) {
    const box = plot.getBoundingClientRect();
    for (const text of plot.querySelectorAll("svg text")) {
      const { left, right, top, bottom } = text.getBoundingClientRect();
      if (left < box.left - 1 || right > box.right + 1 || top < box.top - 1
        || bottom > box.bottom + 1) cut.push(["chart", text.textContent]);
    }
  }
  for (const each of document.querySelectorAll("main *, footer")) {
    const style = getComputedStyle(each);
    const hides = style.overflowX === "hidden" && each.scrollWidth > each.clientWidth + 1;
    if (hides && !each.matches(".hidden, .plot")) cut.push(["box", each.outerHTML.slice(0, 80)]);
  }
  return cut;
}"""
"""What is cut off: texts of charts beyond their picture, and boxes that hide a part of theirs."""


class Opened:
    """A page in a browser, and what it complained of and asked for."""

    def __init__(self, tab, file):
        self.tab, self.complaints, self.requests = tab, [], []
        tab.set_default_timeout(60_000)
        tab.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.goto(file.as_uri())

    def draw(self):
        """Scroll through the page until every chart is drawn; return how many there are."""
        figures = self.tab.locator("figure.chart")
        for at in range(figures.count()):
            figures.nth(at).scroll_into_view_if_needed()
            figures.nth(at).locator(".plot svg").wait_for()
        return figures.count()

    def column(self, title):
        """Return the sort values of a column of the results, from top to bottom; None for none."""
        return self.tab.evaluate(
            """(title) => {
              const table = document.querySelector("table[data-sortable]");
              const at = [...table.tHead.rows[0].cells].findIndex(
                (cell) => cell.textContent === title);
              return [...table.tBodies[0].rows].map((row) => row.cells[at].dataset.value ?? null);
            }""",
            title,
        )


@pytest.fixture
def open_page(chromium, tmp_path, monkeypatch):
    """Return how to write a report's page, of runs at a path as people type it, and open it."""
    contexts = []
    monkeypatch.chdir(tmp_path)

    def opened(make, width=1440, **options):
        file = tmp_path / f"{make.__name__}.html"
        if not file.exists():
            file.write_text(page(make(Path(make.__name__))), encoding="utf-8")
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        return Opened(context.new_page(), file)

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "charts"),
    [(reports.sweep_of_schemes, 5), (reports.few_labels, 5), (reports.search, 5),
     (reports.single, 2), (reports.language_models, 3), (reports.without_results, 2),
     (reports.nothing, 0)],
    ids=lambda parameter: getattr(parameter, "__name__", ""),
)  # fmt: skip
def test_every_chart_is_drawn_without_a_complaint_or_a_request(open_page, make, charts):
    opened = open_page(make)

    assert opened.draw() == charts
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert sum(url.startswith("file:") for url in opened.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("press", ["click", "Enter", "Space"])
def test_a_heading_sorts_the_rows_by_mouse_and_by_keyboard(open_page, press):
    opened = open_page(reports.sweep_of_schemes)
    button = opened.tab.get_by_role("button", name="seconds")
    head = opened.tab.locator("th", has=button)

    def sort():
        return button.click() if press == "click" else button.press(press)

    sort()
    rising = [float(value) for value in opened.column("seconds")]
    assert rising == sorted(rising)
    assert head.get_attribute("aria-sort") == "ascending"

    sort()
    falling = [float(value) for value in opened.column("seconds")]
    assert falling == sorted(rising, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    assert opened.tab.locator("[aria-sort]").count() == 1


@pytest.mark.slow
def test_numbers_are_sorted_as_numbers_and_what_is_missing_comes_last(open_page):
    opened = open_page(reports.sweep_of_schemes)
    for _ in range(2):
        opened.tab.get_by_role("button", name="trained", exact=True).click()
        numbers = [float(value) for value in opened.column("trained")]
        assert numbers in (sorted(numbers), sorted(numbers, reverse=True))
    opened.tab.get_by_role("button", name="p", exact=True).click()
    opened.tab.get_by_role("button", name="p", exact=True).click()
    values = opened.column("p")
    assert values[-1] is None
    assert None not in values[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("make", [reports.sweep_of_schemes, reports.without_results])
def test_every_text_can_be_read_in_light_and_in_dark(open_page, scheme, make):
    opened = open_page(make, color_scheme=scheme)
    opened.tab.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")

    seen = opened.tab.evaluate(CONTRAST)

    assert seen["seen"] > 50
    assert seen["weak"] == []
    assert (seen["page"] < 0.1) == (scheme == "dark")


@pytest.mark.slow
def test_the_button_changes_the_colours_of_the_page_and_of_its_charts(open_page):
    opened = open_page(reports.single, color_scheme="light")
    opened.draw()
    ground = opened.tab.locator("#t1-training .plot rect")
    light = ground.get_attribute("fill")
    button = opened.tab.get_by_role("button", name="Dark colours")
    assert button.get_attribute("aria-pressed") == "false"

    button.press("Enter")

    assert button.get_attribute("aria-pressed") == "true"
    assert opened.tab.evaluate(CONTRAST)["page"] < 0.1
    assert ground.get_attribute("fill") != light
    assert opened.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("make", [reports.sweep_of_schemes, reports.search])
def test_nothing_is_cut_and_the_page_never_scrolls_sideways(open_page, make):
    opened = open_page(make, width=WIDTHS[0], has_touch=True, is_mobile=True)
    opened.draw()
    opened.tab.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")

    for width in WIDTHS:
        opened.tab.set_viewport_size({"width": width, "height": 900})
        # Charts follow a moment later.
        opened.tab.wait_for_timeout(500)

        assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
        for box in opened.tab.locator("figure.chart, .plot svg").all():
            assert box.bounding_box()["width"] <= width
        assert opened.tab.evaluate(CUT) == []


@pytest.mark.slow
def test_everything_can_be_reached_by_keyboard(open_page):
    opened = open_page(reports.sweep_of_schemes)
    opened.draw()
    opened.tab.evaluate("scrollTo(0, 0)")
    reached, invisible = [], []

    for _ in range(300):
        opened.tab.keyboard.press("Tab")
        name, outline = opened.tab.evaluate(
            """() => {
              const on = document.activeElement;
              if (on === document.body) return [null, ""];
              on.dataset.reached = "yes";
              return [on.tagName, getComputedStyle(on).outlineStyle];
            }"""
        )
        if name is None:
            break
        reached.append(name)
        if outline == "none":
            invisible.append(name)

    assert invisible == []
    assert {"A", "BUTTON", "SELECT", "SUMMARY", "DIV"} <= set(reached)
    left_out = opened.tab.evaluate(
        """() => [...document.querySelectorAll(
          "a, button, select, summary, .scroll")]
          .filter((each) => each.checkVisibility() && each.dataset.reached !== "yes")
          .map((each) => each.outerHTML.slice(0, 90))"""
    )
    assert left_out == []


@pytest.mark.slow
def test_groups_are_taken_out_of_the_charts_by_their_buttons(open_page):
    opened = open_page(reports.sweep_of_schemes)
    opened.draw()
    button = opened.tab.get_by_role("button", name="lora, lr=0.001")
    lines = opened.tab.locator("#t1-validation .trace")
    # A mean for each of nine groups, and its seeds.
    assert lines.count() == 18
    assert opened.tab.locator("#t1-size .point").count() == 9

    button.press("Enter")

    assert button.get_attribute("aria-pressed") == "false"
    playwright.expect(lines).to_have_count(16)
    button.press("Space")
    playwright.expect(lines).to_have_count(18)


@pytest.mark.slow
def test_of_many_groups_and_measures_the_best_are_shown_and_the_rest_on_demand(open_page):
    opened = open_page(reports.search)
    opened.draw()
    lines = opened.tab.locator("#t1-training .trace")

    assert lines.count() == 8
    opened.tab.locator("summary", has_text="32 more groups").press("Enter")
    opened.tab.locator(".legend details button").first.press("Enter")

    playwright.expect(lines).to_have_count(9)

    opened.tab.locator("#t1-validation-view").select_option("validation loss")
    title = opened.tab.locator("#t1-validation .ytitle")
    playwright.expect(title).to_have_text("validation loss")


@pytest.mark.slow
def test_the_confusion_of_another_group_can_be_chosen(open_page):
    opened = open_page(reports.sweep_of_schemes)
    cells = opened.tab.locator(".confusion table")
    first, cell = cells.inner_text(), ".confusion tbody td"

    opened.tab.locator("#t1-group").select_option("8")

    assert cells.inner_text() != first
    assert opened.tab.locator(".confusion tbody tr").count() == 6
    shown = opened.tab.locator(f"{cell}:is(.right, .wrong)").all_inner_texts()
    assert sum(map(int, shown)) == 2 * 6 * 80
    assert "2 runs" in cells.inner_text()


@pytest.mark.slow
def test_the_numbers_of_a_chart_open_by_keyboard(open_page):
    opened = open_page(reports.sweep_of_schemes)
    opened.draw()

    opened.tab.locator("#t1-training summary").press("Enter")

    rows = opened.tab.locator("#t1-training .numbers tbody tr")
    playwright.expect(rows.first).to_be_visible()
    assert 10 < rows.count() <= 45
    assert opened.tab.locator("#t1-training .numbers thead th").count() == 10


@pytest.mark.slow
def test_a_picture_is_saved_without_asking_anybody(open_page, tmp_path):
    opened = open_page(reports.single)
    opened.draw()

    with opened.tab.expect_download() as waiting:
        opened.tab.locator("#t1-training .save").press("Enter")

    target = tmp_path / "picture.svg"
    waiting.value.save_as(target)
    assert waiting.value.suggested_filename == "t1-training.svg"
    assert "<svg" in target.read_text(encoding="utf-8")
    assert opened.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_what_to_take_and_to_type_is_above_the_fold(open_page, width):
    opened = open_page(reports.sweep_of_schemes, width=width)

    for line in opened.tab.locator(".take h3, .take li, .take dd code").all():
        box = line.bounding_box()
        assert box["y"] + box["height"] <= FOLD + 44 * (width < 500)
        assert box["x"] + box["width"] <= width


@pytest.mark.slow
def test_a_wide_window_shows_the_whole_table_and_a_line_is_copied_as_it_is(open_page):
    opened = open_page(reports.sweep_of_schemes)
    box = opened.tab.locator(".scroll", has=opened.tab.locator("table[data-sortable]"))

    seen, whole = box.evaluate("(each) => [each.clientWidth, each.scrollWidth]")

    assert whole <= seen
    assert "sweep_of_schemes" in box.locator("td").last.inner_text()
    opened.tab.context.grant_permissions(["clipboard-read", "clipboard-write"])

    opened.tab.locator(".take button", has_text="Copy").first.click()

    opened.tab.locator(".take button", has_text="Copied").wait_for()
    copied = opened.tab.evaluate("navigator.clipboard.readText()")
    assert copied == opened.tab.locator(".take code").nth(1).inner_text()
    assert copied.startswith("transfer predict ")


@pytest.mark.slow
def test_rows_are_chosen_by_the_values_of_keys_and_by_words(open_page):
    opened = open_page(reports.sweep_of_schemes)
    shown = opened.tab.locator("table[data-sortable] tbody tr:visible")
    said = opened.tab.locator(".filters output")
    assert (shown.count(), said.inner_text()) == (9, "9 of 9")

    adaptation, rate = opened.tab.locator(".filters select").all()
    adaptation.select_option("lora")
    assert (shown.count(), said.inner_text()) == (3, "3 of 9")
    rate.select_option("0.001")
    assert shown.count() == 1
    assert "lora" in shown.inner_text()
    adaptation.select_option("all")
    rate.select_option("all")
    opened.tab.locator(".filters input").fill("adapters 0.003")

    assert shown.count() == 1
    opened.tab.get_by_role("button", name="seconds").click()
    assert shown.count() == 1
    assert opened.complaints == []


def test_without_javascript_all_rows_and_lines_are_there(open_page):
    opened = open_page(reports.sweep_of_schemes, java_script_enabled=False)

    assert opened.tab.locator("table[data-sortable] tbody tr:visible").count() == 9
    assert opened.tab.locator(".take code:visible").count() == 4
    assert opened.tab.locator(".filters:visible, .take button:visible").count() == 0


@pytest.mark.slow
def test_errors_over_rates_are_drawn_with_the_run_to_take_in_a_ring(open_page):
    opened = open_page(reports.sweep_of_schemes)
    opened.draw()
    chart = opened.tab.locator("#t1-rate")

    assert chart.locator(".trace").count() == 3
    assert chart.locator(".point").count() == 9
    assert chart.locator(".ring").count() == 1
    names = [name.strip() for name in chart.locator(".lines span").all_inner_texts()]
    assert names == ["full", "lora", "adapters"]
    chart.scroll_into_view_if_needed()
    ring = chart.locator(".ring").bounding_box()
    opened.tab.mouse.move(ring["x"] + 10, ring["y"] + 10)
    tip = chart.locator(".tip").inner_text()
    assert tip.startswith("full\nvalidation error rate (%): ")
    assert tip.endswith("learning rate: 0.001")


@pytest.mark.slow
def test_a_step_is_called_by_all_its_digits(open_page):
    def long_run(folder):
        report = reports.single(folder)
        (run,) = report.tasks[0].runs
        records = (f'{{"kind": "train", "step": {step}, "loss": 1.5}}\n' for step in (1, 12345))
        (run.path / "metrics.jsonl").write_text("".join(records))
        return report

    opened = open_page(long_run)
    opened.draw()
    last = opened.tab.locator("#t1-training .point").last
    last.scroll_into_view_if_needed()
    last.hover()

    assert opened.tab.locator("#t1-training .tip").inner_text().endswith("step: 12,345")


@pytest.mark.slow
def test_a_hostile_text_runs_nothing(open_page, tmp_path):
    def hostile(folder):
        bad = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"
        settings = [{"adaptation": f"{bad}{at}", "optimizer.lr": 10.0**-at} for at in range(9)]
        groups = [
            reports.group(config, [reports.classifier(folder, str(at), 9.0 + at, config)])
            for at, config in enumerate(settings)
        ]
        labels = tuple(f"{bad}{n}" for n in "abcdef")
        return reports.Report((reports.task(bad, groups, labels=labels),))

    opened = open_page(hostile)
    opened.draw()
    opened.tab.locator("#t1-group").select_option("3")
    opened.tab.locator("#t1-training summary").press("Enter")

    assert "taken" not in opened.tab.title().split("'")[0]
    assert opened.tab.locator("img, main script:not([type='application/json'])").count() == 0
    assert opened.complaints == []


@pytest.mark.slow
def test_printing_opens_everything_and_draws_every_chart_in_light_colours(open_page):
    opened = open_page(reports.single, color_scheme="dark")

    opened.tab.evaluate("dispatchEvent(new Event('beforeprint'))")

    for at in range(2):
        opened.tab.locator("figure.chart").nth(at).locator(".plot svg").wait_for()
    assert opened.tab.locator("details:not([open])").count() == 0
    assert opened.tab.evaluate(CONTRAST)["page"] > 0.8
    opened.tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.tab.evaluate(CONTRAST)["page"] < 0.1
    assert opened.complaints == []


@pytest.mark.slow
def test_200_runs_load_within_two_seconds(chromium, tmp_path):
    file = tmp_path / "many.html"
    file.write_text(page(reports.many_runs(tmp_path, 200)), encoding="utf-8")

    best = min(seconds_to_load(chromium, file) for _ in range(LOADS))

    # Other work shares the cores: the quickest of a few loads says what the page itself takes.
    assert best < SECONDS_TO_LOAD


def seconds_to_load(chromium, file):
    """Return when the page was loaded; its table can then be sorted, and charts are drawn."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    opened = Opened(context.new_page(), file)
    loaded = opened.tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    rows = opened.tab.locator("table[data-sortable] tbody tr")
    first = rows.first.inner_text()
    for _ in range(2):
        opened.tab.get_by_role("button", name="test error rate").click()
    assert rows.count() == 200
    assert rows.first.inner_text() != first
    figure = opened.tab.locator("figure.chart").first
    figure.scroll_into_view_if_needed()
    figure.locator(".plot svg").wait_for()
    assert opened.complaints == []
    context.close()
    return loaded / 1000
