"""Numbers, settings and names of measures as people read them."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transfer_cli import errors
from transfer_cli.metrics import Metric
from transfer_cli.reports.contents import Group, Spread, TaskRuns

NOTHING = "\N{EN DASH}"
"""The mark of an empty cell."""

ALL_DIGITS = 17
"""Those that tell any two numbers apart."""

_SHORT = 28
_MOST_FOLDERS = 5
_MOST_DECIMALS = 4
_NOISE = 1e-6
_HUGE = 1e9
MOST_NAMED = 5
"""Keys that vary; with more, the name of a group and the columns of a table become too long."""
_SIGNS = ("", "k", "M", "G", "T", "P", "E", "Z")
"""Of the powers of a thousand."""
_MINUS = "\N{MINUS SIGN}"


def measure_words(measure: str) -> str:
    """Return `test/error_rate` as "test error rate"."""
    return measure.replace("/", " ", 1).replace("_", " ")


def axis_words(task: TaskRuns, measure: str) -> str:
    """Return the name of a measure with its unit."""
    return measure_words(measure) + (" (%)" if task.metric(measure).display_unit else "")


def value(metric: Metric, measured: float) -> str:
    """Return a value of a metric with its unit; a share is in percent."""
    return number(metric.display_scale * measured) + metric.display_unit


def distance(metric: Metric, difference: float) -> str:
    """Return how far apart two values of a metric are: percents in points."""
    points = " points" if metric.display_unit else ""
    return number(metric.display_scale * abs(difference)) + points


def scaled(measured: Spread, times: float) -> Spread:
    """Return a spread of values that are so many times as large."""
    values = tuple(times * single for single in measured.values)
    deviation = None if measured.deviation is None else times * measured.deviation
    return Spread(values, times * measured.mean, deviation)


def number(value: float, like: float | None = None) -> str:
    """Return a number with three or four digits, or with as many decimals as `like` has."""
    if not math.isfinite(value) or abs(value) >= _HUGE:
        return f"{value:.4g}".replace("-", _MINUS)
    digits = f"{value:,.{_decimals(value if like is None else like)}f}"
    return digits.replace("-", _MINUS)


def _decimals(value: float) -> int:
    size = abs(value)
    if not size >= 0 or size >= 1:  # also if it is not a number
        return 2 if size < 100 else 1 if size < 1000 else 0
    return 2 if size == 0 else min(9, max(4, 2 - math.floor(math.log10(size))))


def spread(values: Spread) -> str:
    """Return a mean, with its deviation where there is one."""
    if values.deviation is None:
        return number(values.mean)
    if not math.isfinite(values.mean) or max(abs(values.mean), values.deviation) >= _HUGE:
        return f"{number(values.mean)} ± {number(values.deviation)}"
    decimals = _decimals(values.mean)
    if values.deviation > _NOISE * abs(values.mean):
        # As many as the first digit of the deviation needs.
        decimals = max(decimals, min(_MOST_DECIMALS, -math.floor(math.log10(values.deviation))))
    return f"{values.mean:,.{decimals}f} ± {values.deviation:,.{decimals}f}".replace("-", _MINUS)


def signed(value: float, like: float) -> str:
    """Return a difference between numbers with as many decimals as `like`."""
    return f"+{number(value, like)}" if value > 0 else number(value, like)


def probability(p: float) -> str:
    """Return how likely something is."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def count(value: float) -> str:
    """Return a large count with three digits: 1.87 M."""
    return with_metric_prefix(value).rstrip()


def flops(amount: float) -> str:
    """Return floating-point operations with three digits: 6.95 GFLOP."""
    return f"{with_metric_prefix(amount)}FLOP"


def energy(joules: float) -> str:
    """Return an amount of energy with three digits: 19.8 kJ."""
    return f"{with_metric_prefix(joules)}J"


def with_metric_prefix(amount: float) -> str:
    """Return a number with three digits and the sign of a power of a thousand: "6.95 G"."""
    if not math.isfinite(amount):
        return f"{amount} "
    rounded, power = float(f"{amount:.3g}"), 0
    while rounded >= 1000 ** (power + 1) and power + 1 < len(_SIGNS):
        power += 1
    return f"{rounded / 1000**power:.4g} {_SIGNS[power]}"


def duration(seconds: float) -> str:
    """Return a time that something took."""
    if not math.isfinite(seconds):
        return str(seconds)
    if round(seconds) < 60:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def size(amount: float) -> str:
    """Return an amount of memory in bytes."""
    for unit_bytes, sign in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if amount >= unit_bytes:
            rounded = float(f"{amount / unit_bytes:.3g}")
            return f"{rounded:g} {sign}"
    return f"{amount:.0f} B"


def setting(value: Any) -> str:
    """Return a value of a config as it would be typed."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {setting(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(setting, value)) + "]"
    return str(value)


def plain(value: Any, digits: int = ALL_DIGITS) -> str:
    """Return a value of a config in full, or with so many digits."""
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cell(value: Any) -> str:
    """Return a plain value as a table shows it."""
    if value is None:
        return NOTHING
    return number(value) if isinstance(value, float) else setting(value)


def setting_of(key: str, value: Any) -> str:
    """Return the value of a key; to keep no number of labelled examples is to keep all."""
    return "all" if value is None and is_labelled(key) else setting(value)


def is_labelled(key: str) -> bool:
    """Return whether a key is the number of labelled examples to train on."""
    return key.rpartition(".")[2] == "labelled"


def several(amount: int, one: str) -> str:
    """Return "1 run", "2 runs"."""
    return f"{amount:,} {one}{'' if amount == 1 else 's'}"


def amounts(counts: Mapping[str, int]) -> str:
    """Return "25 finished, 1 failed"."""
    return ", ".join(f"{amount:,} {name}" for name, amount in counts.items() if amount)


def joined_with_and(words: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def folders(paths: Iterable[Path]) -> str:
    """Return paths, those in one folder together: `runs/schemes/0, 1, 2`."""
    parents: dict[Path, list[str]] = {}
    for path in paths:
        parents.setdefault(path.parent, []).append(path.name)
    return "; ".join(
        str(parent / errors.list_names(names, _MOST_FOLDERS)) for parent, names in parents.items()
    )


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return the last part of each key, or all of it where two have the same last part."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}


def group_names(task: TaskRuns) -> tuple[str, ...]:
    """Return a short and different name for each group: of many keys, only unusual values."""
    short = short_keys(task.varying)
    usual = {}
    for key in task.varying if len(task.varying) > MOST_NAMED else ():
        values = Counter(setting_of(key, group.settings.get(key)) for group in task.groups)
        usual[key] = values.most_common(1)[0][0]
    names = [_name(group, short, usual) for group in task.groups]
    counts = Counter(names)
    numbered = enumerate(names, start=1)
    return tuple(f"{name} #{at}" if counts[name] > 1 else name for at, name in numbered)


def _name(group: Group, short: Mapping[str, str], usual: Mapping[str, str]) -> str:
    parts = []
    for key, value in group.settings.items():
        shown = setting_of(key, value)
        if usual.get(key) != shown:
            is_preset = isinstance(value, str) and "." not in key
            parts.append(shown if is_preset else f"{short.get(key, key)}={shown}")
    only = group.runs[0].name if group.runs else NOTHING
    return ", ".join(parts) or ("the usual settings" if usual else only)


def cut(name: str, most: int = _SHORT, end: str = "…") -> str:
    """Return a text of so many characters at most; with the default it fits beside a point."""
    return name if len(name) <= most else name[: most - len(end)] + end
