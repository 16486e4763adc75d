"""What the user typed and chose."""

import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class CommandLine:
    """What the user typed and chose; nothing for a config that was not composed from a shell.

    Args:
        overrides: What was typed, but for words that are for the launcher of a sweep.
        plugins: Packages that were named with --plugin.
        began: When, by `time.perf_counter`; much is imported after that.
    """

    overrides: tuple[str, ...] = ()
    presets: Mapping[str, str] = field(default_factory=dict)
    config_dir: Path | None = None
    plugins: tuple[str, ...] = ()
    began: float = field(default_factory=time.perf_counter, compare=False)

    def next_command(self, typed: str) -> str:
        """Return a command line to type next: it needs the packages and configs that this had."""
        flags = [word for package in self.plugins for word in ("--plugin", package)]
        if self.config_dir is not None and not typed.startswith("report "):  # composes no config
            flags += ["--config-dir", str(self.config_dir)]
        return f"transfer {typed} {shlex.join(flags)}".rstrip()

    @classmethod
    def current(cls) -> "CommandLine":
        """Return that of the command at work."""
        return _current.get(CommandLine())

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Make this the command line of the command at work."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[CommandLine] = ContextVar("command_line")
