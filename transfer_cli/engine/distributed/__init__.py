"""Several processes at one run; most callers need only these functions."""

from transfer_cli.engine.distributed.group import all_gather_text as all_gather_text
from transfer_cli.engine.distributed.group import all_reduce_max as all_reduce_max
from transfer_cli.engine.distributed.group import all_reduce_sum as all_reduce_sum
from transfer_cli.engine.distributed.group import all_reduce_tensor as all_reduce_tensor
from transfer_cli.engine.distributed.group import barrier as barrier
from transfer_cli.engine.distributed.group import broadcast_text as broadcast_text
from transfer_cli.engine.distributed.group import is_main as is_main
from transfer_cli.engine.distributed.group import local_rank as local_rank
from transfer_cli.engine.distributed.group import local_world_size as local_world_size
from transfer_cli.engine.distributed.group import main_first as main_first
from transfer_cli.engine.distributed.group import rank as rank
from transfer_cli.engine.distributed.group import started_by_torchrun as started_by_torchrun
from transfer_cli.engine.distributed.group import world_size as world_size
from transfer_cli.engine.distributed.watch import is_lost_connection as is_lost_connection
from transfer_cli.engine.distributed.watch import new_run_id as new_run_id
from transfer_cli.engine.distributed.watch import process_group as process_group
