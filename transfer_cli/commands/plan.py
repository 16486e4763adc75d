"""`transfer plan COMMAND`: what a run would train when, how fast, from which tensors; no training.

The model is built on the meta device and of the checkpoint only the header is read, so a plan of a
large model takes no longer than one of a small one. Of the data only its size is needed.
"""

import time
from functools import partial
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from transfer_cli.assembly.blueprint import Blueprint, draw
from transfer_cli.assembly.origins import Origins
from transfer_cli.assembly.plan_table import fact, plan_page
from transfer_cli.assembly.resumed_config import config_to_resume, find_run
from transfer_cli.config.command_line import CommandLine
from transfer_cli.terminal import print_out

if TYPE_CHECKING:
    from transfer_cli.assembly.run import TrainingRun

FLOAT = 4
"""Bytes of a number in float32."""


def plan(config: DictConfig, command: str) -> None:
    """Print what a run would do; with `plan.steps`, take so many steps to estimate its time."""
    typed = CommandLine.of_this_command().overrides
    resumed = find_run(config.resume, config.run.dir)
    origins = Origins(resumed, config.data_changed)
    if resumed is not None:
        config = config_to_resume(config, resumed, command, typed)
    blueprint = draw(config, command, typed, origins, device="meta")
    for loss in blueprint.losses:
        loss.objective.on_train_start(blueprint.model, blueprint.inherited)
    print_out(plan_page(blueprint))
    for warning in blueprint.warnings:
        print_out(fact("warning", warning))
    moments = 2 if str(config.optimizer.get("_target_", "")).endswith(("Adam", "AdamW")) else 1
    print_out(fact("memory", _memory_text(blueprint, moments, config.data.get("length"))))
    if config.plan.steps is not None:
        # Only here is anything trained; to import what trains takes longer than to plan.
        from transfer_cli.assembly.run import build_run

        config.forgetting.data = None
        run = build_run(config, command, typed, origins)
        print_out(fact("time", _time_text(run, config.plan.steps)))


plan_pretrain = partial(plan, command="pretrain")
plan_finetune = partial(plan, command="finetune")


def _memory_text(blueprint: Blueprint, moments: int, length: int | None) -> str:
    """Return an estimate of the memory that training takes, and what it is made of.

    Args:
        blueprint: Of the run.
        moments: Running averages that the optimizer has of each weight.
        length: Tokens of a text at most; None: as many as the model has positions.
    """
    chosen, loop = blueprint.adaptation, blueprint.loop
    sizes = {name: p.numel() for name, p in blueprint.model.named_parameters()}
    ever = frozenset[str]().union(*(stage.trains for stage in blueprint.stage_plans))
    at_once = max(sum(sizes[name] for name in stage.trains) for stage in blueprint.stage_plans)
    copies = 0
    if chosen.penalty is not None:
        copies = (1 + hasattr(chosen.penalty, "fisher")) * sum(
            sizes[n] for n in blueprint.inherited
        )
    shape = blueprint.model.backbone.shape
    rows = min(loop.micro_batch or loop.batch, loop.batch)
    length = length or shape.positions
    # Kept for the backward pass, a position: about 8 widths of attention and norms, 2 inner layers.
    blocks = [
        int(group.name.rpartition(".")[2]) if group.name[-1].isdigit() else 0
        for group in blueprint.groups
        if ever & set(group.parameters) and not group.name.startswith("head.")
    ]
    # Gradients pass through the lowest block that trains and all above it.
    lowest = min(blocks, default=shape.depth)
    block = 8 * shape.width + 2 * shape.feedforward
    held = rows * length * (shape.depth - lowest) * block
    parts = {
        "weights": sum(sizes.values()),
        "gradients": at_once,
        "optimizer": moments * sum(sizes[name] for name in ever),
        "copies of the start": copies,
        f"states of {rows} x {length} tokens": held,
    }
    listed = ", ".join(
        f"{name} {FLOAT * count / 2**20:,.0f} MiB" for name, count in parts.items() if count
    )
    return f"about {FLOAT * sum(parts.values()) / 2**20:,.0f} MiB in float32 ({listed})"


def _time_text(run: "TrainingRun", steps: int) -> str:
    """Take a few steps of the run itself, and return what they say of its time."""
    from transfer_cli.data.loader import StepDataLoader

    total = run.blueprint.sizes.total_steps
    steps = min(steps, total)
    loader = StepDataLoader(run.streams, run.micro_batch, lambda: 0, run.blueprint.sizes.mixture)
    seconds = []
    for number in range(steps):
        batches = loader.at(number)
        began = time.perf_counter()
        report = run.step(batches, number)
        float(report.total)  # waits for the device
        seconds.append(time.perf_counter() - began)
    # The first step warms up; with one step alone there is nothing else.
    mean = sum(seconds[1:] or seconds) / max(1, len(seconds) - 1)
    return (
        f"{mean:.3g} s a step in the first stage, measured over {steps} steps on "
        f"{run.blueprint.precision.device}; {mean * total:,.0f} s for all {total:,}, evaluations "
        "not counted"
    )
