"""What takes hours: `pytest tests/long`, perhaps with `--kills 7`, or a file of this folder.

No other call of pytest comes here (`norecursedirs`). Everything is made from the embedded sample,
offline, on CPU; Linux only. What a test has noted is printed at the end. `-n 2` runs two at a time.
"""

import signal

import pytest


def pytest_addoption(parser):
    long = parser.getgroup("long tests")
    long.addoption("--kills", type=int, default=2, help="of each scenario")
    long.addoption("--draw", type=int, default=0, help="another number: other moments of the kills")
    long.addoption("--processes", type=int, default=1, help="of a run")
    long.addoption("--sweep", type=int, default=0, help="each scenario is a sweep of so many jobs")
    long.addoption("--blows", nargs="+", choices=("data", "flip", "threads"), default=[])
    long.addoption("--signal", default="KILL", choices=("KILL", "TERM", "USR1", "INT"))
    long.addoption("--victim", default="all", choices=("all", "worker", "launcher"))
    long.addoption("--load", type=int, help="of a soak, in place of its own")


def pytest_configure(config):
    if config.getoption("--sweep") and config.getoption("--blows"):
        # A job that has not begun would take changed data for its own.
        raise pytest.UsageError("--blows are for runs, not for sweeps")


def pytest_terminal_summary(terminalreporter):
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                terminalreporter.write_line(f"{name:<22} {value}")


@pytest.fixture
def number(request):
    """Return the signal that is sent."""
    return signal.Signals[f"SIG{request.config.getoption('--signal')}"]
