"""The loop over the jobs of a sweep: its folder, what is swept, how, and where the jobs run."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import IntervalSweep
from omegaconf import OmegaConf

from transfer_cli.config.compose import Composition, compose, parsed_overrides, without_hydra_keys
from transfer_cli.config.key_files import swept_words
from transfer_cli.config.literal import quoted
from transfer_cli.config.schema import LAUNCHERS
from transfer_cli.errors import ConfigError
from transfer_cli.runs.atomic import make_dated_folder
from transfer_cli.runs.sweep import SWEEP, SweepDirectory
from transfer_cli.safe_files import UnreadableError
from transfer_cli.sweeps.cluster import chosen_cluster
from transfer_cli.sweeps.grid import Grid, override_words
from transfer_cli.sweeps.jobs import Jobs, typed_words
from transfer_cli.sweeps.local import AUTO, run_here
from transfer_cli.sweeps.search import Search


def run_sweep(jobs: Jobs, folder: Path) -> None:
    """Run every job of a sweep, and return when all have ended."""
    jobs.sweep_dir = folder
    command, request = jobs.command, jobs.request
    first = compose(command, request, _words_of_first(jobs, folder))
    typed = without_hydra_keys(request.overrides)
    swept = _swept_by_preset(first)
    preset = [
        swept_words(command, {k: v})[0] if isinstance(v, list) else f"{k}={v}"
        for k, v in swept.items()
    ]
    # Of several for a key, the last counts: what is typed wins over what a preset sweeps.
    overrides = {
        override.get_key_element(): override
        for override in parsed_overrides(command, request, [*preset, *typed])
    }
    if "sweep" in overrides and overrides["sweep"].is_sweep_override():
        raise ConfigError("sweep: takes one preset, or all combinations of several: sweep=[A,B]")
    not_typed = frozenset(swept) - {word.partition("=")[0] for word in typed}
    launcher = first.hydra.runtime.choices["hydra/launcher"]
    # Below a root again: `submitit_folder` names `hydra.sweep.dir`.
    whole = OmegaConf.create({"hydra": first.hydra})
    settings: Any = OmegaConf.to_container(whole.hydra.launcher, resolve=launcher in LAUNCHERS)
    cluster = chosen_cluster(launcher, settings)
    kind = Search if OmegaConf.select(first.config, "sweep.search") else Grid
    kind(
        jobs,
        folder,
        overrides=list(overrides.values()),
        from_preset=not_typed,
        launch=partial(cluster.run if cluster is not None else run_here, jobs),
    ).run()


def _words_of_first(jobs: Jobs, folder: Path) -> list[str]:
    """Return the words of one job, whose config says how all are run."""
    request, words = jobs.request, [f"hydra.sweep.dir={quoted(str(folder))}"]
    for override in parsed_overrides(jobs.command, request, request.overrides):
        value = override.value()
        if isinstance(value, IntervalSweep):
            words.append(f"{override.get_key_element()}={value.start}")
        elif override.is_sweep_override():
            words.append(override_words(override, request.config_dir)[0])
        else:
            words.append(str(override.input_line))
    return words


def _swept_by_preset(first: Composition) -> dict[str, Any]:
    """Return what a preset sweeps: keys, and their values as they are typed."""
    swept: dict[str, Any] = {}
    # The first is what Hydra's own configs call it, which configs of one's own may hold.
    for node, key in ((first.hydra, "sweeper.params"), (first.config, "sweep.over")):
        values: Any = OmegaConf.to_container(OmegaConf.create(OmegaConf.select(node, key) or {}))
        swept |= values
    return swept


# --- its folder -----------------------------------------------------------------------------------


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
        yield _parsed_path(jobs, "run.dir", typed)
        return
    root = _parsed_path(jobs, "run.root", request.value_of("run.root") or "runs")
    below = root / "sweeps" / jobs.command
    earlier = latest_sweep(below, jobs.command, typed_words(request)) if resume == AUTO else None
    if earlier is not None:
        yield earlier
        return
    created = [parent for parent in (below, *below.parents) if not parent.exists()]
    folder = make_dated_folder(below, "")
    try:
        yield folder
    finally:
        with suppress(OSError):  # raised by the first one that is not empty
            for parent in (folder, *created):
                parent.rmdir()


def latest_sweep(root: Path, command: str, words: tuple[str, ...]) -> Path | None:
    """Return the newest sweep below `root` with these overrides, in any order."""
    sweeps = []
    for file in root.glob(f"*/{SWEEP}"):
        with suppress(OSError, UnreadableError, ValueError):
            request = SweepDirectory(file.parent).read_request()
            if request.command == command and sorted(request.words) == sorted(words):
                sweeps.append((datetime.fromisoformat(request.began).timestamp(), file.parent))
    return max(sweeps)[1] if sweeps else None


def _parsed_path(jobs: Jobs, key: str, typed: str) -> Path:
    [override] = parsed_overrides(jobs.command, jobs.request, [f"{key}={typed}"])
    if override.is_sweep_override():
        raise ConfigError(f"{key}: a sweep has one folder, got {typed}; name one")
    return Path(str(override.value())).expanduser()
