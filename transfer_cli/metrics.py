"""Declarations of an objective's metrics: which end is good, in which unit.

Early stopping, best weights, searches and reports read them. A run's `results.json` holds them, so
that a report needs none of the run's classes.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from transfer_cli.errors import ConfigError, did_you_mean, one_of

Unit = Literal["none", "nats", "bits", "perplexity", "fraction", "percent"]

_BOUNDS: Mapping[str, tuple[float, float]] = {
    "nats": (0, math.inf),
    "bits": (0, math.inf),
    "perplexity": (1, math.inf),
    "fraction": (0, 1),
    "percent": (0, 100),
}


@dataclass(frozen=True)
class Metric:
    """The declaration of a metric. Objectives declare them in the order of a report.

    A metric may have parts, which are measured as `NAME/PART` (`accuracy/LABEL`) and need no
    declaration. The metrics of a further loss are called `LOSS/NAME`.

    Args:
        name: Its name in `metrics.jsonl`, `results.json` and `loop.monitor`.
        unit: Of its values. A fraction is in [0, 1], a percentage in [0, 100].
        headline: Whether runs are judged by it by default; of several, by the first measured one.
        per_example: Whether it follows from a sum over the examples in `items.jsonl`, so that two
            runs can be compared example by example: of their losses (nats, bits, perplexity) or of
            wrong labels (fraction, percent).
    """

    name: str
    higher_is_better: bool
    unit: Unit = "none"
    headline: bool = False
    per_example: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a metric needs a name")
        one_of(self.name, self.unit, get_args(Unit), ValueError)

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value that its unit allows."""
        return _BOUNDS.get(self.unit, (-math.inf, math.inf))

    @property
    def worst(self) -> float:
        """A value that any other is better than."""
        return -math.inf if self.higher_is_better else math.inf

    @property
    def display_scale(self) -> float:
        """What a value is multiplied by where it is shown: shares stand in percent, too."""
        return 100.0 if self.unit == "fraction" else 1.0

    @property
    def display_unit(self) -> str:
        """What follows a value where it is shown."""
        return " %" if self.unit in ("fraction", "percent") else ""

    def for_loss(self, loss: str) -> "Metric":
        """Return the same metric of a further loss, whose examples are not in `items.jsonl`."""
        return replace(self, name=f"{loss}/{self.name}", headline=False, per_example=False)

    @classmethod
    def from_json(cls, record: Any) -> "Metric":
        """Return the metric of a record, ignoring unknown keys; ValueError where it is none."""
        stored = record if isinstance(record, dict) else {}
        known = {field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        texts = all(isinstance(known.get(key, ""), str) for key in ("name", "unit"))
        flags = [value for key, value in known.items() if key not in ("name", "unit")]
        whole = {"name", "higher_is_better"} <= known.keys()
        if not (whole and texts and all(isinstance(flag, bool) for flag in flags)):
            raise ValueError(f"this is no record of a metric: {record!r:.100}")
        return cls(**known)


AVERAGED = "averaged"
"""What averaged weights are called; names of measures of them at validations begin with that."""

UNSEEN = "/unseen"
"""Ends the names of measures of those examples alone that do not stand in training."""

LOSS = Metric("loss", higher_is_better=False, unit="nats", per_example=True)
"""The mean over all targets."""


def perplexity(name: str) -> Metric:
    """Return a perplexity by which runs are judged."""
    return replace(LOSS, name=name, unit="perplexity", headline=True)


def find_metric(name: str, declared: Iterable[Metric]) -> Metric | None:
    """Return the declaration of a measured number: its own, or that of the metric it is part of."""
    fitting = [metric for metric in declared if f"{name}/".startswith(f"{metric.name}/")]
    closest = max(fitting, key=lambda metric: len(metric.name), default=None)
    if closest is None or closest.name == name:
        return closest
    return replace(closest, name=name, headline=False, per_example=False)


def require_metric(name: str, declared: Iterable[Metric], key: str) -> Metric:
    """Return the declaration of a metric, or a part of one, that a config key names."""
    known = tuple(declared)
    metric = find_metric(name, known)
    if metric is None:
        raise unknown_metric(key, name, [metric.name for metric in known])
    return metric


def unknown_metric(key: str, name: str, measured: Iterable[str]) -> ConfigError:
    """Return the error for a config key that names a metric that a run does not measure."""
    names = list(measured)
    return ConfigError(
        f"{key}: there is no measure {name!r}.{did_you_mean(name, names)} "
        f"This run measures {', '.join(names)}"
    )


def headlines_first(declared: Iterable[Metric]) -> list[Metric]:
    """Return the metrics with the headlines first."""
    return sorted(declared, key=lambda metric: not metric.headline)


def judging_metric(declared: Iterable[Metric], measures: Collection[str]) -> Metric:
    """Return what a run is judged by: the first headline, of those measured if any is.

    Of one that rises and falls with the loss, such as a perplexity, the loss itself.
    """
    headlines = [metric for metric in declared if metric.headline]
    metric = next((m for m in headlines if m.name in measures), *headlines[:1] or [LOSS])
    return LOSS if metric.unit in ("nats", "bits", "perplexity") else metric


def without_details(measures: Mapping[str, float]) -> dict[str, float]:
    """Return a split's own measures: not those of each label, nor of further losses."""
    return {name: value for name, value in measures.items() if "/" not in name}


def wilson_interval(right: float, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); it stays within 0 and 1.

    Another `z`, a quantile of the normal distribution, gives one of another width.
    """
    middle, scale = right + z * z / 2, total + z * z
    half = z * math.sqrt(right * (total - right) / total + z * z / 4)
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
