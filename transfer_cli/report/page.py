"""A report as one HTML page that needs nothing but itself.

The page may be sent around, and opened without a network: style, script and the charting library
are in it, and its policy forbids it to ask anybody for anything. What it shows may come from a
stranger's run directory, so every text is escaped, and no script runs but the two that the policy
names by their hash.
"""

import base64
import gzip
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from transfer_cli.errors import ConfigError
from transfer_cli.report import words
from transfer_cli.report.html import conditions, figures, mistakes, overview, results
from transfer_cli.report.html.analyses import Pictures, analysis_sections
from transfer_cli.report.html.charts import Chart
from transfer_cli.report.html.cost_charts import label_chart, size_chart
from transfer_cli.report.html.curves import read_curves
from transfer_cli.report.html.learning_charts import training_chart, validation_chart
from transfer_cli.report.html.markup import Html, joined, tag
from transfer_cli.report.html.search_chart import search_chart
from transfer_cli.report.model import Report, Task

MOST_POINTS = 400
FEWEST_POINTS = 40
POINTS_IN_ALL = 30_000
"""Of the curves of one kind: more than that takes long to send and to draw."""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        address: What links to it name.
        title: Its heading.
        content: What is in it.
    """

    address: str
    title: str
    content: Html


def page(report: Report) -> str:
    """Return the page of a report; the learning curves are read from the run directories.

    Raises:
        ConfigError: The charting library is not installed.
    """
    library = _library()
    script = Html(_asset("page.js"))
    pictures = Pictures()
    tasks = [
        _task_sections(f"t{at}", task, pictures) for at, task in enumerate(report.tasks, start=1)
    ]
    sweeps = overview.sweeps(report.standings)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(library, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{overview.title(report)} · transfer report"),
        tag("style", Html(_asset("page.css"))),
    )
    body = tag(
        "body",
        tag("a", "Skip to the results", class_="skip", href="#main"),
        _bar(report, tasks, sweeps),
        tag(
            "main",
            overview.header(report),
            tag("noscript", tag("p", "The charts need JavaScript.", class_="note")),
            *_parts(report, tasks, sweeps),
            id="main",
        ),
        tag(
            "footer",
            "Made by transfer. This page holds all that it shows, and sends nothing anywhere.",
        ),
        tag("script", Html(_packed(library)), type="text/plain", id="library"),
        tag("script", script),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


# --- what is in it besides the report ---------------------------------------------------------


def _library() -> str:
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # has no types
    except ImportError as error:
        raise ConfigError(
            "the charts of a page need plotly, which is not installed: "
            "pip install 'transfer-cli[report]'"
        ) from error
    return str(get_plotlyjs())


@cache
def _packed(library: str) -> str:
    """Return the library so that it takes a third of the place; the script unpacks it."""
    return base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode()


def _asset(name: str) -> str:
    return resources.files("transfer_cli.report").joinpath("assets", name).read_text("utf-8")


def _policy(*scripts: str) -> str:
    """Return what the page may do: run these very scripts, and reach nothing."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    # Plotly styles what it draws; pictures are what it saves.
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


# --- around the tasks -------------------------------------------------------------------------


def _bar(report: Report, tasks: Sequence[Sequence[Section]], sweeps: Html | None) -> Html:
    """Return what stays at the top: where one can go, and the choice of colours."""
    if len(tasks) == 1:
        links = [(section.address, section.title) for section in tasks[0]]
    else:
        links = [(f"t{at}", task.name) for at, task in enumerate(report.tasks, start=1)]
    if sweeps is not None:
        links.insert(0 if overview.is_at_work(report) else len(links), ("sweeps", "Sweeps"))
    items = [tag("li", tag("a", title, href=f"#{address}")) for address, title in links]
    return tag(
        "header",
        tag("a", "transfer", class_="brand", href="#main"),
        tag("nav", tag("ul", *items), aria_label="Sections"),
        tag(
            "button", tag("span", "◐", aria_hidden="true"),
            tag("span", " Dark colours", class_="hidden"), type="button", class_="theme",
            title="Dark colours", aria_pressed="false",
        ),
        class_="bar",
    )  # fmt: skip


def _parts(
    report: Report, tasks: Sequence[Sequence[Section]], sweeps: Html | None
) -> Iterable[Html]:
    if sweeps is not None and overview.is_at_work(report):
        yield sweeps
    for at, (task, parts) in enumerate(zip(report.tasks, tasks, strict=True), start=1):
        names = words.group_names(task)
        several = len(tasks) > 1
        links = [tag("li", tag("a", part.title, href=f"#{part.address}")) for part in parts]
        yield tag(
            "section",
            tag("h2", task.name, class_=None if several else "hidden"),
            results.best_sentence(task, names) if several else None,
            tag("ul", *links, class_="contents") if several else None,
            *(
                tag("section", tag("h3", part.title), part.content, id=part.address)
                for part in parts
            ),
            id=f"t{at}",
            class_="task",
        )
    if sweeps is not None and not overview.is_at_work(report):
        yield sweeps


# --- one task ---------------------------------------------------------------------------------


def _task_sections(task_id: str, task: Task, pictures: Pictures) -> list[Section]:
    names = words.group_names(task)
    size, labels = size_chart(task, names), label_chart(task)
    cost = "Size and labels" if size and labels else "Size" if size else "Few labels"
    parts = [
        ("results", "Results", results.results(task, names)),
        ("curves", "Learning curves", _curves(task_id, task, names)),
        ("cost", cost, _figures(task_id, [size, labels])),
        ("parallel", "Parallel coordinates", _figures(task_id, [search_chart(task, names)])),
        ("confusion", "Confusion", mistakes.confusion_section(task_id, task, names)),
        ("errors", "Shared errors", _errors(task)),
        *analysis_sections(task, names, pictures),
        ("settings", "Settings", conditions.settings_section(task, names)),
        ("environment", "Environment", conditions.environment_section(task)),
    ]
    return [Section(f"{task_id}-at-{name}", title, found) for name, title, found in parts if found]


def _curves(task_id: str, task: Task, names: Sequence[str]) -> Html | None:
    most = max(FEWEST_POINTS, min(MOST_POINTS, POINTS_IN_ALL // max(1, len(task.runs))))
    curves = {run.name: read_curves(run.path / "metrics.jsonl", most) for run in task.runs}
    charts = [validation_chart(task, names, curves), training_chart(task, names, curves)]
    found = [chart for chart in charts if chart is not None]
    if not found:
        return None
    choice = figures.legend(task_id, names) if len(names) > 1 else None
    drawn = tag("div", *(figures.chart_figure(task_id, each, len(names)) for each in found),
                class_="pair" if len(found) > 1 else None)  # fmt: skip
    return joined([choice or "", drawn])


def _figures(task_id: str, charts: Sequence[Chart | None]) -> Html | None:
    found = [chart for chart in charts if chart is not None]
    if not found:
        return None
    return tag("div", *(figures.chart_figure(task_id, each, 0) for each in found),
               class_="pair" if len(found) > 1 else None)  # fmt: skip


def _errors(task: Task) -> Html | None:
    return mistakes.shared_errors(task.errors) if task.errors else None
