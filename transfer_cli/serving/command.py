"""`transfer serve`: answer over HTTP until a signal ends it."""

import re
import socket
from contextlib import closing
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transfer_cli.config.schema import ServeConfig, ServingConfig
from transfer_cli.errors import ConfigError, above_zero, at_least, between, pip_install
from transfer_cli.safe_files import UnreadableError, read_text

_PACKAGES = ("starlette", "uvicorn", "httptools", "uvloop", "prometheus_client")
_ORIGIN = re.compile(r"https?://[^/?#@\s]+/?")


def serve(config: ServeConfig) -> None:
    """Load the models and answer until SIGTERM or Ctrl-C; what is begun then is still answered."""
    names = _model_names(config.run)
    _check_limits(config.serve)
    token, origins = _read_token(config.serve.token_file), _checked_origins(config.serve.origins)
    if not all(map(find_spec, _PACKAGES)):
        raise ConfigError(f"serve: needs the packages of the extra serve: {pip_install('serve')}")
    with closing(_bind(config.host, config.port)) as listening:
        # Only now what takes seconds to import.
        from transfer_cli.api import load
        from transfer_cli.serving.app import Service
        from transfer_cli.serving.server import run_server

        models = {
            name: load(path, device=config.device, precision=config.precision, base=config.base)
            for name, path in names.items()
        }
        service = Service(
            models,
            config.serve,
            token=token,
            origins=origins,
            is_local=listening.getsockname()[0] in ("127.0.0.1", "::1"),
        )
        run_server(service, listening, config.serve.timeout_seconds)


def _model_names(run: Any) -> dict[str, str]:
    """Return what models are called in requests: the last part of a path if no other has it."""
    paths = [str(entry) for entry in (run if isinstance(run, list) else [run])]
    if not paths or len({*paths}) < len(paths):
        raise ConfigError(f"run: expected a run, or several different ones, got {run!r}")
    last = [Path(path).expanduser().resolve().name for path in paths]
    return {
        name if last.count(name) == 1 else path: path
        for name, path in zip(last, paths, strict=True)
    }


def _check_limits(limits: ServingConfig) -> None:
    for field in fields(limits):
        value = getattr(limits, field.name)
        if field.name == "timeout_seconds":
            above_zero("serve.timeout_seconds:", value, ConfigError)
        elif isinstance(value, int | float):
            least = 0 if field.name == "wait_ms" else 1
            at_least(f"serve.{field.name}:", value, least, ConfigError)
    if limits.queue < limits.max_texts:
        raise ConfigError(
            f"serve.queue: is {limits.queue}, and a request may have {limits.max_texts} texts "
            "(serve.max_texts); let it be as large"
        )


def _read_token(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        token = read_text(Path(file).expanduser()).strip()
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"serve.token_file: {file} cannot be read: {error}") from error
    if not token.isprintable() or not token.isascii() or " " in token or not token:
        raise ConfigError(f"serve.token_file: {file} has to be one line of letters and digits")
    return token


def _checked_origins(given: Any) -> list[str]:
    origins = given if isinstance(given, list) else [] if given is None else [given]
    for origin in origins:
        if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"serve.origins: expected such as [https://example.com], got {origin!r}"
            )
    return [origin.rstrip("/") for origin in origins]


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket at an address; nobody is answered before it listens."""
    between("port:", port, 0, 65_535, ConfigError)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host: {host!r} is no address of this machine ({error})") from error
    # Small answers are sent at once (TCP_NODELAY) where a socket says that it speaks TCP.
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(0)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"port: {host}:{port} cannot be had ({error.strerror}); another program may have it, "
            "port=0 takes a free one"
        ) from error
    return bound
