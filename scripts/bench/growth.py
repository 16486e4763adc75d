"""Measure how the speed of training grows and falls with the sizes of a model and its batches.

    python scripts/bench/growth.py

Tokens a second of the training step of `transfer pretrain`, over the length of the sequences (with
the same number of tokens), the batch, the width and the depth. Beside it stands the share of the
machine's matrix products that the model's arithmetic comes to (MFU): model FLOPs a second over
those of the fastest of many large float32 products, measured between the steps.
"""

import argparse
import ctypes
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import Figure, Gate, Report, Variant

SQUARE = 2048
"""Rows of the product that stands for what the machine can do."""

Size = dict[str, int]
CENTER: Size = {"width": 256, "depth": 4, "length": 256, "batch": 8, "vocabulary": 8192}
GROWTH = {"length": (128, 256, 512, 1024), "batch": (2, 8, 32), "width": (128, 256, 512, 768),
          "depth": (2, 4, 8, 16)}  # fmt: skip
"""Each dimension alone, from one setting in the middle."""
TRIAL_CENTER: Size = {"width": 64, "depth": 1, "length": 32, "batch": 4, "vocabulary": 500}
TRIAL = {"length": (32, 64)}


def setting(center: Size, name: str, value: int) -> Size:
    """Return a setting with another value of one dimension, and as many tokens if it is length."""
    made = {**center, name: value}
    if name == "length":
        made["batch"] = center["batch"] * center["length"] // value
    return {**made, "heads": made["width"] // 64, "feedforward": 4 * made["width"]}


def flops_per_token(size: Size) -> int:
    """Return what training on one token takes of floating-point operations (`engine.cost`).

    A causal mask does not lessen it, by convention, and what is computed a second time to save
    memory does not count.

    Source: Chowdhery et al. 2022 (PaLM), appendix B; the six of Kaplan et al. 2020, section 2.1.
    """
    from transfer_cli.engine.cost import training_flops
    from transfer_cli.model.backbone import Backbone, BackboneShape
    from transfer_cli.model.heads import LanguageModelHead
    from transfer_cli.model.meta_device import without_weights
    from transfer_cli.model.transfer_model import TransferModel

    sizes = [size[name] for name in ("width", "heads", "depth", "feedforward", "length")]
    shape = BackboneShape(*sizes, direction="causal")
    with without_weights():
        head = LanguageModelHead(shape, size["vocabulary"])
        model = TransferModel(Backbone(shape, size["vocabulary"]), {"lm": head})
    return training_flops(model, size["length"])


def train(arrive: Gate, runs: Sequence[Sequence[str]], steps: int) -> None:
    """Take `steps` steps of each of some runs, one run after the other.

    Every other turn is a step. Those between are worth nothing themselves: a large product of
    matrices, of which `square_flops` is noted, and what the next run begins with.
    """

    def body(step: Callable[[int], Any], _: Any) -> None:
        gc.collect()  # the memory of the run before, so that a peak is that of its own run
        ctypes.CDLL(None).malloc_trim(0)
        arrive.rebase()
        step(0)
        for number in range(1, steps + 1):
            arrive()
            step(number)
            arrive()
            arrive.note(square_flops=_square_flops())

    for words in runs:
        product.in_place_of_engine(words, body)
    arrive()


def _square_flops() -> float:
    """Return the floating-point operations a second of a large product, the faster of two."""
    import torch

    x, y = torch.randn(SQUARE, SQUARE), torch.randn(SQUARE, SQUARE)
    out, seconds = torch.mm(x, y), []
    for _ in range(2):
        began = time.perf_counter()
        torch.mm(x, y, out=out)
        seconds.append(time.perf_counter() - began)
    return 2 * SQUARE**3 / min(seconds)


def measure(asked: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Measure every setting once, however many dimensions it stands in."""
    center, dimensions = (TRIAL_CENTER, TRIAL) if asked.quick else (CENTER, GROWTH)
    lines = [
        (name, n, setting(center, name, n)) for name, values in dimensions.items() for n in values
    ]
    settings = {str(size): size for _, _, size in lines}
    steps = max(2, asked.rounds)
    tokens = (steps + 2) * max(size["length"] * size["batch"] for size in settings.values())
    material = product.make_material(folder, center["vocabulary"], tokens)
    runs = [
        ["model=small", *product.model_words(size), *material.words, *product.UNDISTURBED]
        for size in settings.values()
    ]
    worker = Variant("growth", "growth", "train", {"runs": runs, "steps": steps}, env=material.env)
    [figure] = measuring.take_turns(
        [worker], rounds=2 * steps * len(runs), unmeasured=0, threads=asked.threads
    )
    turns = figure.samples
    peak = max(turn.notes["square_flops"] for turn in turns[1::2])
    figures = {
        name: Figure.of(name, turns[2 * steps * number : 2 * steps * (number + 1) : 2])
        for number, name in enumerate(settings)
    }
    rows = [["over", "", "batch", "tokens/s", "GFLOP/token", "MFU %", "peak MiB", ""]]
    for name, value, size in lines:
        ours, flops = figures[str(size)], flops_per_token(size)
        speed = size["length"] * size["batch"] / ours.wall_s
        rows.append([
            name, str(value), f"{size['batch']} x {size['length']}", f"{speed:,.0f}",
            f"{flops / 1e9:.3g}", f"{100 * speed * flops / peak:.1f}", f"{ours.peak_mib:,.0f}",
            "disturbed" if ours.disturbed else "",
        ])  # fmt: skip
    notes = [f"MFU is of {peak / 1e9:,.0f} GFLOP/s. Where nothing else is said: {center}"]
    yield Report("Growth of a training step", list(figures.values()), rows=rows, notes=notes)


if __name__ == "__main__":
    measuring.main(__doc__, measure, rounds=3)
