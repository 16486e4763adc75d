"""What a server has done, as Prometheus reads it."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from transfer_cli.progress import resident_bytes

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counts; told of requests in the thread of the event loop, of batches in those of models."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        path, model = ["path", "status"], ["model"]
        self._requests = Counter("transfer_requests", "Answered requests.", path, registry=registry)
        self._request_seconds = Histogram(
            "transfer_request_seconds", "Seconds from a request to the end of its answer.",
            buckets=_BOUNDS, registry=registry,
        )  # fmt: skip
        self._model_counters = [
            Counter(f"transfer_{name}", text, model, registry=registry)
            for name, text in {
                "texts": "Texts that have passed through a model.",
                "batches": "Passes through a model.",
                "model_seconds": "Seconds that a model has computed.",
            }.items()
        ]
        self._waiting = Gauge(
            "transfer_waiting_texts", "Texts that wait for a model.", model, registry=registry
        )
        self._in_flight = Gauge(
            "transfer_requests_in_flight", "Requests that are being answered.", registry=registry
        )
        memory = Gauge("transfer_resident_bytes", "Memory of the process.", registry=registry)
        memory.set_function(resident_bytes)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered; `path` is one of ours, so that there are few."""
        self._requests.labels(path, status).inc()
        self._request_seconds.observe(seconds)

    def count_batch(self, model: str, texts: int, seconds: float) -> None:
        """Count a pass through a model."""
        for counter, more in zip(self._model_counters, (texts, 1, seconds), strict=True):
            counter.labels(model).inc(more)

    def exposition(self, waiting: Mapping[str, int], in_flight: int) -> bytes:
        """Return all of it, with what is so at the moment."""
        for model, texts in waiting.items():
            self._waiting.labels(model).set(texts)
        self._in_flight.set(in_flight)
        return generate_latest(self._registry)
