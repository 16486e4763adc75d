"""Settings of every test run."""

import os

from hypothesis import settings

# Tiny models gain nothing from a second thread, and lose a lot when other work shares the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A first call of torch, or a busy machine, takes longer than Hypothesis likes.
settings.register_profile("transfer", deadline=None)
settings.load_profile("transfer")
