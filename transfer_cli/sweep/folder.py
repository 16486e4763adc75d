"""Chooses the folder of a sweep: a new one, or that of an earlier sweep to continue."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

from transfer_cli.errors import ConfigError
from transfer_cli.runs.atomic import make_stamped
from transfer_cli.runs.sweep import SWEEP, SweepDirectory
from transfer_cli.safe_files import UnreadableError
from transfer_cli.sweep.jobs import Jobs, typed_words

AUTO = "auto"


@contextmanager
def chosen_folder(jobs: Jobs) -> Iterator[Path]:
    """Yield the folder of a sweep: `run.dir`, or a new one below `run.root`.

    With `resume=auto` and no `run.dir`, it is that of the latest sweep with the same overrides. A
    new folder is created here, since several sweeps may start within a second; it is removed again
    if nothing was written to it.
    """
    request = jobs.request
    resume = request.value_of("resume") if jobs.makes_runs else None
    if resume not in (None, "null", AUTO):
        raise ConfigError(
            f"resume: a sweep goes on by resume=auto, and run.dir={resume} if that is where it lies"
        )
    typed = request.value_of("hydra.sweep.dir") or request.value_of("run.dir")
    if typed is not None:
        yield _path(typed)
        return
    below = _path(request.value_of("run.root") or "runs") / "sweeps" / jobs.command
    earlier = latest(below, jobs.command, typed_words(request)) if resume == AUTO else None
    if earlier is not None:
        yield earlier
        return
    created = [parent for parent in (below, *below.parents) if not parent.exists()]
    folder = make_stamped(below, "")
    try:
        yield folder
    finally:
        with suppress(OSError):  # raised by the first one that is not empty
            for parent in (folder, *created):
                parent.rmdir()


def latest(root: Path, command: str, words: tuple[str, ...]) -> Path | None:
    """Return the newest sweep below `root` with these overrides, in any order."""
    sweeps = []
    for file in root.glob(f"*/{SWEEP}"):
        with suppress(OSError, UnreadableError, ValueError):
            asked = SweepDirectory(file.parent).read_request()
            if asked.command == command and sorted(asked.words) == sorted(words):
                sweeps.append((datetime.fromisoformat(asked.began), file.parent))
    return max(sweeps)[1] if sweeps else None


def _path(typed: str) -> Path:
    value = OverridesParser.create().parse_override(f"key={typed}").value()
    return Path(str(value)).expanduser()
