"""Settings of every test run."""

import copy
import functools
import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

# Tiny models gain nothing from a second thread, and lose a lot when other work shares the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A first call of torch, or a busy machine, takes longer than Hypothesis likes.
settings.register_profile("transfer", deadline=None)
settings.load_profile("transfer")


def pytest_collection_finish():
    """Look through what the imports have made no more: it stays, and there is a lot of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _composed_once():
    """Let Hydra, which is slow, compose a config once, and read files and classes once.

    A first time, it composes only to learn whether the config itself asks for a sweep. Ours do not.
    """
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra._internal.hydra import Hydra

    from transfer_cli.config import schema

    read, known = FileConfigSource.load_config, {}

    def load_config(self, config_path):
        file = Path(self.path) / self._normalize_file_name(config_path)
        if not file.is_file():
            return read(self, config_path)
        found = file.stat()
        key = (self.provider, self.path, config_path, found.st_mtime_ns, found.st_size)
        if key not in known:
            known[key] = read(self, config_path)
        return copy.deepcopy(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileConfigSource, "load_config", load_config)
        patch.setattr(Hydra, "get_mode", lambda *_, **__: None)
        patch.setattr(schema, "register", functools.cache(schema.register))
        yield
