"""The process that serves: how it begins, and how it ends without losing an answer."""

import resource
import socket
from time import monotonic
from types import FrameType

import uvicorn

from transfer_cli.serving.app import Service
from transfer_cli.terminal import Line, print_out

_OPEN_FILES = 65_536
"""Open files, each connection being one; more than a shell usually allows."""


def run_server(service: Service, listening: socket.socket, patience_s: float) -> None:
    """Answer until a signal; then until all is answered that was begun, or patience ends."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    if now != resource.RLIM_INFINITY and now < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    config = uvicorn.Config(
        service.app,
        # In C: what reads requests takes turns with the thread of a model.
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    _Server(config, service, patience_s).run([listening])


class _Server(uvicorn.Server):
    """Goes on listening while it drains, to say so; a second signal does not wait."""

    def __init__(self, config: uvicorn.Config, service: Service, patience_s: float) -> None:
        super().__init__(config)
        self._service, self._patience_s, self._since = service, patience_s, 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say where it is, once it answers."""
        await super().startup(sockets)
        [listening] = sockets or []
        host, port = listening.getsockname()[:2]
        at = f"[{host}]" if ":" in host else host
        print_out(Line(f"{', '.join(self._service.names)}: http://{at}:{port} (Ctrl-C ends it)"))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.draining:
            self.should_exit = self.force_exit = True
        self._service.draining, self._since = True, monotonic()

    async def on_tick(self, counter: int) -> bool:
        """Find out whether it is time to end, each tenth of a second."""
        if self._service.draining:
            is_late = monotonic() - self._since > self._patience_s
            self.should_exit |= is_late or not self._service.in_flight
        return await super().on_tick(counter)
