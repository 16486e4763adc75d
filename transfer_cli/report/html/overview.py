"""What stands above the tasks of a report: how much there is, and where sweeps stand."""

from collections import Counter
from collections.abc import Sequence

from transfer_cli.report import words
from transfer_cli.report.html import results
from transfer_cli.report.html.markup import Column, Html, details, joined, table, tag
from transfer_cli.report.model import FINISHED, Report, Standing

_SHOWN = 8
"""Of a list that is open from the start; a longer one opens on demand."""


def title(report: Report) -> str:
    """Return what the report is about."""
    if len(report.tasks) == 1:
        return report.tasks[0].name
    return words.several(len(report.tasks), "task") if report.tasks else "No runs"


def header(report: Report) -> Html:
    """Return what it is, when it was made, how much there is, and what came out best."""
    runs = [run for task in report.tasks for run in task.runs]
    states = Counter(run.status for run in runs)
    mixed = "" if states.keys() <= {FINISHED} else words.counts(states)
    groups = sum(len(task.groups) for task in report.tasks)
    seconds = _seconds(report)
    facts = [("runs", f"{len(runs):,}", mixed)]
    if groups > 1:
        facts.append(("groups", f"{groups:,}", "differ in more than the seed"))
    if seconds:
        facts.append(("time", words.duration(seconds), "of the finished runs together"))
    if len(report.tasks) > 1:
        facts.append(("tasks", f"{len(report.tasks):,}", "runs are compared inside a task"))
    lead = None
    if len(report.tasks) == 1:
        lead = results.best_sentence(report.tasks[0], words.group_names(report.tasks[0]))
    elif not report.tasks:
        nothing = "No job has got as far as a run." if report.standings else "There is no run here."
        lead = tag("p", nothing, class_="lead")
    return tag(
        "div",
        tag("p", "Report", _moment(report.created), class_="over"),
        tag("h1", title(report)),
        lead,
        tag("dl", *(tag("div", tag("dt", name), tag("dd", tag("strong", value),
            tag("small", note) if note else None)) for name, value, note in facts), class_="facts")
        if runs else None,
        _problems(report.problems),
        class_="top",
    )  # fmt: skip


def _seconds(report: Report) -> float:
    groups = [group for task in report.tasks for group in task.groups]
    return sum(sum(group.seconds.values) for group in groups if group.seconds is not None)


def _moment(created: str) -> Html | None:
    if not created:
        return None
    return joined([" of ", tag("time", created.replace("T", " ")[:16], datetime=created)])


def _problems(problems: Sequence[str]) -> Html | None:
    if not problems:
        return None
    items = tag("ul", *(tag("li", problem) for problem in problems))
    title = f"{words.several(len(problems), 'thing')} could not be read"
    return details(title, items, class_="problems", open=len(problems) <= _SHOWN)


def sweeps(standings: Sequence[Standing]) -> Html | None:
    """Return where each sweep stands; none where there is no sweep."""
    if not standings:
        return None
    return tag(
        "section", tag("h2", "Sweeps"), *(_standing(each) for each in standings), id="sweeps"
    )


def _standing(found: Standing) -> Html:
    parts = [
        ("done", found.done), ("running", found.running), ("failed", len(found.failed)),
        ("pruned", found.pruned), ("left", found.left),
    ]  # fmt: skip
    there = [(name, amount) for name, amount in parts if amount]
    said = ", ".join(f"{amount:,} {name}" for name, amount in there) or "no jobs"
    left = f"; about {words.duration(found.seconds_left)} to go" if found.seconds_left else ""
    bar = tag(
        "div",
        *(tag("span", class_=f"part {name}", style=f"flex-grow:{n}") for name, n in there),
        class_="progress", role="img", aria_label=said,
    )  # fmt: skip
    columns = [Column("job"), Column("settings"), Column("reason")]
    failed = table("Failed jobs", columns, found.failed) if found.failed else None
    return tag(
        "div",
        tag("h3", found.path.name),
        tag("p", tag("code", found.command), class_="command"),
        bar,
        tag("p", f"{said}{left}.", class_="note"),
        details(
            f"Failed: {len(found.failed)}",
            failed,
            open=len(found.failed) <= _SHOWN or not found.done,
        )
        if failed
        else None,
        class_="card",
    )


def is_at_work(report: Report) -> bool:
    """Return whether a sweep has something left to do; then where it stands comes first."""
    return any(each.running or each.left for each in report.standings)
