"""Configs composed once: Hydra takes longer for one than a tiny model for its training."""

import os
import pickle
from copy import copy
from dataclasses import replace
from pathlib import Path

from hydra._internal import config_loader_impl as loading
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.defaults_list import Overrides
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType


def compose_once(patch):
    """Have Hydra put the files of a config together once for each choice of options.

    The values that are typed are set in a copy of that, by Hydra itself. Files that have changed
    since are read again.
    """
    loaded, chosen, built = {}, {}, {}
    load, create, build = (
        ConfigRepository.load_config,
        loading.create_defaults_list,
        loading.ConfigLoaderImpl._compose_config_from_defaults_list,
    )
    addresses = _Addresses()

    def load_config(self, config_path):
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        key = (config_path, *addresses.of_config(source, config_path))
        if key not in loaded:
            loaded[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(loaded[key])  # noqa: S301 - made above

    def create_defaults_list(repo, config_name, overrides_list, **how):
        typed = Overrides(repo=repo, overrides_list=overrides_list)
        options = [
            override.input_line
            for override in overrides_list
            if override not in typed.config_overrides and not override.is_sweep_override()
        ]
        key = (config_name, *options, *how.items(), *addresses.of_all(repo))
        if key not in chosen:
            chosen[key] = create(repo, config_name, overrides_list, **how)
        return replace(chosen[key], config_overrides=typed.config_overrides)

    class Repository(loading.CachingConfigRepository):
        def __init__(self, delegate):
            # As Hydra's, which copies deeply what nobody changes.
            self.delegate, self.cache = copy(delegate), {}

    def compose_config(self, defaults, repo):
        # The list of defaults lives as long as `chosen`, so that its address tells it from others.
        if id(defaults) not in built:
            built[id(defaults)] = pickle.dumps(build(self, defaults, repo))
        return pickle.loads(built[id(defaults)])  # noqa: S301 - made above

    patch.setattr(ConfigRepository, "load_config", load_config)
    patch.setattr(loading, "CachingConfigRepository", Repository)
    patch.setattr(loading, "create_defaults_list", create_defaults_list)
    patch.setattr(loading.ConfigLoaderImpl, "_compose_config_from_defaults_list", compose_config)


class _Addresses:
    """What tells the configs that can be found now from those of another moment."""

    def __init__(self):
        self._nodes = {}

    def of_config(self, source, config_path):
        yield source and (source.provider, source.path)
        if _is(source, "file"):
            status = Path(source.path, source._normalize_file_name(config_path)).stat()
            yield status.st_mtime_ns, status.st_size
        elif _is(source, "structured"):
            name = source._normalize_file_name(config_path)
            yield self._of_node(ConfigStore.instance()._load(name))

    def of_all(self, repo):
        for source in repo.get_sources():
            yield source.provider, source.path
            if _is(source, "file"):
                yield from _files(source.path)
        yield from self._of_nodes(ConfigStore.instance().repo)

    def _of_nodes(self, nodes):
        for name, node in nodes.items():
            yield name
            if isinstance(node, dict):
                yield from self._of_nodes(node)
            else:
                yield self._of_node(node)

    def _of_node(self, node):
        self._nodes[id(node)] = node  # so that no other gets its address
        return id(node)


def _is(source, scheme):
    # Not by its class: Hydra makes another of the same name when it looks for plugins.
    return source is not None and source.scheme() == scheme


def _files(folder):
    for entry in os.scandir(folder) if Path(folder).is_dir() else ():
        if entry.is_dir():
            yield from _files(entry.path)
        else:
            status = entry.stat()
            yield entry.path, status.st_mtime_ns, status.st_size
