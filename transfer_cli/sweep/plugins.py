"""Our own ways to sweep, as Hydra knows them.

Hydra takes plugins from a package `hydra_plugins` alone, which it searches when it starts, and in
which an editable install cannot put anything. So a module of that package is made here, and handed
to Hydra: what it calls `basic` is then ours, which everybody gets who chooses nothing else.
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from transfer_cli.config.schema import SWEEPERS as PACKAGE
from transfer_cli.sweep.grid import Grid
from transfer_cli.sweep.jobs import Jobs
from transfer_cli.sweep.local import Local
from transfer_cli.sweep.search import Search


@dataclass
class LocalConfig:
    """The launcher of jobs on this machine; `sweep.*` has its settings."""

    _target_: str = f"{PACKAGE}.Local"


@dataclass
class GridConfig:
    """The sweeper over every combination of values.

    Args:
        max_batch_size: How many jobs are handed to the launcher at once; None: all.
        params: Overrides beyond those that are typed, which win.
    """

    _target_: str = f"{PACKAGE}.Grid"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


def register(jobs: Jobs) -> None:
    """Have Hydra run the jobs of a sweep in our way.

    Args:
        jobs: What the sweep of this process runs.
    """
    plugins = Plugins.instance()
    module = _module()
    for kind in (Local, Grid, Search):
        kind.jobs = jobs
        kind.__module__ = PACKAGE
        setattr(module, kind.__name__, kind)
        plugins.register(kind)
    store = ConfigStore.instance()
    store.store(group="hydra/launcher", name="basic", node=LocalConfig)
    store.store(group="hydra/sweeper", name="basic", node=GridConfig)


def _module() -> ModuleType:
    """Return the module in which Hydra finds our classes."""
    parent, _, name = PACKAGE.rpartition(".")
    try:
        package = import_module(parent)
    except ImportError:  # no plugin of anybody is installed
        package = sys.modules[parent] = ModuleType(parent)
    module = sys.modules.setdefault(PACKAGE, ModuleType(PACKAGE))
    setattr(package, name, module)
    return module
