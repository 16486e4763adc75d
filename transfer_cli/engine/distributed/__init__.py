"""Several processes at one run: what every caller needs of it; `watch` makes and ends a group."""

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

__all__ = [
    "all_gather_text",
    "all_reduce_max",
    "all_reduce_sum",
    "all_reduce_tensor",
    "barrier",
    "broadcast_text",
    "is_main",
    "local_rank",
    "local_world_size",
    "main_first",
    "rank",
    "started_by_torchrun",
    "world_size",
]
