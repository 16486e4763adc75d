"""Show where the time of a training step goes, by kind of operator.

    python scripts/bench/operators.py [--rounds 3] [--top 12] [--threads 2] [--quick]
        [OVERRIDE ...]

The step is that of `transfer pretrain` at the size of the tutorial's model, 8 x 256 tokens, unless
overrides say otherwise (`model=tiny loop.batch=4`). Times are the operators' own, of all threads
that wait for each other together: they add up to the time of a step.
"""

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import Report

KINDS = {
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
    "the rest": ("",),
}


def measure(asked: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Profile some steps behind two others."""
    from torch.profiler import ProfilerActivity, profile

    seconds, calls = Counter[str](), Counter[str]()

    def body(step: Callable[[int], Any], _: Any) -> None:
        step(0)
        step(1)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for number in range(2, 2 + asked.rounds):
                step(number)
        for event in seen.key_averages():
            seconds[event.key] = event.self_cpu_time_total / 1e6 / asked.rounds
            calls[event.key] = event.count // asked.rounds

    words, material = product.sized(product.TRIAL if asked.quick else product.TUTORIAL, folder)
    os.environ |= {**material.env, "OMP_NUM_THREADS": str(asked.threads)}
    product.in_place_of_engine([*words, *asked.words], body)
    kinds = Counter[str]()
    for name, own_seconds in seconds.items():
        kinds[kind_of(name)] += own_seconds
    yield Report("Kinds of operators", rows=_rows(kinds, {}, len(kinds)))
    yield Report("Operators", rows=_rows(seconds, calls, asked.top))


def kind_of(operator: str) -> str:
    """Return the kind that an operator is of."""
    if not operator.startswith("aten::"):
        return "Python and autograd between operators"
    name = operator.removeprefix("aten::").strip("_")
    return next(kind for kind, marks in KINDS.items() if any(mark in name for mark in marks))


def _rows(seconds: Counter[str], calls: Mapping[str, int], most: int) -> list[list[str]]:
    total = seconds.total()
    rows = [["", "calls a step", "s a step", "share"], ["all", "", f"{total:.3f}", ""]]
    for name, own_seconds in seconds.most_common(most):
        rows.append(
            [name, str(calls.get(name, "")), f"{own_seconds:.3f}", f"{own_seconds / total:.1%}"]
        )
    return rows


if __name__ == "__main__":
    top = {"type": int, "default": 12, "help": "operators to list"}
    more = {"nargs": "*", "metavar": "OVERRIDE", "help": "of the run"}
    measuring.main(__doc__, measure, {"--top": top, "words": more}, rounds=3)
