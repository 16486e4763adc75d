"""What the runs of a task got wrong: which label they took for which, and the texts."""

from collections.abc import Sequence

from transfer_cli.report import formats
from transfer_cli.report.contents import SharedError, TaskRuns
from transfer_cli.report.html.confusion import MOST_LABELS, Confusion, confusions, most_confused
from transfer_cli.report.html.markup import Html, PageColumn, joined, macros, table

MOST_ERRORS = 200


def confusion_section(task_id: str, task: TaskRuns, names: Sequence[str]) -> Html | None:
    """Return the confusion table of the best group, and those of the others to choose from."""
    if len(task.labels) > MOST_LABELS:
        return _note(f"Not shown for as many as {len(task.labels):,} labels.")
    found = confusions(task)
    if not found:
        return None
    said = {at: most_confused(each, task.labels) for at, each in found.items()}
    block = {
        "labels": [str(label) for label in task.labels],
        "groups": {at: {"cells": each.cells, "split": each.split, "runs": each.runs,
                        "words": said[at]}
                   for at, each in found.items()},
    }  # fmt: skip
    first = min(found)
    made: Html = macros("mistakes.html").confusion(
        task_id, [(at, names[at]) for at in found], confusion_table(found[first], task.labels),
        said[first], block,
    )  # fmt: skip
    return made


def confusion_table(found: Confusion, labels: Sequence[str]) -> Html:
    """Return counts of labels (rows) by predictions (columns), shaded by their share of a row."""
    rows = [[0] * len(labels) for _ in labels]
    for label, said, count in found.cells:
        rows[label][said] = count
    caption = f"Confusion on {found.split}, {formats.several(found.runs, 'run')}"
    made: Html = macros("mistakes.html").cells(caption, labels, rows)
    return made


def shared_errors(errors: Sequence[SharedError], expected: str) -> Html:
    """Return what most runs get wrong: the text, what is right, and what was said."""
    parts = macros("mistakes.html")
    rows = []
    for each in errors[:MOST_ERRORS]:
        said = sorted(each.predicted.items(), key=lambda pair: -pair[1])
        wrong = [(label, runs) for label, runs in said if label != each.label]
        right = Html('<span class="chip is-right">{}</span>').format(each.label)
        times = f"{each.wrong} of {each.runs}"
        rows.append((parts.text(each.text), right, parts.chips(wrong), times))
    columns = [
        PageColumn("text"),
        PageColumn(expected),
        PageColumn("said instead"),
        PageColumn("wrong runs"),
    ]
    made = Html('<div class="texts">{}</div>').format(
        table("Errors that most runs share", columns, rows)
    )
    more = len(errors) - len(rows)
    return joined([made, _note(f"{more:,} more are left out.") if more else None])


def _note(text: str) -> Html:
    return Html('<p class="note">{}</p>').format(text)
