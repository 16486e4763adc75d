"""What the runs of a task got wrong: which label they took for which, and the texts."""

from collections.abc import Sequence

from transfer_cli.report import words
from transfer_cli.report.html.confusion import MOST_LABELS, Confusion, confusions, most_confused
from transfer_cli.report.html.markup import Column, Html, data_block, joined, table, tag
from transfer_cli.report.model import SharedError, Task

MOST_ERRORS = 200


def confusion_section(task_id: str, task: Task, names: Sequence[str]) -> Html | None:
    """Return the confusion table of the best group, and those of the others to choose from."""
    if len(task.labels) > MOST_LABELS:
        return tag("p", f"Not shown for as many as {len(task.labels):,} labels.", class_="note")
    found = confusions(task)
    if not found:
        return None
    first = min(found)
    options = [tag("option", f"{at + 1}  {names[at]}", value=at) for at in found]
    return tag(
        "div",
        tag("div", tag("label", "Group ", tag("select", *options, id=f"{task_id}-group")),
            class_="controls") if len(found) > 1 else None,
        tag("div", confusion_table(found[first], task.labels), class_="shown"),
        tag("p", most_confused(found[first], task.labels), class_="note said", aria_live="polite"),
        data_block(
            {
                "labels": [str(label) for label in task.labels],
                "groups": {at: {"cells": each.cells, "split": each.split, "runs": each.runs,
                                "words": most_confused(each, task.labels)}
                           for at, each in found.items()},
            }
        ),
        class_="confusion",
    )  # fmt: skip


def confusion_table(found: Confusion, labels: Sequence[str]) -> Html:
    """Return counts of labels (rows) by predictions (columns), shaded by their share of a row."""
    counts = {(row, column): count for row, column, count in found.cells}
    sums = [sum(count for row, _, count in found.cells if row == at) for at in range(len(labels))]
    head = tag(
        "tr",
        tag("th", "label ↓", tag("br"), "said →", scope="col"),
        *(tag("th", label, scope="col") for label in labels),
        tag("th", "right", scope="col"),
    )
    body = [
        tag(
            "tr",
            tag("th", label, scope="row"),
            *(_shaded(counts.get((row, column), 0), sums[row], is_right=row == column)
              for column in range(len(labels))),
            tag("td", f"{100 * counts.get((row, row), 0) / sums[row]:.0f} %" if sums[row]
                else words.NOTHING),
        )
        for row, label in enumerate(labels)
    ]  # fmt: skip
    caption = f"Confusion on {found.split}, {words.several(found.runs, 'run')}"
    content = tag(
        "table", tag("caption", caption), tag("thead", head), tag("tbody", *body), class_="cells"
    )
    return tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _shaded(count: int, whole: int, *, is_right: bool) -> Html:
    share = count / whole if whole else 0.0
    kind = "right" if is_right else "wrong"
    style = f"--share:{share:.3f}" if count else None
    return tag("td", count or "·", class_=f"{kind} full" if count else "none", style=style)


def shared_errors(errors: Sequence[SharedError], expected: str) -> Html:
    """Return what most runs get wrong: the text, what is right, and what was said."""
    rows = [
        (
            tag("q", each.text) if each.text else tag("em", "text not kept"),
            tag("span", each.label, class_="chip is-right"),
            tag(
                "span",
                *(
                    tag("span", label, tag("small", f" {runs}"), class_="chip")
                    for label, runs in sorted(each.predicted.items(), key=lambda pair: -pair[1])
                    if label != each.label
                ),
            ),
            f"{each.wrong} of {each.runs}",
        )
        for each in errors[:MOST_ERRORS]
    ]
    columns = [Column("text"), Column(expected), Column("said instead"), Column("wrong runs")]
    more = len(errors) - len(rows)
    return joined(
        [
            tag("div", table("Errors that most runs share", columns, rows), class_="texts"),
            tag("p", f"{more:,} more are left out.", class_="note") if more else "",
        ]
    )
