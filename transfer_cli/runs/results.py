"""The metrics that a `results.json` declares, and those of runs before there were declarations."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from transfer_cli.metrics import Metric

_PERPLEXITY = Metric(
    "perplexity", higher_is_better=False, unit="perplexity", headline=True, per_example=True
)

UNDECLARED = (
    Metric("error_rate", higher_is_better=False, unit="percent", headline=True, per_example=True),
    Metric("macro_f1", higher_is_better=True, unit="fraction"),
    Metric("accuracy", higher_is_better=True, unit="fraction", per_example=True),
    replace(_PERPLEXITY, name="word_perplexity"),
    Metric("bits_per_byte", higher_is_better=False, unit="bits", per_example=True),
    replace(_PERPLEXITY, name="token_perplexity"),
    replace(_PERPLEXITY, name="masked_token_perplexity"),
    Metric("loss", higher_is_better=False, unit="nats", headline=True, per_example=True),
)
"""The metrics of runs whose `results.json` has no declarations: it was written before there were
any. Of a metric that is not in here, less is better."""


def metrics_of(results: Mapping[str, Any]) -> tuple[Metric, ...]:
    """Return the metrics that a run's results declare; damaged ones are left out."""
    stored = results.get("metrics")
    if not isinstance(stored, list):
        return merged((UNDECLARED, _undeclared(results)))
    found = []
    for record in stored:
        with suppress(ValueError):
            found.append(Metric.from_json(record))
    return tuple(found)


def merged(several: Iterable[Iterable[Metric]]) -> tuple[Metric, ...]:
    """Return the metrics of several runs, each name once: the first declaration counts."""
    found: dict[str, Metric] = {}
    for metrics in several:
        for each in metrics:
            found.setdefault(each.name, each)
    return tuple(found.values())


def _undeclared(results: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metrics of further losses, and of objectives that are not ours."""
    known = {each.name: each for each in UNDECLARED}
    splits = results.get("measures")
    for measured in splits.values() if isinstance(splits, dict) else ():
        for name in measured if isinstance(measured, dict) else ():
            parts = name.split("/")
            at = next((at for at, part in enumerate(parts) if part in known), None)
            if at is None:
                yield Metric(name or "unnamed", higher_is_better=False)
            elif at > 0:
                prefixed = "/".join(parts[: at + 1])
                yield replace(known[parts[at]], name=prefixed, headline=False, per_example=False)
