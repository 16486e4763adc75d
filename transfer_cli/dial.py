"""The rules of `model=dial`: what a depth decides of a model and of its training.

Pure functions of numbers, the same on any machine, for `modern` blocks trained by Muon. Each says
where it is from; "ours" are measured in docs/scaling_laws.md, on 0.1M to 1.7M parameters. A value
that is typed goes into the rules that need it in place of their own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

WIDTH_PER_BLOCK = 32
"""Width a block. What a model learns hardly depends on it from 30 to 100 and more (Kaplan et al.
2020, section 3); with 32, depths 3 to 7 are 0.4M to 4.6M parameters, which a CPU trains."""

LARGE_DEPTH = 16
"""The depth from which heads are 64 wide, as GPUs multiply them fast; below they are 32."""

REFERENCE_WIDTH, REFERENCE_RATE, RATE_POWER = 64, 1.1e-2, 0.75
"""A width, the rate that did best there, and how it falls with the width: ours, of 64 to 160.

What a step of Muon changes in the output of a matrix grows with the root of its width alone."""

REFERENCE_TOKENS, REFERENCE_BATCH = 4e5, 2048
"""A length, and a batch in tokens near the best one there: ours; half of it does 0.03 nats better,
in twice the steps."""

BATCH_POWER = 0.383
"""How the best batch grows with the length of the run (Bergsma et al. 2025, section 4)."""


def width(depth: int) -> int:
    """Return the size of a hidden state: heads of equal width divide it."""
    step = WIDTH_PER_BLOCK if depth < LARGE_DEPTH else 128
    return max(step, step * round(WIDTH_PER_BLOCK * depth / step))


def heads(width: int) -> int:
    """Return the number of heads; a width that is no multiple of 32 has as many as divide it."""
    wide = 64 if width >= LARGE_DEPTH * WIDTH_PER_BLOCK else 32
    return math.gcd(width, max(1, width // wide)) if width % wide else width // wide


def feedforward(width: int) -> int:
    """Return the inner size of a gated feed-forward part, three widths as in `model=modern`."""
    return 3 * width


def parameters(depth: int, width: int, feedforward: int) -> int:
    """Return the weights of the blocks' matrices, without embeddings (Kaplan et al. 2020)."""
    return depth * width * (4 * width + 3 * feedforward)


def vocabulary(depth: int) -> str:
    """Return how `tokenizer.size` is chosen: by the text, and no larger than for such depths.

    A table is to be no larger than the blocks (see `data.tokenizer_recipes.vocabulary_size`), and
    the same for neighbouring depths, whose losses a token are then of the same tokens.
    """
    largest = 4096 if depth < 8 else 8192 if depth < LARGE_DEPTH else 32_768
    return f"auto:{largest}"


def tokens(
    parameters: int, ratio: float, steps: int | None, epochs: float | None, flops: float | None
) -> float | None:
    """Return how much text a run reads: 20 tokens a parameter (Hoffmann et al. 2022, table 3).

    None where the run is as long as something else says.
    """
    is_given = any(length is not None for length in (steps, epochs, flops))
    return None if is_given else float(math.ceil(ratio * parameters))


def batch(
    tokens: float | None, parameters: int, ratio: float, length: int | None, positions: int
) -> int:
    """Return the texts of a step: their tokens grow with the length of the run.

    They are a power of two from 1,024 to 524,288, or one and a half of it: with powers alone, a
    ladder's losses jump from depth to depth. A run whose length is given otherwise has that of its
    parameters.
    """
    reads = ratio * parameters if tokens is None else tokens
    exact = REFERENCE_BATCH * (reads / REFERENCE_TOKENS) ** BATCH_POWER
    exact = min(524_288.0, max(1024.0, exact))
    power = 1 << math.floor(math.log2(exact))
    sizes = (power, 3 * power // 2, 2 * power)
    nearest = min(sizes, key=lambda size: abs(math.log(exact / size)))
    return max(1, nearest // (length or positions))


def rate(width: int) -> float:
    """Return the peak rate, which falls as the width grows."""
    return float(f"{min(0.02, REFERENCE_RATE * (REFERENCE_WIDTH / width) ** RATE_POWER):.2g}")


WEIGHT_DECAY = 0.1
"""That of Liu et al. 2025; in short runs it changes little: ours."""

Value = int | float | str | None


@dataclass(frozen=True)
class DialRule:
    """What decides the value of a key.

    Args:
        needs: The keys whose values its function takes, in their order.
        why: In a few words, for a plan.
    """

    key: str
    function: Callable[..., Value]
    needs: tuple[str, ...]
    why: str


_LENGTH_KEYS = ("dial.parameters", "dial.tokens_per_parameter")

RULES = (
    DialRule("model.width", width, ("model.depth",), "32 a block (Kaplan et al. 2020)"),
    DialRule("model.heads", heads, ("model.width",), "heads of 32, from depth 16 on of 64"),
    DialRule("model.feedforward", feedforward, ("model.width",), "three widths, gated"),
    DialRule(
        "dial.parameters", parameters, ("model.depth", "model.width", "model.feedforward"),
        "without embeddings",
    ),
    DialRule(
        "tokenizer.size", vocabulary, ("model.depth",),
        "a token for 125 bytes of text, no larger than for such depths",
    ),
    DialRule(
        "loop.tokens", tokens, (*_LENGTH_KEYS, "loop.steps", "loop.epochs", "loop.flops"),
        "dial.tokens_per_parameter (20: Hoffmann et al. 2022)",
    ),
    DialRule(
        "loop.batch", batch, ("loop.tokens", *_LENGTH_KEYS, "data.length", "model.positions"),
        "tokens a step grow with those of the run (Bergsma et al. 2025; measured here)",
    ),
    DialRule(
        "optimizer.lr", rate, ("model.width",), "falls as the width grows; measured here"
    ),
    DialRule("optimizer.weight_decay", lambda: WEIGHT_DECAY, (), "Liu et al. 2025; measured here"),
)  # fmt: skip
"""Of each key, after those of the keys that it needs."""
