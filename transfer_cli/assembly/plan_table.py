"""The plan of a run as a page: stages, their layer groups and rates, and new tensors."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from transfer_cli.adaptation.plans import StagePlan
from transfer_cli.assembly.blueprint import Blueprint, has_fixed_features
from transfer_cli.assembly.exports import exports_as
from transfer_cli.engine.cost import Amounts, Prices, amounts_of_texts, flops_of, prices_of
from transfer_cli.errors import listed
from transfer_cli.model.added import added_rates
from transfer_cli.model.transfer_model import LayerGroup
from transfer_cli.report import formats
from transfer_cli.seeds import ExampleNoise
from transfer_cli.terminal import BLANK, Entry, Page, Piece, Pieces, Renderable

_COLUMN = 52
"""The column in which layer groups and their rates begin."""


def plan_page(blueprint: Blueprint) -> Page:
    """Return the plan: stages with what trains at which rates, and where tensors come from."""
    sizes = blueprint.sizes
    titles = f"{'stage':5}  {'steps':>15}  {'parameters that train':>26}"
    blocks: list[Renderable] = [
        Entry(
            [],
            [
                Piece(f"{sizes.total_steps:,} steps", "heading"),
                f" of {blueprint.loop.batch} sequences, {sizes.steps_per_epoch:,} an epoch, "
                f"{len(blueprint.stage_plans)} stage(s){blueprint.at_most}",
            ],
            0,
        ),
        BLANK,
        Entry([Piece(titles, "heading")], [Piece("groups and their rates", "heading")], _COLUMN),
    ]
    parameters = {name: p.numel() for name, p in blueprint.model.named_parameters()}
    total = sum(parameters.values())
    for number, stage in enumerate(blueprint.stage_plans):
        moving = sum(parameters[name] for name in stage.trains)
        steps = f"{stage.begin + 1:,}-{stage.end:,}"
        share = f"{moving:,} ({100 * moving / total:.2f} %)"
        until = f", or {stage.patience} validations without a better one" if stage.patience else ""
        for row, (groups, rates) in enumerate(_rates(blueprint, stage)):
            head = f"{number + 1:5}  {steps:>15}  {share:>26}" if row == 0 else ""
            text: Pieces = [Piece(f"{groups}:", "name"), f" {rates}", until if row == 0 else ""]
            blocks.append(Entry([head], text, _COLUMN))
    return Page(
        *blocks, BLANK, *_shared(blueprint), *_tensors(blueprint),
        fact("exports", exports_as(blueprint)),
    )  # fmt: skip


def fact(name: str, text: str) -> Entry:
    """Return a named line of the plan; a long text is wrapped below itself."""
    return Entry([Piece(f"{name}: ", "heading")], [text], len(name) + 2)


def _shared(blueprint: Blueprint) -> list[Renderable]:
    shape, start = blueprint.model.backbone.shape, blueprint.start
    if start is not None and start.layers is not None:
        picked = ", ".join(map(str, start.layers))
        return [fact("blocks", f"{picked} of {start.folder} (student.layers)")]
    if shape.distinct_blocks == shape.depth:
        return []
    said = f"{shape.distinct_blocks} at {shape.depth} places, with whatever is added to them"
    return [fact("blocks", f"{said} (model.share={shape.share})")]


def _rates(blueprint: Blueprint, stage: StagePlan) -> list[tuple[str, str]]:
    """Return each run of neighbouring groups that train at the same rates, and those rates."""
    scheduler = blueprint.lr_scheduler
    # Thousands of steps in between: the peak of a warm-up is looked for in steps near its end too.
    ahead = scheduler.schedule.warmup_steps(scheduler.total)
    looked_at = {*np.linspace(stage.begin, stage.end - 1, 2000).astype(int).tolist(), ahead - 1}
    course = [
        scheduler.get_lr(step, begin=stage.begin, end=stage.end, factor=stage.rate)
        for step in sorted(looked_at)
        if stage.begin <= step < stage.end
    ]
    ends = course[0], course[-1], max(course)
    top = max(group.depth for group in blueprint.groups)
    own = added_rates(blueprint.model)

    def rates_of(group: LayerGroup) -> str:
        count, of = len(stage.trains & set(group.parameters)), len(group.parameters)
        if not count:
            return ""
        scale = blueprint.adaptation.layer_scale(group.name, group.depth, top)
        first, last, peak = (scale * multiplier for multiplier in ends)
        over = f"up to {peak:.3g}, then " if peak > 1.001 * max(first, last) else "to "
        part = "" if count == of else f" ({count} of {of} tensors)"
        apart = Counter(own[name] for name in group.parameters if name in own)
        times = "".join(
            f" ({number} of {of} tensors at {rate:g} times that)"
            for rate, number in sorted(apart.items())
        )
        return f"{first:.3g} {over}{last:.3g}{part}{times}"

    found = []
    for rates, members in groupby(blueprint.groups, key=rates_of):
        names = [group.name for group in members]
        if rates:
            found.append((names[0] + (f" ... {names[-1]}" if len(names) > 1 else ""), rates))
    return found


def _tensors(blueprint: Blueprint) -> list[Renderable]:
    report = blueprint.report
    if report is None:
        return [fact("tensors", "all new")]
    parameters = [name for name, _ in blueprint.model.named_parameters()]
    new = [name for name in parameters if name not in blueprint.inherited]
    blocks: list[Renderable] = [fact("tensors", f"{len(blueprint.inherited)} from the checkpoint")]
    for what, names in (("new", new), ("dropped", list(report.dropped))):
        if names:
            head = f"  {what}: "
            blocks.append(Entry([Piece(head, "name")], [listed(names, 8)], len(head)))
    return blocks


def keeps_states(planned: Blueprint) -> bool:
    """Return whether the frozen backbone will be passed once."""
    return planned.loop.cache_features and has_fixed_features(planned)


def of_full_texts(planned: Blueprint, length: int) -> tuple[Sequence[Prices], Amounts, str]:
    """Return what a step computes where each text has as many tokens as it may have.

    Returns:
        The prices of each stage, the amounts of a step, and in words what they are of.
    """
    planned.model.backbone.recompute(planned.loop.activation_checkpointing)
    prices = [prices_of(planned.model, stage.trains) for stage in planned.stage_plans]
    texts = planned.loop.batch
    scored, main = dict[str, int](), planned.losses[0].objective
    if main.predicts_tokens:
        tokens = torch.full((texts, length), main.info.vocabulary.size - 1)
        batch = {
            "tokens": tokens, "next_tokens": tokens, "mask": tokens >= 0,
            "index": torch.arange(texts),
        }  # fmt: skip
        scored = main.head_rows(main.prepare(batch, ExampleNoise(0, "train", 0)))
    earlier = planned.model.backbone.shape.recurrence if planned.remembers else 0
    amounts = amounts_of_texts(planned.model, texts, length, scored, earlier)
    after = f", after {earlier:,} that are remembered" if earlier else ""
    return prices, amounts, f"if each text has {length:,} tokens{after}"


def flops_text(planned: Blueprint, prices: Sequence[Prices], amounts: Amounts, how: str) -> str:
    """Return in words what the steps of each stage compute, and all of them together."""
    sizes, stages = planned.sizes, planned.stage_plans
    each = [flops_of(amounts, of_stage) for of_stage in prices]
    total = sum(found.done * (s.end - s.begin) for found, s in zip(each, stages, strict=True))
    rest = ""
    if keeps_states(planned):
        heads = {key: counts for key, counts in amounts.items() if key[0].startswith("heads.")}
        alone = flops_of(heads, prices[0]).done
        passed = min(sizes.total_steps, sizes.steps_per_epoch)
        total = (each[0].done - alone) * passed + alone * sizes.total_steps
        rest = ", the frozen backbone being passed once"
    said = f"a step takes {formats.flops(each[0].done)}"
    if len(stages) > 1:
        of_stages = (f"{formats.flops(e.done)} in stage {n}" for n, e in enumerate(each, start=1))
        said = f"a step takes {', '.join(of_stages)}"
    elif each[0].done != each[0].real:
        said += f", {formats.flops(each[0].real)} of it without padding and masks"
    return f"about {formats.flops(total)} for all {sizes.total_steps:,} steps{rest}; {said}, {how}"
