"""Checks the environment variables that say how many processes and threads there are.

They are read by torch, which ends with a traceback, waits for processes that never come, or counts
on something else.
"""

import re
from collections.abc import Mapping

from transfer_cli.errors import ConfigError, between

MOST_THREADS = 1024
"""Of a process: more would be a slip, and the system might refuse them in the middle of a run."""

_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""With all of these, this process is one of several (`engine.distributed`)."""

_NUMBERS = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 1}
"""What is a number, and what stands for one that is missing."""


def check_variables(environment: Mapping[str, str]) -> None:
    """Refuse numbers of processes and threads that cannot be."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        for count in environment.get(name, "1").split(","):  # one for each level of nesting
            between(f"{name}:", _number(name, count), 1, MOST_THREADS, ConfigError)
    numbers = {n: _number(n, environment.get(n, str(default))) for n, default in _NUMBERS.items()}
    if all(name in environment for name in _TORCHRUN_VARIABLES):
        world = numbers["WORLD_SIZE"]
        local = numbers["LOCAL_WORLD_SIZE"] if "LOCAL_WORLD_SIZE" in environment else world
        between("WORLD_SIZE:", world, 1, 2**20, ConfigError)
        between("LOCAL_WORLD_SIZE:", local, 1, world, ConfigError)
        between("RANK:", numbers["RANK"], 0, world - 1, ConfigError)
        between("LOCAL_RANK:", numbers["LOCAL_RANK"], 0, local - 1, ConfigError)
        between("MASTER_PORT:", numbers["MASTER_PORT"], 1, 65535, ConfigError)


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text):
        raise ConfigError(
            f"{name}: {text[:40]!r} in the environment is no number of processes or threads; "
            f"unset {name}, or start several processes with devices=N or torchrun"
        )
    return int(text)
