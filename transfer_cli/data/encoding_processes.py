"""Encodes the shards of a text in several processes.

Nobody hands out the work: each process goes over all shards and makes those that are missing and
not being made, so that other runs, and other machines with the same cache, share it as well.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from transfer_cli.data.encoding import Shard, TextEncoder
from transfer_cli.errors import RunError, TransferError
from transfer_cli.progress import More


def encode_in_processes(shards: Sequence[Shard], processes: int, threads: int, more: More) -> None:
    """Make what is missing of some shards, but for what another run is making.

    Args:
        shards: Of one tokenizer, in the order in which they are begun.
        processes: How many are started.
        threads: Of each.
        more: Is told how many bytes more are done.
    """
    # No fork: the tokenizers library has threads here already.
    context = multiprocessing.get_context("spawn")
    at_work: dict[Connection, SpawnProcess] = {}
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(threads, theirs), daemon=True)
            process.start()
            theirs.close()
            at_work[ours] = process
        for each in at_work:
            with suppress(OSError):  # it has died, and is heard to
                each.send(shards)
        while at_work:
            for connection in wait(list(at_work)):
                if isinstance(connection, Connection):
                    _hear(connection, at_work, more)
    finally:
        for process in at_work.values():
            process.terminate()
        for process in at_work.values():
            process.join()


def _hear(connection: Connection, at_work: dict[Connection, SpawnProcess], more: More) -> None:
    try:
        said = connection.recv()
    except (EOFError, OSError) as end:
        process = at_work.pop(connection)
        process.join()
        if process.exitcode:
            raise RunError(
                f"a process that encodes text ended with {process.exitcode} (below 0: a signal); "
                "if memory ran out, lower data.workers. What is encoded is kept: start again"
            ) from end
        return
    if isinstance(said, TransferError):
        raise said
    more(said)


def _work(threads: int, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that began it ends it
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(-number))  # leaves nothing half done
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Before the tokenizer comes: the library counts its threads when it first encodes.
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    shards: Sequence[Shard] = connection.recv()
    encoder = TextEncoder(shards[0].tokenizer, threads)
    try:
        for shard in shards:
            shard.kept_if_free(encoder, connection.send)
    except TransferError as error:
        connection.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
