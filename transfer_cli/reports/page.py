"""A report as one HTML page that needs nothing but itself.

The page may be sent around, and opened without a network: style and script are in it, and its
policy forbids it to ask anybody for anything. What it shows may come from a stranger's run
directory, so every text is escaped, and no script runs but the one that the policy names by its
hash. Its script draws the charts; a charting library would be ten times all the rest.
"""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import NamedTuple

from transfer_cli.reports import formats
from transfer_cli.reports.contents import FINISHED, Ladder, Report, TaskRuns
from transfer_cli.reports.finding import Finding
from transfer_cli.reports.html import task_sections
from transfer_cli.reports.html.charts import (
    Chart,
    cost_charts,
    label_chart,
    ladder_chart,
    rate_chart,
)
from transfer_cli.reports.html.confidence_charts import confidence_charts
from transfer_cli.reports.html.learning_curves import read_curves, training_chart, validation_chart
from transfer_cli.reports.html.markup import Html, joined, note, render, visible_text
from transfer_cli.reports.remarks import ladder_lines
from transfer_cli.reports.sections import (
    Pictures,
    analysis_sections,
    finding_html,
    finding_title,
    picture,
)

MOST_POINTS = 400
FEWEST_POINTS = 40

_UNUSUAL = re.compile(r"[^\n\t\x20-\x7e]")


class Section(NamedTuple):
    """A part of the page, and what links to it name; a task has sections in it."""

    address: str
    title: str
    content: Html
    sections: Sequence["Section"] = ()


def page(report: Report) -> str:
    """Return the page of a report; the learning curves are read from the run directories."""
    pictures = Pictures()
    tasks = [_task(f"t{at}", task, pictures) for at, task in enumerate(report.tasks, start=1)]
    title = formats.several(len(tasks), "task") if tasks else "No runs"
    return document(
        "page.html",
        f"{tasks[0].title if len(tasks) == 1 else title} · report",
        report=report,
        facts=_facts(report),
        # The progress of a sweep comes first as long as something is left to do.
        sweeps_first=any(standing.running or standing.left for standing in report.standings),
        tasks=tasks,
    )


def analyses_page(
    title: str, findings: Mapping[str, Finding], pictures: Mapping[str, Mapping[str, bytes]]
) -> str:
    """Return the page of what analyses found about a model, with their PNGs by what each shows."""
    sections = []
    for name, finding in findings.items():
        embedded = [picture(*shows) for shows in pictures.get(name, {}).items()]
        content = finding_html(finding, embedded)
        sections.append(Section(name, finding_title(name, finding), content))
    views = {finding.view.kind for finding in findings.values() if finding.view is not None}
    scripts = [asset("attention.js")] if "attention" in views else []
    return document("analyses.html", title, scripts, sections=sections)


def document(template: str, title: str, scripts: Sequence[str] = (), **values: object) -> str:
    """Return a page from a template; `scripts` run after the one that all pages have."""
    running = [asset("page.js"), *scripts]
    html = render(
        template,
        title=title,
        policy=_policy(running),
        style=Html(asset("page.css")),
        scripts=[Html(script) for script in running],
        **values,
    )
    # Nothing steers what is around it, wherever it comes from.
    return _UNUSUAL.sub(lambda match: visible_text(match[0]), html).strip() + "\n"


def asset(name: str) -> str:
    """Return a style or script of `reports/assets`."""
    return resources.files("transfer_cli.reports").joinpath("assets", name).read_text("utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Return what the page may do: run these very scripts, and reach nothing."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()) for script in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _facts(report: Report) -> list[str]:
    groups = [group for task in report.tasks for group in task.groups]
    states = Counter(run.status for group in groups for run in group.runs)
    if not states:
        return []
    mixed = "" if states.keys() <= {FINISHED} else formats.amounts(dict(sorted(states.items())))
    seconds = sum(sum(group.seconds.values) for group in groups if group.seconds is not None)
    of_groups = f" in {len(groups):,} groups" if len(groups) > 1 else ""
    return [
        formats.several(states.total(), "run") + of_groups + (f" ({mixed})" if mixed else ""),
        *([f"{formats.duration(seconds)} of training"] if seconds else []),
        *([f"{len(report.tasks):,} tasks, each compared by itself"] if report.tasks[1:] else []),
    ]


def _task(address: str, task: TaskRuns, pictures: Pictures) -> Section:
    names = formats.group_names(task)
    # What looks for the best does so where the best is chosen.
    choosing = replace(task, measure=task.chosen_by)
    costs, labels = cost_charts(choosing, names), label_chart(task)
    cost = "Cost and labels" if costs and labels else "Cost" if costs else "Few labels"
    parts = [
        ("results", "Results", task_sections.results_section(task, names)),
        ("ladder", "Ladder", _ladder(address, task.ladder)),
        ("rate", "Learning rate", _charts(address, [rate_chart(choosing)])),
        ("curves", "Learning curves", _curves(address, task, names)),
        ("cost", cost, _charts(address, [*costs, labels])),
        ("confusion", "Confusion", task_sections.confusion_section(address, task, names)),
        ("confidence", "Confidence", _charts(address, confidence_charts(task, names))),
        ("labels", "Labels", task_sections.labels_section(task, names)),
        ("errors", "Shared errors", task_sections.errors_section(task.errors, task.expected)),
        *analysis_sections(task, names, pictures),
        ("settings", "Settings", task_sections.settings_section(task, names)),
        ("environment", "Environment", task_sections.environment_section(task)),
    ]
    sections = [
        Section(f"{address}-at-{name}", title, content) for name, title, content in parts if content
    ]
    first = task_sections.run_to_take(task) + task_sections.best_sentence(task, names)
    return Section(address, task.name, first, sections)


def _ladder(task_id: str, ladder: Ladder | None) -> Html | None:
    if ladder is None:
        return None
    chart = _charts(task_id, [ladder_chart(ladder)]) or ""
    return joined([*map(note, ladder_lines(ladder)), chart])


def _curves(task_id: str, task: TaskRuns, names: Sequence[str]) -> Html | None:
    # Of the curves of one kind: more than that takes long to send and to draw.
    points_in_all = 30_000
    most = max(FEWEST_POINTS, min(MOST_POINTS, points_in_all // max(1, len(task.runs))))
    curves = {run.name: read_curves(run.path / "metrics.jsonl", most) for run in task.runs}
    charts = [validation_chart(task, names, curves), training_chart(task, names, curves)]
    return _charts(task_id, charts, names)


def _charts(task_id: str, charts: Sequence[Chart | None], names: Sequence[str] = ()) -> Html | None:
    """Return charts side by side; above them the groups to choose from, where there are names."""
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        return None
    return render("charts.html", task_id=task_id, charts=drawn, names=names)
