"""Settings of every test run."""

import gc
import os
import signal

import pytest
from hypothesis import settings

# Tiny models gain nothing from a second thread, and lose a lot when other work shares the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What runs compute does not depend on how fast a machine is.
os.environ.setdefault("TRANSFER_PRECISION", "fp32")

# Commands are begun as from a terminal, also where the tests were begun in the background.
for number, usual in {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# A first call of torch, or a busy machine, takes longer than Hypothesis likes.
settings.register_profile("transfer", deadline=None)
settings.load_profile("transfer")


def pytest_collection_finish():
    """Look for garbage seldom, and not among what the imports have made: it stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


@pytest.fixture(scope="session", autouse=True)
def _composed_once():
    """Let Hydra, which is slow, put a config's files together once."""
    from tests.composing import compose_once

    with pytest.MonkeyPatch.context() as patch:
        compose_once(patch)
        patch.setattr(os, "fsync", lambda file: None)  # no test cuts the power
        yield
