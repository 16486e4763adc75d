"""Commands in processes of their own, killed at a chosen moment.

The processes are forked from one that has imported everything, which spares each of them seconds,
and no test inherits the threads of another.
"""

import dataclasses
import functools
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

IMPORTED = ("transfer_cli.training.train", "torch._dynamo", "tensorboard.summary.writer")
"""What a command imports in the end, too."""

CONTEXT = multiprocessing.get_context("forkserver")
"""There is one server, and whoever starts it decides what it has imported: take this one."""
CONTEXT.set_forkserver_preload([__name__, *IMPORTED])

OPERATIONS = frozenset(
    {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link"}
)
"""Python's audit events that change what is in a folder; `open` counts where it writes."""


@dataclasses.dataclass(frozen=True)
class Moment:
    """When a command is killed; never, unless something is given.

    Args:
        operation: Before so many-th change to what is in the folder `run`, counted from 1.
        under: Only changes of paths in `run` that begin like this are counted.
        size_bytes: In the middle of writing a file, when that would grow larger.
    """

    operation: int | None = None
    under: str = ""
    size_bytes: int | None = None


NEVER = Moment()


@dataclasses.dataclass(frozen=True)
class Ended:
    """What is left of a command: the exit code, negative for a signal, and what it wrote.

    Args:
        operations: How often it changed what is in its run directory.
    """

    code: int
    text: str
    operations: int


@functools.cache
def _config(words: tuple[str, ...]) -> object:
    from transfer_cli.config import compose
    from transfer_cli.config.check import check_config
    from transfer_cli.config.flags import Request

    config = compose.load_config(words[0], Request(overrides=words[1:]))
    check_config(config, words[0])
    return config


@dataclasses.dataclass(frozen=True)
class Commands:
    """Runs training commands in a folder, with the run directory `run` in it.

    Args:
        prepare: Called first in each process.
    """

    prepare: Callable[[], object] = int

    def start(self, folder: Path, words: Sequence[str], moment: Moment = NEVER) -> BaseProcess:
        """Return a process that has begun a command, with `resume=auto`."""
        config = _config((*words, "run.dir=run", "resume=auto"))
        # The server may have been started by other tests, with other variables than now.
        cache = os.environ.get("TRANSFER_CACHE")
        arguments = (folder, words[0], config, moment, cache, self.prepare)
        process = CONTEXT.Process(target=_work, args=arguments)
        process.start()
        return process

    def run(self, folder: Path, words: Sequence[str], moment: Moment = NEVER) -> Ended:
        """Run a command to its end."""
        process = self.start(folder, words, moment)
        process.join(120)
        if process.exitcode is None:
            process.kill()
            process.join()
        count = folder / f"operations-{process.pid}"
        text = (folder / f"output-{process.pid}").read_text()
        return Ended(process.exitcode, text, int(count.read_text()) if count.exists() else 0)


def _work(
    folder: Path, command: str, config: object, moment: Moment, cache: str | None,
    prepare: Callable[[], object],
) -> None:  # fmt: skip
    os.chdir(folder)
    prepare()
    if cache is not None:
        os.environ["TRANSFER_CACHE"] = cache
    with Path(f"output-{os.getpid()}").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    import logging

    import torch
    from tqdm import tqdm

    from transfer_cli.training.train import train

    torch.set_num_threads(1)
    # Between processes it would be a semaphore, which a killed one leaves in the system.
    tqdm.set_lock(threading.RLock())
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    count = _kill_at(moment)
    train(config, command)
    Path(f"operations-{os.getpid()}").write_text(str(count[0]))


def _kill_at(moment: Moment) -> list[int]:
    """Arrange for the kill; return a count of operations that goes on."""
    import sys

    count, run = [0], str(Path("run").absolute())
    counted = run if not moment.under else f"{run}/{moment.under}"

    def watch(event: str, args: tuple) -> None:
        if event not in OPERATIONS or not isinstance(args[0], str | bytes | os.PathLike):
            return
        if event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if str(Path(os.fsdecode(args[0])).absolute()).startswith(counted):
            count[0] += 1
            if count[0] == moment.operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    if moment.size_bytes is not None:
        # Python ignores this signal, and then a file that grows too large is an error like any.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (moment.size_bytes, hard))
    return count
