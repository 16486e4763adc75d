"""A command as one of the processes that torchrun, or we, have started."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import transfer_cli
from transfer_cli.config.roles import Role, role_of
from transfer_cli.engine import distributed
from transfer_cli.engine.distributed.watch import process_group
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import PeerError, RunError, TransferError


@contextmanager
def in_process_group(values: Mapping[str, Any]) -> Iterator[None]:
    """Do a command's work, given its config's values, as one of torchrun's processes if it is."""
    if not distributed.started_by_torchrun():
        yield
        return
    try:
        device = device_and_precision(values["device"], values["precision"]).device
    except TransferError as error:
        if distributed.local_rank() == 0:
            raise
        # All processes of the machine find the same; one of them says it.
        raise PeerError(str(error), error.exit_code) from error
    with process_group(device, values["timeout_minutes"]):
        _check_same_config({k: v for k, v in values.items() if Role.PER_PROCESS not in role_of(k)})
        yield


def _check_same_config(config: Mapping[str, Any]) -> None:
    digest = hashlib.blake2b(json.dumps(config).encode(), digest_size=8).hexdigest()
    digests = distributed.all_gather_text(f"{transfer_cli.__version__} {digest}")
    other = [number for number, text in enumerate(digests) if text != digests[0]]
    if other:
        raise RunError(
            f"process {other[0]} of {len(digests)} has another config or version than process 0; "
            "give all of them the same command line, config folders and package"
        )
