"""Every combination of the values that were typed."""

import itertools
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from transfer_cli.config.build import check_options
from transfer_cli.config.check import check
from transfer_cli.config.flat import flat
from transfer_cli.errors import ConfigError, TransferError, listed
from transfer_cli.sweep.jobs import Jobs, shared
from transfer_cli.sweep.local import settings_of, threads_each

log = logging.getLogger(__name__)

_PARTS = ("model", "tokenizer", "data", "optimizer", "schedule", "adaptation")
"""Parts whose options are all their classes' own."""

_SCHEME = "adaptation"
"""The key whose values in a preset of `sweep` are all that there are: some do not fit each run."""

_DECIDE = ("data", "tokenizer", "streams")
"""The parts of a config that decide how text is encoded."""


class Planner(Sweeper):
    """The part that our sweepers share: they keep what Hydra hands to a sweeper."""

    jobs: ClassVar[Jobs]
    launcher: Launcher
    hydra_context: HydraContext
    config: DictConfig

    def __init__(
        self, params: Mapping[str, Any] | None = None, max_batch_size: int | None = None
    ) -> None:
        self._params = params or {}
        self._most = max_batch_size

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Take what Hydra hands to a sweeper."""
        self.hydra_context = hydra_context
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    @property
    def folder(self) -> Path:
        """The folder of the sweep."""
        return Path(self.config.hydra.sweep.dir)

    def overrides(self, typed: Sequence[str]) -> list[Override]:
        """Return all overrides as Hydra understands them; of several for a key, the last."""
        words = [*(f"{key}={value}" for key, value in self._params.items()), *typed]
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        return list(
            {each.get_key_element(): each for each in parser.parse_overrides(words)}.values()
        )

    def composed(self, all_jobs: Sequence[Sequence[str]]) -> list[DictConfig]:
        """Return the checked config of each job.

        Raises:
            ConfigError: A job's config is wrong; the message names the job.
        """
        common, found = shared(all_jobs), []
        for words in all_jobs:
            made = self.hydra_context.config_loader.load_sweep_config(self.config, list(words))
            with open_dict(made):
                del made["hydra"]  # as a command sees it
            try:
                check(made, self.jobs.command)
                for part in _added_to(words):
                    check_options(made[part], part)
            except TransferError as error:
                own = " ".join(word for word in words if word not in common)
                where = f" (in the job {own})" if len(all_jobs) > 1 else ""
                raise ConfigError(f"{error}{where}") from error
            found.append(made)
        return found

    def launch(self, todo: Sequence[Sequence[str]]) -> None:
        """Run a job for each list of overrides, and come back when all have ended."""
        step = self._most or len(todo) or 1
        for first in range(0, len(todo), step):
            for ended in self.launcher.launch(todo[first : first + step], initial_job_idx=first):
                # To look at it raises what went wrong in another process.
                _ = ended.return_value


class Grid(Planner):
    """Hydra's own combinations, every one of them checked before the first job starts."""

    def sweep(self, arguments: list[str]) -> None:
        """Run a job for each combination of values.

        Raises:
            ConfigError: A job's config is wrong, or a range is given.
        """
        overrides = self.overrides(arguments)
        for override in overrides:
            if override.is_interval_sweep():
                raise ConfigError(
                    f"{override.input_line}: a range is for a search; add sweep=search, or list "
                    "the values"
                )
        all_jobs = [list(words) for words in itertools.product(*map(words_of, overrides))]
        typed = {word.partition("=")[0] for word in arguments}
        if self.jobs.makes_runs and _SCHEME in self._params.keys() - typed:
            all_jobs = self._that_can_run(all_jobs)
        configs = self.composed(all_jobs)
        if not self.jobs.makes_runs:
            self.launch(all_jobs)
            return
        # Raises before anything is written.
        threads = threads_each(settings_of(configs[0].sweep), configs[0])
        say_what_changes_the_data(configs)
        self.launch([job.words for job in self.jobs.begin(self.folder, all_jobs, threads)])

    def _that_can_run(self, all_jobs: Sequence[list[str]]) -> list[list[str]]:
        """Return the jobs without the schemes that cannot run here, and say why each cannot.

        Raises:
            TransferError: None can; the error is that of the last.
        """
        schemes: dict[str, list[list[str]]] = defaultdict(list)
        for words in all_jobs:
            schemes[next(word for word in words if word.startswith(f"{_SCHEME}="))].append(words)
        found: list[list[str]] = []
        for scheme, jobs in schemes.items():
            try:
                [config] = self.composed(jobs[:1])
                self.jobs.try_out(config, self.jobs.command)
                found += jobs
            except TransferError as error:
                log.warning("%s is left out: %s", scheme, error)
                last = error
        if not found:
            raise last
        return found


def words_of(override: Override) -> list[str]:
    """Return `KEY=VALUE` for each value of an override."""
    is_swept = override.is_sweep_override()
    values = override.sweep_string_iterator() if is_swept else [override.get_value_element_as_str()]
    return [f"{override.get_key_element()}={value}" for value in values]


def _added_to(words: Sequence[str]) -> set[str]:
    """Return the parts to which `+` adds options, which Hydra accepts unchecked.

    Checking one imports the class that it names, so the others are left out.
    """
    added = {word[1:].partition("=")[0].partition(".") for word in words if word.startswith("+")}
    return {part for part, dot, _ in added if dot and part in _PARTS}


def say_what_changes_the_data(configs: Sequence[DictConfig]) -> None:
    """Say which swept keys have text or tokenizer prepared more than once, and how often."""
    plain: list[Any] = [OmegaConf.to_container(config, resolve=True) for config in configs]
    found = [dict(flat({part: each.get(part) for part in _DECIDE})) for each in plain]
    keys = sorted({key for each in found for key in each})
    differ = [key for key in keys if len({json.dumps(each.get(key)) for each in found}) > 1]
    if not differ:
        return
    times = len({json.dumps([each.get(key) for key in differ]) for each in found})
    verb = "change" if len(differ) > 1 else "changes"
    log.info(
        "%s %s the data: it is prepared %d times, once for all jobs that agree in this",
        listed(differ), verb, times,
    )  # fmt: skip
