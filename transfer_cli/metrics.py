"""What an objective says of each number that it measures: which end is good, in which unit.

Early stopping, best weights, the direction of a search and reports read these declarations; the
`results.json` of a run holds them, so that a report needs no class of the run.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from transfer_cli.errors import ConfigError, nearest, one_of

Unit = Literal["none", "nats", "bits", "perplexity", "fraction", "percent"]


@dataclass(frozen=True)
class Metric:
    """The declaration of a metric. Objectives declare them in the order in which to show them.

    A metric may have parts, which are measured as `NAME/PART` (`accuracy/LABEL`) and need no
    declaration of their own. Those of a further loss are called `LOSS/NAME`.

    Args:
        name: What it is called in `metrics.jsonl`, `results.json` and `loop.monitor`.
        higher_is_better: Which end is the good one.
        unit: Of its values. A fraction is in [0, 1], a percentage in [0, 100].
        headline: Whether runs are judged by it where nothing else is asked for; of several, by
            the first one that was measured.
        per_example: Whether it follows from the sum over examples of what `items.jsonl` holds, so
            that two runs can be compared example by example: their losses (nats, bits,
            perplexity), or how many are labelled wrongly (fraction, percent).
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

    def of_loss(self, loss: str) -> "Metric":
        """Return the same metric of a further loss; single examples are kept of the main one."""
        return replace(self, name=f"{loss}/{self.name}", headline=False, per_example=False)

    def as_json(self) -> dict[str, Any]:
        """Return a record that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Any) -> "Metric":
        """Return the metric of a record; keys that it does not know are passed over.

        Raises:
            ValueError: It is no such record.
        """
        stored = record if isinstance(record, dict) else {}
        known = {each.name: stored[each.name] for each in fields(cls) if each.name in stored}
        texts = all(isinstance(known.get(key, ""), str) for key in ("name", "unit"))
        flags = [value for key, value in known.items() if key not in ("name", "unit")]
        whole = {"name", "higher_is_better"} <= known.keys()
        if not (whole and texts and all(isinstance(flag, bool) for flag in flags)):
            raise ValueError(f"this is no record of a metric: {record!r:.100}")
        return cls(**known)


def find(name: str, declared: Iterable[Metric]) -> Metric | None:
    """Return what is declared of a measured number: its own metric, or the one it is a part of."""
    fitting = [each for each in declared if f"{name}/".startswith(f"{each.name}/")]
    found = max(fitting, key=lambda each: len(each.name), default=None)
    if found is None or found.name == name:
        return found
    return replace(found, name=name, headline=False, per_example=False)


def require(name: str, declared: Iterable[Metric], key: str) -> Metric:
    """Return what is declared of a metric that a config names.

    Args:
        name: The metric, or a part of one.
        declared: What the run measures.
        key: The key of the config, for errors.

    Raises:
        ConfigError: There is no such metric.
    """
    known = tuple(declared)
    found = find(name, known)
    if found is None:
        raise unknown_metric(key, name, [each.name for each in known])
    return found


def unknown_metric(key: str, name: str, measured: Iterable[str]) -> ConfigError:
    """Return the error for a config key that names a metric that a run does not measure."""
    names = list(measured)
    return ConfigError(
        f"{key}: there is no measure {name!r}.{nearest(name, names)} "
        f"This run measures {', '.join(names)}"
    )


def by_preference(declared: Iterable[Metric]) -> list[Metric]:
    """Return the metrics by which to judge runs, the first choice first."""
    return sorted(declared, key=lambda each: not each.headline)
