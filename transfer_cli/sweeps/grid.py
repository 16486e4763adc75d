"""Every combination of the values that were typed."""

import itertools
import json
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Glob, Override
from omegaconf import DictConfig

from transfer_cli.config.build import check_options
from transfer_cli.config.check import check_config
from transfer_cli.config.compose import compose
from transfer_cli.config.describe import options
from transfer_cli.config.flat import flat_items
from transfer_cli.config.stored import plain_values
from transfer_cli.errors import ConfigError, TransferError, list_names
from transfer_cli.runs.sweep import SweepJob
from transfer_cli.sweeps.jobs import Jobs, shared_overrides
from transfer_cli.sweeps.local import Shares, shares_of

log = logging.getLogger(__name__)

_PARTS = ("model", "tokenizer", "data", "optimizer", "schedule", "adaptation")
"""Parts whose options are all their classes' own."""

_SCHEME = "adaptation"
"""A preset of `sweep` lists every value of this key; some do not fit every run."""

_DATA_PARTS = ("data", "tokenizer", "streams")
"""The parts of a config that decide how text is encoded."""


@dataclass
class Planner(ABC):
    """What a grid and a search share.

    Args:
        overrides: What was typed and what a preset sweeps; one for each key.
        launch: Runs jobs, which may share this machine, and returns when all have ended.
    """

    jobs: Jobs
    folder: Path
    overrides: Sequence[Override]
    from_preset: frozenset[str]
    launch: Callable[[Sequence[SweepJob], Shares | None], None]

    @abstractmethod
    def run(self) -> None:
        """Run every job of the sweep, and return when all have ended."""

    def override_words(self, override: Override) -> list[str]:
        """Return `KEY=VALUE` for each value of an override."""
        return override_words(override, self.jobs.request.config_dir)

    def checked_configs(self, all_jobs: Sequence[Sequence[str]]) -> list[DictConfig]:
        """Return the checked config of each job."""
        common, configs = shared_overrides(all_jobs), []
        for words in all_jobs:
            config = compose(self.jobs.command, self.jobs.request, words).config
            try:
                check_config(config, self.jobs.command)
                for part in _extended_parts(words):
                    check_options(config[part], part)
            except TransferError as error:
                differing = " ".join(word for word in words if word not in common)
                where = f" (in the job {differing})" if len(all_jobs) > 1 else ""
                raise ConfigError(f"{error}{where}") from error
            configs.append(config)
        return configs


class Grid(Planner):
    """All combinations, every one of them checked before the first job starts."""

    def run(self) -> None:
        """Run a job for each combination of values."""
        for override in self.overrides:
            if override.is_interval_sweep():
                raise ConfigError(
                    f"{override.input_line}: a range is for a search; add sweep=search, or list "
                    "the values"
                )
        values = []
        for override in self.overrides:
            words = self.override_words(override)
            values.append([*dict.fromkeys(words)])
            if len(values[-1]) < len(words):
                log.warning("%s: equal values are run once", override.input_line)
        all_jobs = [list(words) for words in itertools.product(*values)]
        if self.jobs.makes_runs and _SCHEME in self.from_preset:
            all_jobs = self._runnable_jobs(all_jobs)
        configs = self.checked_configs(all_jobs)
        if not self.jobs.makes_runs:
            numbered = enumerate(map(tuple, all_jobs))
            self.launch([SweepJob(number, words, words) for number, words in numbered], None)
            return
        # Raises before anything is written.
        first = configs[0]
        shares = shares_of(first.sweep, first.devices, first.device)
        log_data_changes(map(plain_values, configs))
        self.launch(self.jobs.begin(self.folder, all_jobs, shares.threads), shares)

    def _runnable_jobs(self, all_jobs: Sequence[list[str]]) -> list[list[str]]:
        """Return the jobs without the schemes that cannot run here, and say why each cannot."""
        schemes: dict[str, list[list[str]]] = defaultdict(list)
        for words in all_jobs:
            schemes[next(word for word in words if word.startswith(f"{_SCHEME}="))].append(words)
        able: list[list[str]] = []
        for scheme, jobs in schemes.items():
            try:
                [config] = self.checked_configs(jobs[:1])
                self.jobs.try_out(config, self.jobs.command)
                able += jobs
            except TransferError as error:
                log.warning("%s is left out: %s", scheme, error)
                last = error
        if not able:
            raise last
        return able


def override_words(override: Override, config_dir: Path | None = None) -> list[str]:
    """Return `KEY=VALUE` for each value; `config_dir` has options that `glob(...)` finds, too."""
    key = override.get_key_element()
    value: Any = override.value()  # whose annotation leaves out `glob(...)`
    if isinstance(value, Glob):
        names = sorted({o.name for o in options(config_dir) if o.group == override.key_or_group})
        values = value.filter(names)
        if not values:
            raise ConfigError(f"{override.input_line}: no option of {key} fits")
    elif override.is_sweep_override():
        values = list(override.sweep_string_iterator())
    else:
        values = [override.get_value_element_as_str()]
    return [f"{key}={choice}" for choice in values]


def _extended_parts(words: Sequence[str]) -> set[str]:
    """Return the parts to which `+` adds options, which Hydra accepts unchecked.

    Checking one imports the class that it names, so the others are left out.
    """
    added = {word[1:].partition("=")[0].partition(".") for word in words if word.startswith("+")}
    return {part for part, dot, _ in added if dot and part in _PARTS}


def log_data_changes(configs: Iterable[Mapping[str, Any]]) -> None:
    """Say which swept keys have text or tokenizer prepared more than once, and how often."""
    data = [dict(flat_items({part: node.get(part) for part in _DATA_PARTS})) for node in configs]
    keys = sorted({key for values in data for key in values})
    differ = [key for key in keys if len({json.dumps(values.get(key)) for values in data}) > 1]
    if not differ:
        return
    times = len({json.dumps([values.get(key) for key in differ]) for values in data})
    verb = "change" if len(differ) > 1 else "changes"
    log.info(
        "%s %s the data: it is prepared %d times, once for all jobs that agree in this",
        list_names(differ), verb, times,
    )  # fmt: skip
