"""Show where the time of a training step goes, by kind of operator.

    python scripts/bench/operators.py [--steps 3] [--top 12] [--threads 2] [OVERRIDE ...]

The step is that of `transfer pretrain` at the size of the tutorial's model, 8 x 256 tokens, unless
overrides say otherwise (`model=tiny loop.batch=4`). Times are the operators' own, of all threads
that wait for each other together: they add up to the time of a step.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measuring
import pretrain
import product

KINDS: dict[str, tuple[str, ...]] = {
    # the first that fits a name has it
    "attention": ("scaled_dot_product", "flash"),
    "matrix products": ("mm", "bmm", "addmm"),
    "random numbers": ("bernoulli", "random", "rand", "dropout"),
    "optimizer and clipping": ("adam", "foreach", "norm_except", "linalg_vector_norm"),
    "norms": ("layer_norm",),
    "activation": ("relu", "gelu", "threshold", "clamp_min"),
    "loss, without its products": ("exp", "log", "amax", "scatter", "gather", "div"),
    "sums of biases' gradients": ("sum",),
    "copies and fills": ("copy", "cat", "fill", "zero", "index", "clone", "embedding"),
    "other sums and products of elements": ("add", "mul", "sub", "ge", "where"),
}


def own_times(words: Sequence[str], steps: int) -> dict[str, tuple[int, float]]:
    """Return how often each operator is called in a step, and its own seconds."""
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, tuple[int, float]] = {}

    def body(step: Callable[..., Any], batch_of: Callable[[int], Any]) -> None:
        for number in range(2):
            step(batch_of(number), number)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for number in range(2, 2 + steps):
                step(batch_of(number), number)
        for event in seen.key_averages():
            seconds = event.self_cpu_time_total / 1e6 / steps
            found[event.key] = (event.count // steps, seconds)

    product.in_place_of_engine(words, body)
    return found


def kind_of(operator: str) -> str:
    """Return the kind that an operator is of."""
    if not operator.startswith("aten::"):
        return "Python and autograd between operators"
    name = operator.removeprefix("aten::").strip("_")
    for kind, marks in KINDS.items():
        if any(mark in name for mark in marks):
            return kind
    return "the rest"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the profile from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--top", type=int, default=12, help="operators to list")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    asked = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    size = pretrain.TUTORIAL
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        tokens = 40 * size["batch"] * size["length"]
        material = product.make_material(Path(folder), size["vocabulary"], tokens)
        os.environ |= material.env
        words = [*pretrain.model_words(size), *material.words, *product.UNDISTURBED]
        times = own_times([*words, *asked.overrides], asked.steps)
    total = sum(seconds for _, seconds in times.values())
    kinds: dict[str, float] = {}
    for name, (_, seconds) in times.items():
        kinds[kind_of(name)] = kinds.get(kind_of(name), 0.0) + seconds
    rows = [["kind of operator", "s a step", "share"]]
    rows += [
        [kind, f"{seconds:.3f}", f"{seconds / total:.1%}"]
        for kind, seconds in sorted(kinds.items(), key=lambda item: -item[1])
    ]
    print(f"{total:.2f} s a step\n\n{measuring.table(rows)}\n")
    rows = [["operator", "calls a step", "s a step", "share"]]
    slowest = sorted(times.items(), key=lambda item: -item[1][1])[: asked.top]
    rows += [
        [name, str(calls), f"{seconds:.3f}", f"{seconds / total:.1%}"]
        for name, (calls, seconds) in slowest
    ]
    print(measuring.table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
