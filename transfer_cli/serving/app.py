"""Loaded models as an ASGI app: what is asked, what is refused, and how it is answered."""

import asyncio
import hmac
import json
import math
import threading
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transfer_cli.api import LoadedModel, text_examples
from transfer_cli.cli import cause_and_cure
from transfer_cli.commands.generate import Continuation
from transfer_cli.config.schema import ServingConfig
from transfer_cli.data.records import Record, text_of
from transfer_cli.errors import NotFiniteError, TransferError, did_you_mean, list_names
from transfer_cli.safe_files import UnreadableError, parse_json
from transfer_cli.serving.batching import Job, Kind, QueueFullError, Worker
from transfer_cli.serving.counters import Metrics
from transfer_cli.serving.interface import input_fields, openapi, request_keys

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_OPEN_PATHS = ("/", "/health")
"""What needs no token: neither tells anything of a model."""

_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True)
class Served:
    """A model, the thread that runs it, and what it can be asked."""

    name: str
    model: LoadedModel
    worker: Worker
    kinds: Mapping[str, Kind]


class Service:
    """Models by their names; the first is asked where a request names none.

    Args:
        limits: What is taken, and how long it is worked on.
        token: What has to come with requests; None: nothing.
        origins: Web sites whose pages may ask.
        is_local: Whether only programs of this machine reach it: a name of another machine in a
            request is then that of a site which has led a browser here.

    Attributes:
        draining: Whether it ends once what is begun is answered.
        in_flight: How many requests are being answered.
    """

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        limits: ServingConfig,
        *,
        token: str | None = None,
        origins: Sequence[str] = (),
        is_local: bool = True,
    ) -> None:
        self.draining, self.in_flight = False, 0
        self._limits, self._token, self._origins = limits, token, origins
        self._hosts = {*LOOPBACK, *(origin.partition("://")[2] for origin in origins)}
        self._is_local = is_local
        self._metrics = Metrics()
        self._models = {name: self._serve_model(name, model) for name, model in models.items()}
        self._interface = openapi(self.names)

    def _serve_model(self, name: str, model: LoadedModel) -> Served:
        count, limits = partial(self._metrics.count_batch, name), self._limits
        kinds = {
            "predict": Kind(model.answers, limits.batch),
            "embed": Kind(lambda texts: model.embed(texts).tolist(), limits.batch),
            "generate": Kind(lambda streams: [stream.run() for stream in streams], 1),
        }
        worker = Worker(limits.wait_ms / 1000, limits.queue, count)
        return Served(name, model, worker, {ability: kinds[ability] for ability in model.abilities})

    @property
    def names(self) -> list[str]:
        """What models are called."""
        return [*self._models]

    @cached_property
    def app(self) -> ASGIApp:
        """All of it, as a server takes it."""
        asked = {"/predict": self._predict, "/embed": self._embed, "/generate": self._generate}
        told = {
            "/": self._page, "/health": self._health, "/labels": self._labels,
            "/metrics": self._metrics_text, "/openapi.json": self._openapi,
        }  # fmt: skip
        routes = [Route(path, answer, methods=["POST"]) for path, answer in asked.items()]
        routes += [Route(path, answer) for path, answer in told.items()]
        self._paths = {route.path for route in routes}
        cross_origin = Middleware(
            CORSMiddleware, allow_origins=self._origins, allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )  # fmt: skip
        return Starlette(
            routes=routes,
            middleware=[*([cross_origin] if self._origins else []), Middleware(_Guard, self)],
            exception_handlers=dict.fromkeys((*_STATUSES, HTTPException, Exception), _failure),
        )

    # --- before and after a request --------------------------------------------------------------

    def refusal(self, request: Request) -> Response | None:
        """Return why a request is not even looked at; None: it is."""
        # Of the scope, as routes read it: `url` is joined of a header that a client chooses.
        path, headers = request.scope["path"], request.headers
        if self.draining and path not in ("/health", "/metrics"):
            ends = {"Connection": "close", "Retry-After": "1"}
            return _error(503, "the server is being stopped", ends)
        host = headers.get("host", "")
        if self._is_local and not self._hosts & {host, host.rpartition(":")[0]}:
            return _error(403, f"host: {host} is not this machine; ask at 127.0.0.1")
        origin = headers.get("origin")
        is_own = origin is None or origin.partition("://")[2] == host
        if not is_own and origin not in self._origins:
            return _error(403, f"origin: pages of {origin} may not ask; see serve.origins")
        if self._token is not None and path not in _OPEN_PATHS:
            given = headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                cure = {"WWW-Authenticate": "Bearer"}
                return _error(401, "send the header Authorization: Bearer TOKEN", cure)
        return None

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._metrics.count_request(path if path in self._paths else "other", status, seconds)

    # --- what models answer ----------------------------------------------------------------------

    async def _predict(self, request: Request) -> Response:
        served, body = await self._read_request(request, "predict")
        examples = served.model.examples(self._texts_in(body))
        task = served.model.task
        for number, example in enumerate(examples, 1):
            self._check_size(sum(map(len, task.inputs(example))) if task else 0, number)
        answers = await self._answers(request, served.worker.ask(served.kinds["predict"], examples))
        if None in answers:
            raise NotFiniteError(f"texts, line {answers.index(None) + 1}: the answer")
        return JSONResponse({"predictions": answers})

    async def _embed(self, request: Request) -> Response:
        served, body = await self._read_request(request, "embed")
        texts = self._texts_in(body)
        for number, example in enumerate(text_examples(texts), 1):
            self._check_size(len(example.text) + len(example.pair or ""), number)
        vectors = await self._answers(request, served.worker.ask(served.kinds["embed"], texts))
        for number, vector in enumerate(vectors, 1):
            if not all(map(math.isfinite, vector)):
                raise NotFiniteError(f"texts, line {number}: the vector")
        return JSONResponse({"vectors": vectors})

    async def _generate(self, request: Request) -> Response:
        served, body = await self._read_request(request, "generate")
        prompt = text_of(Record(1, body), "prompt", "the body")
        self._check_size(len(prompt), 0)
        beside, streams = ("prompt", "model", "stream"), body.get("stream") or False
        if not isinstance(streams, bool):
            raise HTTPException(422, f"stream: expected true or false, got {streams!r:.60}")
        keys = {key: value for key, value in body.items() if key not in beside}
        continuation = served.model.continuation(prompt, **keys)
        stream = _Stream(continuation, monotonic() + self._limits.timeout_seconds)
        job = served.worker.ask(served.kinds["generate"], [stream])
        if streams:
            events = self._events(stream, job)
            return StreamingResponse(events, media_type="text/event-stream")
        try:
            await self._answers(request, job)
        finally:
            stream.is_given_up.set()
        return JSONResponse({"text": stream.continuation.texts[0].text, **stream.ending})

    async def _events(self, stream: "_Stream", job: Job) -> AsyncIterator[str]:
        """Yield what is added to a text, and then how it ended."""
        job.answers.add_done_callback(lambda _: stream.pieces.put_nowait(None))
        try:
            while piece := await asyncio.wait_for(
                stream.pieces.get(), stream.deadline - monotonic()
            ):
                yield _event({"text": piece})
            job.answers.result()
            yield _event(stream.ending, "end")
        except Exception as error:  # the answer has begun: there is no other status to give
            yield _event({"error": _status_and_reason(error)[1]}, "error")
        finally:
            stream.is_given_up.set()
            job.answers.cancel()

    # --- how it is described ----------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers=_PAGE_HEADERS)

    async def _health(self, request: Request) -> Response:
        if self.draining:
            return JSONResponse({"status": "draining"}, 503)
        return JSONResponse({"status": "ok"})

    async def _labels(self, request: Request) -> Response:
        served = self._find_model(request.query_params.get("model"))
        task = served.model.task
        return JSONResponse({
            "model": served.name,
            "models": self.names,
            "task": None if task is None else task.name,
            "abilities": [*served.kinds],
            "labels": [*served.model.labels],
            "inputs": [field._asdict() for field in input_fields(task, served.kinds)],
        })  # fmt: skip

    async def _metrics_text(self, request: Request) -> Response:
        waiting = {name: served.worker.waiting for name, served in self._models.items()}
        text = self._metrics.exposition(waiting, self.in_flight)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(self._interface)

    # --- parts of a request ----------------------------------------------------------------------

    async def _read_request(self, request: Request, kind: str) -> tuple[Served, dict[str, Any]]:
        """Return the model that is asked and the object in a request."""
        body = await asyncio.wait_for(self._read_body(request), self._limits.timeout_seconds)
        try:
            parsed = parse_json(body.decode("utf-8"))
        except (UnicodeDecodeError, UnreadableError) as error:
            raise HTTPException(400, f"the body: expected a JSON object; {error}") from error
        served = self._find_model(parsed.get("model"))
        if kind not in served.kinds:
            can = list_names(f"/{ability}" for ability in served.kinds)
            raise HTTPException(404, f"/{kind}: {served.name} cannot; it answers {can}")
        known = request_keys(self._interface, f"/{kind}")
        if wrong := next((key for key in parsed if key not in known), None):
            raise HTTPException(422, f"{wrong[:100]}: no such key.{did_you_mean(wrong, known)}")
        return served, parsed

    async def _read_body(self, request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._limits.max_bytes:
                most = f"{self._limits.max_bytes:,}"
                raise HTTPException(413, f"the body: more than {most} bytes; see serve.max_bytes")
        return bytes(body)

    def _find_model(self, name: Any) -> Served:
        if name is None:
            return next(iter(self._models.values()))
        if not isinstance(name, str) or name not in self._models:
            close = did_you_mean(str(name), self._models)
            raise HTTPException(404, f"model: none is called {name!r:.100}.{close}")
        return self._models[name]

    def _texts_in(self, asked: Mapping[str, Any]) -> list[Any]:
        texts, most = asked.get("texts"), self._limits.max_texts
        if not isinstance(texts, list):
            raise HTTPException(422, 'texts: expected a list, such as {"texts": ["a text"]}')
        if len(texts) > most:
            raise HTTPException(422, f"texts: {len(texts):,}, the most is {most:,}")
        return texts

    def _check_size(self, characters: int, number: int) -> None:
        most = self._limits.max_characters
        if characters > most:
            where = f"texts, line {number}" if number else "prompt"
            raise HTTPException(422, f"{where}: {characters:,} characters, the most is {most:,}")

    async def _answers(self, request: Request, job: Job) -> list[Any]:
        """Wait for answers, which are given up when it takes too long or nobody waits for them."""
        gone, limit = asyncio.ensure_future(_disconnected(request)), self._limits.timeout_seconds
        try:
            await asyncio.wait((job.answers, gone), timeout=limit, return_when=FIRST_COMPLETED)
            if job.answers.done():
                return job.answers.result()
            raise ClientDisconnect if gone.done() else TimeoutError
        finally:
            gone.cancel()
            job.answers.cancel()


async def _disconnected(request: Request) -> None:
    """Return once nobody waits for an answer any more; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Guard:
    """Stands before all: refuses, and counts."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request, began, status = Request(scope), perf_counter(), 500

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self._service.in_flight += 1
        try:
            answer = self._service.refusal(request) or self._app
            await answer(scope, receive, send_noting_status)
        finally:
            self._service.in_flight -= 1
            self._service.count_request(scope["path"], status, perf_counter() - began)


class _Stream:
    """A text that a model's thread makes, and an answer reads while it grows."""

    def __init__(self, continuation: Continuation, deadline: float) -> None:
        self.continuation, self.deadline = continuation, deadline
        self.pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self.is_given_up = threading.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def ending(self) -> dict[str, Any]:
        """How many tokens it has, and what ended it."""
        text = self.continuation.texts[0]
        return {"tokens": text.tokens, "ended": text.finish_reason or self.continuation.limit}

    def run(self) -> None:
        """Make it; called in the thread of the model."""
        self.continuation.run(self._show)

    def _show(self, text: str) -> None:
        if self.is_given_up.is_set() or monotonic() > self.deadline:
            raise TimeoutError
        if text:
            self._loop.call_soon_threadsafe(self.pieces.put_nowait, text)


def _event(data: Mapping[str, Any], name: str = "") -> str:
    """Return a server-sent event."""
    kind = f"event: {name}\n" if name else ""
    return f"{kind}data: {json.dumps(data, ensure_ascii=False)}\n\n"


def _error(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    printable = reason.encode("utf-8", "replace").decode()  # it may name half a surrogate pair
    return JSONResponse({"error": printable}, status, headers)


_STATUSES: Mapping[type[Exception], tuple[int, str]] = {
    TimeoutError: (504, "there is no answer in time; see serve.timeout_seconds"),
    QueueFullError: (429, "so many texts wait already; ask again, see serve.queue"),
    ClientDisconnect: (400, "the request has no end, or nobody waits for its answer"),
    NotFiniteError: (500, ""),
    TransferError: (422, ""),
}
"""What errors are answered with; "" stands for what they say."""


def _status_and_reason(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    for kind, (status, reason) in _STATUSES.items():
        if isinstance(error, kind):
            return status, reason or str(error)
    return 500, cause_and_cure(error)[0] or "a fault of the server; its log says more"


def _failure(request: Request, error: Exception) -> Response:
    status, reason = _status_and_reason(error)
    headers = {"Retry-After": "1"} if status == 429 else None
    return _error(status, reason, headers)
