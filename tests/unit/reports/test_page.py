"""The page of a report, as text: what is on it, and what nobody hostile can put there."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import reports
from tests.fake_runs import write_run
from transfer_cli.reports import formats, sections
from transfer_cli.reports.collect import collect
from transfer_cli.reports.compare import compare_tasks
from transfer_cli.reports.contents import (
    Comparison,
    Group,
    Report,
    Run,
    SharedError,
    Spread,
    SweepProgress,
    TaskRuns,
)  # fmt: skip
from transfer_cli.reports.html.markup import Html
from transfer_cli.reports.html.task_sections import confusion_section, labels_section
from transfer_cli.reports.page import page
from transfer_cli.reports.sections import register_section
from transfer_cli.reports.tables import as_json, as_markdown
from transfer_cli.runs.analyses import write_analysis

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x00\ud800"
VOID = {"meta", "link", "br", "img", "input", "wbr"}


class Outline(HTMLParser):
    """Tags, their attributes, and the text in each kind of element."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.mismatched, self.scripts = [], [], [], []
        self.words = []
        self.feed(text)
        self.close()

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)
        if name == "script":
            self.scripts.append("")

    def handle_endtag(self, name):
        if not self.open or self.open.pop() != name:
            self.mismatched.append(name)

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    def all(self, name, **wanted):
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in wanted.items()}
        return [
            attributes
            for tag, attributes in self.tags
            if tag == name and wanted.items() <= attributes.items()
        ]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def sweep(tmp_path):
    return reports.sweep_of_schemes(tmp_path)


@pytest.mark.parametrize(
    "make",
    [reports.sweep_of_schemes, reports.few_labels, reports.search, reports.single,
     reports.language_models, reports.without_results],
    ids=lambda make: make.__name__,
)  # fmt: skip
def test_every_report_is_a_whole_and_small_document_always_the_same(make, tmp_path):
    report = make(tmp_path)
    made = page(report)
    outline = Outline(made)

    assert made == page(report)
    assert len(made.encode()) < 300_000
    assert outline.mismatched == []
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in outline.all("a"):
        assert link["href"].removeprefix("#") in ids


def test_a_report_without_runs_says_so():
    outline = Outline(page(reports.nothing()))

    assert "There is no run here." in outline.text
    assert not outline.all("figure")


def test_nothing_on_the_page_names_another_address(sweep):
    places = ("src", "href", "action", "data", "poster", "srcset", "ping", "background")
    for name, attributes in Outline(page(sweep)).tags:
        for place in places:
            target = attributes.get(place, "#")
            assert target.startswith(("#", "data:")), (name, attributes)


def test_the_policy_allows_no_request_and_no_script_but_the_pages_own(sweep):
    outline = Outline(page(sweep))

    (meta,) = outline.all("meta", http_equiv="Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in meta["content"].split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    assert "unsafe" not in rules["script-src"]
    script = outline.scripts[-1]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{hashed}'" in rules["script-src"]
    runs = [attributes for attributes in outline.all("script") if "type" not in attributes]
    assert len(runs) == 1


def test_a_hostile_text_is_shown_and_never_obeyed(tmp_path):
    report = reports.sweep_of_schemes(tmp_path)
    (task,) = report.tasks
    bad = SharedError(HOSTILE, HOSTILE, {HOSTILE: 3}, 3, 3)
    groups = tuple(
        replace(
            group,
            label=f"{HOSTILE}{at}",
            settings={"adaptation": f"{HOSTILE}{at}", "optimizer.lr": 1.0 + at},
            runs=tuple(
                replace(run, reason=HOSTILE, environment={HOSTILE: HOSTILE}) for run in group.runs
            ),
        )
        for at, group in enumerate(task.groups)
    )
    labels = tuple(f"{HOSTILE}{at}" for at in range(6))
    hostile = replace(
        task, name=HOSTILE, groups=groups, labels=labels, errors=(bad,), notes=(HOSTILE,)
    )
    standing = replace(report.standings[0], command=HOSTILE, failed=((1, HOSTILE, HOSTILE),))

    made = page(Report((hostile,), (standing,), (HOSTILE,), HOSTILE))

    made.encode("utf-8")
    clean = Outline(page(report))
    outline = Outline(made)
    assert outline.mismatched == []
    assert not outline.all("img")
    assert len(outline.scripts) == len(clean.scripts)
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in outline.text
    for forbidden in ("\u202e", "\x00"):
        assert forbidden not in made
    for name, attributes in outline.tags:
        assert not [key for key in attributes if key.startswith("on")], name
    for block in outline.scripts:
        if block.startswith(("[", "{")):
            assert "<" not in block
            texts = json.dumps(json.loads(block), ensure_ascii=False)
            assert "\u202e" not in texts
            assert "\\u0000" not in texts


def test_the_best_is_said_in_a_sentence_and_marked_by_a_sign(sweep):
    made = page(sweep)

    outline = Outline(made)
    best = sweep.tasks[0].groups[0]
    mean = best.measures["test/error_rate"].mean
    assert f"{mean:.2f} ± " in outline.text
    assert re.search(
        r"Best mean by validation: full, lr=0.001 with a validation error rate of .*; test "
        r"error rate .* points below",
        outline.text,
    )
    (row,) = re.findall(r'<tr class="best">.*?</tr>', made, re.S)
    assert "★" in row


def test_first_is_which_run_to_take_why_and_what_to_type(sweep):
    made = page(sweep)

    (card,) = re.findall(r'<div class="card take">.*?</dl></div>', made, re.S)
    assert made.index(card) < made.index("<table")
    text = Outline(card).text
    best = sweep.tasks[0].best
    assert text.startswith(f"Take {best.run.path} ")
    assert "the lowest of 25 runs that learnt anything; the test split had no say" in text
    assert re.search(rf"the next, {re.escape(str(best.runner_up.path))}, has .* points above", text)
    for word in ("predict", "export", "compare"):
        assert re.search(rf"{word} transfer ", text)


def test_a_single_run_is_followed_by_what_to_type(tmp_path):
    text = Outline(page(reports.single(tmp_path))).text

    assert re.search(r"predict transfer predict \S+-finetune FILE", text)
    assert "Take " not in text


def test_rows_can_be_chosen_by_each_key_and_say_where_their_runs_are(sweep):
    made = page(sweep)

    (filters,) = re.findall(r'<div class="filters.*?</div>', made, re.S)
    options = [re.findall(r"<option>(.*?)</option>", select)
               for select in re.findall(r"<select>.*?</select>", filters, re.S)]  # fmt: skip
    assert sorted(options[0]) == ["adapters", "full", "lora"]
    assert options[1] == ["0.0003", "0.001", "0.003"]
    rows = json.loads(re.search(r">(\[\[.*\]\])<", filters)[1])
    assert rows == [[str(group.settings["adaptation"]), f"{group.settings['optimizer.lr']:g}"]
                    for group in sweep.tasks[0].groups]  # fmt: skip
    body = re.search(r"<table data-sortable.*?</table>", made, re.S)[0]
    for group in sweep.tasks[0].groups:
        assert str(group.runs[0].path) in body.replace("<wbr>", "")


def test_failed_runs_stand_there_with_their_reason(sweep):
    text = Outline(page(sweep)).text

    assert "full-0.003-1 failed the loss is not finite at step 120" in text
    assert "25 done, 1 running, 1 failed" in text
    assert "adaptation=full optimizer.lr=0.003 seed=1 loss is not finite" in text


def test_every_chart_has_words_and_a_table_of_its_numbers(tmp_path):
    made = page(reports.few_labels(tmp_path))

    assert "labelled=all" in made
    assert "null" not in Outline(made).text
    figures = re.findall(r'<figure class="chart".*?</figure>', made, re.S)
    assert [re.search(r'id="t1-(\w+)"', figure)[1] for figure in figures] == [
        "validation", "training", "size", "flops", "labels",
    ]  # fmt: skip
    for figure in figures:
        assert re.search(r'role="img" aria-label="[^"]{40,}"', figure)
        assert re.search(r"<figcaption><h4>.+?</h4><p>.{30,}?</p>", figure)
        assert "<summary>Numbers</summary>" in figure


def test_language_models_have_neither_confusion_nor_shared_errors(tmp_path):
    text = Outline(page(reports.language_models(tmp_path))).text

    assert "test word perplexity" in text
    assert "test bits per byte" in text
    assert "Confusion" not in text
    assert "Shared errors" not in text


def test_runs_without_results_still_have_curves_and_reasons(tmp_path):
    outline = Outline(page(reports.without_results(tmp_path)))

    assert "No run has a result yet (1 failed, 1 running)." in outline.text
    assert "init_from: there is no folder runs/lm" in outline.text
    assert "config.yaml: line 3 is not YAML" in outline.text
    assert outline.all("figure", id="t1-training")


def test_tasks_that_cannot_be_compared_stand_apart(tmp_path):
    one, other = reports.sweep_of_schemes(tmp_path / "a"), reports.language_models(tmp_path / "b")

    outline = Outline(page(Report((*one.tasks, *other.tasks), created=reports.CREATED)))

    assert {section["id"] for section in outline.all("section", class_="task")} == {"t1", "t2"}
    assert "2 tasks" in outline.text
    assert outline.all("a", href="#t2")


def changed_text(report, **changed):
    """Return the text of a page of one run with other values."""
    (task,) = report.tasks
    group = replace(task.groups[0], runs=(replace(task.runs[0], **changed),))
    return Outline(page(replace(report, tasks=(replace(task, groups=(group,)),)))).text


def test_a_damaged_confusion_table_is_passed_over(tmp_path):
    report = reports.single(tmp_path)
    (run,) = report.tasks[0].runs
    for damaged in ([[1, 2]], "none", [["1"] * 6] * 6, [[-1] * 6] * 6, None):
        tables = {"test": {"confusion": damaged}}
        assert "Confusion" not in changed_text(report, results=replace(run.results, tables=tables))


def test_too_many_labels_are_said_where_something_was_counted(tmp_path):
    (task,) = reports.single(tmp_path).tasks
    (run,) = task.runs
    many = tuple(map(str, range(61)))
    for confusion, said in (([[1] * 61] * 61, True), (None, False)):
        results = replace(run.results, labels=many, tables={"test": {"confusion": confusion}})
        group = replace(task.groups[0], runs=(replace(run, results=results),))
        section = confusion_section("t1", replace(task, labels=many, groups=(group,)), ["full"])

        assert ("61 labels" in str(section)) == said


def test_labels_of_which_a_text_may_have_several_are_listed_by_their_errors(tmp_path):
    report = reports.single(tmp_path)
    (task,) = report.tasks
    labels = task.labels
    surplus = [9 * (at == 2) for at in range(len(labels))]
    for decisions, listed in (([[5] * 6, surplus, [1] * 6, [7] * 6], True), ([[1] * 6], False)):
        tables = {"test": {"decisions": decisions}}
        text = changed_text(report, results=replace(task.runs[0].results, tables=tables))

        said = f"F1 support {labels[2]} 0.357 0.833 0.500 6 {labels[0]} 1.000 0.833 0.909 6"
        assert (said in text) == listed
        assert "Confusion" not in text


def test_one_group_s_labels_and_confusions_are_those_of_the_best_whatever_rows_are_sorted_by(sweep):
    (task,) = sweep.tasks
    turned = replace(task, groups=task.groups[::-1])
    names = formats.group_names(turned)

    confusion = Outline(str(confusion_section("t1", turned, names)))
    labels = Outline(str(labels_section(turned, names)))

    assert turned.groups[-1].is_best
    assert confusion.all("option")[0]["value"] == str(len(names) - 1)
    assert f"the worst first: {names[-1]}, 3 runs" in labels.text


def test_runs_that_learnt_nothing_are_marked(tmp_path):
    why = "training accuracy is that of guessing"
    text = changed_text(reports.single(tmp_path), reason=why)

    assert "† counts runs that learnt next to nothing" in text
    assert why in text


def test_without_items_the_difference_of_means_stands_alone(sweep):
    (task,) = sweep.tasks
    groups = tuple(replace(group, against=None) for group in task.groups)
    first, last = (task.groups[at].measures["test/error_rate"].mean for at in (0, -1))

    made = page(replace(sweep, tasks=(replace(task, groups=groups),)))

    (row,) = re.findall(r'<tr class="best">.*?</tr>', made, re.S)
    assert f"\N{MINUS SIGN}{last - first:.2f}" in row
    assert "95 % interval " not in re.search(r'<p class="lead">.*?</p>', made)[0]


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf]),
)
COUNTS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
SETTINGS = st.one_of(NUMBERS, COUNTS, st.booleans(), st.text(max_size=9), st.just([1, None]))


def spread_of(values):
    deviation = values[1] if len(values) > 1 else None
    return Spread(tuple(values), values[0], deviation)


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_fuzz_numbers_of_groups(data):
    spreads = st.lists(NUMBERS, min_size=1, max_size=2).map(spread_of)
    run = Run(Path("nowhere"), "run", "finetune", "finished")
    compared = Comparison("test/loss", *data.draw(st.tuples(*[NUMBERS] * 4)), "bootstrap", 5)
    groups = tuple(
        Group(
            f"group {at}",
            {"data.labelled": data.draw(SETTINGS), "optimizer.lr": data.draw(SETTINGS), "seed": at},
            (replace(run, name=f"run {at}"),),
            {"test/loss": data.draw(spreads)} if data.draw(st.booleans()) else {},
            trained=data.draw(COUNTS),
            seconds=data.draw(spreads),
            memory=data.draw(spreads),
            against=compared if at % 2 else None,
        )
        for at in range(9)
    )
    task = TaskRuns(
        "task", groups, ("data.labelled", "optimizer.lr", "seed"), "test/loss", (), "group 0"
    )
    standing = SweepProgress(Path("sweep"), "words", 1, 0, 1, seconds_left=data.draw(NUMBERS))

    outline = Outline(page(Report((task,), (standing,))))

    assert outline.mismatched == []
    for block in outline.scripts:
        if block.startswith(("[", "{")):
            json.loads(block, parse_constant=pytest.fail)


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
    collected = collect([folder])
    return Report(compare_tasks(collected.runs), problems=tuple(collected.problems))


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

    def render(analyses):
        told = (f"{analysis.group} {analysis.run} {len(analysis.content)}" for analysis in analyses)
        return Html("<p>{}</p>").format("; ".join(told))

    register_section("lengths", render)

    text = Outline(page(report_of(run.parent))).text
    assert "full one 4; lora two 1" in text
    assert "Long texts are harder." not in text


def test_runs_whose_analyses_are_left_out_are_counted(run):
    for seed in range(22):
        other = run if seed == 0 else write_run(run.parent / str(seed), seed=seed)
        write_analysis(other, "lengths", CONTENT)

    text = Outline(page(report_of(run.parent))).text

    assert text.count("Long texts are harder.") == 20
    assert "Those of 2 runs are left out." in text


def test_of_a_section_plain_text_is_escaped_and_a_failure_said_beside_the_plain_one(run):
    write_analysis(run, "lengths", CONTENT)
    register_section("lengths", lambda analyses: HOSTILE)
    escaped = Outline(page(report_of(run)))
    register_section("lengths", lambda analyses: analyses[0].content["gone"])
    text = Outline(page(report_of(run))).text

    assert not escaped.all("img")
    assert escaped.mismatched == []
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
    assert len([script for script in outline.scripts if "alert(1)" in script]) == 0
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
    assert "10 columns are left out." in section


def test_hostile_pictures_are_left_out_with_the_reason(run):
    write_analysis(run, "lengths", CONTENT, {"good": PNG})
    folder = run / "analyses"
    (folder / "lengths-html.png").write_bytes(b"<script>alert(1)</script>")
    (folder / "lengths-secret.png").symlink_to("/etc/hostname")
    (folder / "lengths-large.png").write_bytes(PNG + bytes(2**21))

    outline = Outline(page(report_of(run)))

    assert [image["alt"] for image in outline.all("img")] == ["good"]
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
    seen = report_of(run)

    assert '"analyses":' not in as_json(without)
    (told,) = json.loads(as_json(seen))["tasks"][0]["groups"][0]["runs"][0]["analyses"]
    assert (told["name"], told["content"]) == ("lengths", CONTENT)
    assert "analyses, which" not in as_markdown(without)
    assert "lengths of 1 run" in as_markdown(seen)


def test_an_analysis_that_cannot_be_read_is_a_problem_of_the_report(run):
    (run / "analyses").mkdir()
    (run / "analyses" / "bad.json").write_text("{")

    seen = report_of(run)

    assert len(seen.tasks) == 1
    assert seen.problems[0].endswith("analyses/bad.json: line 1 is not JSON (Expecting property "
                                      "name enclosed in double quotes)")  # fmt: skip
