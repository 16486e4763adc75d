"""Settings of every test run."""

from hypothesis import settings

# A first call of torch, or a busy machine, takes longer than Hypothesis likes; the suite has a timeout.
settings.register_profile("transfer", deadline=None)
settings.load_profile("transfer")
