"""What the steps of a planned run will take in floating-point operations (`engine.cost`)."""

from collections.abc import Sequence

import torch

from transfer_cli.assembly.blueprint import Blueprint, has_fixed_features
from transfer_cli.engine.cost import Amounts, Prices, amounts_of_texts, flops_of, prices_of
from transfer_cli.objectives.language_model import LanguageModel
from transfer_cli.objectives.replaced_tokens import ReplacedTokens
from transfer_cli.report import formats
from transfer_cli.seeds import ExampleNoise


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
    if isinstance(main, LanguageModel | ReplacedTokens):
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
