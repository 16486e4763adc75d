"""How large a model and how long a run a budget pays for: `budget=10min`, `2h`, `1e17flop`.

Pure functions of numbers: what a token of each depth costs, in seconds or operations, is measured
elsewhere (`training.budgeted`).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from transfer_cli.errors import ConfigError

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\+?\d+)?) ?(s|min|h|flop)")
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "flop": 1.0}

REPEAT_DECAY = 15.387756
"""R*_D of Muennighoff et al. 2023 (equation 5, as fitted there): how often a text can be read again
until a further time is worth 1/e of the first."""

EPOCHS_WORTH_NEW = 4
"""So many epochs are nearly worth new text (Muennighoff et al. 2023, section 6)."""

FORWARD_COST = 1 / 3
"""What a token that is scored costs of one that is trained on."""


LAW_VOCABULARY, LESS_POWER, MORE_POWER = 4096, 0.185, 0.105
"""The vocabulary of the runs that `dial.law` is fitted to, and the powers by which the loss a token
grows below it and above, as tokens get longer: ours, of 1,024 and 8,192 (docs/scaling_laws.md)."""


@dataclass(frozen=True)
class Budget:
    """What a run may cost, in seconds or in floating-point operations."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read "90s", "10min", "2h" or "1e17flop"."""
        match = _AMOUNT.fullmatch(text.strip())
        amount = 0.0 if match is None else float(match[1]) * _UNITS[match[2]]
        if match is None or not 0 < amount < math.inf:
            raise ConfigError(f"budget: {text!r} is none; write it as 10min, 2h or 1e17flop")
        return cls(amount, "flop" if match[2] == "flop" else "s")


@dataclass(frozen=True)
class Law:
    """The loss of n parameters after d tokens: ((N / n)^(alpha / beta) + D / d)^beta.

    The parameters are without embeddings. What there is too little of decides almost alone: with
    few tokens size hardly helps (Kaplan et al. 2020, equation 1.5).
    """

    N: float
    alpha: float
    D: float
    beta: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ConfigError(f"dial.law.{name}: must be a number above 0, got {value!r}")

    def __call__(self, parameters: float, tokens: float) -> float:
        """Return the loss, in nats a token; infinity where it is beyond all numbers."""
        try:
            of_size = (self.N / parameters) ** (self.alpha / self.beta)
            return float((of_size + self.D / max(tokens, 1.0)) ** self.beta)
        except OverflowError:
            return math.inf


@dataclass(frozen=True)
class Corpus:
    """The tokens of a text to train on, and of what is scored after each epoch and at the end."""

    tokens: float
    scored: float = 0.0


@dataclass(frozen=True)
class PlannedRun:
    """A depth, how many tokens its run reads, and the loss that is foreseen.

    Args:
        effective_tokens: As how many tokens that are read once these count.
    """

    depth: int
    tokens: float
    effective_tokens: float
    loss: float


def vocabulary_factor(size: int) -> float:
    """Return how the loss a token of a vocabulary compares with that of `LAW_VOCABULARY`."""
    share = size / LAW_VOCABULARY
    return math.pow(share, LESS_POWER if share < 1 else MORE_POWER)


def effective_tokens(tokens: float, unique: float) -> float:
    """Return as how many tokens that are read once some count, of a text of so many `unique` ones.

    Muennighoff et al. 2023, equation 5: U + U R* (1 - exp(-R / R*)), R being the repeats.
    """
    if tokens <= unique:
        return tokens
    repeats = tokens / unique - 1
    return unique * (1 + REPEAT_DECAY * (1 - math.exp(-repeats / REPEAT_DECAY)))


def affordable_tokens(amount: float, cost: float, corpus: Corpus) -> float:
    """Return how many tokens of cost `cost` a run reads for an amount; 0 for none.

    What is scored is paid for after each epoch, and once more at the end.
    """
    scoring = FORWARD_COST * cost * corpus.scored
    return max(0.0, (amount - scoring) / (cost + scoring / corpus.tokens))


def interpolate_costs(costs: Mapping[int, float]) -> dict[int, float]:
    """Return the cost of a token of all depths between those where it is known.

    It grows with a power of the depth from each known one to the next.
    """
    all_costs = dict(costs)
    for low, high in pairwise(sorted(costs)):
        power = math.log(costs[high] / costs[low]) / math.log(high / low)
        for depth in range(low + 1, high):
            all_costs[depth] = costs[low] * (depth / low) ** power
    return all_costs


def scale_costs(costs: Mapping[int, float], sizes: Mapping[int, float]) -> dict[int, float]:
    """Return the cost of a token of each depth: the known one, or by size from the nearest known.

    So it is on a GPU that is given whole passes at once, by compiled graphs.
    """
    nearest = {depth: min(costs, key=lambda known: abs(known - depth)) for depth in sizes}
    return {depth: costs[near] * sizes[depth] / sizes[near] for depth, near in nearest.items()}


def affordable_runs(
    amount: float,
    costs: Mapping[int, float],
    parameters: Mapping[int, float],
    corpus: Corpus,
    law: Callable[[float, float], float],
) -> Sequence[PlannedRun]:
    """Return what an amount pays for at each depth, the lowest foreseen loss first."""
    runs = []
    for depth, cost in sorted(costs.items()):
        tokens = affordable_tokens(amount, cost, corpus)
        if tokens >= 1:
            effective = effective_tokens(tokens, corpus.tokens)
            loss = law(parameters[depth], effective)
            runs.append(PlannedRun(depth, tokens, effective, loss))
    return sorted(runs, key=lambda run: run.loss)
