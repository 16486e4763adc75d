"""What the steps of a run will compute, by its blueprint, and how long that takes at least."""

import time
from collections.abc import Mapping, Sequence

import torch

from transfer_cli.assembly.blueprint import Blueprint, has_fixed_features
from transfer_cli.assembly.datasets import PreparedData
from transfer_cli.engine.cost import Amounts, Prices, amounts_of_texts, flops_of, prices_of
from transfer_cli.seeds import ExampleNoise

SLOWEST_FLOPS = 1e9
"""Floating-point operations that any CPU does in a second."""

MEASURED_SECONDS = 0.2
"""Seconds for which matrix products are measured."""


def caches_states(plan: Blueprint) -> bool:
    """Return whether the frozen backbone will be passed once."""
    return plan.course.loop.cache_features and has_fixed_features(plan)


def full_text_costs(plan: Blueprint, length: int) -> tuple[Sequence[Prices], Amounts, str]:
    """Return prices of each stage, amounts of a step of full texts, and what these are."""
    plan.model.backbone.set_activation_checkpointing(plan.course.loop.activation_checkpointing)
    prices = [prices_of(plan.model, stage.trains) for stage in plan.course.stage_plans]
    texts = plan.course.loop.batch
    scored, main = dict[str, int](), plan.network.losses[0].objective
    if main.predicts_tokens:
        tokens = torch.full((texts, length), main.info.vocabulary.size - 1)
        batch = {
            "tokens": tokens, "next_tokens": tokens, "mask": tokens >= 0,
            "index": torch.arange(texts),
        }  # fmt: skip
        scored = main.head_rows(main.prepare(batch, ExampleNoise(0, "train", 0)))
    earlier = plan.model.backbone.shape.recurrence if plan.carries_memory else 0
    amounts = amounts_of_texts(plan.model, texts, length, scored, earlier)
    after = f", after {earlier:,} that are remembered" if earlier else ""
    return prices, amounts, f"if each text has {length:,} tokens{after}"


def flops_of_run(plan: Blueprint, prices: Sequence[Prices], amounts: Amounts) -> int:
    """Return what all steps of a run compute, at the prices of each stage."""
    sizes, stages = plan.course.sizes, plan.course.stage_plans
    costs = [flops_of(amounts, of_stage).done for of_stage in prices]
    if not caches_states(plan):
        return sum(done * (s.end - s.begin) for done, s in zip(costs, stages, strict=True))
    heads = {key: counts for key, counts in amounts.items() if key[0].startswith("heads.")}
    alone = flops_of(heads, prices[0]).done
    passed = min(sizes.total_steps, sizes.steps_per_epoch)
    return (costs[0] - alone) * passed + alone * sizes.total_steps


def least_seconds(
    plan: Blueprint, prepared: Mapping[str, PreparedData], more_than: float
) -> float | None:
    """Return how long a CPU takes for all steps of a run, at the speed of its matrix products.

    A step does more than these, and takes longer. It is None where it is less than `more_than`.
    """
    lengths = prepared["main"].lengths
    length = plan.most_tokens if lengths is None else max(1, int(lengths.mean()))
    prices, amounts, _ = full_text_costs(plan, length)
    total = flops_of_run(plan, prices, amounts)
    if total < SLOWEST_FLOPS * more_than:
        return None
    shape = plan.model.backbone.shape
    dtype = torch.bfloat16 if plan.precision.kind == "bf16" else torch.float32
    states = torch.ones(512, shape.width, dtype=dtype)
    matrix = torch.ones(shape.width, shape.feedforward, dtype=dtype)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < MEASURED_SECONDS:
        states @ matrix
        done += 2 * states.numel() * shape.feedforward
    seconds = total * (time.perf_counter() - began) / done
    return seconds if seconds > more_than else None
