"""`transfer plan COMMAND`: what a run would train when, how fast, from which tensors; no training.

The model is built on the meta device and of the checkpoint only the header is read, so a plan of a
large model takes no longer than one of a small one. Of the data only its size is needed.
"""

import time

import numpy as np
from omegaconf import DictConfig

from transfer_cli.adaptation.adaptation import Span
from transfer_cli.commands import compose, datasets, pretrained
from transfer_cli.commands.layout import (
    Layout,
    check_forgetting,
    inherits,
    lay_out,
    shape_of,
    sizes_of,
    warmup_problem,
)
from transfer_cli.commands.monitor import check_monitor
from transfer_cli.commands.resume import config_to_resume, find_run
from transfer_cli.data.tasks import TaskData
from transfer_cli.errors import ConfigError, listed
from transfer_cli.model.transfer_model import LayerGroup
from transfer_cli.objectives.base import Facts
from transfer_cli.optim.groups import Rates
from transfer_cli.terminal import BLANK, Block, Entry, Page, Piece, Pieces, show

_COLUMN = 52
"""Where groups and their rates stand beside a stage's steps."""

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
    show(_fact("memory", _memory_text(config, layout)))
    if config.plan.steps is not None:
        show(_fact("time", _time_text(config, command)))


def layout_without_weights(config: DictConfig, command: str) -> Layout:
    """Return the layout of a run on the meta device, with every check that needs no batch."""
    compose.machine(config)
    compose.base_rate(config)
    asked, chosen = compose.objectives(config), compose.adaptation(config)
    start = pretrained.start_of(config)
    check_forgetting(config, start)
    shape = compose.settled(shape_of(config, start, command), asked)
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
    compose.parameter_groups(layout.model, layout.groups, chosen)
    for loss in layout.losses:
        loss.objective.start(layout.model, layout.inherited)
    if chosen.penalty is not None and not layout.inherited:
        raise ConfigError(
            f"adaptation.penalty: {chosen.penalty.name} pulls towards pretrained weights, and "
            "nothing is inherited; give init_from=RUN, or adaptation/penalty=null"
        )
    return layout


def plan_text(config: DictConfig, layout: Layout) -> str:
    """Return the plan as it stands in the files of a run."""
    return str(plan_page(config, layout))


def plan_page(config: DictConfig, layout: Layout) -> Page:
    """Return the plan: stages with what trains at which rates, and where tensors come from."""
    sizes = layout.sizes
    steps = f"{sizes.total_steps:,} steps"
    titles = f"{'stage':5}  {'steps':>15}  {'parameters that train':>26}"
    blocks: list[Block] = [
        _below(
            [
                Piece(steps, "heading"),
                f" of {config.loop.batch} sequences, {sizes.steps_per_epoch:,} an epoch, "
                f"{len(layout.spans)} stage(s)",
            ]
        ),
        BLANK,
        Entry([Piece(titles, "heading")], [Piece("groups and their rates", "heading")], _COLUMN),
    ]
    parameters = {name: p.numel() for name, p in layout.model.named_parameters()}
    total = sum(parameters.values())
    for number, span in enumerate(layout.spans):
        moving = sum(parameters[name] for name in span.trains)
        steps = f"{span.begin + 1:,}-{span.end:,}"
        share = f"{moving:,} ({100 * moving / total:.2f} %)"
        until = f", or {span.patience} validations without a better one" if span.patience else ""
        for row, (groups, rates) in enumerate(_rates(config, layout, span)):
            head = f"{number + 1:5}  {steps:>15}  {share:>26}" if row == 0 else ""
            text: Pieces = [Piece(f"{groups}:", "name"), f" {rates}", until if row == 0 else ""]
            blocks.append(Entry([head], text, _COLUMN))
    return Page(*blocks, BLANK, *_tensors(layout))


def _below(text: Pieces) -> Entry:
    """Return a line of text that goes on below itself, a little to the right."""
    return Entry([], text, 0)


def _fact(name: str, text: str) -> Entry:
    return Entry([Piece(f"{name}: ", "heading")], [text], len(name) + 2)


def _rates(config: DictConfig, layout: Layout, span: Span) -> list[tuple[str, str]]:
    """Return each run of neighbouring groups that train at the same rates, and those rates."""
    chosen = compose.adaptation(config)
    rates = Rates(
        compose.base_rate(config),
        compose.schedule(config),
        layout.sizes.total_steps,
        per_stage=chosen.schedule_per == "stage",
    )
    # Thousands of steps in between: the peak of a warm-up is looked for in steps near its end too.
    ahead = compose.schedule(config).warmup_steps(layout.sizes.total_steps)
    looked_at = {*np.linspace(span.begin, span.end - 1, 2000).astype(int).tolist(), ahead - 1}
    course = [
        rates.at(step, begin=span.begin, end=span.end, factor=span.rate)
        for step in sorted(looked_at)
        if span.begin <= step < span.end
    ]
    ends = course[0], course[-1], max(course)
    top = max(group.depth for group in layout.groups)
    found: list[tuple[list[LayerGroup], str]] = []
    for group in layout.groups:
        count = len(span.trains & set(group.parameters))
        if not count:
            found.append(([group], ""))  # what is frozen must not be spanned by what trains
            continue
        part = (
            ""
            if count == len(group.parameters)
            else f" ({count} of {len(group.parameters)} tensors)"
        )
        scale = chosen.layer_scale(group.name, group.depth, top)
        first, last, peak = (scale * multiplier for multiplier in ends)
        over = f"up to {peak:.3g}, then " if peak > 1.001 * max(first, last) else "to "
        text = f"{first:.3g} {over}{last:.3g}{part}"
        if found and found[-1][1] == text:
            found[-1][0].append(group)
        else:
            found.append(([group], text))
    return [
        (groups[0].name + (f" ... {groups[-1].name}" if len(groups) > 1 else ""), text)
        for groups, text in found
        if text
    ]


def _tensors(layout: Layout) -> list[Block]:
    report = layout.report
    if report is None:
        return [_fact("tensors", "all new")]
    parameters = [name for name, _ in layout.model.named_parameters()]
    new = [name for name in parameters if name not in layout.inherited]
    blocks: list[Block] = [_fact("tensors", f"{len(layout.inherited)} from the checkpoint")]
    for what, names in (("new", new), ("dropped", list(report.dropped))):
        if names:
            head = f"  {what}: "
            blocks.append(Entry([Piece(head, "name")], [listed(names, 8)], len(head)))
    return blocks


def _memory_text(config: DictConfig, layout: Layout) -> str:
    """Return an estimate of the memory that training takes, and what it is made of."""
    chosen = compose.adaptation(config)
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
    from transfer_cli.commands.parts import put_together
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
