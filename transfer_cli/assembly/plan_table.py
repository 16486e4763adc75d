"""The plan of a run as a page: stages, their layer groups and rates, and new tensors."""

from collections import Counter
from collections.abc import Mapping
from itertools import groupby

import numpy as np

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.datasets import PreparedData
from transfer_cli.assembly.exports import export_description
from transfer_cli.assembly.memory_estimate import max_text_length, memory_text
from transfer_cli.errors import list_names
from transfer_cli.model.added import added_rates
from transfer_cli.model.transfer_model import LayerGroup
from transfer_cli.optim.schedules import StagePlan
from transfer_cli.terminal import BLANK, Entry, Page, Piece, Pieces, Renderable

_COLUMN = 52
"""The column in which layer groups and their rates begin."""


def plan_page(blueprint: Blueprint) -> Page:
    """Return the plan: stages with what trains at which rates, and where tensors come from."""
    sizes = blueprint.course.sizes
    titles = f"{'stage':5}  {'steps':>15}  {'parameters that train':>26}"
    blocks: list[Renderable] = [
        Entry(
            [],
            [
                Piece(f"{sizes.total_steps:,} steps", "heading"),
                f" of {blueprint.course.loop.batch} sequences, {sizes.steps_per_epoch:,} an epoch, "
                f"{len(blueprint.course.stage_plans)} stage(s){blueprint.time_limit_text}",
            ],
            0,
        ),
        BLANK,
        Entry([Piece(titles, "heading")], [Piece("groups and their rates", "heading")], _COLUMN),
    ]
    parameters = {name: p.numel() for name, p in blueprint.model.named_parameters()}
    total = sum(parameters.values())
    for number, stage in enumerate(blueprint.course.stage_plans):
        moving = sum(parameters[name] for name in stage.trains)
        steps = f"{stage.begin + 1:,}-{stage.end:,}"
        share = f"{moving:,} ({100 * moving / total:.2f} %)"
        until = f", or {stage.patience} validations without a better one" if stage.patience else ""
        for row, (groups, rates) in enumerate(_group_rates(blueprint, stage)):
            head = f"{number + 1:5}  {steps:>15}  {share:>26}" if row == 0 else ""
            text: Pieces = [Piece(f"{groups}:", "name"), f" {rates}", until if row == 0 else ""]
            blocks.append(Entry([head], text, _COLUMN))
    return Page(
        *blocks, BLANK, *_shared_blocks(blueprint), *_tensor_origins(blueprint),
        *([named_line("kernels", blueprint.kernels)] if blueprint.kernels else []),
        named_line("exports", export_description(blueprint)),
    )  # fmt: skip


def run_facts(plan: Blueprint, prepared: Mapping[str, PreparedData]) -> dict[str, str]:
    """Return the size of a run's model, data, course and memory, as its plan and its header say."""
    main, shape, loop = prepared["main"], plan.model.backbone.shape, plan.course.loop
    of_text = "blocks of text" if main.pairs is None else "pairs of texts"
    counts = {name: split.counts()["scored"] for name, split in main.splits.items()}
    sizes = " · ".join(f"{count:,} {name}" for name, count in counts.items())
    streams = "".join(
        f" · {split.counts()['scored']:,} {split.unit} in streams.{name}"
        for name, part in prepared.items()
        if name != "main" and (split := part.splits["train"])
    )
    labels = f", {len(main.labels)} labels" if main.labels else ""
    parameters = {name: p.numel() for name, p in plan.model.named_parameters()}
    total, ever = sum(parameters.values()), plan.course.ever_trains
    trained = sum(parameters[name] for name in ever)
    some = f", {trained:,} of them trained" if trained < total else ""
    rows = min(int(loop.micro_batch or loop.batch), loop.batch)
    cut = f" in portions of {rows}" if rows < loop.batch else ""
    expected = (plan.config.get("ladder") or {}).get("prediction") or {}
    foretold = "{loss:.3f} ({low:.3f} to {high:.3f}) on validation, by ladder.of"
    how = ", residual stream too" * loop.bf16_residual + ", compiled" * bool(loop.compile)
    return {
        "model": f"{total:,} parameters{some}, {shape.depth} blocks of width {shape.width}, "
        f"{shape.direction}",
        "data": f"{sizes} ({of_text if main.task is None else 'texts'}){labels}{streams}",
        "steps": f"{plan.course.sizes.total_steps:,} of {loop.batch} sequences{cut}, "
        f"{plan.course.sizes.steps_per_epoch:,} an epoch{plan.time_limit_text}",
        "on": f"{plan.precision.device}, {plan.precision.kind}{how}",
        "memory": memory_text(plan, max_text_length(plan, prepared)),
        **({"loss": foretold.format(**expected)} if expected else {}),
    }


def named_line(name: str, text: str) -> Entry:
    """Return a named line of the plan; a long text is wrapped below itself."""
    return Entry([Piece(f"{name}: ", "heading")], [text], len(name) + 2)


def _shared_blocks(blueprint: Blueprint) -> list[Renderable]:
    shape, start = blueprint.model.backbone.shape, blueprint.start.pretrained
    if start is not None and start.layers is not None:
        picked = ", ".join(map(str, start.layers))
        return [named_line("blocks", f"{picked} of {start.folder} (student.layers)")]
    if shape.distinct_blocks == shape.depth:
        return []
    text = f"{shape.distinct_blocks} at {shape.depth} places, with whatever is added to them"
    return [named_line("blocks", f"{text} (model.share={shape.share})")]


def _group_rates(blueprint: Blueprint, stage: StagePlan) -> list[tuple[str, str]]:
    """Return each run of neighbouring groups that train at the same rates, and those rates."""
    scheduler = blueprint.course.lr_scheduler
    # Thousands of steps in between: the peak of a warm-up is looked for in steps near its end too.
    ahead = scheduler.schedule.warmup_steps(scheduler.total)
    looked_at = {*np.linspace(stage.begin, stage.end - 1, 2000).astype(int).tolist(), ahead - 1}
    course = [
        scheduler.get_lr(step, stage)
        for step in sorted(looked_at)
        if stage.begin <= step < stage.end
    ]
    ends = course[0], course[-1], max(course)
    top = max(group.depth for group in blueprint.network.groups)
    factors = added_rates(blueprint.model)

    def rates_of(group: LayerGroup) -> str:
        count, of = len(stage.trains & set(group.parameters)), len(group.parameters)
        if not count:
            return ""
        scale = blueprint.adaptation.layer_scale(group.name, group.depth, top)
        first, last, peak = (scale * multiplier for multiplier in ends)
        over = f"up to {peak:.3g}, then " if peak > 1.001 * max(first, last) else "to "
        part = "" if count == of else f" ({count} of {of} tensors)"
        apart = Counter(factors[name] for name in group.parameters if name in factors)
        times = "".join(
            f" ({number} of {of} tensors at {rate:g} times that)"
            for rate, number in sorted(apart.items())
        )
        return f"{first:.3g} {over}{last:.3g}{part}{times}"

    rows = []
    for rates, members in groupby(blueprint.network.groups, key=rates_of):
        names = [group.name for group in members]
        if rates:
            rows.append((names[0] + (f" ... {names[-1]}" if len(names) > 1 else ""), rates))
    return rows


def _tensor_origins(blueprint: Blueprint) -> list[Renderable]:
    report = blueprint.network.report
    if report is None:
        return [named_line("tensors", "all new")]
    parameters = [name for name, _ in blueprint.model.named_parameters()]
    new = [name for name in parameters if name not in blueprint.network.inherited]
    blocks: list[Renderable] = [
        named_line("tensors", f"{len(blueprint.network.inherited)} from the checkpoint")
    ]
    for what, names in (("new", new), ("dropped", list(report.dropped))):
        if names:
            head = f"  {what}: "
            blocks.append(Entry([Piece(head, "name")], [list_names(names, 8)], len(head)))
    return blocks
