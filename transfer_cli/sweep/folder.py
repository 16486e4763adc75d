"""Where a sweep lies, and which earlier one goes on."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

from transfer_cli.config.flags import Request
from transfer_cli.config.launch import hydra_settings
from transfer_cli.errors import ConfigError
from transfer_cli.runs.sweep import SWEEP, SweepDirectory
from transfer_cli.safe_files import UnreadableError
from transfer_cli.sweep.jobs import Jobs, typed_words

AUTO = "auto"


def settings_of(jobs: Jobs) -> dict[str, str]:
    """Return Hydra's key for where a sweep lies, if that was not typed as such.

    With `resume=auto` and no `run.dir`, the latest sweep of the same words goes on.

    Raises:
        ConfigError: `resume` names a run, which a sweep cannot go on with.
    """
    request = jobs.request
    typed = request.value_of("hydra.sweep.dir")
    resume = request.value_of("resume") if jobs.makes_runs else None
    if resume not in (None, "null", AUTO):
        raise ConfigError(
            f"resume: a sweep goes on by resume=auto, and run.dir={resume} if that is where it lies"
        )
    if typed is not None:
        return {}
    found = None
    if resume == AUTO and request.value_of("run.dir") is None:
        below = root_of(request) / "sweeps" / jobs.command
        found = latest(below, jobs.command, typed_words(request))
    now = hydra_settings(jobs.command, request)["hydra.sweep.dir"]
    return {"hydra.sweep.dir": now if found is None else _quoted(found)}


def folder_of(request: Request, settings: Mapping[str, str]) -> Path:
    """Return the folder of a sweep, of which `settings_of` has returned the settings."""
    return _path(request.value_of("hydra.sweep.dir") or settings["hydra.sweep.dir"])


def root_of(request: Request) -> Path:
    """Return the folder of all runs."""
    return _path(request.value_of("run.root") or "runs")


def latest(root: Path, command: str, words: tuple[str, ...]) -> Path | None:
    """Return the newest sweep below a folder that was begun with these words, in any order."""
    found = []
    for file in root.glob(f"*/{SWEEP}"):
        with suppress(OSError, UnreadableError, ValueError):
            asked = SweepDirectory(file.parent).read_request()
            if asked.command == command and sorted(asked.words) == sorted(words):
                found.append((datetime.fromisoformat(asked.began), file.parent))
    return max(found)[1] if found else None


def _path(typed: str) -> Path:
    value = OverridesParser.create().parse_override(f"key={typed}").value()
    return Path(str(value)).expanduser()


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
