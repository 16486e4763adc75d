"""How the runs of a task were set, and on what they ran: what differs, and what does not."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from transfer_cli.config.flat import flat
from transfer_cli.report import formats
from transfer_cli.report.contents import TaskRuns
from transfer_cli.report.html.markup import Html, details, joined, table

_MOST_VALUES = 8
_CODE = Html("<code>{}</code>")


def settings_section(task: TaskRuns, names: Sequence[str]) -> Html:
    """Return the settings in which runs differ, and those that all share."""
    known = [run.settings for run in task.runs if run.settings]
    values = {
        key: {formats.setting_of(key, each.get(key)) for each in known}
        for key in sorted({key for each in known for key in each})
    }
    seed = ["seed"] if len(values.get("seed", ())) > 1 else []
    rows = [
        (_CODE.format(key) if at == 0 else "", _CODE.format(value), groups)
        for key in (*task.varying, *seed)
        for at, (value, groups) in enumerate(_by_value(task, key))
    ]
    shown = table("Settings in which runs differ", ["key", "value", "groups"], rows) if rows else ""
    made = Html('<div class="settings">{}</div>').format(shown)
    fixed = [
        (_CODE.format(key), *map(_CODE.format, found))
        for key, found in values.items()
        if len(found) == 1 and key not in task.varying
    ]
    if not fixed:
        return made
    alike = "The same for all runs" if len(task.runs) > 1 else "Of this run"
    listed = table("Settings that all runs share", ["key", "value"], fixed)
    summary = f"{alike}: {formats.several(len(fixed), 'setting')}"
    return joined([made, details(summary, listed, is_open=not rows)])


def _by_value(task: TaskRuns, key: str) -> Iterable[tuple[str, str]]:
    """Yield each value of a key with the groups that have it; the range, where there are many."""
    groups: dict[str, set[int]] = defaultdict(set)
    raw: list[Any] = []
    for place, group in enumerate(task.groups, start=1):
        of_runs = [run.settings[key] for run in group.runs if key in run.settings]
        for value in [group.settings[key]] if key in group.settings else of_runs:
            raw.append(value)
            groups[formats.setting_of(key, value)].add(place)
    numbers = [value for value in raw if isinstance(value, int | float)]
    if len(groups) > _MOST_VALUES and len(numbers) == len(raw):
        low, high = formats.setting(min(numbers)), formats.setting(max(numbers))
        yield f"{low} … {high}", f"{len(groups)} values"
        return
    if all(len(places) == len(task.groups) for places in groups.values()):
        yield formats.listed(list(groups)), "each of them"
        return
    for value, places in groups.items():
        named = ", ".join(f"#{place}" for place in sorted(places))
        yield value, named if len(places) <= _MOST_VALUES else f"{len(places)} groups"


def environment_section(task: TaskRuns) -> Html | None:
    """Return versions and machines; where they differ, how many runs had which."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for run in task.runs:
        for key, value in flat(run.environment):
            if key != "command" and not key.startswith("command."):
                found[key][formats.setting(value) if value != [] else "none"] += 1
    if not found:
        return None
    rows = []
    for key, values in found.items():
        several = (f"{value} ({formats.several(runs, 'run')})" for value, runs in values.items())
        rows.append((_CODE.format(key), "; ".join(values if len(values) == 1 else several)))
    differ = sum(len(values) > 1 for values in found.values())
    note = f", {formats.several(differ, 'difference')}" if differ else ", the same for all runs"
    listed = table("Environment", ["what", "value"], rows)
    is_open = bool(differ) or len(task.runs) == 1
    return details(f"Versions and machine{note}", listed, is_open=is_open)
