"""What stands above the tasks of a report: how much there is, and where sweeps stand."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from transfer_cli.report import formats
from transfer_cli.report.contents import FINISHED, Report, SweepProgress
from transfer_cli.report.html.markup import Html, render, table
from transfer_cli.report.html.results_section import best_sentence

_SHOWN = 8
"""Of a list that is open from the start; a longer one opens on demand."""


def title(report: Report) -> str:
    """Return what the report is about."""
    if len(report.tasks) == 1:
        return report.tasks[0].name
    return formats.several(len(report.tasks), "task") if report.tasks else "No runs"


def header(report: Report) -> Html:
    """Return what it is, when it was made, how much there is, and what came out best."""
    single = report.tasks[0] if len(report.tasks) == 1 else None
    nothing = "No job has got as far as a run." if report.standings else "There is no run here."
    return render(
        "overview.html",
        title=title(report),
        created=report.created,
        lead="" if single is None else best_sentence(single, formats.group_names(single)),
        nothing="" if report.tasks else nothing,
        facts=_facts(report),
        problems=report.problems,
        shown=_SHOWN,
    )


def _facts(report: Report) -> list[tuple[str, str, str]]:
    """Return name, number and note of how much there is."""
    groups = [group for task in report.tasks for group in task.groups]
    states = Counter(run.status for group in groups for run in group.runs)
    if not states:
        return []
    mixed = "" if states.keys() <= {FINISHED} else formats.counts(states)
    seconds = sum(sum(group.seconds.values) for group in groups if group.seconds is not None)
    facts = [("runs", f"{states.total():,}", mixed)]
    if len(groups) > 1:
        facts.append(("groups", f"{len(groups):,}", "differ in more than the seed"))
    if seconds:
        facts.append(("time", formats.duration(seconds), "of the finished runs together"))
    if len(report.tasks) > 1:
        facts.append(("tasks", f"{len(report.tasks):,}", "runs are compared inside a task"))
    return facts


def sweeps(standings: Sequence[SweepProgress]) -> Html | None:
    """Return where each sweep stands; none where there is no sweep."""
    if not standings:
        return None
    return render("sweeps.html", sweeps=[_sweep(each) for each in standings], shown=_SHOWN)


def _sweep(found: SweepProgress) -> dict[str, Any]:
    parts = {
        "done": found.done, "running": found.running, "failed": len(found.failed),
        "pruned": found.pruned, "left": found.left,
    }  # fmt: skip
    there = [(name, amount) for name, amount in parts.items() if amount]
    left = found.seconds_left
    return {
        "found": found,
        "parts": there,
        "said": ", ".join(f"{amount:,} {name}" for name, amount in there) or "no jobs",
        "to_go": f"; about {formats.duration(left)} to go" if left else "",
        "failed": table("Failed jobs", ["job", "settings", "reason"], found.failed),
    }
