"""Settings of every test run."""

import functools
import gc
import os

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
    """Let Hydra compose a config once instead of twice, and learn our classes once: it is slow.

    The first time is only to learn whether the config itself asks for a sweep. Ours do not.
    """
    from hydra._internal.hydra import Hydra

    from transfer_cli.config import schema

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hydra, "get_mode", lambda *_, **__: None)
        patch.setattr(schema, "register", functools.cache(schema.register))
        yield
