"""Compare ways to fine-tune on TREC's questions, in CPU seconds of an epoch.

    python scripts/bench/finetune.py [--data-dir DIR] [--threads 2] [--rounds N] [--quick]
        [--json FILE]

A model of the tutorial's size with random weights (speed does not depend on them) adapts to the
real questions in batches of 16: the tutorial's way, which pads all to the longest and computes the
loss of the language model for nothing; `transfer finetune`, with batches of texts of like length
and with any; with a frozen backbone; and with the states of that computed once. A way takes steps
that are spread over the lengths of an epoch's batches, and the mean step times the number of steps
is the epoch. At last the test questions are scored, from short to long and as they lie.

The questions are looked for in DIR and fetched if they are not there.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import Figure, Gate, Goal, Report, Variant

TUTORIAL = {"width": 410, "heads": 10, "depth": 16, "feedforward": 2100, "vocabulary": 28_996}
TRIAL = {"width": 20, "heads": 2, "depth": 2, "feedforward": 32, "vocabulary": 12_000}
BATCH, EPOCHS, LABELS = 16, 3, 6
POSITIONS = 64
"""More than the longest question has tokens; the tutorial's 256 would change nothing."""

FEW_LABELLED = 320
"""Questions of the run whose states are kept: its steps take as long with few as with all."""
CACHED_STEPS = 50
"""Steps of a turn, where one takes a millisecond or two."""

TUTORIALS = "the tutorial's way"
FULL = "transfer, everything trains"
UNBUCKETED = "the same, batches of any lengths"
FROZEN = "transfer, frozen backbone"
STATES = "states of the frozen backbone, once"
CACHED = "transfer, states kept"
SORTED = "the test questions, from short to long"
UNSORTED = "the test questions, as they lie"


@dataclass(frozen=True)
class Material:
    """What all ways start from.

    Args:
        folder: Where the checkpoint and the caches are.
        size: The model's.
        words: Overrides of every `transfer finetune`.
        env: Its environment.
        lengths: Of the training questions, in tokens.
    """

    folder: Path
    size: dict[str, int]
    words: list[str]
    env: dict[str, str]
    lengths: list[int]


def make(asked: argparse.Namespace, folder: Path) -> Material:
    """Write a checkpoint whose tokenizer has a token for each word of the questions."""
    size = TRIAL if asked.quick else TUTORIAL
    made = product.make_material(folder, size["vocabulary"], tokens=2000)
    data = asked.data_dir or os.environ.get("TRANSFER_DATA", "~/.cache/transfer")
    find = _output(_FIND, str(data), env=made.env)
    lengths = json.loads(find)["lengths"]
    _name_words(folder / "tokenizer.json", json.loads(find)["words"])
    pretrain = [
        *("pretrain", "model=tutorial", *model_words(size), *made.words, *product.UNDISTURBED),
        *("loop.steps=1", "loop.batch=1", f"run.dir={folder / 'start'}"),
    ]
    words = [sys.executable, "-m", "transfer_cli", *pretrain]
    measuring.once(measuring.Command("checkpoint", words, made.env), threads=asked.threads)
    finetune = [
        *("data=trec6", f"data_dir={data}", f"init_from={folder / 'start'}"),
        *(f"loop.batch={BATCH}", f"run.root={folder / 'runs'}", *product.UNDISTURBED),
    ]
    return Material(folder, size, finetune, made.env, lengths)


def model_words(size: dict[str, int]) -> list[str]:
    """Return the overrides that give the tutorial's model another size."""
    named = [f"model.{name}={size[name]}" for name in ("width", "heads", "depth", "feedforward")]
    return [*named, f"model.positions={POSITIONS}"]


_FIND = """
import json, sys
from pathlib import Path
from transfer_cli.data.tasks import Trec
found = Trec().load(Path(sys.argv[1]).expanduser(), seed=0)
texts = [example.text.split() for example in found.splits["train"]]
words = sorted({word for text in texts for word in text})
print(json.dumps({"words": words, "lengths": [len(text) + 1 for text in texts]}))
"""


def _output(code: str, *words: str, env: dict[str, str]) -> str:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(  # noqa: S603 - our own words
        command, env={**os.environ, **env}, capture_output=True, text=True, check=True
    ).stdout


def _name_words(path: Path, words: Sequence[str]) -> None:
    """Give words the tokens of made-up ones in a tokenizer; its size stays."""
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    free = [piece for piece in vocabulary if piece not in product.SPECIALS]
    wanted = [word for word in words if word not in vocabulary]
    for made_up, word in zip(free, wanted, strict=False):
        vocabulary[word] = vocabulary.pop(made_up)
    path.write_text(json.dumps(content))


# ------------------------------------------------------------------------------------- workers


def steps(arrive: Gate, words: Sequence[str], timed: int) -> None:
    """Take the steps of `transfer finetune WORDS` whose batches are spread over the lengths."""
    parts = _parts(words)
    stream = parts.streams["main"]
    number_of_steps = stream.sampler.steps_per_epoch
    batches = [stream.sampler.indices(number) for number in range(number_of_steps)]
    for number in _spread([_padded(parts, batch) for batch in batches], timed):
        arrive.note(steps=number_of_steps, tokens=sum(_padded(parts, each) for each in batches))
        arrive()
        parts.step([{"main": stream.data.batch(batches[number])}], number)


def states(arrive: Gate, words: Sequence[str], timed: int) -> None:
    """Compute the states of portions of the questions, spread over the lengths, to be kept."""
    import numpy as np

    from transfer_cli.data.sampler import micro_batches
    from transfer_cli.engine.features.cached import CachedFeatures

    parts = _parts(words)
    data = parts.streams["main"].data
    portions = micro_batches(np.argsort(parts.data.lengths, kind="stable"), BATCH)
    for number in _spread([_padded(parts, portion) for portion in portions], timed):
        arrive.note(steps=len(portions), tokens=sum(_padded(parts, each) for each in portions))
        arrive()
        some = _Some(data, portions[number])
        CachedFeatures(some, parts.model, parts.blueprint.precision, batch=BATCH, layers=(-1,))


@dataclass(frozen=True)
class _Some:
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

    parts = _parts(words)
    split = parts.data.splits["test"]
    asked = split if in_order else replace(split, order=None)
    objective = parts.blueprint.losses[0].objective
    while True:
        arrive()
        evaluate(parts.model, objective, asked, batch=BATCH, precision=parts.blueprint.precision)


def _parts(words: Sequence[str]) -> Any:
    """Return what `transfer finetune WORDS` is put together from."""
    from transfer_cli.assembly.run import build_run
    from transfer_cli.config import compose, flags

    return build_run(compose.compose("finetune", flags.parse(list(words))), "finetune")


def _padded(parts: Any, indices: Any) -> int:
    """Return how many tokens a batch has, with its padding."""
    lengths = parts.data.lengths[indices]
    return int(len(lengths) * lengths.max())


def _spread(sizes: Sequence[int], timed: int) -> Iterator[int]:
    """Yield numbers from small to large, again and again; a middling one first, as a warm-up."""
    ranked = sorted(range(len(sizes)), key=sizes.__getitem__)
    chosen = [ranked[(2 * each + 1) * len(ranked) // (2 * timed)] for each in range(timed)]
    yield ranked[len(ranked) // 2]
    yield from itertools.cycle(chosen)


# -------------------------------------------------------------------------------------- ways


def variants(made: Material, timed: int) -> list[Variant]:
    """Return the ways that take steps, or portions, of an epoch."""
    size = {**made.size, "length": max(made.lengths), "batch": BATCH}

    def ours(name: str, function: str, *words: str) -> Variant:
        options = {"words": [*made.words, *words], "timed": timed}
        return Variant(name, "finetune", function, options, env=made.env)

    frozen = ("adaptation=frozen", "loop.cache_features=false", "loop.bucket=true")
    tutorial = {"size": size, "lengths": made.lengths, "labels": LABELS}
    return [
        Variant(TUTORIALS, "peers", "tutorial_classifier", tutorial),
        ours(UNBUCKETED, "steps", "loop.bucket=false"),
        ours(FULL, "steps", "loop.bucket=true"),
        ours(FROZEN, "steps", *frozen),
        ours(STATES, "states", *frozen),
    ]


def cached(made: Material, asked: argparse.Namespace) -> Figure:
    """Measure a step of a whole `transfer finetune` that keeps states."""
    words = [
        *(*made.words, "adaptation=frozen", "loop.bucket=true"),
        f"data.labelled={FEW_LABELLED}",
    ]
    options = {"words": words, "command": "finetune"}
    variant = Variant(CACHED, "product", "pretrain", options, env=made.env, terminal=True)
    [figure] = measuring.take_turns([variant], rounds=5, steps=CACHED_STEPS, threads=asked.threads)
    return figure


@dataclass(frozen=True)
class Epoch:
    """What an epoch takes, worked out from a sample of its steps.

    Args:
        name: The way.
        steps: Its steps.
        tokens: With padding; 0 where that is another matter.
        wall_s: Of the epoch.
        cpu_s: The same.
    """

    name: str
    steps: int
    tokens: int
    wall_s: float
    cpu_s: float

    @classmethod
    def of(cls, figure: Figure, steps: int, tokens: int = 0) -> "Epoch":
        """Multiply the mean step of a figure: its steps are of all lengths, so no median."""
        wall = statistics.fmean(turn.wall_s / turn.steps for turn in figure.samples)
        cpu = statistics.fmean(turn.cpu_s / turn.steps for turn in figure.samples)
        return cls(figure.name, steps, tokens, steps * wall, steps * cpu)


def training(made: Material, asked: argparse.Namespace) -> Report:
    """Measure an epoch of every way."""
    timed = asked.rounds or (2 if asked.quick else 6)
    figures = measuring.take_turns(variants(made, timed), rounds=timed, threads=asked.threads)
    kept = cached(made, asked)
    examples = len(made.lengths)
    number = -(-examples // BATCH)
    epochs = {}
    for figure in figures:
        if figure.name == TUTORIALS:
            epochs[TUTORIALS] = Epoch.of(figure, number, examples * max(made.lengths))
        else:
            notes = figure.samples[-1].notes
            epochs[figure.name] = Epoch.of(figure, int(notes["steps"]), int(notes["tokens"]))
    epochs[CACHED] = Epoch.of(kept, number)
    base = epochs[TUTORIALS].cpu_s
    rows = [["way", "steps", "tokens", "real", "wall s", "CPU s", "of the tutorial's"]]
    for epoch in epochs.values():
        real = f"{sum(made.lengths) / epoch.tokens:.0%}" if epoch.tokens else ""
        rows.append(
            [
                epoch.name,
                f"{epoch.steps:,}",
                f"{epoch.tokens:,}" if epoch.tokens else "",
                real,
                f"{epoch.wall_s:.4g}",
                f"{epoch.cpu_s:.4g}",
                f"{epoch.cpu_s / base:.3g}",
            ]
        )
    once = epochs[STATES].cpu_s + EPOCHS * epochs[CACHED].cpu_s
    full = EPOCHS * epochs[FULL].cpu_s
    goals = [
        Goal("CPU time of the tutorial's way, everything trains", epochs[FULL].cpu_s / base, 0.27),
        Goal(
            f"{EPOCHS} epochs: CPU time where everything trains over that with states kept",
            full / once,
            9.0,
            at_most=False,
        ),
    ]
    notes = [
        f"{examples:,} questions of {statistics.fmean(made.lengths):.1f} tokens, the longest "
        f"{max(made.lengths)}; batches of {BATCH}; a line is an epoch, from {timed} steps each "
        f"(states kept: {5 * CACHED_STEPS} with engine and records).",
        f"{EPOCHS} epochs in CPU seconds: everything trains {full:.3g}; frozen "
        f"{EPOCHS * epochs[FROZEN].cpu_s:.3g}; states kept, with the time to compute them, "
        f"{once:.3g}.",
    ]
    return Report("An epoch of TREC", [*figures, kept], goals, rows, notes)


def scoring(made: Material, asked: argparse.Namespace) -> Report:
    """Measure one pass over the test questions."""
    ways = [
        Variant(
            name, "finetune", "score", {"words": made.words, "in_order": in_order}, env=made.env
        )
        for name, in_order in ((SORTED, True), (UNSORTED, False))
    ]
    figures = measuring.take_turns(ways, rounds=1, unmeasured=0, threads=asked.threads)
    gain = measuring.ratio(*figures, of="cpu_s")
    notes = [f"One pass, each question once: sorted, it takes {gain:.3g} x the CPU time."]
    return Report("Scoring the test questions", figures, notes=notes)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = measuring.parser(__doc__)
    parser.add_argument("--data-dir", type=Path, help="where TREC lies or is fetched to")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        made = make(asked, Path(folder))
        found = [training(made, asked), scoring(made, asked)]
    measuring.show(found, asked)


if __name__ == "__main__":
    main()
