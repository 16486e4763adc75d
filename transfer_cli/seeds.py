"""Random seeds as pure functions of the run's seed and a purpose.

A run has no random generator with state. Order, masking and dropout come from
`(run seed, purpose, step, ...)`. So a resumed run needs no random state, and an extra evaluation
changes nothing in training.

Legend: B examples, T positions.
"""

import hashlib

import torch
from torch import Tensor


def derive(seed: int, *parts: str | int) -> int:
    """Return a seed in [0, 2**63) for the purpose in `parts`.

    Equal arguments give equal seeds on every machine, other arguments unrelated seeds.
    """
    text = "/".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class ExampleNoise:
    """Random numbers of each example, independent of the other examples in its batch.

    Training passes the step in `parts`, so that each visit to an example masks other tokens.
    Evaluation does not, so that two evaluations of the same weights agree exactly.

    Args:
        seed: The run's seed.
        parts: The purpose, for example `("train", 120)`.
    """

    def __init__(self, seed: int, *parts: str | int) -> None:
        self._run_seed = seed
        self._seed = derive(seed, "noise", *parts)

    def for_copy(self, number: int) -> "ExampleNoise":
        """Return the numbers of a copy of the examples: of the run's seed, and of no step."""
        return ExampleNoise(self._run_seed, "copy", number)

    def uniform(self, index_B: Tensor, length: int, channels: int, *, part: int = 0) -> Tensor:
        """Return uniform numbers in [0, 1), `[B, length, channels]`, on the CPU.

        A longer `length` extends the numbers of a shorter one: padding does not change them. Of an
        example of several sequences each is a `part` with numbers of its own.
        """
        generator = torch.Generator()
        rows = []
        for index in index_B.tolist():
            generator.manual_seed(derive(self._seed, index, *([part] if part else ())))
            rows.append(torch.rand(length, channels, generator=generator))
        return torch.stack(rows)
