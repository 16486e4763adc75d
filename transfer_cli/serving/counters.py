"""What a server has done, as Prometheus reads it (text format 0.0.4)."""

import json
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping

from transfer_cli.progress import resident_bytes

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SAID = {
    "requests_total": ("counter", "Answered requests."),
    "texts_total": ("counter", "Texts that have passed through a model."),
    "batches_total": ("counter", "Passes through a model."),
    "model_seconds_total": ("counter", "Seconds that a model has computed."),
    "waiting_texts": ("gauge", "Texts that wait for a model."),
    "requests_in_flight": ("gauge", "Requests that are being answered."),
    "resident_bytes": ("gauge", "Memory of the process."),
}


class Metrics:
    """Counts; told of requests in the thread of the event loop, of batches in those of models."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], float] = defaultdict(int)
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0
        self._lock = threading.Lock()

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered; `path` is one of ours, so that there are few."""
        self._counts["requests_total", f'path="{path}",status="{status}"'] += 1
        self._buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def batch(self, model: str, texts: int, seconds: float) -> None:
        """Count a pass through a model."""
        with self._lock:
            for name, more in {"texts": texts, "batches": 1, "model_seconds": seconds}.items():
                self._counts[f"{name}_total", _labelled(model)] += more

    def text(self, waiting: Mapping[str, int], in_flight: int) -> str:
        """Return all of it, with what is so at the moment."""
        with self._lock:
            values = dict(self._counts)
        values |= {("waiting_texts", _labelled(name)): count for name, count in waiting.items()}
        values |= {("requests_in_flight", ""): in_flight, ("resident_bytes", ""): resident_bytes()}
        lines = []
        for name, (kind, text) in _SAID.items():
            lines += [f"# HELP transfer_{name} {text}", f"# TYPE transfer_{name} {kind}"]
            for (of, labels), value in sorted(values.items()):
                if of == name:
                    lines.append(f"transfer_{name}{{{labels}}} {value}".replace("{}", ""))
        return "\n".join([*lines, *self._histogram(), ""])

    def _histogram(self) -> Iterator[str]:
        name, count = "transfer_request_seconds", 0
        yield f"# HELP {name} Seconds from a request to the end of its answer."
        yield f"# TYPE {name} histogram"
        for bound, more in zip((*_BOUNDS, "+Inf"), self._buckets, strict=True):
            count += more
            yield f'{name}_bucket{{le="{bound}"}} {count}'
        yield f"{name}_sum {self._seconds}"
        yield f"{name}_count {count}"


def _labelled(model: str) -> str:
    return f"model={json.dumps(model, ensure_ascii=False)}"
