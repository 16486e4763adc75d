"""Runs that `reports.yaml` reports."""

from tests.fake_runs import write_run


def seeds(path):
    """Write two runs of two ways to adapt."""
    for name in ("full", "lora"):
        for seed in range(2):
            typed = (f"adaptation={name}", f"seed={seed}")
            write_run(path / f"{name}-{seed}", seed=seed, adaptation=name, typed=typed)


def finished(path):
    """Write a run."""
    write_run(path)
