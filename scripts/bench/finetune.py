"""Compare ways to fine-tune on TREC's questions, in CPU seconds of an epoch.

    python scripts/bench/finetune.py

A model of the tutorial's size with random weights (speed does not depend on them) adapts to the
real questions in batches of 16: the tutorial's way, which pads all to the longest and computes the
loss of the language model for nothing; `transfer finetune`, with batches of texts of like length
and with any; with a frozen backbone; and with the states of that computed once. A way takes steps
that are spread over the lengths of an epoch's batches, and the mean step times the number of steps
is the epoch. At last the test questions are scored, from short to long and as they lie.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import Command, Figure, Gate, Goal, Report, Variant

TUTORIAL = {**product.TUTORIAL, "length": 64, "batch": 1}
"""More positions than the longest question has tokens; the tutorial's 256 would change nothing."""
TRIAL = {**product.TRIAL, "vocabulary": 12_000, "length": 64, "batch": 1}
BATCH, EPOCHS, LABELS = 16, 3, 6

FEW_LABELLED = 320
"""Questions of the run whose states are kept: its steps take as long with few as with all."""
CACHED_STEPS = 50
"""Steps of a turn, where one takes a millisecond or two."""

TUTORIALS = "the tutorial's way"
FULL = "transfer, everything trains"
FROZEN = "transfer, frozen backbone"
STATES = "states of the frozen backbone, once"
CACHED = "transfer, states kept"
FREEZE = ("adaptation=frozen", "loop.cache_features=false", "loop.bucket=true")
WAYS: dict[str, tuple[str, Sequence[str]]] = {
    "the same, batches of any lengths": ("take_steps", ["loop.bucket=false"]),
    FULL: ("take_steps", ["loop.bucket=true"]),
    FROZEN: ("take_steps", FREEZE),
    STATES: ("compute_states", FREEZE),
}


# ------------------------------------------------------------------------------------- workers


def take_steps(arrive: Gate, words: Sequence[str], timed: int) -> None:
    """Take the steps of `transfer finetune WORDS` whose batches are spread over the lengths."""

    def body(step: Callable[[int], Any], loader: Any) -> None:
        number_of_steps = loader.streams["main"].sampler.steps_per_epoch
        sizes = [
            sum(micro["main"]["tokens"].numel() for micro in loader.load(number))
            for number in range(number_of_steps)
        ]
        for number in _spread_by_size(sizes, timed):
            arrive.note(steps=number_of_steps, tokens=sum(sizes))
            arrive()
            step(number)

    product.replace_engine(words, body)


def compute_states(arrive: Gate, words: Sequence[str], timed: int) -> None:
    """Compute the states of portions of the questions, spread over the lengths, to be kept."""
    import numpy as np

    from transfer_cli.batch import micro_batches
    from transfer_cli.engine.features.cached import CachedFeatures

    parts = product.build_finetuning(words)
    data, lengths = parts.streams["main"].data, parts.data.lengths
    portions = micro_batches(np.argsort(lengths, kind="stable"), BATCH)
    sizes = [int(len(portion) * lengths[portion].max()) for portion in portions]
    for number in _spread_by_size(sizes, timed):
        arrive.note(steps=len(portions), tokens=sum(sizes))
        arrive()
        subset = _Subset(data, portions[number])
        CachedFeatures(subset, parts.model, parts.blueprint.precision, batch=BATCH, layers=(-1,))


@dataclass(frozen=True)
class _Subset:
    """A few examples of a data set, as a data set."""

    data: Any
    chosen: Any

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, indices: Any) -> Any:
        return self.data.batch(self.chosen[indices])


def score(arrive: Gate, words: Sequence[str], *, in_order: bool) -> None:
    """Score the test questions."""
    from dataclasses import replace

    from transfer_cli.engine.evaluation import evaluate

    parts = product.build_finetuning(words)
    split = parts.data.splits["test"]
    scored = split if in_order else replace(split, order=None)
    objective = parts.blueprint.network.losses[0].objective
    while True:
        arrive()
        evaluate(parts.model, objective, scored, batch=BATCH, precision=parts.blueprint.precision)


def _spread_by_size(sizes: Sequence[int], timed: int) -> Iterator[int]:
    """Yield numbers from small to large, again and again; a middling one first, as a warm-up."""
    ranked = sorted(range(len(sizes)), key=sizes.__getitem__)
    yield ranked[len(ranked) // 2]
    yield from itertools.cycle(
        ranked[(2 * number + 1) * len(ranked) // (2 * timed)] for number in range(timed)
    )


# -------------------------------------------------------------------------------------- ways


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Write a checkpoint whose tokenizer has a token for each word, and measure training on it."""
    size = TRIAL if args.quick else TUTORIAL
    texts = [question.split() for _, question in product.read_trec(args.data_dir)["train"]]
    known = sorted({word for text in texts for word in text})
    material = product.make_material(folder, size["vocabulary"], 2000, known)
    pretrain = [
        "model=tutorial", *product.model_overrides(size), *material.words, *product.ENDLESS_ON_CPU,
        "loop.steps=1", f"run.dir={folder / 'start'}",
    ]  # fmt: skip
    command = Command("checkpoint", measuring.transfer_command("pretrain", *pretrain), material.env)
    measuring.run_once(command, threads=args.threads)
    words = [
        "data=trec6", f"data_dir={args.data_dir}", f"init_from={folder / 'start'}",
        f"loop.batch={BATCH}", f"run.root={folder / 'runs'}", *product.ENDLESS_ON_CPU,
    ]  # fmt: skip
    lengths = [len(text) + 1 for text in texts]
    yield compare_training(args, words, material.env, lengths, size)
    yield compare_scoring(args, words, material.env)


def compare_training(
    args: argparse.Namespace, words: list[str], env: dict[str, str], lengths: list[int],
    size: dict[str, int],
) -> Report:  # fmt: skip
    """Measure an epoch of every way."""
    longest, timed = max(lengths), max(2, args.rounds)
    tutorial = {"size": {**size, "length": longest, "batch": BATCH}, "lengths": lengths}
    variants = [Variant(TUTORIALS, "peers", "tutorial_classifier", {**tutorial, "labels": LABELS})]
    for name, (function, more) in WAYS.items():
        options = {"words": [*words, *more], "timed": timed}
        variants.append(Variant(name, "finetune", function, options, env=env))
    figures = measuring.take_turns(variants, rounds=timed, threads=args.threads)
    keep = [*words, "adaptation=frozen", "loop.bucket=true", f"data.labelled={FEW_LABELLED}"]
    options = {"words": keep, "command": "finetune"}
    whole = Variant(CACHED, "product", "train", options, env=env)
    figures += measuring.take_turns([whole], rounds=5, steps=CACHED_STEPS, threads=args.threads)
    number = -(-len(lengths) // BATCH)
    rows = [["way", "steps", "tokens", "real", "wall s", "CPU s", "of the tutorial's"]]
    cpu: dict[str, float] = {}
    for figure in figures:
        plain = {"steps": number, "tokens": len(lengths) * longest * (figure.name == TUTORIALS)}
        noted = figure.samples[-1].notes or plain
        wall, cpu[figure.name] = (noted["steps"] * _mean(figure, of) for of in ("wall_s", "cpu_s"))
        tokens = int(noted["tokens"])
        rows.append([
            figure.name, f"{noted['steps']:.0f}", f"{tokens:,}",
            f"{sum(lengths) / tokens:.0%}" if tokens else "", f"{wall:.4g}",
            f"{cpu[figure.name]:.4g}", f"{cpu[figure.name] / cpu[TUTORIALS]:.3g}",
        ])  # fmt: skip
    cached_s = cpu[STATES] + EPOCHS * cpu[CACHED]
    goals = [
        Goal("CPU time, everything trains, over the tutorial's", cpu[FULL] / cpu[TUTORIALS], 0.27),
        Goal(
            f"{EPOCHS} epochs: CPU time where everything trains over that with states kept",
            EPOCHS * cpu[FULL] / cached_s, 9.0, at_most=False,
        ),
    ]  # fmt: skip
    notes = [
        f"{len(lengths):,} questions of {statistics.fmean(lengths):.1f} tokens, the longest "
        f"{longest}; batches of {BATCH}; a line is an epoch, from {timed} steps each.",
        f"{EPOCHS} epochs in CPU seconds: everything trains {EPOCHS * cpu[FULL]:.3g}; frozen "
        f"{EPOCHS * cpu[FROZEN]:.3g}; states kept, with the time to compute them, {cached_s:.3g}.",
    ]
    return Report("An epoch of TREC", figures, goals, rows, notes)


def _mean(figure: Figure, of: str) -> float:
    """Return the mean step of a figure: its steps are of all lengths, so no median."""
    return statistics.fmean(getattr(turn, of) for turn in figure.samples)


def compare_scoring(args: argparse.Namespace, words: list[str], env: dict[str, str]) -> Report:
    """Measure one pass over the test questions."""
    names = {"the test questions, from short to long": True, "as they lie": False}
    ways = [
        Variant(name, "finetune", "score", {"words": words, "in_order": in_order}, env=env)
        for name, in_order in names.items()
    ]
    figures = measuring.take_turns(ways, rounds=1, unmeasured=0, threads=args.threads)
    in_order, as_they_lie = figures
    gain = measuring.ratio(in_order, as_they_lie, "cpu_s")
    notes = [f"One pass, each question once: sorted, it takes {gain:.3g} x the CPU time."]
    return Report("Scoring the test questions", figures, notes=notes)


if __name__ == "__main__":
    measuring.main(__doc__, measure, rounds=6)
