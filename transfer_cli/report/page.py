"""A report as one HTML page that needs nothing but itself.

The page may be sent around, and opened without a network: style, script and the charting library
are in it, and its policy forbids it to ask anybody for anything. What it shows may come from a
stranger's run directory, so every text is escaped, and no script runs but the two that the policy
names by their hash.
"""

import base64
import gzip
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from transfer_cli.report import formats
from transfer_cli.report.contents import Report, TaskRuns
from transfer_cli.report.html import conditions, mistakes, overview, results_section
from transfer_cli.report.html.analysis_sections import Pictures, analysis_sections
from transfer_cli.report.html.charts import Chart
from transfer_cli.report.html.cost_charts import label_chart, size_chart
from transfer_cli.report.html.learning_charts import training_chart, validation_chart
from transfer_cli.report.html.learning_curves import read_curves
from transfer_cli.report.html.markup import Html, render, shown
from transfer_cli.report.html.search_chart import search_chart

MOST_POINTS = 400
FEWEST_POINTS = 40
POINTS_IN_ALL = 30_000
"""Of the curves of one kind: more than that takes long to send and to draw."""

SHOWN_AT_FIRST = 8
"""Of more than `MANY_GROUPS` groups; the others are shown on demand."""
MANY_GROUPS = 10

_UNUSUAL = re.compile(r"[^\n\t\x20-\x7e]")


class Section(NamedTuple):
    """A part of the page, and what links to it name; a task has sections in it."""

    address: str
    title: str
    content: Html
    sections: Sequence["Section"] = ()


def page(report: Report) -> str:
    """Return the page of a report; the learning curves are read from the run directories.

    Raises:
        ImportError: The charting library is not installed.
    """
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # has no types

    library, script = str(get_plotlyjs()), _asset("page.js")
    pictures = Pictures()
    tasks = [_task(f"t{at}", task, pictures) for at, task in enumerate(report.tasks, start=1)]
    # Where something is left to do, it comes first how far it has got.
    sweeps_first = any(each.running or each.left for each in report.standings)
    sweeps = overview.sweeps(report.standings)
    parts = tasks[0].sections if len(tasks) == 1 else tasks
    links = [(part.address, part.title) for part in parts]
    if sweeps is not None:
        links.insert(0 if sweeps_first else len(links), ("sweeps", "Sweeps"))
    made = render(
        "page.html",
        title=overview.title(report),
        policy=_policy(library, script),
        style=Html(_asset("page.css")),
        links=links,
        overview=overview.header(report),
        sweeps=sweeps or "",
        sweeps_first=sweeps_first,
        tasks=tasks,
        library=Html(_packed(library)),
        script=Html(script),
    )
    # Nothing steers what is around it, wherever it comes from.
    return _UNUSUAL.sub(lambda found: shown(found[0]), made).strip() + "\n"


@cache
def _packed(library: str) -> str:
    """Return the library so that it takes a third of the place; the script unpacks it."""
    return base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode()


def _asset(name: str) -> str:
    return resources.files("transfer_cli.report").joinpath("assets", name).read_text("utf-8")


def _policy(*scripts: str) -> str:
    """Return what the page may do: run these very scripts, and reach nothing."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    # Plotly styles what it draws; pictures are what it saves.
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _task(address: str, task: TaskRuns, pictures: Pictures) -> Section:
    names = formats.group_names(task)
    size, labels = size_chart(task, names), label_chart(task)
    cost = "Size and labels" if size and labels else "Size" if size else "Few labels"
    parts = [
        ("results", "Results", results_section.results(task, names)),
        ("curves", "Learning curves", _curves(address, task, names)),
        ("cost", cost, _charts(address, [size, labels])),
        ("parallel", "Parallel coordinates", _charts(address, [search_chart(task, names)])),
        ("confusion", "Confusion", mistakes.confusion_section(address, task, names)),
        ("errors", "Shared errors", mistakes.shared_errors(task.errors, task.expected)),
        *analysis_sections(task, names, pictures),
        ("settings", "Settings", conditions.settings_section(task, names)),
        ("environment", "Environment", conditions.environment_section(task)),
    ]
    sections = [
        Section(f"{address}-at-{name}", title, found) for name, title, found in parts if found
    ]
    return Section(address, task.name, results_section.best_sentence(task, names), sections)


def _curves(task_id: str, task: TaskRuns, names: Sequence[str]) -> Html | None:
    most = max(FEWEST_POINTS, min(MOST_POINTS, POINTS_IN_ALL // max(1, len(task.runs))))
    curves = {run.name: read_curves(run.path / "metrics.jsonl", most) for run in task.runs}
    charts = [validation_chart(task, names, curves), training_chart(task, names, curves)]
    return _charts(task_id, charts, names)


def _charts(task_id: str, charts: Sequence[Chart | None], names: Sequence[str] = ()) -> Html | None:
    """Return charts side by side; above them the groups to choose from, where there are names."""
    found = [chart for chart in charts if chart is not None]
    if not found:
        return None
    return render(
        "charts.html", task_id=task_id, charts=found, has_legend=bool(names),
        choice=names if len(names) > 1 else (), many_groups=MANY_GROUPS,
        shown_at_first=SHOWN_AT_FIRST,
    )  # fmt: skip
