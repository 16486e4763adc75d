"""One command on several processes of this machine, which are started here."""

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transfer_cli
from transfer_cli.config.literal import quoted
from transfer_cli.engine import distributed
from transfer_cli.engine.distributed.watch import new_run_id
from transfer_cli.errors import (
    EXIT_DIVERGED,
    EXIT_INTERRUPTED,
    EXIT_PRUNED,
    EXIT_STOPPED,
    EXIT_USER,
    ConfigError,
    PeerError,
    WorkerError,
    between,
)
from transfer_cli.runs.environment import available_cores, num_processes
from transfer_cli.terminal import leave_dead_terminal, without_ignored

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_FINAL_EXIT_CODES = (EXIT_USER, EXIT_DIVERGED, EXIT_PRUNED, EXIT_STOPPED, EXIT_INTERRUPTED)
"""Exit codes of a process after which another start would end in the same way."""


def start_workers(words: Sequence[str], processes: int, restarts: int) -> None:
    """Run a command on several processes of this machine, and wait for them.

    The launcher is torch's own (that of torchrun). A process that dies takes the others with it;
    then all of them are started again, as often as `restarts` says.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _prepare_environment(processes)
    # Each process logs its own error in a line; torch's launcher would add a dozen.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    for left in range(restarts, -1, -1):
        launch = elastic_launch(
            LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=processes,
                run_id=new_run_id(),
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                local_addr="127.0.0.1",
                max_restarts=0,
                signals_to_handle=",".join(
                    signal.Signals(n).name for n in without_ignored(_SIGNALS)
                ),
            ),
            sys.executable,
        )
        try:
            launch("-P", "-m", "transfer_cli", *words)
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            if failure.exitcode in _FINAL_EXIT_CODES or left == 0:
                raise _exit_error(failure.exitcode, failure.local_rank) from error
            log.warning(
                "process %d ended with %s; starting all %d again, %d time(s) left",
                failure.local_rank, _exit_name(failure.exitcode), processes, left - 1,
            )  # fmt: skip
        except SignalException as stop:
            leave_dead_terminal()
            code = EXIT_INTERRUPTED if stop.sigval == signal.SIGINT else EXIT_STOPPED
            raise PeerError("told to stop, and the processes have said where", code) from stop
        else:
            return


def requested_processes(config: Mapping[str, Any]) -> int:
    """Return how many processes `devices` asks for, and refuse numbers that cannot be."""
    devices = config["devices"]
    if devices == "auto" and distributed.started_by_torchrun():
        devices = int(os.environ["WORLD_SIZE"])
    devices = num_processes(devices, config["device"])
    # One process a GPU, and no machine has more of them than this; each takes half a GB.
    between("devices:", devices, 1, max(16, 2 * available_cores()), ConfigError)
    if devices > 1 and distributed.started_by_torchrun():
        world = int(os.environ["WORLD_SIZE"])
        if devices != world:
            raise ConfigError(
                f"devices: {devices} asked for, but torchrun has started {world}; leave devices out"
            )
    return devices


def starts_workers(devices: int) -> bool:
    """Return whether this process is to start others instead of working itself."""
    return devices > 1 and not distributed.started_by_torchrun()


def worker_overrides(typed: Sequence[str], folder: str | None) -> list[str]:
    """Return what was typed, with the run directory that a sweep has chosen for its job."""
    if folder is None:
        return list(typed)
    others = (word for word in typed if not word.startswith("run.dir="))
    return [*others, f"run.dir={quoted(folder)}"]


def _prepare_environment(processes: int) -> None:
    """Set the environment of the processes: their share of the cores, and the package's folder."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // processes)))
    # After a signal, torch kills a process after 30 seconds; a large model takes longer to save.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600")
    # Not the working folder, whose files could hide modules.
    place = str(Path(transfer_cli.__file__).parents[1])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([place, *(p for p in known if p and p != place)])


def _exit_error(code: int, number: int) -> Exception:
    if code > 0:
        return PeerError(f"process {number} failed", code)
    return WorkerError(
        f"process {number} was killed by {_exit_name(code)}, and the others were ended; if it took "
        "too much memory lower loop.micro_batch; the last checkpoint is whole: go on with "
        "resume=auto",
        128 - code,
    )


def _exit_name(code: int) -> str:
    names = {-number: number.name for number in signal.Signals}  # real-time ones have none
    return names.get(code, f"exit code {code}" if code >= 0 else f"signal {-code}")
