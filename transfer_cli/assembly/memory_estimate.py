"""What training takes of a process's memory, estimated, and the micro-batch that fits into it."""

from collections.abc import Mapping
from dataclasses import replace

from torch.optim import SGD

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.datasets import PreparedData
from transfer_cli.config.build import class_of
from transfer_cli.config.decided import with_values
from transfer_cli.engine import distributed
from transfer_cli.engine.precision import frozen_matrices
from transfer_cli.fitting import FILLED, free_bytes, rows_that_fit
from transfer_cli.model.block import FEED_FORWARDS
from transfer_cli.optim.lbfgs import HISTORY, LBFGS

STATES_PREFIX = "states of"
"""What the name of the part begins with that grows with a micro-batch."""


def with_micro_batch(blueprint: Blueprint) -> Blueprint:
    """Return the blueprint with `loop.micro_batch=auto` decided, alike in all processes.

    It is a process's whole share of a batch, or the largest half, quarter, ... of it that fits into
    the memory of its GPU that is free.
    """
    loop = blueprint.course.loop
    if loop.micro_batch != "auto":
        return blueprint
    share = -(-loop.batch // num_processes(blueprint.config.devices))
    room = FILLED * free_bytes(blueprint.precision.device)
    rows = rows_that_fit(share, room, lambda rows: sum(memory_parts(blueprint, rows).values()))
    rows = -distributed.all_reduce_max(-rows)
    micro_batch = rows if rows < share else None
    return replace(
        blueprint,
        config=with_values(blueprint.config, {"loop.micro_batch": micro_batch}),
        course=replace(blueprint.course, loop=replace(loop, micro_batch=micro_batch)),
    )


def num_processes(devices: int | str) -> int:
    """Return among how many processes a run divides a batch, begun already or not."""
    return max(distributed.world_size(), devices if isinstance(devices, int) else 1)


def bf16_weights(blueprint: Blueprint) -> set[str]:
    """Return the weights that a run keeps in bf16."""
    sharded = _shard_count(blueprint) > 1
    return frozen_matrices(
        blueprint.model, blueprint.precision, blueprint.omitted_weights, sharded=sharded
    )


def _shard_count(blueprint: Blueprint) -> int:
    """Return into how many parts weights are cut, and all that is kept of each."""
    config = blueprint.config
    return num_processes(config.devices) if config.parallel == "fsdp" else 1


def max_text_length(blueprint: Blueprint, prepared: Mapping[str, PreparedData]) -> int:
    """Return the tokens of the longest text that a run trains on: no batch is wider."""
    lengths = (part.lengths for part in prepared.values())
    return max(blueprint.most_tokens if of is None else int(of.max()) for of in lengths)


def memory_text(blueprint: Blueprint, length: int) -> str:
    """Return in words what training on texts of so many tokens takes of a process's memory."""
    parts = memory_parts(blueprint, length=length)
    processes = num_processes(blueprint.config.devices)
    listed = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in parts.items())
    per_process = f" in each of {processes} processes" if processes > 1 else ""
    kind = "float32, frozen matrices in bf16" if bf16_weights(blueprint) else "float32"
    return f"about {sum(parts.values()) / 2**20:,.0f} MiB in {kind}{per_process} ({listed})"


def memory_parts(
    blueprint: Blueprint, rows: int | None = None, length: int | None = None
) -> dict[str, int]:
    """Return what takes memory in training in a process, in bytes.

    Args:
        rows: Texts that pass at once; None: a micro-batch.
        length: Tokens of each; None: the most that there can be.
    """
    config, shards = blueprint.config, _shard_count(blueprint)
    adaptation, loop = blueprint.adaptation, blueprint.course.loop
    sizes = {name: p.numel() for name, p in blueprint.model.named_parameters()}
    ever = blueprint.course.ever_trains
    at_once = max(
        sum(sizes[name] for name in stage.trains) for stage in blueprint.course.stage_plans
    )
    copies = 0
    if adaptation.penalty is not None:
        inherited = sum(sizes[name] for name in blueprint.network.inherited)
        copies = (1 + hasattr(adaptation.penalty, "fisher")) * inherited
    averages = {"ema": 1, "last_k": loop.average_last}.get(loop.average or "", 0)
    shape = blueprint.model.backbone.shape
    share = -(-loop.batch // num_processes(config.devices))
    if rows is None:
        rows = min(int(loop.micro_batch or share), share)
    length = length or blueprint.most_tokens
    # Kept for the backward pass, a position: about 8 widths of attention and norms, inner layers.
    blocks = [
        int(group.name.rpartition(".")[2]) if group.name[-1].isdigit() else 0
        for group in blueprint.network.groups
        if ever & set(group.parameters) and not group.name.startswith("head.")
    ]
    # Gradients pass through the lowest block that trains and all above it.
    depth = sum(stack.depth for stack in shape.stacks) if shape.has_encoder else shape.depth
    lowest = shape.block_order.index(min(blocks)) if blocks and not shape.has_encoder else 0
    lowest = lowest if blocks else depth
    inner = FEED_FORWARDS[shape.feedforward_kind].kept_states * shape.feedforward
    block = 8 * shape.width + inner
    passed = depth - lowest
    # Of blocks that are computed again, the input stays, and all of one at a time.
    numbers = passed * shape.width + block if loop.activation_checkpointing else passed * block
    held = rows * length * numbers
    earlier = shape.recurrence if blueprint.carries_memory else 0
    if shape.projects_distances:  # scores by distance, in all, and their probabilities
        held += 3 * passed * rows * shape.heads * length * (earlier + length)
    half = sum(sizes[name] for name in bf16_weights(blueprint)) // 2
    parts = {
        "weights": sum(sizes.values()) // shards - half,
        "gradients": at_once // shards,
        "optimizer": _num_averages(blueprint) // shards,
        "averages": averages * sum(sizes[name] for name in ever) // shards,
        "copies of the start": copies // shards,
        f"{earlier} remembered positions": share * shape.depth * earlier * shape.width,
        f"{STATES_PREFIX} {rows} x {length} tokens": held,
    }
    float_bytes = 4  # of each number, in float32
    return {name: float_bytes * count for name, count in parts.items() if count}


def _num_averages(blueprint: Blueprint) -> int:
    """Return how many numbers the optimizer keeps of all weights that ever train."""
    options = blueprint.config.optimizer
    kind = class_of(options, "optimizer")
    usual = 2 if kind.__name__.endswith(("Adam", "AdamW")) else 1
    if kind is SGD:
        usual = int(options.get("momentum", 0) > 0)
    elif kind is LBFGS:  # within a step: earlier moves, and what they changed of the gradient
        usual = 2 * int(options.get("history", HISTORY))
    averages_of = getattr(kind, "num_averages", lambda weight, layer: usual)
    parameters = dict(blueprint.model.named_parameters())
    return sum(
        parameters[name].numel() * averages_of(parameters[name], group.name)
        for group in blueprint.network.groups
        for name in blueprint.course.ever_trains.intersection(group.parameters)
    )
