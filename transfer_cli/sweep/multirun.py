"""The loop over the jobs of a sweep: what is swept, how, and where the jobs run."""

from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override
from omegaconf import OmegaConf

from transfer_cli.config.compose import Composed, composed, parsed, without_hydras
from transfer_cli.config.literal import quoted
from transfer_cli.sweep.cluster import chosen_cluster
from transfer_cli.sweep.grid import Grid, words_of
from transfer_cli.sweep.jobs import Jobs
from transfer_cli.sweep.local import run_here
from transfer_cli.sweep.search import Search


def run_sweep(jobs: Jobs, folder: Path) -> None:
    """Run every job of a sweep, and return when all have ended."""
    jobs.sweep_dir = folder
    command, request = jobs.command, jobs.request
    first = composed(command, request, _words_of_first(jobs, folder))
    typed = without_hydras(request.overrides)
    swept = _swept_by_preset(first)
    preset = [f"{key}={values}" for key, values in swept.items()]
    # Of several for a key, the last counts: what is typed wins over what a preset sweeps.
    overrides = {
        override.get_key_element(): override
        for override in parsed(command, request, [*preset, *typed])
    }
    not_typed = frozenset(swept) - {word.partition("=")[0] for word in typed}
    cluster = chosen_cluster(first.hydra)
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
    request = jobs.request
    overrides = parsed(jobs.command, request, request.overrides)
    words = [_first(override, request.config_dir) for override in overrides]
    return [*words, f"hydra.sweep.dir={quoted(str(folder))}"]


def _first(override: Override, config_dir: Path | None) -> str:
    value = override.value()
    if isinstance(value, IntervalSweep):
        return f"{override.get_key_element()}={value.start}"
    if override.is_sweep_override():
        return words_of(override, config_dir)[0]
    return str(override.input_line)


def _swept_by_preset(first: Composed) -> dict[str, Any]:
    """Return what a preset sweeps: keys, and their values as they are typed."""
    swept: dict[str, Any] = {}
    # The first is what Hydra's own configs call it, which configs of one's own may hold.
    for node, key in ((first.hydra, "sweeper.params"), (first.config, "sweep.over")):
        values: Any = OmegaConf.to_container(OmegaConf.create(OmegaConf.select(node, key) or {}))
        swept |= values
    return swept
