"""`transfer plan COMMAND`: what a run would train when, how fast, from which tensors; no training.

The model is built on the meta device and of the checkpoint only the header is read, so a plan of a
large model takes no longer than one of a small one. Of the data only its size is needed.
"""

import time

from omegaconf import DictConfig

from transfer_cli.assembly import datasets
from transfer_cli.assembly.blueprint import (
    Layout,
    build_adaptation,
    check_forgetting,
    inherits,
    lay_out,
    shape_of,
    sizes_of,
    warmup_problem,
)
from transfer_cli.assembly.device import device_and_precision
from transfer_cli.assembly.init_from import start_of
from transfer_cli.assembly.losses import build_objectives, with_direction
from transfer_cli.assembly.monitor import check_monitor
from transfer_cli.assembly.optimizer import base_lr, parameter_groups
from transfer_cli.assembly.plan_table import fact, plan_page
from transfer_cli.data.tasks import TaskData
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.base import Facts
from transfer_cli.terminal import show
from transfer_cli.training.resume import config_to_resume, find_run

FLOAT = 4
"""Bytes of a number in float32."""


def plan_pretrain(config: DictConfig) -> None:
    """Print the plan of a `pretrain` run."""
    plan(config, "pretrain")


def plan_finetune(config: DictConfig) -> None:
    """Print the plan of a `finetune` run."""
    plan(config, "finetune")


def plan(config: DictConfig, command: str) -> None:
    """Print what a run would do; take `plan.steps` steps of it where its time is asked for."""
    resumed = find_run(config)
    if resumed is not None:
        config = config_to_resume(config, resumed, command)
    layout = layout_without_weights(config, command)
    show(plan_page(config, layout))
    show(fact("memory", _memory_text(config, layout)))
    if config.plan.steps is not None:
        show(fact("time", _time_text(config, command)))


def layout_without_weights(config: DictConfig, command: str) -> Layout:
    """Return the layout of a run on the meta device, with every check that needs no batch."""
    device_and_precision(config)
    base_lr(config)
    asked, chosen = build_objectives(config), build_adaptation(config)
    start = start_of(config)
    check_forgetting(config, start)
    shape = with_direction(shape_of(config, start, command), asked)
    if command == "pretrain":
        main, tokenizer = datasets.text(config, shape, start)
        counts = {"main": len(main.splits["train"].data)}
        facts = {"main": Facts(tokenizer)}
    else:
        source: TaskData = datasets.source(config, TaskData)
        datasets.block_length(source.length, shape.positions)
        labelled = source.load(datasets.data_folder(config.data_dir), config.seed)
        tokenizer = datasets.task_tokenizer(config, labelled, start)
        counts = {"main": len(labelled.splits["train"])}
        facts = {"main": Facts(tokenizer, labelled.labels)}
    for name in map(str, config.streams):
        part = datasets.stream(config, name, tokenizer, shape)
        counts[name] = len(part.splits["train"].data)
        facts[name] = Facts(tokenizer, part.labels)
    tensors = start.shapes() if start is not None and inherits(config, start) else None
    layout = lay_out(
        config, asked, chosen, facts, sizes_of(config, counts), shape, tokenizer, start, tensors,
        device="meta",
    )  # fmt: skip
    problem = warmup_problem(config, chosen, layout)
    if problem is not None:
        raise ConfigError(problem)
    check_monitor(config, layout.losses[0], tokenizer.size, shape.direction)
    # The groups alone: to build an optimizer, torch loads its compiler.
    parameter_groups(layout.model, layout.groups, chosen)
    for loss in layout.losses:
        loss.objective.start(layout.model, layout.inherited)
    if chosen.penalty is not None and not layout.inherited:
        raise ConfigError(
            f"adaptation.penalty: {chosen.penalty.name} pulls towards pretrained weights, and "
            "nothing is inherited; give init_from=RUN, or adaptation/penalty=null"
        )
    return layout


def _memory_text(config: DictConfig, layout: Layout) -> str:
    """Return an estimate of the memory that training takes, and what it is made of."""
    chosen = build_adaptation(config)
    sizes = {name: p.numel() for name, p in layout.model.named_parameters()}
    ever = frozenset[str]().union(*(span.trains for span in layout.spans))
    at_once = max(sum(sizes[name] for name in span.trains) for span in layout.spans)
    moments = 2 if str(config.optimizer.get("_target_", "")).endswith(("Adam", "AdamW")) else 1
    copies = 0
    if chosen.penalty is not None:
        copies = (1 + hasattr(chosen.penalty, "fisher")) * sum(sizes[n] for n in layout.inherited)
    shape = layout.model.backbone.shape
    rows = min(config.loop.micro_batch or config.loop.batch, config.loop.batch)
    length = config.data.get("length") or shape.positions
    # Kept for the backward pass, a position: about 8 widths of attention and norms, 2 inner layers.
    lowest = _lowest_that_trains(layout)
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


def _lowest_that_trains(layout: Layout) -> int:
    """Return the number of the lowest block that gradients have to pass through."""
    ever = frozenset[str]().union(*(span.trains for span in layout.spans))
    found = [
        int(group.name.rpartition(".")[2]) if group.name[-1].isdigit() else 0
        for group in layout.groups
        if ever & set(group.parameters) and not group.name.startswith("head.")
    ]
    return min(found, default=layout.model.backbone.shape.depth)


def _time_text(config: DictConfig, command: str) -> str:
    """Take a few steps of the run itself, and return what they say of its time."""
    # Only here is anything trained; to import what trains takes longer than to plan.
    from transfer_cli.assembly.run import put_together
    from transfer_cli.engine.train import StepLoader

    config.forgetting.data = None
    parts = put_together(config, command)
    steps = min(config.plan.steps, parts.total_steps)
    loader = StepLoader(parts.streams, parts.micro_batch, lambda: 0, parts.layout.sizes.mixture)
    seconds = []
    for number in range(steps):
        batches = loader.at(number)
        began = time.perf_counter()
        report = parts.step(batches, number)
        float(report.total)  # waits for the device
        seconds.append(time.perf_counter() - began)
    # The first step warms up; with one step alone there is nothing else.
    mean = sum(seconds[1:] or seconds) / max(1, len(seconds) - 1)
    return (
        f"{mean:.3g} s a step in the first stage, measured over {steps} steps on "
        f"{parts.precision.device}; {mean * parts.total_steps:,.0f} s for all "
        f"{parts.total_steps:,}, evaluations not counted"
    )
