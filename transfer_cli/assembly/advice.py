"""Settings that work, but probably not as intended: a line for each, with the key and the cure."""

import math
from collections.abc import Iterator

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.config.schema import MixingConfig

FEWEST_STEPS = 4
"""Steps from which on a stage is long enough to learn in, however small a part of an epoch.

With 500 questions of TREC-6, gradual unfreezing of MiniLM in 8 stages of 4 steps has 21.5 % error,
full fine-tuning of 32 steps 66.3; of 8 steps 8.8 and 11.9, of 12 steps 7.6 and 7.9 (three seeds).
"""

FEW_STEPS, ENOUGH_STEPS = 50, 80
"""Steps below which it is said that so many more bring more; measured in docs/results.md."""


def advice(plan: Blueprint) -> list[str]:
    """Return what to say of a run before it begins."""
    return [
        *_warmup_advice(plan), *_steps_advice(plan), *_texts_advice(plan), *_unread_advice(plan),
    ]  # fmt: skip


def _warmup_advice(plan: Blueprint) -> Iterator[str]:
    """Say so where a warm-up is as long as what it warms up, and never reaches its rate."""
    scheduler, lengths = plan.course.lr_scheduler, _stage_lengths(plan)
    parts = [("the run", scheduler.total)]
    if scheduler.per_stage:
        parts = [(f"stage {number}", steps) for number, steps in enumerate(lengths, 1)]
    for part, steps in parts:
        warmup = scheduler.schedule.warmup_steps(steps)
        if warmup >= steps > 1:
            yield (
                f"schedule.warmup: its {warmup} steps are as long as {part}, which has {steps}; "
                "make it shorter (a share such as 0.1 fits any run) or the run longer"
            )
            return


def _steps_advice(plan: Blueprint) -> Iterator[str]:
    loop, steps, lengths = plan.course.loop, plan.course.sizes.total_steps, _stage_lengths(plan)
    is_labelled, is_counted = plan.data.info["main"].task is not None, loop.steps is not None
    if is_labelled and not is_counted and loop.epochs is not None and steps < FEW_STEPS:
        epochs = math.ceil(loop.epochs * ENOUGH_STEPS / steps)
        yield (
            f"loop.epochs: {loop.epochs:g} of {plan.data.counts['main']:,} texts are {steps} "
            f"steps, few to learn in; loop.epochs={epochs} makes {ENOUGH_STEPS}"
        )
    if len(lengths) > 1 and min(lengths) < min(FEWEST_STEPS, plan.course.sizes.steps_per_epoch):
        yield (
            f"adaptation.plan: the shortest of {len(lengths)} stages has {min(lengths)} step(s), "
            "too few to learn in; make the run longer (loop.epochs, loop.steps), or the stages "
            "(the lengths in adaptation.plan, such as adaptation.plan.every)"
        )


def _texts_advice(plan: Blueprint) -> Iterator[str]:
    info, task = plan.data.info, plan.data.info["main"].task
    if task is not None and all(loss.objective.task != task.name for loss in plan.network.losses):
        yield (
            "objective: no loss reads the labels of data, only its texts; to learn the labels take "
            f"objective={task.objective}"
        )
    has_pairs = any(stream.pairs is not None for stream in info.values())
    if has_pairs and plan.model.backbone.num_segments <= 1:
        yield (
            "model.segments: nothing but the separator tells this model both texts of a pair "
            "apart; a fresh one learns them with model.segments=2"
        )


def _unread_advice(plan: Blueprint) -> Iterator[str]:
    """Say so of keys that nothing in this run reads."""
    usual, forgetting = vars(MixingConfig()), plan.config.forgetting
    changed = [f"mixing.{key}" for key in usual if plan.config.mixing[key] != usual[key]]
    if changed and plan.course.sizes.mixture is None:
        yield (
            f"{', '.join(changed)}: every step draws the main data, so nothing is mixed; give a "
            "stream steps of its own (streams.NAME without `with`), or leave it out"
        )
    if forgetting.data is None and forgetting.blocks is not None:
        yield (
            "forgetting.blocks: nothing is measured without a text; give forgetting.data=source, "
            "or leave it out"
        )


def _stage_lengths(plan: Blueprint) -> list[int]:
    return [stage.end - stage.begin for stage in plan.course.stage_plans]
