"""Settings of every test run."""

from hypothesis import settings

# A first call of torch takes longer than Hypothesis likes; every test has a timeout of its own.
settings.register_profile("transfer", deadline=None)
settings.load_profile("transfer")
