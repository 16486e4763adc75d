"""Registers our launcher and sweepers with Hydra.

Hydra takes plugins only from a package `hydra_plugins`, which it searches when it starts, and into
which an editable install cannot put anything. So a module of that package is made here. Ours are
called `basic`, like Hydra's defaults, which they replace.
"""

import sys
from importlib import import_module
from types import ModuleType

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from transfer_cli.config.build import TARGET
from transfer_cli.config.schema import SWEEPERS as PACKAGE
from transfer_cli.config.schema import SweeperConfig
from transfer_cli.sweep.grid import Grid
from transfer_cli.sweep.jobs import Jobs
from transfer_cli.sweep.local import Local
from transfer_cli.sweep.search import Search


def register(jobs: Jobs) -> None:
    """Let Hydra run `jobs` by our launcher and sweepers."""
    plugins = Plugins.instance()
    module = _module()
    for kind in (Local, Grid, Search):
        kind.jobs = jobs
        kind.__module__ = PACKAGE
        setattr(module, kind.__name__, kind)
        plugins.register(kind)
    store = ConfigStore.instance()
    store.store(group="hydra/launcher", name="basic", node={TARGET: f"{PACKAGE}.Local"})
    store.store(group="hydra/sweeper", name="basic", node=SweeperConfig(f"{PACKAGE}.Grid"))


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
