"""Measure how the speed of training grows and falls with the sizes of a model and its batches.

    python scripts/bench/growth.py [--rounds N] [--threads 2] [--quick] [--json FILE]

Tokens a second of the training step of `transfer pretrain`, over the length of the sequences (with
the same number of tokens), the batch, the width and the depth. Beside it stands the share of the
machine's matrix products that the model's arithmetic comes to: model FLOPs a second over those of
the fastest of many large float32 products, measured between the steps.
"""

import argparse
import ctypes
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import Figure, Report, Variant

SQUARE = 2048
"""Rows of the product that stands for what the machine can do."""


@dataclass(frozen=True)
class Setting:
    """A model and its batches.

    Args:
        width: Of the states between blocks; heads have 64 of it, the feed-forward part 4 times it.
        depth: Blocks.
        length: Tokens of a sequence.
        batch: Sequences of a step.
        vocabulary: Tokens.
    """

    width: int = 256
    depth: int = 4
    length: int = 256
    batch: int = 8
    vocabulary: int = 8192

    @property
    def name(self) -> str:
        """What sets it apart, in words."""
        return f"width {self.width}, depth {self.depth}, {self.batch} x {self.length} tokens"

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.length * self.batch

    def flops_per_token(self) -> int:
        """Return what training on one token takes of floating-point operations."""
        sizes = self.width, self.depth, 4 * self.width, self.vocabulary
        return flops_per_token(*sizes, self.length)

    def words(self) -> list[str]:
        """Return the overrides that make `transfer` train this."""
        return [
            "model=small",
            f"model.width={self.width}",
            f"model.heads={self.width // 64}",
            f"model.feedforward={4 * self.width}",
            f"model.depth={self.depth}",
            f"model.positions={self.length}",
            f"loop.batch={self.batch}",
        ]


CENTER = Setting()
GROWTH: dict[str, list[Setting]] = {
    "length": [replace(CENTER, length=n, batch=CENTER.tokens // n) for n in (128, 256, 512, 1024)],
    "batch": [replace(CENTER, batch=n) for n in (2, 8, 32)],
    "width": [replace(CENTER, width=n) for n in (128, 256, 512, 768)],
    "depth": [replace(CENTER, depth=n) for n in (2, 4, 8, 16)],
}
"""Each dimension alone, from one setting in the middle."""

_TRIAL = Setting(width=64, depth=1, length=32, batch=4, vocabulary=500)
TRIAL = {"length": [_TRIAL, replace(_TRIAL, length=64, batch=2)]}


def flops_per_token(width: int, depth: int, feedforward: int, vocabulary: int, length: int) -> int:
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

    shape = BackboneShape(width, width // 64, depth, feedforward, length, direction="causal")
    with without_weights():
        head = LanguageModelHead(shape, vocabulary)
        model = TransferModel(Backbone(shape, vocabulary), {"lm": head})
    return training_flops(model, length)


# -------------------------------------------------------------------------------------- worker


def train(arrive: measuring.Gate, runs: Sequence[Sequence[str]], steps: int) -> None:
    """Take `steps` steps of each of some runs, one run after the other.

    Every other turn is a step. Those between are worth nothing themselves: a large product of
    matrices, of which `square_flops` is noted, and what the next run begins with.
    """
    for words in runs:

        def body(step: Callable[..., Any], batch_of: Callable[[int], Any]) -> None:
            _forget_the_run_before()
            arrive.rebase()
            step(batch_of(0), 0)
            for number in range(1, steps + 1):
                arrive()
                step(batch_of(number), number)
                arrive()
                arrive.note(square_flops=_square_flops())

        product.in_place_of_engine(words, body)
    arrive()


def _forget_the_run_before() -> None:
    """Give back the memory that the run before has left, so that a peak is that of its own run."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _square_flops() -> float:
    """Return the floating-point operations a second of a large product, the faster of two."""
    import torch

    x, y = torch.randn(SQUARE, SQUARE), torch.randn(SQUARE, SQUARE)
    out = torch.mm(x, y)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        torch.mm(x, y, out=out)
        seconds.append(time.perf_counter() - began)
    return 2 * SQUARE**3 / min(seconds)


# -------------------------------------------------------------------------------- who measures


def growth(asked: argparse.Namespace, folder: Path) -> Report:
    """Measure every setting once, however many dimensions it stands in."""
    dimensions = TRIAL if asked.quick else GROWTH
    settings = list(dict.fromkeys(s for group in dimensions.values() for s in group))
    steps = asked.rounds or (2 if asked.quick else 3)
    tokens = (steps + 2) * max(s.tokens for s in settings)
    material = product.make_material(folder, settings[0].vocabulary, tokens)
    runs = [[*s.words(), *material.words, *product.UNDISTURBED] for s in settings]
    options = {"runs": runs, "steps": steps}
    variant = Variant("growth", "growth", "train", options, env=material.env)
    [all_turns] = measuring.take_turns(
        [variant], rounds=2 * steps * len(runs), unmeasured=0, threads=asked.threads
    )
    figures: dict[Setting, Figure] = {}
    peak = 0.0
    for number, setting in enumerate(settings):
        turns = all_turns.samples[2 * steps * number : 2 * steps * (number + 1)]
        figures[setting] = Figure.of(setting.name, turns[::2])
        peak = max(peak, *(turn.notes["square_flops"] for turn in turns[1::2]))
    rows = [["over", "", "batch", "tokens/s", "GFLOP/token", "MFU %", "peak MiB", "note"]]
    for name, group in dimensions.items():
        rows += [_row(name, s, figures[s], peak) for s in group]
    notes = [
        f"MFU is of {peak / 1e9:,.0f} GFLOP/s, the fastest product of squares of {SQUARE:,} in "
        "float32 that was seen between the steps.",
        f"Where nothing else is said: width {settings[0].width}, depth {settings[0].depth}, "
        f"vocabulary {settings[0].vocabulary:,}, {settings[0].tokens:,} tokens a step.",
    ]
    return Report("Growth of a training step", list(figures.values()), rows=rows, notes=notes)


def _row(name: str, setting: Setting, figure: Figure, peak: float) -> list[str]:
    speed = setting.tokens / figure.wall_s
    flops = setting.flops_per_token()
    return [
        name,
        str(getattr(setting, name)),
        f"{setting.batch} x {setting.length}",
        f"{speed:,.0f}",
        f"{flops / 1e9:.3g}",
        f"{100 * speed * flops / peak:.1f}",
        f"{figure.peak_mib:,.0f}",
        "disturbed" if figure.disturbed else "",
    ]


def reports(asked: argparse.Namespace) -> list[Report]:
    """Measure growth."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return [growth(asked, Path(folder))]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    asked = measuring.parser(__doc__).parse_args(argv)
    measuring.show(reports(asked), asked)


if __name__ == "__main__":
    main()
