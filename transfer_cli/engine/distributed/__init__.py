"""Several processes at one run. `group` is the part of it that every caller needs."""

from transfer_cli.engine.distributed.group import (
    all_gather_text,
    all_reduce_max,
    all_reduce_sum,
    all_reduce_tensor,
    barrier,
    broadcast_text,
    is_main,
    local_rank,
    local_world_size,
    main_first,
    rank,
    started_by_torchrun,
    world_size,
)
from transfer_cli.engine.distributed.watch import is_lost_connection, new_run_id, process_group

__all__ = [
    "all_gather_text",
    "all_reduce_max",
    "all_reduce_sum",
    "all_reduce_tensor",
    "barrier",
    "broadcast_text",
    "is_lost_connection",
    "is_main",
    "local_rank",
    "local_world_size",
    "main_first",
    "new_run_id",
    "process_group",
    "rank",
    "started_by_torchrun",
    "world_size",
]
