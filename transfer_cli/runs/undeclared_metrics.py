"""The metrics of runs whose `results.json` declares none: those of commit 2841927 and before."""

from collections.abc import Iterator, Mapping
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
"""Of a metric that is not in here, less is better."""


def undeclared(measures: Mapping[str, Mapping[str, Any]]) -> tuple[Metric, ...]:
    """Return the metrics of a run that measured these numbers, by split and name."""
    return (*UNDECLARED, *_of_losses_and_parts(measures))


def _of_losses_and_parts(measures: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of further losses, and of objectives that are not ours."""
    known = {metric.name: metric for metric in UNDECLARED}
    for name in dict.fromkeys(name for measured in measures.values() for name in measured):
        parts = name.split("/")
        at = next((at for at, part in enumerate(parts) if part in known), None)
        if at is None:
            yield Metric(name or "unnamed", higher_is_better=False)
        elif at > 0:
            prefixed = "/".join(parts[: at + 1])
            yield replace(known[parts[at]], name=prefixed, headline=False, per_example=False)
