"""Checks what a folder of configs (`--config-dir`) lets Hydra itself call.

Before a command sees its config, Hydra makes the objects that `hydra.callbacks` names, of any
package, and those nested in the settings of its launcher and sweeper. The folder may come from a
stranger, so these classes must be trusted, as everything that `config.build` makes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from transfer_cli.config.build import TARGET, check_trusted
from transfer_cli.config.locate import conf_dir
from transfer_cli.errors import ConfigError

_HYDRAS_OWN = "hydra.experimental.callbacks."


def check_config_dir(
    folder: Path, command: str, overrides: list[str], *, version_base: str
) -> None:
    """Refuse a folder of configs that lets Hydra call something untrusted.

    Args:
        folder: The value of `--config-dir`.
        command: The name of the primary config.
        overrides: All overrides that Hydra is given, sweeps too.
        version_base: The version of Hydra whose defaults are used.

    Raises:
        ConfigError: The message names the key.
    """
    version.setbase(version_base)
    settings = _composed(folder, command, overrides).hydra
    for name, node in _plain(settings.callbacks).items():
        _check(node, f"hydra.callbacks.{name}", written_out=True)
    for part in ("launcher", "sweeper"):
        # Hydra looks at the class itself: it must be that of an installed plugin.
        for name, node in _plain(settings[part]).items():
            if name != TARGET:
                _check(node, f"hydra.{part}.{name}", written_out=False)


def check_environment() -> None:
    """Refuse a job whose config sets environment variables.

    Raises:
        ConfigError: One does.
    """
    settings = HydraConfig.get()
    typed = any("hydra.job.env_set" in word for word in settings.overrides.hydra)
    if settings.job.env_set and not typed:
        raise ConfigError(
            "hydra.job.env_set: a config must not set environment variables; type them in the "
            "shell, in front of the command"
        )


def _composed(folder: Path, command: str, overrides: list[str]) -> DictConfig:
    """Return the config that Hydra is going to compose, without calling anything."""
    search_path = create_config_search_path(str(conf_dir()))
    search_path.prepend("command-line", f"file://{folder.resolve()}", SearchPathQuery("schema"))
    loader = ConfigLoaderImpl(search_path)
    return loader.load_configuration(
        command, overrides, RunMode.MULTIRUN, validate_sweep_overrides=False
    )


def _plain(node: Any) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_dict(node) else {}
    return {str(name): each for name, each in found.items()}


def _check(node: Any, key: str, *, written_out: bool) -> None:
    if isinstance(node, Mapping):
        target = str(node.get(TARGET, _HYDRAS_OWN))
        if not target.startswith(_HYDRAS_OWN):
            check_trusted(target, key)
        node = list(node.values())
    for each in node if isinstance(node, list) else ():
        _check(each, key, written_out=written_out)
    # An interpolation may have another value later.
    if written_out and isinstance(node, str) and "${" in node:
        raise ConfigError(f"{key}: {node!r} must be written out")
